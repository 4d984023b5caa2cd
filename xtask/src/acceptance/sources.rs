//! Reads Rust sources: which tests there are, and which lines they name.
//!
//! A test is a function with an attribute like `#[test]`, also inside a macro such as `proptest!`; or one that a macro such as
//! `on_every_server!` or `for_kinds!` makes tests of in the same file. So sources are read as tokens, which macros have in common with all else.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::LitStr;

use super::id::{Id, Mistake};

/// How the macros begin that make tests of the functions they are given.
const MAKES_TESTS: [&str; 2] = ["on_", "for_"];

/// A test and the lines it names.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) file: String,
    pub(super) function: String,
    pub(super) shows: Vec<Id>,
}

/// A function as it is written.
#[derive(Debug)]
struct Function {
    name: String,
    docs: Vec<String>,
    is_test: bool,
}

/// The tests of one file, and what is wrong with what they name.
pub(super) fn read(file: &str, text: &str) -> Result<(Vec<Test>, Vec<Mistake>)> {
    let tokens: TokenStream = syn::parse_str(text).with_context(|| format!("reading {file} as Rust"))?;
    let mut scan = Scan::default();
    scan.tokens(tokens);
    let Scan { functions, made_tests } = scan;
    let (mut tests, mut mistakes) = (Vec::new(), Vec::new());
    for Function { name, docs, is_test } in functions {
        let is_test = is_test || made_tests.contains(&name);
        match named(&name, &docs) {
            Err(mistake) if is_test => mistakes.push(format!("{file}: {name}: {mistake}")),
            Ok(shows) if is_test => tests.push(Test { file: file.to_owned(), function: name, shows }),
            // What is no test may begin its words as it likes; but one that calls itself a case is meant as one.
            Ok(shows) if !shows.is_empty() => {
                mistakes.push(format!("{file}: {name} names {} and is no test", shows[0]));
            }
            _ => {}
        }
    }
    Ok((tests, mistakes))
}

/// The lines that a function's name and doc comment name.
fn named(name: &str, docs: &[String]) -> Result<Vec<Id>, Mistake> {
    let mut shows = Vec::new();
    // `case_55_case_56_…` shows two.
    let mut words = name;
    while let Some((case, rest)) = Id::first(words)?.filter(|(id, _)| id.family == "case") {
        words = rest.strip_prefix('_').ok_or_else(|| format!("write {case}_ and what it claims"))?;
        shows.push(case);
    }
    let docs = docs.join("\n");
    let mut rest = docs.as_str();
    while !rest.is_empty() {
        if let Some((ids, after)) = Id::list(rest.trim_start())? {
            if !after.starts_with(':') {
                return Err(format!("the ids that begin a line of the comment ({}, …) must end in a colon", ids[0]));
            }
            shows.extend(ids);
            rest = after;
        }
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    Ok(shows)
}

/// What has been found so far.
#[derive(Debug, Default)]
struct Scan {
    functions: Vec<Function>,
    made_tests: BTreeSet<String>,
}

impl Scan {
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        // What stands before the next item.
        let (mut docs, mut is_test) = (Vec::new(), false);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at..] {
                [TokenTree::Punct(hash), TokenTree::Group(attribute), ..]
                    if hash.as_char() == '#' && attribute.delimiter() == Delimiter::Bracket =>
                {
                    match attribute_of(attribute.stream()) {
                        Attribute::Doc(text) => docs.push(text),
                        Attribute::Test => is_test = true,
                        Attribute::Other => {}
                    }
                    at += 2;
                    continue;
                }
                [TokenTree::Ident(keyword), TokenTree::Ident(name), ..] if keyword == "fn" => {
                    let docs = std::mem::take(&mut docs);
                    self.functions.push(Function { name: name.to_string(), docs, is_test });
                    is_test = false;
                    at += 2;
                    continue;
                }
                [TokenTree::Ident(name), TokenTree::Punct(bang), TokenTree::Group(given), ..]
                    if bang.as_char() == '!' && MAKES_TESTS.iter().any(|start| name.to_string().starts_with(start)) =>
                {
                    identifiers(given.stream(), &mut self.made_tests);
                    at += 3;
                }
                // Between a function's comment and its name.
                [TokenTree::Ident(word), ..] if ["pub", "async", "const", "unsafe"].iter().any(|w| word == w) => {
                    at += 1;
                    continue;
                }
                [TokenTree::Group(group), ..] => {
                    self.tokens(group.stream());
                    at += 1;
                    if group.delimiter() == Delimiter::Parenthesis {
                        // Perhaps that of `pub(crate)`.
                        continue;
                    }
                }
                _ => at += 1,
            }
            docs.clear();
            is_test = false;
        }
    }
}

