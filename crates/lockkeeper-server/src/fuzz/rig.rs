//! Feeds a target with a corpus and changed copies of it, and watches over each input.
//!
//! An input fails when it panics, takes longer than [`HANG`], or makes the target hold more memory than it may. With
//! `LOCKKEEPER_FUZZ_DIR` the input under way is always in a file there, `TARGET`, which is gone after a good end only: so also
//! what ends the process at once, as an exhausted stack or an allocation that is refused, leaves the input behind.

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

/// No input may keep the server busy for longer; a ten thousandth of it is usual.
const HANG: Duration = Duration::from_secs(5);
/// What all inputs together, and what the target keeps for itself, may take before the process is refused more.
const ADDRESSES: u64 = 8 << 30;
/// How many inputs are kept, and how long they may get.
const POOL: usize = 2_000;
const LONGEST: usize = 4_096;
/// How many bytes of what was found go into the repository for a target, with `cargo xtask fuzz --keep`.
const KEPT: usize = 24 << 10;

/// One kind of input.
pub(super) struct Target {
    pub(super) name: &'static str,
    /// How many inputs it gets in plain `cargo test`.
    pub(super) inputs: u32,
    /// How many bytes it may hold at once while it looks at one input, its own bookkeeping included.
    pub(super) memory: u64,
    /// Where an input can be cut and joined with others so that its pieces keep their meaning; empty if that is anywhere.
    pub(super) cuts: fn(&[u8]) -> Vec<usize>,
}

/// What `cargo xtask fuzz` wants.
struct Wish {
    seed: u64,
    time: Option<Duration>,
    /// Where the input under way is kept.
    directory: Option<PathBuf>,
    /// The only input.
    replay: Option<PathBuf>,
    /// Whether new inputs go into the repository.
    keep: bool,
}

impl Wish {
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

/// Runs a target on its corpus and on changed copies. It tells the shape of what came of an input.
pub(super) fn fuzz(target: &Target, mut one: impl FnMut(&[u8]) -> u64) {
    let wish = Wish::read();
    let name = target.name;
    let replay = wish.replay.as_ref().map(|file| fs::read(file).unwrap());
    let mut watch = Watch::start(name, &wish);
    let mut rng = fastrand::Rng::with_seed(wish.seed);
    let mut pool = replay.clone().map_or_else(|| corpus(name), |input| vec![input]);
    let (mut shapes, mut count, mut most) = (HashSet::new(), 0_u32, 0);
    let seeds = pool.len();
    let began = Instant::now();
    loop {
        let at = count as usize;
        let input = if at < seeds { pool[at].clone() } else { changed(&mut rng, &pool, target.cuts) };
        watch.begin(&input);
        let mut outcome = None;
        let taken = allocation_counter::measure(|| {
            outcome = Some(catch_unwind(AssertUnwindSafe(|| one(&input))));
        });
        let shape = outcome.unwrap().unwrap_or_else(|panic| {
            println!("{}", failure(name, &input, "panics"));
            resume_unwind(panic)
        });
        let held = taken.bytes_max;
        assert!(held <= target.memory, "{}", failure(name, &input, &format!("takes {held} bytes of memory")));
        most = most.max(held);
        if shapes.insert(shape) && at >= seeds {
            if pool.len() < POOL {
                pool.push(input);
            } else {
                // What was found late is deeper; what people wrote stays.
                let place = rng.usize(seeds..POOL);
                pool[place] = input;
            }
        }
        count += 1;
        let over = wish.time.map_or(count >= target.inputs, |time| began.elapsed() >= time);
        if (over || replay.is_some()) && count as usize >= seeds {
            break;
        }
    }
    watch.end();
    if wish.time.is_some() {
        let (shapes, seed) = (shapes.len(), wish.seed);
        tell(&format!("{name}: {count} inputs, {shapes} shapes of outcome, {most} bytes at most, seed {seed}"));
    }
    if wish.keep {
        keep(name, pool.split_off(seeds));
    }
}

/// Past the runner's capture, which is for failures.
fn tell(line: &str) {
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn failure(target: &str, input: &[u8], what: &str) -> String {
    let escaped: String = input.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("{target}: an input of {} bytes {what}; it is: printf '{escaped}'", input.len())
}

/// Sees to it that an input that ends the process, or never ends, is known.
struct Watch {
    under_way: Arc<(Mutex<Vec<u8>>, AtomicU32)>,
    file: Option<(PathBuf, File)>,
    done: Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>,
}

impl Watch {
    fn start(target: &'static str, wish: &Wish) -> Self {
        let file = wish.directory.as_ref().map(|directory| {
            // Alone in its process: what grows without end is refused before the machine suffers.
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
                    tell(&failure(target, &input, &format!("takes longer than {HANG:?}")));
                    // A thread cannot be ended from outside, and its loop may be eating memory.
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

/// The inputs that people wrote, one a file, and those that were found, one a line in hexadecimal.
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

/// Adds what was found, the shortest first, as far as there is room.
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

/// A copy of one of them with a few changes.
fn changed(rng: &mut fastrand::Rng, pool: &[Vec<u8>], cuts: fn(&[u8]) -> Vec<usize>) -> Vec<u8> {
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
