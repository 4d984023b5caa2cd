//! Reads the modules of a crate and resolves their imports to files.
//!
//! It reads tokens, which leave out comments and include macros. Code behind `#[cfg(test)]` does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module's or an item's path from the crate's root.
type Names = Vec<String>;

/// The files of a crate and what they import from each other.
#[derive(Debug, Default)]
pub(super) struct Crate {
    /// Paths below `src`, without `.rs` and `/mod.rs`.
    pub(super) files: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
}

/// One file names an item of another.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) from: String,
    pub(super) line: usize,
    pub(super) to: String,
}

/// The result of reading the sources.
#[derive(Default)]
struct Reader {
    /// The file of each module, inline modules included.
    modules: BTreeMap<Names, String>,
    /// The imports of each module with their names, re-exports included.
    uses: BTreeMap<Names, BTreeMap<String, Names>>,
    /// All paths that may lead into the crate: the module, the line, the names.
    paths: Vec<(Names, usize, Names)>,
}

impl Crate {
    /// Reads the crate whose root is `lib.rs` or `main.rs` in this directory.
    pub(super) fn read(src: &Path) -> Result<Crate> {
        let root = ["lib.rs", "main.rs"].into_iter().find(|name| src.join(name).exists());
        let Some(root) = root else { bail!("{} has no lib.rs or main.rs", src.display()) };
        let mut reader = Reader::default();
        reader.file(src, Path::new(root), src, Vec::new())?;
        let mut imports = Vec::new();
        for (module, line, path) in &reader.paths {
            let Some(to) = reader.resolve(module, path, 0) else { continue };
            let (from, to) = (reader.modules[module].clone(), reader.modules[&to].clone());
            if from != to {
                imports.push(Import { from, line: *line, to });
            }
        }
        Ok(Crate { files: reader.modules.into_values().collect(), imports })
    }
}

impl Reader {
    /// Reads a module's file; the files of its children are below `folder`.
    fn file(&mut self, src: &Path, path: &Path, folder: &Path, module: Names) -> Result<()> {
        let full = src.join(path);
        let text = fs::read_to_string(&full).with_context(|| format!("reading {}", full.display()))?;
        let tokens: TokenStream = match text.parse() {
            Ok(tokens) => tokens,
            Err(error) => bail!("reading {} as Rust: {error}", full.display()),
        };
        let children = self.tokens(tokens, &module, &listed(full.strip_prefix(src).unwrap_or(&full)));
        for child in children {
            let name = child.last().map_or("", String::as_str);
            let inner = child[module.len()..].iter().fold(folder.to_owned(), |folder, name| folder.join(name));
            let candidates = [inner.with_extension("rs"), inner.join("mod.rs")];
            let Some(file) = candidates.iter().find(|file| file.exists()) else {
                bail!("{}: no file for `mod {name};`", full.display());
            };
            self.file(src, file, &inner, child.clone())?;
        }
        Ok(())
    }

