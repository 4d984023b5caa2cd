//! `cargo xtask layers`: checks that imports point downwards.
//!
//! ARCHITECTURE.md lists the layers of each crate, top first. A file may import from its own layer and from the layers below.
//! The check also fails on an import cycle between files. It reads the text as rustfmt leaves it; code behind `#[cfg(test)]` does
//! not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::workspace::{metadata, shell};

/// A module's or an item's path from the crate's root.
type Names = Vec<String>;
/// The modules of a crate that are files, with the paths in each and their lines.
type Crate = BTreeMap<Names, Vec<(usize, Names)>>;

/// Prints one line per crate; fails if an import points upwards, if files import each other in a cycle, or if a crate has no list.
pub(crate) fn run(root: &Path) -> Result<()> {
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).context("reading ARCHITECTURE.md")?;
    let (sh, mut all) = (shell()?, Vec::new());
    sh.change_dir(root);
    for package in metadata(&sh, &["--no-deps"])?.packages {
        let name = package.name;
        let src = package.manifest_path.with_file_name("src");
        if !src.exists() {
            continue;
        }
        let Some((_, list)) = text.split_once(&format!("```layers {name}\n")) else {
            all.push(format!("ARCHITECTURE.md has no list of layers for crate {name}"));
            continue;
        };
        let (mut krate, top) = (Crate::new(), if src.join("lib.rs").exists() { "lib" } else { "main" });
        read(&mut krate, &src, top, Vec::new())?;
        let found = problems(list.split("```").next().unwrap_or_default(), &krate, top);
        println!("{name}: {} files, {} problems", krate.len(), found.len());
        all.extend(found.into_iter().map(|problem| format!("{name}: src/{problem}")));
    }
    if all.is_empty() { Ok(()) } else { bail!("{}", all.join("\n       ")) }
}

/// Reads a module's file and those of its children.
fn read(krate: &mut Crate, src: &Path, top: &str, module: Names) -> Result<()> {
    let name = if module.is_empty() { top.to_owned() } else { module.join("/") };
    let files = [src.join(format!("{name}.rs")), src.join(&name).join("mod.rs")];
    let file = files.iter().find(|file| file.exists()).with_context(|| format!("no file for `mod {name};`"))?;
    let (text, inline) = without_tests(&fs::read_to_string(file)?);
    // What such a module re-exports is in this file.
    let mut paths = paths(&text);
    paths.retain(|(_, path)| !inline.contains(&path[0]));
    krate.insert(module.clone(), paths);
    for line in text.lines() {
        if let Some((_, child)) = line.strip_suffix(';').and_then(|line| line.split_once("mod "))
            && child.chars().all(is_name)
        {
            read(krate, src, top, [&module[..], &[child.to_owned()]].concat())?;
        }
    }
    Ok(())
}

/// Empties the lines of comments and of items that are only in tests. Also returns the modules within the file, whose `super` becomes
/// `self`.
fn without_tests(text: &str) -> (String, BTreeSet<String>) {
    let (mut kept, mut inline) = (String::new(), BTreeSet::new());
    // How the last line of an item in tests begins, and of a module.
    let (mut test, mut module) = (None::<String>, None::<String>);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if let Some(end) = &test {
            if line.starts_with(end) || (indent.len() + 1 == end.len() && line.ends_with([';', ','])) {
                test = None;
            }
        } else if code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test") {
            test = Some(format!("{indent}}}"));
        } else if !code.starts_with("//") {
            if let (None, Some((_, name))) = (&module, code.strip_suffix(" {").and_then(|code| code.split_once("mod ")))
            {
                inline.insert(name.to_owned());
                module = Some(format!("{indent}}}"));
            }
            if module.is_some() {
                kept += &line
                    .replace("super::super::", "super ::")
                    .replace("super::", "self::")
                    .replace("super ::", "super::");
            } else {
                kept += line;
            }
            module = module.filter(|end| !line.starts_with(end));
        }
        kept.push('\n');
    }
    (kept, inline)
}

