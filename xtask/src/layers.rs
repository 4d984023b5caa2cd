//! `cargo xtask layers`: checks that imports point downwards.
//!
//! ARCHITECTURE.md lists the layers of each crate, top first. A file may import from its own layer and from the layers below.
//! The check also fails on an import cycle between files.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::{metadata, shell};
use source::Crate;

/// The page with the lists.
const PAGE: &str = "ARCHITECTURE.md";
/// How a list begins; the crate's name follows.
const FENCE: &str = "```layers ";
/// How a line of exceptions in a list begins.
const FACADES: &str = "facades:";

/// Prints one line per crate; fails if an import points upwards, if files import each other in a cycle, or if a crate has no list.
pub(crate) fn run(root: &Path) -> Result<()> {
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let (lists, crates) = (lists(&text)?, crates(root)?);
    let mut problems = unlisted(&lists, &crates);
    for (name, layers) in lists {
        let Some(dir) = crates.get(&name) else {
            problems.push(format!("{PAGE} names crate {name}, which the workspace does not have"));
            continue;
        };
        let krate = Crate::read(&dir.join("src"))?;
        let found = layers.problems(&krate);
        println!("{name}: {} files in {} layers, {} problems", krate.files.len(), layers.layers.len(), found.len());
        problems.extend(found.into_iter().map(|problem| format!("{name}: src/{problem}")));
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n       "));
    }
    Ok(())
}

/// Returns the directories of the workspace's crates that have a `src`, by name.
fn crates(root: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let sh = shell()?;
    sh.change_dir(root);
    let packages = metadata(&sh, &["--no-deps"])?.packages.into_iter();
    let directories = packages.filter_map(|package| Some((package.name, package.manifest_path.parent()?.to_owned())));
    Ok(directories.filter(|(_, directory)| directory.join("src").exists()).collect())
}

/// Returns a problem for each crate without a list.
fn unlisted(lists: &[(String, Layers)], crates: &BTreeMap<String, PathBuf>) -> Vec<String> {
    let listed = |name: &str| lists.iter().any(|(listed, _)| listed == name);
    let missing = crates.keys().filter(|name| !listed(name));
    missing.map(|name| format!("{PAGE} has no list of layers for crate {name}")).collect()
}

/// The layers of one crate.
#[derive(Debug, Default)]
struct Layers {
    /// Top first. A file is named by its path below `src` without `.rs`; a folder's name includes its files.
    layers: Vec<Vec<String>>,
    /// Modules that the files in their folder may import, although the module imports these files.
    facades: BTreeSet<String>,
}

/// Returns the lists of a page, by crate.
fn lists(text: &str) -> Result<Vec<(String, Layers)>> {
    let mut lists = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix(FENCE) else { continue };
        let mut layers = Layers::default();
        for line in lines.by_ref().take_while(|line| *line != "```") {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            match line.strip_prefix(FACADES) {
                Some(names) => layers.facades.extend(words(names)),
                None => layers.layers.push(words(line)),
            }
        }
        lists.push((name.trim().to_owned(), layers));
    }
    if lists.is_empty() {
        bail!("{PAGE} has no list of layers; a list begins with {FENCE}CRATE");
    }
    Ok(lists)
}

impl Layers {
    fn problems(&self, krate: &Crate) -> Vec<String> {
        let mut problems = Vec::new();
        let mut layer_of = BTreeMap::new();
        for file in &krate.files {
            match self.layer_of(file) {
                Some(layer) => _ = layer_of.insert(file.as_str(), layer),
                None => problems.push(format!("{file}.rs: {PAGE} names no layer for this file")),
            }
        }
        for name in self.layers.iter().flatten().chain(&self.facades) {
            if !krate.files.iter().any(|file| covers(name, file)) {
                problems.push(format!("{name}.rs: {PAGE} names this file, which does not exist"));
            }
        }
        for import in &krate.imports {
            if let (Some(from), Some(to)) = (layer_of.get(import.from.as_str()), layer_of.get(import.to.as_str()))
                && to < from
            {
                let names = |layer: &usize| self.layers[*layer].join(" ");
                problems.push(format!(
                    "{}.rs:{}: layer {:?} imports {} from layer {:?} above it",
                    import.from,
                    import.line,
                    names(from),
                    import.to,
                    names(to)
                ));
            }
        }
        problems.extend(self.cycles(krate));
        problems
    }

    /// Returns the layer that names the file, otherwise the layer of its nearest folder.
    fn layer_of(&self, file: &str) -> Option<usize> {
        let names =
            self.layers.iter().enumerate().flat_map(|(layer, names)| names.iter().map(move |name| (layer, name)));
        names.filter(|(_, name)| covers(name, file)).max_by_key(|(_, name)| name.len()).map(|(layer, _)| layer)
    }

