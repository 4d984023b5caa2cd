//! The licences of everything that is linked into the program: each of them wants its text to go with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use xshell::cmd;

use super::{Machine, Release};
use crate::workspace::metadata;

impl Release {
    /// Returns the licences with their texts, each text once.
    pub(super) fn notices(&self, machine: Machine) -> Result<String> {
        let (sh, target) = (&self.sh, machine.target());
        let tree = ["--edges", "normal", "--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"];
        let linked = cmd!(sh, "cargo tree --quiet --locked --package lockkeeper-cli --target {target} {tree...}");
        let linked = linked.quiet().read().context("asking cargo what the program depends on")?;
        // "name v1.2.3 (proc-macro)|licence"; ours have a path behind the version.
        let linked: BTreeMap<_, _> = linked
            .lines()
            .filter_map(|line| line.rsplit_once('|'))
            .filter(|(package, _)| !package.contains('('))
            .filter_map(|(package, licence)| Some((package.split_once(" v")?, licence)))
            .collect();
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut all = "The standard library of Rust: MIT OR Apache-2.0\nThe C library musl: MIT\n".to_owned();
        for package in metadata(sh, &["--locked"])?.packages {
            let Some(licence) = linked.get(&(package.name.as_str(), package.version.as_str())) else { continue };
            let name = format!("{} {}", package.name, package.version);
            writeln!(all, "{name}: {licence}")?;
            let directory = package.manifest_path.parent().context("a package has no directory")?;
            for file in sh.read_dir(directory)? {
                let is_licence = file.file_name().is_some_and(|name| {
                    let name = name.to_string_lossy().to_uppercase();
                    ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"].iter().any(|word| name.starts_with(word))
                });
                if is_licence && file.is_file() {
                    let text = String::from_utf8_lossy(&sh.read_binary_file(&file)?).trim().to_owned();
                    texts.entry(text).or_default().push(name.clone());
                }
            }
        }
        for (text, names) in texts {
            write!(all, "\n\n{}\n{}:\n\n{text}\n", "-".repeat(72), names.join(", "))?;
        }
        Ok(all)
    }
}