enum Attribute {
    Doc(String),
    Test,
    Other,
}

fn attribute_of(tokens: TokenStream) -> Attribute {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    if let [TokenTree::Ident(doc), TokenTree::Punct(_), TokenTree::Literal(text)] = &tokens[..]
        && doc == "doc"
    {
        return match syn::parse_str::<LitStr>(&text.to_string()) {
            Ok(text) => Attribute::Doc(text.value()),
            Err(_) => Attribute::Other,
        };
    }
    // `test`, `tokio::test`, `tokio::test(flavor = ..)`.
    let path = tokens.iter().take_while(|token| match token {
        TokenTree::Ident(_) => true,
        TokenTree::Punct(colon) => colon.as_char() == ':',
        _ => false,
    });
    match path.last() {
        Some(TokenTree::Ident(last)) if last == "test" => Attribute::Test,
        _ => Attribute::Other,
    }
}

fn identifiers(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => _ = found.insert(name.to_string()),
            TokenTree::Group(group) => identifiers(group.stream(), found),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(String, Vec<String>)> {
        let (tests, mistakes) = read("lib.rs", text).unwrap();
        assert_eq!(mistakes, [""; 0]);
        let ids = |test: &Test| test.shows.iter().map(Id::to_string).collect();
        tests.iter().map(|test| (test.function.clone(), ids(test))).collect()
    }

    fn mistakes(text: &str) -> Vec<Mistake> {
        read("lib.rs", text).unwrap().1
    }

    #[test]
    fn attributed_functions_are_tests_wherever_they_stand() {
        let text = r#"
            //! C-09: of the module, so of no test.
            /// Helps.
            fn helper() {}
            mod tests {
                /// What it claims.
                /// C-01, C-02: and which lines
                /// show it.
                #[test]
                fn plain() { fn inner() {} }
                /// T-03: here
                #[tokio::test(flavor = "multi_thread")]
                pub(crate) async fn with_a_runtime() {}
            }
            proptest! {
                #![proptest_config(config())]
                /// N-01..N-03: for all numbers
                #[test]
                fn property(x in 0..7) {}
            }
        "#;
        let expect = |name: &str, ids: &[&str]| (name.to_owned(), ids.iter().map(|id| (*id).to_owned()).collect());
        assert_eq!(
            shown(text),
            [
                expect("plain", &["C-01", "C-02"]),
                expect("with_a_runtime", &["T-03"]),
                expect("property", &["N-01", "N-02", "N-03"]),
            ]
        );
    }

    #[test]
    fn functions_that_a_macro_makes_tests_of_are_tests() {
        let text = "on_every_server!(case_06_case_07_dropped, locks,);
            /// N-01: ours
            async fn case_06_case_07_dropped(world: &World) {}
            /// N-02: ours
            async fn locks(world: &World) {}
            async fn helper() {}
            for_kinds!([read Read, write Write] shared);
            /// N-03: ours
            async fn shared(world: &World) {}";
        let expect = |name: &str, ids: &[&str]| (name.to_owned(), ids.iter().map(|id| (*id).to_owned()).collect());
        assert_eq!(
            shown(text),
            [
                expect("case_06_case_07_dropped", &["case_06", "case_07", "N-01"]),
                expect("locks", &["N-02"]),
                expect("shared", &["N-03"])
            ]
        );
    }

    #[test]
    fn ids_in_the_middle_of_a_line_are_talk() {
        assert_eq!(shown("/// Like C-01: not so.\n#[test] fn a() {}"), [("a".to_owned(), Vec::new())]);
    }

    #[test]
    fn ids_that_are_not_a_list_with_a_colon_are_mistakes() {
        for (text, say) in [
            ("/// C-01 is so\n#[test] fn a() {}", "must end in a colon"),
            ("/// C-1: x\n#[test] fn a() {}", "is written C-01"),
            ("/// C-01, and: x\n#[test] fn a() {}", "is no id"),
            ("#[test] fn case_6_a() {}", "is written case_06"),
            ("/// C-01: x\nfn a() {}", "a names C-01 and is no test"),
            ("#[test] fn case_06() {}", "write case_06_ and"),
            ("fn case_06_forgotten_in_the_list() {}", "is no test"),
        ] {
            let mistakes = mistakes(text);
            assert!(mistakes.len() == 1 && mistakes[0].contains(say), "{text}: {mistakes:?}");
        }
    }

    #[test]
    fn an_attribute_ends_with_its_item() {
        assert_eq!(shown("#[test] struct A; fn a() {}"), []);
        assert_eq!(shown("/// C-01: x\nstruct A; #[test] fn a() {}"), [("a".to_owned(), Vec::new())]);
    }
}
