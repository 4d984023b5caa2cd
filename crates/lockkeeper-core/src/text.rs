//! Texts that must not be longer than a number of bytes, cut between characters.

/// The beginning of a text.
pub(crate) fn head(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// The end of a text.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    let start = (text.len().saturating_sub(max)..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[start..]
}
