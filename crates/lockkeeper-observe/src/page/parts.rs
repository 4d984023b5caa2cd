//! Parts of several sections.

use lockkeeper_session::text::plain;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters of a path that an address needs no escape for.
const UNESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// Returns the shell command of these words after `lockkeeper`, with the options that name the place of the locks.
pub type Command = dyn Fn(&[&str]) -> String + Send + Sync;

pub(super) fn more(all: usize, shown: usize, what: &str) -> Markup {
    html! { @if all > shown { p { "And " (all - shown) " more " (what) "." } } }
}

/// A command that shows the same.
pub(super) fn shown(command: &Command, words: &[&str]) -> Markup {
    html! { p.command { "$ " code { (plain(&command(words))) } } }
}

pub(super) fn link(path: &str) -> Markup {
    html! { a href=(format!("/lock?path={}", utf8_percent_encode(path, UNESCAPED))) { (plain(path)) } }
}