/// Returns the paths of a text with more than one name, and their lines.
fn paths(text: &str) -> Vec<(usize, Names)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(next) = text[at..].find(is_name) {
        at += next;
        let (mut here, line) = (Vec::new(), text[..at].lines().count());
        let rest = collect(&text[at..], &[], &mut here);
        at = text.len() - rest.len();
        let names_an_item = |path: &Names| path.len() > 1 && path.last().is_some_and(|last| last != "super");
        found.extend(here.into_iter().filter(names_an_item).map(|path| (line.max(1), path)));
    }
    found
}

/// Collects the paths that a text begins with, `a::{b, c::d}`; returns the rest of the text.
fn collect<'a>(mut text: &'a str, before: &[String], found: &mut Vec<Names>) -> &'a str {
    let mut path = before.to_vec();
    loop {
        if let Some(mut inner) = text.strip_prefix('{') {
            while !inner.starts_with('}') && !inner.is_empty() {
                inner = collect(inner.trim_start(), &path, found);
                inner = &inner[inner.find([',', '}']).unwrap_or(inner.len())..];
                inner = inner.strip_prefix(',').unwrap_or(inner).trim_start();
            }
            return inner;
        }
        let end = text.find(|char| !is_name(char)).unwrap_or(text.len());
        if text.starts_with('*') {
            path.push("*".to_owned());
        } else if end > 0 && &text[..end] != "self" {
            path.push(text[..end].to_owned());
        }
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(after) if end > 0 => text = after,
            _ => break,
        }
    }
    found.push(path);
    text
}

fn is_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// Returns the module that defines the target of a path in a module, if it is in the crate.
fn resolve(krate: &Crate, module: &[String], path: &[String], depth: usize) -> Option<Names> {
    let (mut here, mut is_inside) = (module.to_vec(), false);
    for (at, name) in path.iter().enumerate() {
        let child = [&here[..], &path[at..=at]].concat();
        match name.as_str() {
            "crate" => here.clear(),
            "super" => _ = here.pop(),
            _ if krate.contains_key(&child) => here = child,
            _ if !is_inside => return None,
            "*" => break,
            _ => {
                let used = krate[&here].iter().find(|(_, used)| used.last() == Some(name) && depth < 16);
                return match used {
                    Some((_, used)) => resolve(krate, &here, &[used, &path[at + 1..]].concat(), depth + 1),
                    None => Some(here),
                };
            }
        }
        is_inside = true;
    }
    Some(here)
}

/// Returns where the crate and its list differ.
fn problems(list: &str, krate: &Crate, top: &str) -> Vec<String> {
    let (facades, layers): (Vec<_>, Vec<_>) = list.lines().partition(|line| line.starts_with("facades: "));
    let facades: BTreeSet<_> = facades.iter().flat_map(|line| line.split_whitespace().skip(1)).collect();
    let named = || layers.iter().enumerate().flat_map(|(at, line)| line.split_whitespace().map(move |name| (at, name)));
    // The layer that names the file, otherwise the layer of its nearest folder.
    let layer = |file: &str| named().filter(|(_, name)| covers(name, file)).max_by_key(|(_, name)| name.len());
    let file = |module: &Names| if module.is_empty() { top.to_owned() } else { module.join("/") };
    let files: BTreeSet<_> = krate.keys().map(file).collect();
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| layer(file).is_none()) {
        problems.push(format!("{file}.rs: ARCHITECTURE.md names no layer for this file"));
    }
    for (_, name) in named().filter(|(_, name)| !files.iter().any(|file| covers(name, file))) {
        problems.push(format!("{name}.rs: ARCHITECTURE.md names this file, which does not exist"));
    }
    let mut below: BTreeSet<(String, String)> = BTreeSet::new();
    for (module, (line, path)) in krate.iter().flat_map(|(module, paths)| paths.iter().map(move |path| (module, path)))
    {
        let (from, Some(to)) = (file(module), resolve(krate, module, path, 0).map(|to| file(&to))) else { continue };
        if let (Some((own, _)), Some((other, _))) = (layer(&from), layer(&to))
            && other < own
        {
            let (own, other) = (layers[own], layers[other]);
            problems.push(format!("{from}.rs:{line}: layer {own:?} imports {to} from layer {other:?} above it"));
        }
        if from != to && !(facades.contains(to.as_str()) && covers(&to, &from)) {
            below.insert((from, to));
        }
    }
    // What is left without the files that import nothing, or that no file imports, again and again.
    loop {
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = below.iter().cloned().unzip();
        let before = below.len();
        below.retain(|(importing, imported)| to.contains(importing) && from.contains(imported));
        if below.len() == before {
            break;
        }
    }
    let cycle: BTreeSet<_> = below.into_iter().map(|(from, _)| from).collect();
    if !cycle.is_empty() {
        problems.push(format!("import cycle of {}", cycle.into_iter().collect::<Vec<_>>().join(", ")));
    }
    problems
}