    /// Reads the tokens of a module; returns its children with a file of their own.
    fn tokens(&mut self, tokens: TokenStream, module: &Names, file: &str) -> Vec<Names> {
        self.modules.insert(module.clone(), file.to_owned());
        self.uses.entry(module.clone()).or_default();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut children = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at..] {
                [TokenTree::Punct(hash), TokenTree::Group(attribute), ..]
                    if hash.as_char() == '#' && only_in_tests(attribute.stream()) =>
                {
                    // Up to the end of the item that the attribute belongs to.
                    let ends = |token: &TokenTree| match token {
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        TokenTree::Punct(punct) => [';', ','].contains(&punct.as_char()),
                        _ => false,
                    };
                    at += tokens[at..].iter().position(ends).unwrap_or(tokens.len() - at) + 1;
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Punct(end), ..]
                    if keyword == "mod" && end.as_char() == ';' =>
                {
                    children.push([module.as_slice(), &[name.to_string()]].concat());
                    at += 3;
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Group(body), ..] if keyword == "mod" => {
                    let inner = [module.as_slice(), &[name.to_string()]].concat();
                    children.extend(self.tokens(body.stream(), &inner, file));
                    at += 3;
                }
                // Not `use<'a>` in a type.
                [TokenTree::Ident(keyword), rest @ ..] if keyword == "use" && !is_punct(&rest[0], '<') => {
                    let end = rest.iter().position(|token| is_punct(token, ';')).unwrap_or(rest.len());
                    let mut leaves = Vec::new();
                    use_tree(&rest[..end], &[], &mut leaves);
                    for (line, path, name) in leaves {
                        self.paths.push((module.clone(), line, path.clone()));
                        self.uses.entry(module.clone()).or_default().insert(name, path);
                    }
                    at += end + 1;
                }
                [TokenTree::Ident(first), ..] => {
                    let (line, path) = (first.span().start().line, path(&tokens[at..]));
                    at += 3 * path.len() - 2;
                    if path.len() > 1 {
                        self.paths.push((module.clone(), line, path));
                    }
                }
                [TokenTree::Group(group), ..] => {
                    children.extend(self.tokens(group.stream(), module, file));
                    at += 1;
                }
                _ => at += 1,
            }
        }
        children
    }

    /// Returns the module that defines the target of a path in this module, if it is in the crate.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Names> {
        let (first, mut rest) = path.split_first()?;
        let mut here = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_owned(),
            "super" => module.split_last()?.1.to_owned(),
            _ => {
                rest = path;
                module.to_owned()
            }
        };
        let relative = rest.len() == path.len();
        for (at, name) in rest.iter().enumerate() {
            let child = [here.as_slice(), std::slice::from_ref(name)].concat();
            if name == "super" {
                here.pop();
            } else if self.modules.contains_key(&child) {
                here = child;
            } else if let Some(target) = self.uses.get(&here).and_then(|uses| uses.get(name)).filter(|_| depth < 16) {
                // `use x::x` names a crate, not itself.
                if relative && target.as_slice() == path {
                    return None;
                }
                let full: Names = target.iter().chain(&rest[at + 1..]).cloned().collect();
                return self.resolve(&here, &full, depth + 1);
            } else if relative && at == 0 {
                // Another crate, or a name that is local.
                return None;
            } else {
                break;
            }
        }
        Some(here)
    }
}

/// Returns the names of the path at the beginning of the tokens.
fn path(tokens: &[TokenTree]) -> Names {
    let mut names = Vec::new();
    let mut rest = tokens;
    while let [TokenTree::Ident(name), after @ ..] = rest {
        names.push(name.to_string());
        match after {
            [first, second, next @ ..] if is_punct(first, ':') && is_punct(second, ':') => rest = next,
            _ => break,
        }
    }
    names
}

/// Collects the leaves of `a::{b, c as d}`: the line, the path, and the name in the module.
fn use_tree(tokens: &[TokenTree], before: &[String], leaves: &mut Vec<(usize, Names, String)>) {
    for branch in tokens.split(|token| is_punct(token, ',')) {
        let Some(first) = branch.first() else { continue };
        let line = first.span().start().line;
        let names = path(branch);
        let full = [before, &names].concat();
        match branch.last() {
            Some(TokenTree::Group(group)) => {
                use_tree(&group.stream().into_iter().collect::<Vec<_>>(), &full, leaves);
            }
            // `a::{self}` is `a`.
            Some(TokenTree::Ident(own)) if own == "self" => {
                let name = before.last().cloned().unwrap_or_default();
                leaves.push((line, before.to_vec(), name));
            }
            Some(TokenTree::Ident(name)) => leaves.push((line, full, name.to_string())),
            _ => leaves.push((line, full, "*".to_owned())),
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Whether an attribute is `cfg(test)` or `cfg(all(test, ..))`.
fn only_in_tests(attribute: TokenStream) -> bool {
    let text = attribute.to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// A file's name as the lists have it: `a/mod.rs` is `a`.
fn listed(path: &Path) -> String {
    let name = path.with_extension("");
    let name = if name.ends_with("mod") { name.parent().unwrap_or(&name) } else { &name };
    name.display().to_string()
}
