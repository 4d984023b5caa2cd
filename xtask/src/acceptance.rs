//! `cargo xtask acceptance`: which tests show which line of `docs/acceptance/`.
//!
//! The pages say what the product must do and the tests name the lines they show, so neither can drift from the other unseen: a
//! required line without a test, a test that names a line nobody wrote, and a line written twice are failures.

mod id;
mod pages;
mod report;
mod sources;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use pages::Page;
use report::Report;
use sources::Test;

/// Where the lines are written.
const PAGES: &str = "docs/acceptance";
/// Where the tests are.
const SOURCES: &str = "crates";

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Prints what is missing, not what is shown.
    #[arg(long)]
    pub(crate) gaps: bool,
}

/// Prints the table; fails if it has a gap or a name that stands for nothing.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut pages = Vec::new();
    let mut problems = Vec::new();
    for file in files(&root.join(PAGES), "md")? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match Page::read(&name, &text(&file)?) {
            Ok(page) => pages.extend(page),
            Err(problem) => problems.push(problem),
        }
    }
    let mut tests: Vec<Test> = Vec::new();
    for file in files(&root.join(SOURCES), "rs")? {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        let (found, mistakes) = sources::read(&name, &text(&file)?)?;
        tests.extend(found);
        problems.extend(mistakes);
    }
    let report = Report::new(&pages, &tests, problems);
    print!("{}", report.table(options.gaps));
    if !report.problems.is_empty() {
        bail!("{}", report.problems.join("\n       "));
    }
    Ok(())
}

fn text(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

/// All files below a directory whose names end so, in order.
fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                // Crates built on their own keep their output beside their sources.
                if path.file_name().is_some_and(|name| name != "target") {
                    left.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