/// Whether a name in a list means this file.
fn covers(name: &str, file: &str) -> bool {
    file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the problems of a crate with these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut krate = Crate::new();
        read(&mut krate, dir.path(), "lib", Vec::new()).unwrap();
        problems("lib\ntill\nstock price\nfacades: till\n", &krate, "lib")
    }

    #[test]
    fn imports_that_point_downwards_pass() {
        let found = found(&[
            (
                "lib.rs",
                "//! use crate::nothing;\nmod till;\nmod stock;\nmod price;\npub use till::Till;\npub use stock::Item;",
            ),
            // `Item` comes through the root from `stock`, `Coin` through the facade from its own folder.
            ("till.rs", "mod coin;\npub use coin::Coin;\nuse crate::{Item, price::Price};\nstruct Till;"),
            ("till/coin.rs", "use super::Till;\nfn f() -> crate::price::Price { todo!() }"),
            ("stock.rs", "// use crate::Till;\nstruct Item;\n#[cfg(test)]\nmod tests {\n    use crate::till::Till;\n}"),
            ("price.rs", "#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn an_import_that_points_upwards_is_named_with_file_line_and_layers() {
        let root = ("lib.rs", "mod till;\nmod stock;\nmod price;\npub use till::Till;\npub const RATE: u32 = 1;");
        for (planted, line, to) in [
            ("use crate::till::Till;", 2, "till"),
            ("use crate::{price, Till};", 2, "till"),
            ("use crate::till::*;", 2, "till"),
            ("use super::{\n    price,\n    Till as T,\n};", 2, "till"),
            ("fn f() { g!(crate::till::Till); }", 2, "till"),
            ("#[cfg(test)]\nmod tests;\nuse crate::Till;", 4, "till"),
            ("mod inner {\n    use super::super::Till;\n    use super::Item;\n}", 3, "till"),
            ("const TWO: u32 = 2 * crate::RATE;", 2, "lib"),
        ] {
            let stock = format!("//! Stock.\n{planted}");
            let found = found(&[root, ("till.rs", "struct Till;"), ("stock.rs", &stock), ("price.rs", "")]);
            let expected = format!("stock.rs:{line}: layer \"stock price\" imports {to} from layer {to:?} above it");
            assert_eq!(found, [expected], "{planted}");
        }
    }

    #[test]
    fn cycles_unknown_files_and_unknown_names_are_named() {
        let cycle = found(&[
            ("lib.rs", "mod till;\nmod stock;\nmod price;"),
            ("till.rs", "mod coin;\nmod note;\nuse coin::Coin;\npub struct Till;"),
            ("till/coin.rs", "use super::{Till, note::Note};\npub struct Coin;"),
            ("till/note.rs", "use crate::till::coin::Coin;\npub struct Note;"),
            ("stock.rs", "pub struct Item;"),
            ("price.rs", "use crate::stock::Item;\npub struct Price;"),
        ]);
        assert_eq!(cycle, ["import cycle of till/coin, till/note"]);
        let unknown = found(&[
            ("lib.rs", "mod till;\nmod stock;\nmod rest;"),
            ("till.rs", ""),
            ("stock/mod.rs", ""),
            ("rest.rs", ""),
        ]);
        let expected = [
            "rest.rs: ARCHITECTURE.md names no layer for this file",
            "price.rs: ARCHITECTURE.md names this file, which does not exist",
        ];
        assert_eq!(unknown, expected);
    }
}
