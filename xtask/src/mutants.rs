//! `cargo xtask mutants`: changes the product in one place after the other, and checks that a test fails each time.
//!
//! cargo-mutants makes the changes and runs the tests; this chooses where, with which tests, and which mutants may
//! survive (`mutants/accepted.txt`, with a reason each). The tests that end sooner run first: the slower ones only see
//! the mutants that survived them. The changes are made in a copy of the repository below `target/mutants`; what cargo
//! builds of other packages is shared with the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use xshell::{Shell, cmd};

use crate::untested::fetched;
use crate::workspace::target_dir;

/// The release whose mutants the accepted ones name.
const VERSION: &str = "27.1.0";
const ACCEPTED: &str = include_str!("mutants/accepted.txt");

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these areas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    area: Vec<AreaName>,
    /// Run only so many mutants of each area, chosen by the seed [default: all of them, which takes hours]
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// The seed of the sample
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// As CI does: take the seed from the commit, report survivors, and fail only if far too many survive
    #[arg(long, requires = "sample", conflicts_with = "seed")]
    by_commit: bool,
    /// Run only mutants whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print the mutants and run none
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum AreaName {
    /// The pure protocols of the locks
    Core,
    /// The pure machine of the embedded server
    Machine,
    /// The drivers of the locks, and what is made of them
    Library,
}

/// A part of the product, and the tests that must notice its mutants.
struct Area {
    name: AreaName,
    package: &'static str,
    files: &'static [&'static str],
    /// One set of tests after the other.
    stages: &'static [Stage],
    /// Percent of the mutants that must be caught.
    goal: f64,
}

/// A set of tests.
struct Stage {
    tests: &'static [&'static str],
    /// Files with one of these in their paths have nothing to do with the tests.
    without: &'static [&'static str],
    /// What the names of the tests contain, as arguments of the test programs.
    names: &'static [&'static str],
    /// Seconds after which the tests are taken to hang: on an idle machine they end in a third of that.
    timeout: u32,
}

/// Every mutant of the area sees these tests.
const fn all(tests: &'static [&'static str]) -> Stage {
    unless(&[], tests)
}

/// Mutants in other files see these tests.
const fn unless(without: &'static [&'static str], tests: &'static [&'static str]) -> Stage {
    Stage { tests, without, names: &[], timeout: 120 }
}

/// Every mutant of the area sees those of the tests.
const fn some(tests: &'static [&'static str], names: &'static [&'static str]) -> Stage {
    Stage { names, ..all(tests) }
}

/// The sooner third of the library's tests: one node format instead of five, and none that needs an idle machine.
const SOONER: &[&str] = &[
    "native::embedded",
    "embedded::",
    "epoch::",
    "fenced::",
    "helix::",
    "interfaces::",
    "jobs::",
    "recipes::",
    "retrying::",
    "trust::",
    "work::",
    "--skip=different_names",
    "--skip=wakeups",
];

const AREAS: [Area; 3] = [
    Area {
        name: AreaName::Core,
        package: "lockkeeper-core",
        files: &["crates/lockkeeper-core/src/**/*.rs"],
        stages: &[
            all(&["--lib"]),
            unless(&["/helix", "/jobs"], &["--test=properties", "--test=foreign_names"]),
            unless(&["/contender", "/jobs"], &["--test=helix_properties", "--test=helix_model"]),
            unless(&["/contender", "/helix"], &["--test=jobs"]),
            unless(&["/helix", "/jobs"], &["--test=anything_told", "--test=model"]),
        ],
        goal: 95.0,
    },
    Area {
        name: AreaName::Machine,
        package: "lockkeeper-server",
        files: &["crates/lockkeeper-server/src/machine.rs", "crates/lockkeeper-server/src/machine/**/*.rs"],
        stages: &[some(&["--lib"], &["machine::"]), all(&["--lib", "--test=it"])],
        goal: 95.0,
    },
    Area {
        name: AreaName::Library,
        package: "lockkeeper",
        files: &[
            "crates/lockkeeper/src/admin.rs",
            "crates/lockkeeper/src/admin/**/*.rs",
            "crates/lockkeeper/src/ensemble.rs",
            "crates/lockkeeper/src/ensemble/**/*.rs",
            "crates/lockkeeper/src/hold.rs",
            "crates/lockkeeper/src/hold/**/*.rs",
            "crates/lockkeeper/src/jobs.rs",
            "crates/lockkeeper/src/jobs/**/*.rs",
            "crates/lockkeeper/src/lease.rs",
            "crates/lockkeeper/src/lease/**/*.rs",
            "crates/lockkeeper/src/queue.rs",
            "crates/lockkeeper/src/queue/**/*.rs",
            "crates/lockkeeper/src/recipes.rs",
            "crates/lockkeeper/src/recipes/**/*.rs",
            "crates/lockkeeper/src/session.rs",
            "crates/lockkeeper/src/session/**/*.rs",
            "crates/lockkeeper/src/wait.rs",
        ],
        // With the feature, so that what it adds is compiled; every other one is on for the tests.
        stages: &[
            all(&["--features=metrics", "--lib"]),
            some(&["--features=metrics", "--test=it"], SOONER),
            Stage { timeout: 360, ..all(&["--features=metrics", "--test=it", "--test=fork", "--test=tls"]) },
        ],
        goal: 90.0,
    },
];