    /// Returns the groups of files that import each other in a cycle.
    fn cycles(&self, krate: &Crate) -> Vec<String> {
        let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for import in &krate.imports {
            let facade = self.facades.contains(&import.to) && covers(&import.to, &import.from);
            if !facade && import.from != import.to {
                below.entry(&import.from).or_default().insert(&import.to);
            }
        }
        // All files that each file reaches: two files are in one cycle if they reach each other.
        let reached: BTreeMap<&str, BTreeSet<&str>> = below
            .keys()
            .map(|file| {
                let (mut found, mut left) = (BTreeSet::new(), vec![*file]);
                while let Some(file) = left.pop() {
                    left.extend(below.get(file).into_iter().flatten().filter(|next| found.insert(**next)));
                }
                (*file, found)
            })
            .collect();
        let mut cycles = BTreeSet::new();
        for (file, found) in &reached {
            if found.contains(file) {
                let both = |other: &&str| reached.get(*other).is_some_and(|found| found.contains(file));
                cycles.insert(found.iter().copied().filter(both).collect::<Vec<_>>());
            }
        }
        cycles.into_iter().map(|files| format!("{}.rs: import cycle of {}", files[0], files.join(", "))).collect()
    }
}

/// Whether a name in a list means this file.
fn covers(name: &str, file: &str) -> bool {
    file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = "text\n```layers shop\nlib\ntill\nstock price\nfacades: till\n```\nmore";

    /// Returns the problems of a crate with these files.
    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        lists(LISTS).unwrap()[0].1.problems(&Crate::read(dir.path()).unwrap())
    }

    #[test]
    fn imports_that_point_downwards_pass() {
        let found = problems(&[
            (
                "lib.rs",
                "//! use crate::nothing;\nmod till;\nmod stock;\nmod price;\npub use till::Till;\npub use stock::Item;",
            ),
            // `Item` comes through the root from `stock`, `Coin` through the facade from its own folder.
            ("till.rs", "mod coin;\npub use coin::Coin;\nuse crate::{Item, price::Price};\nstruct Till;"),
            ("till/coin.rs", "use super::Till;\nfn f() -> crate::price::Price { todo!() }"),
            ("stock.rs", "/* use crate::Till; */\nstruct Item;\n#[cfg(test)]\nmod tests { use crate::till::Till; }"),
            ("price.rs", "const TEXT: &str = \"use crate::Till;\";\n#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;"),
            ("x.rs", "use crate::till::Till;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn an_import_that_points_upwards_is_named_with_file_line_and_layers() {
        let root = ("lib.rs", "mod till;\nmod stock;\nmod price;\npub use till::Till;\npub const RATE: u32 = 1;");
        for (planted, line, to) in [
            ("use crate::till::Till;", 2, "till"),
            ("use crate::{price, Till};", 2, "till"),
            ("use super::{\n    price,\n    Till as T,\n};", 4, "till"),
            ("fn f() { g!(crate::till::Till); }", 2, "till"),
            ("mod inner { use super::super::Till; }", 2, "till"),
            ("const TWO: u32 = 2 * crate::RATE;", 2, "lib"),
        ] {
            let stock = format!("//! Stock.\n{planted}");
            let found = problems(&[root, ("till.rs", "struct Till;"), ("stock.rs", &stock), ("price.rs", "")]);
            let expected = format!("stock.rs:{line}: layer \"stock price\" imports {to} from layer {to:?} above it");
            assert_eq!(found, [expected], "{planted}");
        }
    }

    #[test]
    fn a_cycle_within_a_layer_is_named() {
        let found = problems(&[
            ("lib.rs", "mod till;\nmod stock;\nmod price;"),
            ("till.rs", "mod coin; mod note; use coin::Coin; pub struct Till;"),
            ("till/coin.rs", "use super::{Till, note::Note}; pub struct Coin;"),
            ("till/note.rs", "use crate::till::coin::Coin; pub struct Note;"),
            ("stock.rs", "use crate::price::Price; pub struct Item;"),
            ("price.rs", "use crate::stock::Item; pub struct Price;"),
        ]);
        let expected = ["price.rs: import cycle of price, stock", "till/coin.rs: import cycle of till/coin, till/note"];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_crate_without_a_list_is_named() {
        let crates = ["shop", "yard"].map(|name| (name.to_owned(), PathBuf::from(name)));
        let found = unlisted(&lists(LISTS).unwrap(), &crates.into());
        assert_eq!(found, ["ARCHITECTURE.md has no list of layers for crate yard"]);
    }

    #[test]
    fn every_file_has_a_layer_and_every_name_a_file() {
        let found = problems(&[
            ("lib.rs", "mod till;\nmod stock;\nmod rest;"),
            ("till.rs", ""),
            ("stock/mod.rs", ""),
            ("rest.rs", ""),
        ]);
        let expected = [
            "rest.rs: ARCHITECTURE.md names no layer for this file",
            "price.rs: ARCHITECTURE.md names this file, which does not exist",
        ];
        assert_eq!(found, expected);
    }
}
