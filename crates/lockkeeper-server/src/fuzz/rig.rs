//! Runs a target with a corpus and mutated copies of it, and monitors each input.
//!
//! An input fails if it panics, takes longer than [`HANG`], or makes the target allocate more memory than allowed.
//! With `LOCKKEEPER_FUZZ_DIR`, the file `TARGET` there contains the current input and is removed after success. So the
//! input is known even if the process ends abruptly, as after a stack overflow or a refused allocation.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time of one input; a ten thousandth of it is usual.
const HANG: Duration = Duration::from_secs(5);
/// Maximum address space of the process, for all inputs and the target's own data.
const ADDRESSES: u64 = 8 << 30;
/// Maximum number of inputs that are kept, and their maximum length.
const POOL: usize = 2_000;
const LONGEST: usize = 4_096;
/// Maximum bytes of found inputs that `cargo xtask fuzz --keep` writes into the repository for each target.
const KEPT: usize = 24 << 10;

/// One kind of input.
pub(super) struct Target {
    pub(super) name: &'static str,
    /// Number of inputs in plain `cargo test`.
    pub(super) inputs: u32,
    /// Maximum bytes that it may have allocated at once for one input, its own data included.
    pub(super) memory: u64,
    /// Returns how much more an input may have.
    pub(super) more: fn(&[u8]) -> u64,
    /// Returns where an input can be cut and joined so that its parts keep their meaning; empty means everywhere.
    pub(super) cuts: fn(&[u8]) -> Vec<usize>,
}

/// The options of `cargo xtask fuzz`.
struct Options {
    seed: u64,
    time: Option<Duration>,
    /// The directory for the current input.
    directory: Option<PathBuf>,
    /// The only input to run.
    replay: Option<PathBuf>,
    /// Whether new inputs are written into the repository.
    keep: bool,
}

impl Options {
    fn read() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let number = |name: &str| text(name).map(|text| text.parse::<u64>().unwrap());
        Self {
            seed: number("LOCKKEEPER_SEED").unwrap_or(1),
            time: number("LOCKKEEPER_FUZZ_SECONDS").map(Duration::from_secs),
            directory: text("LOCKKEEPER_FUZZ_DIR").map(PathBuf::from),
            replay: text("LOCKKEEPER_FUZZ_REPLAY").map(PathBuf::from),
            keep: text("LOCKKEEPER_FUZZ_KEEP").is_some(),
        }
    }
}

/// Returns whether the targets run for a time that was asked for, and not for a number of inputs.
pub(super) fn is_timed() -> bool {
    Options::read().time.is_some()
}

/// Runs a target on its corpus and on mutated copies. `one` returns the shape of the result of an input.
pub(super) fn fuzz(target: &Target, mut one: impl FnMut(&[u8]) -> u64) {
    let options = Options::read();
    let name = target.name;
    let replay = options.replay.as_ref().map(|file| fs::read(file).unwrap());
    let mut watchdog = Watchdog::start(name, &options);
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let mut pool = replay.clone().map_or_else(|| corpus(name), |input| vec![input]);
    let (mut shapes, mut count, mut most) = (HashSet::new(), 0_u32, 0);
    let seeds = pool.len();
    let began = Instant::now();
    loop {
        let at = count as usize;
        let input = if at < seeds { pool[at].clone() } else { mutated(&mut rng, &pool, target.cuts) };
        watchdog.begin(&input);
        let mut outcome = None;
        let taken = allocation_counter::measure(|| {
            outcome = Some(catch_unwind(AssertUnwindSafe(|| one(&input))));
        });
        let shape = outcome.unwrap().unwrap_or_else(|panic| {
            println!("{}", failure(name, &input, "panics"));
            resume_unwind(panic)
        });
        let held = taken.bytes_max;
        assert!(
            held <= target.memory + (target.more)(&input),
            "{}",
            failure(name, &input, &format!("allocates {held} bytes"))
        );
        most = most.max(held);
        if shapes.insert(shape) && at >= seeds {
            if pool.len() < POOL {
                pool.push(input);
            } else {
                // Late inputs go deeper, so they replace earlier ones; the inputs written by people stay.
                let place = rng.usize(seeds..POOL);
                pool[place] = input;
            }
        }
        count += 1;
        let over = options.time.map_or(count >= target.inputs, |time| began.elapsed() >= time);
        if (over || replay.is_some()) && count as usize >= seeds {
            break;
        }
    }
    watchdog.end();
    if options.time.is_some() {
        let (shapes, seed) = (shapes.len(), options.seed);
        print(&format!("{name}: {count} inputs, {shapes} shapes of outcome, {most} bytes at most, seed {seed}"));
    }
    if options.keep {
        keep(name, pool.split_off(seeds));
    }
}

