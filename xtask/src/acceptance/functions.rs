//! Reads the tests of source files, with their doc comments and the features that each one needs.
//!
//! It reads tokens, as `cargo xtask layers` does. A function is a test if it has an attribute that ends in `test`, or if a macro of
//! its file makes tests of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A function and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Function {
    pub(super) name: String,
    /// The lines of its doc comment.
    pub(super) docs: String,
    /// Why it is no test that runs; `None` if it is one.
    pub(super) no_test: Option<&'static str>,
    /// The features without which it is not compiled, beside those of its file.
    pub(super) cfg: Vec<Cfg>,
}

/// The condition of one `cfg` attribute.
#[derive(Clone, Debug)]
pub(super) struct Cfg(TokenStream);

/// A source file.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) functions: Vec<Function>,
    /// The modules with files of their own: where the file may be, and the conditions.
    pub(super) modules: Vec<(Vec<PathBuf>, Vec<Cfg>)>,
    /// The names that a macro gets, for each call between items.
    calls: Vec<(String, BTreeSet<String>)>,
    /// The macros that the file defines, with the names in their bodies.
    macros: BTreeMap<String, BTreeSet<String>>,
}

/// The name that stands for a test's attribute among the names in a macro's body.
const MAKES_TESTS: &str = "#[test]";

impl Source {
    /// Reads a file at this path; `root` says whether it is a crate's first file.
    pub(super) fn read(path: &Path, text: &str, root: bool) -> Result<Source> {
        let tokens: TokenStream = match text.parse() {
            Ok(tokens) => tokens,
            Err(error) => bail!("reading {} as Rust: {error}", path.display()),
        };
        let directory = path.parent().unwrap_or(Path::new(""));
        let own = root || path.file_name().is_some_and(|name| name == "mod.rs");
        let folder = if own { directory.to_owned() } else { path.with_extension("") };
        let mut source = Source::default();
        source.items(tokens, &[], &folder, directory);
        Ok(source)
    }

    /// Reads the items of a module or of a macro's arguments.
    fn items(&mut self, tokens: TokenStream, cfg: &[Cfg], folder: &Path, directory: &Path) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut inherited = cfg.to_vec();
        let mut attributes = Attributes::default();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at..] {
                [TokenTree::Punct(hash), TokenTree::Group(group), ..] if hash.as_char() == '#' => {
                    attributes.add(group.stream());
                    at += 2;
                }
                // The attribute of the whole file or module.
                [TokenTree::Punct(hash), TokenTree::Punct(bang), TokenTree::Group(group), ..]
                    if hash.as_char() == '#' && bang.as_char() == '!' =>
                {
                    inherited.extend(condition(group.stream()));
                    at += 3;
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), rest @ ..] if keyword == "mod" => {
                    let own = std::mem::take(&mut attributes);
                    let cfg = [inherited.as_slice(), &own.cfg].concat();
                    let inner = folder.join(name.to_string());
                    match rest.first() {
                        Some(TokenTree::Group(body)) => self.items(body.stream(), &cfg, &inner, directory),
                        _ => {
                            let files = match own.path {
                                Some(path) => vec![directory.join(path)],
                                None => vec![inner.with_extension("rs"), inner.join("mod.rs")],
                            };
                            self.modules.push((files, cfg));
                        }
                    }
                    at += 3;
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), ..] if keyword == "fn" => {
                    let own = std::mem::take(&mut attributes);
                    self.functions.push(Function {
                        name: name.to_string(),
                        docs: own.docs,
                        no_test: match (own.is_test, own.is_ignored) {
                            (_, true) => Some("is ignored"),
                            (false, false) => Some("is no test"),
                            (true, false) => None,
                        },
                        cfg: [inherited.as_slice(), &own.cfg].concat(),
                    });
                    // Functions inside of functions are no tests.
                    at += tokens[at..].iter().position(ends_an_item).unwrap_or(tokens.len() - at) + 1;
                }
                [TokenTree::Ident(name), TokenTree::Punct(bang), rest @ ..] if bang.as_char() == '!' => {
                    attributes = Attributes::default();
                    match rest {
                        [TokenTree::Ident(defined), TokenTree::Group(body), ..] if name == "macro_rules" => {
                            self.macros.insert(defined.to_string(), names(body.stream()));
                            at += 4;
                        }
                        [TokenTree::Group(arguments), ..] => {
                            self.calls.push((name.to_string(), names(arguments.stream())));
                            self.items(arguments.stream(), &inherited, folder, directory);
                            at += 3;
                        }
                        _ => at += 2,
                    }
                }
                [TokenTree::Group(group), ..] => {
                    // A body: of an `impl`, a trait or a value.
                    if group.delimiter() == Delimiter::Brace {
                        self.items(group.stream(), &inherited, folder, directory);
                        attributes = Attributes::default();
                    }
                    at += 1;
                }
                [TokenTree::Punct(end), ..] if end.as_char() == ';' => {
                    attributes = Attributes::default();
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Notes which functions become tests by a macro.
    pub(super) fn made(&mut self, makers: &BTreeSet<String>) {
        let named = self.calls.iter().filter(|call| makers.contains(&call.0)).flat_map(|call| &call.1);
        let named: BTreeSet<_> = named.collect();
        for function in self.functions.iter_mut().filter(|function| named.contains(&function.name)) {
            if function.no_test == Some("is no test") {
                function.no_test = None;
            }
        }
    }
}

