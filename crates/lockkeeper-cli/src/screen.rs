//! What fits on a terminal: its size, and lines that are cut or wrapped to its width.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use anstream::adapter::strip_str;
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// The indentation of the rest of a line of an answer that does not fit on a terminal.
pub(crate) const INDENT: usize = 4;

/// Hints are not wider than this, so that they can be read at once.
const HINT_COLUMNS: usize = 80;

impl Size {
    /// Returns the size of the terminal that a stream is; `None` if it is none. A terminal that does not report its size has 80
    /// columns and 24 rows.
    pub(crate) fn of(stream: impl AsFd) -> Option<Self> {
        let stream = stream.as_fd();
        let given = |count: u16, usual| if count == 0 { usual } else { usize::from(count) };
        stream.is_terminal().then(|| match tcgetwinsize(stream) {
            Ok(size) => Size { columns: given(size.ws_col, 80), rows: given(size.ws_row, 24) },
            Err(_) => Size { columns: 80, rows: 24 },
        })
    }

    /// Returns the size of standard output, if it is a terminal, without the row of the prompt and the one that names the server.
    pub(crate) fn for_an_answer() -> Option<Self> {
        Size::of(std::io::stdout()).map(|size| Size { rows: size.rows.saturating_sub(2), ..size })
    }

    /// Whether a text fits when it is wrapped.
    pub(crate) fn takes(self, text: &str, indent: usize) -> bool {
        self.rows_of(&wrapped(text, self.columns, indent)) <= self.rows
    }

    /// Returns what is left below these lines.
    pub(crate) fn less(self, lines: &str) -> Self {
        Size { rows: self.rows.saturating_sub(self.rows_of(lines)), ..self }
    }

    /// Returns how many rows the terminal needs for these lines. It breaks those that are too long.
    fn rows_of(self, lines: &str) -> usize {
        lines.lines().map(|line| seen(line).div_ceil(self.columns).max(1)).sum()
    }
}

/// Returns the columns for hints on a stream; `None` if it is not a terminal.
pub(crate) fn hint_columns(stream: impl AsFd) -> Option<usize> {
    Size::of(stream).map(|size| size.columns.min(HINT_COLUMNS))
}

/// Returns the width of a text without its styles.
fn seen(text: &str) -> usize {
    if text.contains('\x1b') { strip_str(text).to_string().width() } else { text.width() }
}

/// Cuts a text to this width, with an ellipsis where text is missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let columns = c.width().unwrap_or(0);
        let fits = columns <= left;
        left = left.saturating_sub(columns);
        fits
    };
    let kept: String = text.chars().take_while(fits).collect();
    if width == 0 { kept } else { format!("{}…", kept.trim_end()) }
}

/// Breaks each line of a text at spaces, so that it fits into this many columns. The lines after a break begin with `indent`
/// spaces. A word that is wider than a line stays whole, so that it can be copied.
pub(crate) fn wrapped(text: &str, columns: usize, indent: usize) -> String {
    text.split_inclusive('\n').map(|line| wrapped_line(line, columns, indent)).collect()
}

/// Wraps a text for standard output if that is a terminal.
pub(crate) fn wrapped_for_stdout(text: &str, indent: usize) -> String {
    Size::of(std::io::stdout()).map_or_else(|| text.to_owned(), |size| wrapped(text, size.columns, indent))
}

fn wrapped_line(line: &str, columns: usize, indent: usize) -> String {
    let (mut text, mut width, mut begun) = (String::with_capacity(line.len()), 0, false);
    for word in line.split_inclusive(' ') {
        let letters = seen(word.trim_end());
        if begun && letters > 0 && width + letters > columns {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            width = indent;
        }
        text.push_str(word);
        width += seen(word.trim_end_matches('\n'));
        begun |= letters > 0;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_keep_long_words() {
        assert_eq!(wrapped("held by a  (x)\n", 80, 4), "held by a  (x)\n");
        assert_eq!(wrapped("  node     /a/b since now\n", 12, 4), "  node\n    /a/b\n    since\n    now\n");
        assert_eq!(wrapped("  a verylongword b", 6, 4), "  a\n    verylongword\n    b");
        assert_eq!(wrapped("one two\nthree four\n", 5, 0), "one\ntwo\nthree\nfour\n");
        assert_eq!(wrapped("夜間 索引", 8, 2), "夜間\n  索引");
        assert_eq!(wrapped("", 8, 2), "");
        assert_eq!(wrapped("\x1b[31m!!\x1b[0m a b\n", 6, 3), "\x1b[31m!!\x1b[0m a b\n", "a style has no width");
    }
}