/// Writes past the test runner's capture, which is for failures.
fn print(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn failure(target: &str, input: &[u8], what: &str) -> String {
    let escaped: String = input.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("{target}: an input of {} bytes {what}; it is: printf '{escaped}'", input.len())
}

/// Makes the current input known if it ends the process or never ends.
struct Watchdog {
    under_way: Arc<(Mutex<Vec<u8>>, AtomicU32)>,
    file: Option<(PathBuf, File)>,
    done: Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>,
}

impl Watchdog {
    fn start(target: &'static str, options: &Options) -> Self {
        let file = options.directory.as_ref().map(|directory| {
            // The process has no other target. An unbounded allocation is refused before the machine suffers.
            let limit = rustix::process::Rlimit { current: Some(ADDRESSES), maximum: Some(ADDRESSES) };
            rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
            fs::create_dir_all(directory).unwrap();
            let path = directory.join(target);
            let file = File::create(&path).unwrap();
            (path, file)
        });
        let under_way = Arc::new((Mutex::new(Vec::new()), AtomicU32::new(0)));
        let (done, ended) = mpsc::channel();
        let watched = Arc::clone(&under_way);
        let watcher = thread::spawn(move || {
            let mut before = 0;
            while ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
                let now = watched.1.load(Ordering::Relaxed);
                if now == before {
                    let input = watched.0.lock().unwrap();
                    print(&failure(target, &input, &format!("takes longer than {HANG:?}")));
                    // A thread cannot be stopped from outside, and its loop may be allocating memory.
                    std::process::abort();
                }
                before = now;
            }
        });
        Self { under_way, file, done: Some((done, watcher)) }
    }

    fn begin(&mut self, input: &[u8]) {
        if let Some((_, file)) = &mut self.file {
            use std::os::unix::fs::FileExt;
            file.write_all_at(input, 0).unwrap();
            file.set_len(input.len() as u64).unwrap();
        }
        let mut under_way = self.under_way.0.lock().unwrap();
        under_way.clear();
        under_way.extend_from_slice(input);
        self.under_way.1.fetch_add(1, Ordering::Relaxed);
    }

    fn end(mut self) {
        if let Some((path, _)) = &self.file {
            fs::remove_file(path).unwrap();
        }
        let (done, watcher) = self.done.take().unwrap();
        drop(done);
        watcher.join().unwrap();
    }
}

fn place(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(of)
}

/// Returns the inputs written by people, one per file, and the found ones, one per line in hexadecimal.
pub(super) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = place("corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "nothing in {}", directory.display());
    let written = files.into_iter().map(|file| fs::read(file).unwrap());
    let found = fs::read_to_string(place("found").join(target)).unwrap_or_default();
    let found = found.lines().map(|line| {
        let digits = (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16));
        digits.collect::<Result<Vec<_>, _>>().unwrap()
    });
    written.chain(found.collect::<Vec<_>>()).collect()
}

/// Adds the found inputs, the shortest first, up to the limit.
fn keep(target: &str, mut found: Vec<Vec<u8>>) {
    let path = place("found").join(target);
    let mut text = fs::read_to_string(&path).unwrap_or_default();
    found.sort_by_key(Vec::len);
    for input in found {
        let line: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        if text.len() + line.len() < KEPT {
            text += &line;
            text += "\n";
        }
    }
    fs::create_dir_all(place("found")).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns a mutated copy of one of the inputs.
fn mutated(rng: &mut fastrand::Rng, pool: &[Vec<u8>], cuts: fn(&[u8]) -> Vec<usize>) -> Vec<u8> {
    let place = |rng: &mut fastrand::Rng, input: &[u8]| match &cuts(input)[..] {
        cuts if !cuts.is_empty() && rng.u8(..4) > 0 => cuts[rng.usize(..cuts.len())],
        _ => rng.usize(..=input.len()),
    };
    let mut input = pool[rng.usize(..pool.len())].clone();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..=input.len());
        match rng.u8(..8) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = [0, 1, 2, 0x7f, 0x80, 0xff, b'/', rng.u8(..)][rng.usize(..8)],
            // Lengths, counts and codes are numbers of 32 bits.
            2 | 3 if at + 4 <= input.len() => {
                let len = i32::try_from(input.len()).unwrap();
                let number = [-1, 0, 1, 2, len, len - 4, i32::MAX, i32::MIN, rng.i32(-12..110), rng.i32(..)];
                input[at..at + 4].copy_from_slice(&number[rng.usize(..10)].to_be_bytes());
            }
            4 => input.truncate(at),
            5 => drop(input.drain(at..(at + rng.usize(..9)).min(input.len()))),
            6 => {
                let other = &pool[rng.usize(..pool.len())];
                let (at, from, to) = (place(rng, &input), place(rng, other), place(rng, other));
                let to = if to > from { to } else { (from + rng.usize(..65)).min(other.len()) };
                input.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let other = &pool[rng.usize(..pool.len())];
                let (at, from) = (place(rng, &input), place(rng, other));
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(LONGEST);
    input
}