/// Returns the macros that make tests: their bodies have a test's attribute, or name such a macro.
pub(super) fn makers<'a>(sources: impl Iterator<Item = &'a Source> + Clone) -> BTreeSet<String> {
    let mut makers = BTreeSet::from([MAKES_TESTS.to_owned()]);
    loop {
        let all = sources.clone().flat_map(|source| &source.macros);
        let more = all.filter(|(name, body)| !makers.contains(*name) && !body.is_disjoint(&makers));
        let more: Vec<_> = more.map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            return makers;
        }
        makers.extend(more);
    }
}

/// The attributes before an item.
#[derive(Default)]
struct Attributes {
    docs: String,
    is_test: bool,
    is_ignored: bool,
    path: Option<String>,
    cfg: Vec<Cfg>,
}

impl Attributes {
    fn add(&mut self, attribute: TokenStream) {
        let tokens: Vec<TokenTree> = attribute.clone().into_iter().collect();
        let text = tokens.last().map(ToString::to_string).unwrap_or_default();
        match tokens.first().map(ToString::to_string).as_deref() {
            Some("doc") => self.docs += &format!("{}\n", spelling(&text).trim()),
            Some("path") => self.path = Some(spelling(&text)),
            Some("ignore") => self.is_ignored = true,
            _ => self.cfg.extend(condition(attribute.clone())),
        }
        self.is_test |= is_test(attribute);
    }
}

/// Whether an attribute makes a test: `test`, `tokio::test(..)`.
fn is_test(attribute: TokenStream) -> bool {
    let path = attribute.into_iter().take_while(|token| !matches!(token, TokenTree::Group(_)));
    path.last().is_some_and(|token| matches!(token, TokenTree::Ident(name) if name == "test"))
}

/// Returns the condition of a `cfg` attribute.
fn condition(attribute: TokenStream) -> Option<Cfg> {
    let mut tokens = attribute.into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(name)), Some(TokenTree::Group(condition))) if name == "cfg" => {
            Some(Cfg(condition.stream()))
        }
        _ => None,
    }
}

impl Cfg {
    /// Whether the condition is met when a crate's tests are built with these features.
    fn is_met(&self, features: &BTreeSet<String>) -> bool {
        let tokens: Vec<TokenTree> = self.0.clone().into_iter().collect();
        let parts = |group: &proc_macro2::Group| {
            let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
            let parts = tokens.split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','));
            parts.filter(|part| !part.is_empty()).map(|part| Cfg(part.iter().cloned().collect())).collect::<Vec<_>>()
        };
        match tokens.as_slice() {
            [TokenTree::Ident(name), TokenTree::Group(group)] if name == "all" => {
                parts(group).iter().all(|part| part.is_met(features))
            }
            [TokenTree::Ident(name), TokenTree::Group(group)] if name == "any" => {
                parts(group).iter().any(|part| part.is_met(features))
            }
            [TokenTree::Ident(name), TokenTree::Group(group)] if name == "not" => {
                !parts(group).iter().all(|part| part.is_met(features))
            }
            [TokenTree::Ident(name)] if name == REAL_SERVERS => features.contains(REAL_SERVERS),
            [TokenTree::Ident(name), _, value] if name == "feature" => features.contains(&spelling(&value.to_string())),
            // The tests' own condition, and the machine's.
            _ => true,
        }
    }

    /// Returns the features that the condition names and that are off, if it is not met.
    pub(super) fn missing(&self, features: &BTreeSet<String>) -> BTreeSet<String> {
        let mut missing = BTreeSet::new();
        if !self.is_met(features) {
            named(self.0.clone(), &mut missing);
            missing.retain(|feature| !features.contains(feature));
        }
        missing
    }
}

/// The condition of tests that need real servers, which is off in `cargo test` as a feature is.
const REAL_SERVERS: &str = "real_servers";

/// Collects the features that a condition names.
fn named(condition: TokenStream, features: &mut BTreeSet<String>) {
    for token in condition {
        match token {
            TokenTree::Group(group) => named(group.stream(), features),
            TokenTree::Literal(value) => {
                features.insert(spelling(&value.to_string()));
            }
            TokenTree::Ident(name) if name == REAL_SERVERS => {
                features.insert(REAL_SERVERS.to_owned());
            }
            _ => {}
        }
    }
}

/// Collects all names in tokens, and [`MAKES_TESTS`] if there is a test's attribute.
fn names(tokens: TokenStream) -> BTreeSet<String> {
    let (mut names, mut after_hash) = (BTreeSet::new(), false);
    for token in tokens {
        let hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
        match token {
            TokenTree::Group(group) => {
                if after_hash && is_test(group.stream()) {
                    names.insert(MAKES_TESTS.to_owned());
                }
                names.extend(self::names(group.stream()));
            }
            TokenTree::Ident(name) => {
                names.insert(name.to_string());
            }
            _ => {}
        }
        after_hash = hash;
    }
    names
}

/// Whether an item ends with this token.
fn ends_an_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    }
}

/// Returns the text of a literal between its quotes; the tokens of a doc comment have escapes.
pub(super) fn spelling(literal: &str) -> String {
    let raw = literal.strip_prefix('r').map(|rest| rest.trim_matches('#').trim_matches('"').to_owned());
    raw.unwrap_or_else(|| serde_json::from_str(literal).unwrap_or_else(|_| literal.trim_matches('"').to_owned()))
}