/// Percent of a commit's sample that must at least be caught. A product that reaches its goals never falls below it by
/// chance; tests that did not run do.
const FLOOR: f64 = 50.0;

/// Most tests of the library wait. Twice as many at once as for `cargo test`, and the processor is still not busy.
const THREADS: &str = "16";

/// The tests that run end, and no other begins, after the first that fails. The flag is not stable yet, so the test
/// programs, and nothing that is built, are told that they may use it.
const FAIL_FAST: [&str; 2] = ["-Zunstable-options", "--fail-fast"];
const RUNNER: &str = r#"--config=target.'cfg(unix)'.runner=["env","RUSTC_BOOTSTRAP=1"]"#;

#[derive(Deserialize)]
struct Mutant {
    name: String,
}

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Mutant),
}

/// The mutants of one area after the run.
#[derive(Debug, Default)]
struct Tally {
    caught: usize,
    /// How many of the caught made the tests hang. Other load on the machine may have done so too.
    hanging: usize,
    /// The compiler refuses these.
    unviable: usize,
    survivors: Vec<String>,
}

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let accepted = accepted(ACCEPTED)?;
    let seed = if options.by_commit { seed_of(&cmd!(sh, "git rev-parse HEAD").quiet().read()?)? } else { options.seed };
    if let (Some(most), false) = (options.sample, options.list) {
        println!("at most {most} mutants of each area, by --seed {seed}");
    }
    let home = target_dir(sh).join("mutants");
    let tool = install(sh, &home)?;
    let tree = home.join("tree");
    copy(sh, &tree)?;
    let areas = AREAS.iter().filter(|area| options.area.is_empty() || options.area.contains(&area.name));
    let (mut rows, mut open) = (Vec::new(), Vec::new());
    let (mut all_caught, mut all_missed) = (0, 0);
    for area in areas {
        let all = list(sh, &tool, &tree, area)?;
        if options.only.is_empty() {
            let gone = gone(&accepted, &all, area);
            ensure!(gone.is_empty(), "mutants/accepted.txt names mutants that are no more:\n  {}", gone.join("\n  "));
        }
        let named = all.iter().filter(|name| name.contains(options.only.as_str())).cloned().collect();
        let chosen = sample(named, options.sample, seed);
        if options.list {
            chosen.iter().for_each(|name| println!("{name}"));
            continue;
        }
        let tally = judge(sh, &tool, &home, area, &chosen)?;
        let (allowed, missed): (Vec<_>, Vec<_>) =
            tally.survivors.iter().cloned().partition(|name| accepted.contains_key(&unplaced(name)));
        let viable = tally.caught + tally.survivors.len();
        let percent = 100.0 * tally.caught as f64 / viable.max(1) as f64;
        rows.push(format!(
            "| {} | {} of {} | {} | {} | {} | {} | {} | {percent:.1} % | {} % |",
            area.package,
            chosen.len(),
            all.len(),
            tally.unviable,
            tally.caught,
            tally.hanging,
            allowed.len(),
            missed.len(),
            area.goal
        ));
        // A small sample with one accepted survivor may be below the goal.
        if options.sample.is_none() && options.only.is_empty() && percent < area.goal {
            open.push(format!(
                "{}: {percent:.1} % of the mutants are caught, {} % are asked for",
                area.package, area.goal
            ));
        }
        all_caught += tally.caught;
        all_missed += missed.len();
        open.extend(missed.into_iter().map(|name| format!("no test notices {name}")));
    }
    if options.list {
        return Ok(());
    }
    println!(
        "| package | run | not compiled | caught | of them hanging | accepted | missed | caught of those compiled | goal |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{row}"));
    if open.is_empty() {
        return Ok(());
    }
    let open = format!(
        "{}\nwrite a test that fails with the mutant, or add it to xtask/src/mutants/accepted.txt with the reason",
        open.join("\n")
    );
    if options.by_commit && is_enough(all_caught, all_missed) {
        println!("{open}");
        return Ok(());
    }
    bail!(open)
}

