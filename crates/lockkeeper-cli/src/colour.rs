//! Colours of trouble, on a terminal that shows them.
//!
//! A text gets its styles where it is made. [`crate::output`] prints them, or leaves them out where no terminal shows them, or where a
//! variable as NO_COLOR says so. A style is no text: `screen` counts only what is seen.

use anstyle::{AnsiColor, Style};

/// How serious something is that a person looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// It stays as it is until somebody does something.
    Serious,
    /// It may be worth a look.
    Notice,
    /// There is nothing to say.
    None,
}

impl Severity {
    const fn style(self) -> Style {
        match self {
            Severity::Serious => AnsiColor::Red.on_default(),
            Severity::Notice => AnsiColor::Yellow.on_default(),
            Severity::None => Style::new(),
        }
    }

    /// Returns the text with what stands before its first colon in this colour.
    pub(crate) fn paint_head(self, text: &str) -> String {
        let (head, _) = text.split_once(':').unwrap_or((text, ""));
        self.paint(head) + &text[head.len()..]
    }

    /// Returns the text in its colour. An empty text has none.
    pub(crate) fn paint(self, text: &str) -> String {
        painted(text, self.style())
    }
}

/// Returns the head of a table.
pub(crate) fn bold(text: &str) -> String {
    painted(text, Style::new().bold())
}

fn painted(text: &str, style: Style) -> String {
    if text.is_empty() || style.is_plain() { text.to_owned() } else { format!("{style}{text}{style:#}") }
}