/// Returns the seed that a commit's hash begins with.
fn seed_of(commit: &str) -> Result<u64> {
    let digits = commit.get(..8).with_context(|| format!("{commit:?} is not the hash of a commit"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("{commit:?} is not the hash of a commit"))
}

/// Whether a sample by a commit, of all areas together, passes.
fn is_enough(caught: usize, missed: usize) -> bool {
    caught as f64 >= FLOOR / 100.0 * (caught + missed) as f64
}

/// Returns the program, which is installed below `home` if this release of it is not on the path.
fn install(sh: &Shell, home: &Path) -> Result<PathBuf> {
    let here = home.join("tool/bin/cargo-mutants");
    for tool in [PathBuf::from("cargo-mutants"), here.clone()] {
        let version = cmd!(sh, "{tool} mutants --version").quiet().ignore_stderr().read();
        if version.is_ok_and(|version| version.ends_with(VERSION)) {
            return Ok(tool);
        }
    }
    let (root, target) = (home.join("tool"), home.join("tool-target"));
    // Not optimised: that is most of its installation time, and it mostly waits for cargo.
    let installed = cmd!(
        sh,
        "cargo install --quiet --locked --debug --version {VERSION} --root {root} --target-dir {target} cargo-mutants"
    );
    fetched("mutants, because cargo-mutants cannot be installed", installed.run())?;
    // It needs half a gigabyte that is not used again.
    sh.remove_path(&target)?;
    Ok(here)
}

/// Copies what git knows and does not ignore. A file with the same content keeps its time, so cargo does not build it again.
fn copy(sh: &Shell, tree: &Path) -> Result<()> {
    let listed = cmd!(sh, "git ls-files -z --cached --others --exclude-standard").quiet().read()?;
    let wanted: BTreeSet<&Path> = listed.split('\0').filter(|path| !path.is_empty()).map(Path::new).collect();
    for path in &wanted {
        // Git also lists a file that was deleted and not committed.
        let Ok(text) = fs::read(sh.current_dir().join(path)) else { continue };
        let to = tree.join(path);
        if fs::read(&to).is_ok_and(|there| there == text) {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file below the tree")?)?;
        fs::write(&to, text).with_context(|| format!("writing {}", to.display()))?;
    }
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if !wanted.contains(path.strip_prefix(tree)?) {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

/// Returns the mutants of an area, in the order of the files. cargo-mutants takes tests of one feature for the product.
fn list(sh: &Shell, tool: &Path, tree: &Path, area: &Area) -> Result<Vec<String>> {
    let (package, files) = (area.package, flags("--file", area.files));
    let text = cmd!(sh, "{tool} mutants --dir {tree} --package {package} {files...} --list").quiet().read();
    let text = text.with_context(|| format!("listing the mutants of {package}"))?;
    Ok(text.lines().filter(|name| !name.contains(" tests::")).map(str::to_owned).collect())
}

/// Runs the mutants with one set of tests after the other.
fn judge(sh: &Shell, tool: &Path, home: &Path, area: &Area, chosen: &[String]) -> Result<Tally> {
    let (tree, output) = (home.join("tree"), home.join(format!("{:?}", area.name).to_lowercase()));
    let package = area.package;
    let mut tally = Tally { survivors: chosen.to_owned(), ..Tally::default() };
    for Stage { tests, without, names: words, timeout } in area.stages {
        let (shown, spared): (Vec<_>, Vec<_>) =
            tally.survivors.iter().cloned().partition(|name| !without.iter().any(|part| file_of(name).contains(part)));
        if shown.is_empty() {
            continue;
        }
        // For the build too, so that it builds no tests that are not run.
        let (tests, words, timeout) = (flags("--cargo-arg", tests), words.iter(), timeout.to_string());
        let names = flags("--re", &shown.iter().map(|name| exactly(name)).collect::<Vec<_>>());
        let report = output.join("mutants.out/outcomes.json");
        sh.create_dir(&output)?;
        sh.remove_path(&report)?;
        // cargo-mutants 27.1 does not choose deletions of fields by their names; so it gets the lines, too.
        let lines = output.join("lines.diff");
        sh.write_file(&lines, lines_of(&shown, |file| Ok(fs::read_to_string(tree.join(file))?))?)?;
        // The tests pass without a change: CI has run them. Its status says that mutants survived.
        let ran = cmd!(
            sh,
            "{tool} mutants --dir {tree} --in-place --output {output} --package {package} --in-diff {lines} {names...}
             --profile=mutant --baseline=skip --timeout={timeout} --no-shuffle --colors=never {tests...}
             --cargo-arg={RUNNER} -- -- {FAIL_FAST...} {words...}"
        );
        // Each mutant is a small change to what was built; CI turns this off.
        let ran = ran.env("CARGO_INCREMENTAL", "1").env("CARGO_TARGET_DIR", target_dir(sh));
        ran.env("RUST_TEST_THREADS", THREADS).ignore_status().quiet().run()?;
        let text = fs::read_to_string(&report).context("cargo-mutants has reported nothing")?;
        let Outcomes { outcomes } = serde_json::from_str(&text).context("reading the outcomes")?;
        tally.survivors = shown;
        tally.survivors = add(&mut tally, outcomes)?;
        tally.survivors.extend(spared);
        let judged = tally.caught + tally.unviable + tally.survivors.len();
        ensure!(judged == chosen.len(), "cargo-mutants ran {judged} of {} mutants", chosen.len());
    }
    Ok(tally)
}

/// Counts the outcomes of the survivors so far, and returns those that survived again.
fn add(tally: &mut Tally, outcomes: Vec<Outcome>) -> Result<Vec<String>> {
    let mut survivors = Vec::new();
    for outcome in outcomes {
        let Scenario::Mutant(Mutant { name }) = outcome.scenario else { continue };
        if !tally.survivors.contains(&name) {
            continue;
        }
        match outcome.summary.as_str() {
            // Tests that hang notice, too.
            "CaughtMutant" => tally.caught += 1,
            "Timeout" => {
                tally.caught += 1;
                tally.hanging += 1;
            }
            "Unviable" => tally.unviable += 1,
            "MissedMutant" => survivors.push(name),
            other => bail!("{name}: cargo-mutants reports {other}"),
        }
    }
    Ok(survivors)
}

fn flags<T: AsRef<str>>(flag: &str, values: &[T]) -> Vec<String> {
    values.iter().map(|value| format!("{flag}={}", value.as_ref())).collect()
}

/// Returns a diff that adds the lines on which these mutants begin.
fn lines_of(mutants: &[String], read: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut places: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for name in mutants {
        let line = name.split(':').nth(1).and_then(|line| line.parse().ok());
        places.entry(file_of(name)).or_default().insert(line.with_context(|| format!("{name} names no line"))?);
    }
    let mut diff = String::new();
    for (file, lines) in places {
        diff += &format!("--- a/{file}\n+++ b/{file}\n");
        let text = read(file)?;
        for (before, line) in lines.into_iter().enumerate() {
            let added = text.lines().nth(line - 1).with_context(|| format!("{file} has no line {line}"))?;
            diff += &format!("@@ -{},0 +{line} @@\n+{added}\n", line - 1 - before);
        }
    }
    Ok(diff)
}

/// Returns a regular expression for one name.
fn exactly(name: &str) -> String {
    let mut expression = "^".to_owned();
    for letter in name.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression + "$"
}

/// Chooses some mutants by a seed, in the order of the files.
fn sample(all: Vec<String>, most: Option<usize>, seed: u64) -> Vec<String> {
    let Some(most) = most else { return all };
    let mut places: Vec<usize> = (0..all.len()).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut places);
    places.truncate(most);
    places.sort_unstable();
    places.into_iter().map(|place| all[place].clone()).collect()
}

/// Returns the file of a mutant by its name.
fn file_of(name: &str) -> &str {
    name.split_once(':').map_or(name, |(file, _)| file)
}

/// Returns the name without the line and the column, which later changes move.
fn unplaced(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_line), Some(_column), Some(what)) => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}

/// Reads the accepted survivors with their reasons: lines after `# `, for all names up to an empty line.
fn accepted(text: &str) -> Result<BTreeMap<String, String>> {
    let (mut accepted, mut reason) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(more) => reason = format!("{reason} {more}"),
            None if line.is_empty() => reason.clear(),
            None => {
                ensure!(!reason.is_empty(), "mutants/accepted.txt gives no reason for {line}");
                ensure!(
                    accepted.insert(line.to_owned(), reason.clone()).is_none(),
                    "mutants/accepted.txt repeats {line}"
                );
            }
        }
    }
    Ok(accepted)
}

/// Returns the accepted survivors of an area's package that are not among its mutants.
fn gone(accepted: &BTreeMap<String, String>, all: &[String], area: &Area) -> Vec<String> {
    let there: BTreeSet<String> = all.iter().map(|name| unplaced(name)).collect();
    let home = format!("crates/{}/", area.package);
    accepted.keys().filter(|name| name.starts_with(&home) && !there.contains(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "crates/lockkeeper-core/src/token.rs:29:9: replace Token::get -> u64 with (1 + 2)";

    #[test]
    fn an_accepted_survivor_needs_a_reason_and_is_named_once() {
        let read = accepted("# Only for\n# people.\na: replace b with c\n\n# Equal.\nd: replace e with f\n").unwrap();
        assert_eq!(read.into_values().collect::<Vec<_>>(), [" Only for people.", " Equal."]);
        assert!(accepted("# Equal.\na: b\n\nc: d\n").unwrap_err().to_string().contains("no reason for c: d"));
        assert!(accepted("# Equal.\na: b\na: b\n").unwrap_err().to_string().contains("repeats a: b"));
        accepted(ACCEPTED).unwrap();
    }

    #[test]
    fn an_accepted_survivor_that_is_no_more_is_named() {
        let accepted =
            accepted(&format!("# Equal.\n{}\n{}\n", unplaced(NAME), unplaced(NAME).replace("with", "by"))).unwrap();
        let gone = gone(&accepted, &[NAME.to_owned()], &AREAS[0]);
        assert_eq!(gone, ["crates/lockkeeper-core/src/token.rs: replace Token::get -> u64 by (1 + 2)"]);
    }

    #[test]
    fn a_mutant_is_chosen_by_its_whole_name() {
        let expression = r"^crates/lockkeeper-core/src/token\.rs:29:9: replace Token::get -> u64 with \(1 \+ 2\)$";
        assert_eq!(exactly(NAME), expression);
        assert_eq!(file_of(NAME), "crates/lockkeeper-core/src/token.rs");
    }

    #[test]
    fn a_diff_adds_the_lines_of_the_mutants() {
        let names = ["b.rs:3:9: one", "a.rs:1:2: two", "b.rs:1:4: three", "b.rs:3:1: four"].map(str::to_owned);
        let read = |file: &str| Ok(format!("first of {file}\nsecond\nthird of {file}\n"));
        let expected = "--- a/a.rs\n+++ b/a.rs\n@@ -0,0 +1 @@\n+first of a.rs\n--- a/b.rs\n+++ b/b.rs\n\
                        @@ -0,0 +1 @@\n+first of b.rs\n@@ -1,0 +3 @@\n+third of b.rs\n";
        assert_eq!(lines_of(&names, read).unwrap(), expected);
        assert!(lines_of(&["b.rs:4:9: one".to_owned()], read).is_err());
        assert!(lines_of(&["no place".to_owned()], read).is_err());
    }

    #[test]
    fn a_seed_gives_one_sample() {
        let all: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let ten = sample(all.clone(), Some(10), 1);
        assert_eq!(ten.len(), 10);
        assert_eq!(ten, sample(all.clone(), Some(10), 1));
        assert_ne!(ten, sample(all.clone(), Some(10), 2));
        assert_eq!(sample(all.clone(), None, 1), all);
    }

    #[test]
    fn the_sample_of_a_commit_is_its_own() {
        assert_eq!(seed_of("0000000b9fdc8787f2a1").unwrap(), 11);
        for no_hash in ["", "9fdc87", "HEAD~000"] {
            assert!(seed_of(no_hash).unwrap_err().to_string().contains("not the hash of a commit"), "{no_hash}");
        }
    }

    #[test]
    fn a_few_survivors_do_not_fail_a_commit_and_many_do() {
        assert!(is_enough(17, 3) && is_enough(10, 10) && is_enough(0, 0));
        assert!(!is_enough(9, 10) && !is_enough(0, 1));
    }

    #[test]
    fn outcomes_are_counted() {
        let text = r#"{"outcomes":[{"scenario":"Baseline","summary":"Success"},
            {"scenario":{"Mutant":{"name":"a"}},"summary":"CaughtMutant"},{"scenario":{"Mutant":{"name":"b"}},"summary":"MissedMutant"},
            {"scenario":{"Mutant":{"name":"c"}},"summary":"Timeout"},{"scenario":{"Mutant":{"name":"d"}},"summary":"Unviable"},
            {"scenario":{"Mutant":{"name":"not chosen"}},"summary":"MissedMutant"}]}"#;
        let Outcomes { outcomes } = serde_json::from_str(text).unwrap();
        let survivors = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let mut tally = Tally { survivors, ..Tally::default() };
        assert_eq!(add(&mut tally, outcomes).unwrap(), ["b"]);
        assert_eq!((tally.caught, tally.hanging, tally.unviable), (2, 1, 1));
    }
}
