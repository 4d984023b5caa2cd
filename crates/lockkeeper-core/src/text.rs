//! Texts for people: durations in words, texts of other programs without control characters, and long texts, cut between characters.

use std::borrow::Cow;
use std::time::Duration;

/// Maximum characters of an excerpt.
const EXCERPT_CHARS: usize = 72;

/// The beginning of a text that another program wrote, for a line about something else: at most 72 characters, and `…` if some
/// are missing.
pub fn excerpt(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(EXCERPT_CHARS) {
        None => text.into(),
        Some((end, _)) => format!("{}…", text[..end].trim_end()).into(),
    }
}

/// Returns text of unknown origin as a single line, with all characters escaped that a terminal would interpret.
///
/// Messages, owners and node names are written by other programs. Unescaped, every writer of a lock's node could move the cursor of a
/// terminal, change the window's title or fake a line of a log.
pub fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || c == '\t' || c == '\r' {
            safe.push(' ');
        } else if is_active(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Whether this is a control character, an invisible character, or a mark that changes the direction of the text around it: what
/// a terminal does not show, but obeys, or what makes two different names look the same.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' // soft hyphen
                | '\u{61c}' // Arabic letter mark
                | '\u{180e}' // Mongolian vowel separator
                | '\u{200b}'..='\u{200f}' // without a width, and marks of direction
                | '\u{2028}'..='\u{202e}' // ends of lines and paragraphs, embedded directions
                | '\u{2060}'..='\u{206f}' // invisible operators, isolated directions
                | '\u{feff}' // byte order mark
                | '\u{fff9}'..='\u{fffb}' // annotations
                | '\u{e0000}'..='\u{e007f}' // tags
        )
}

/// A duration for people: `350 ms`, `1.2 s`, `12 s`, `3 min 02 s`, `4 h 02 min`, `3 d 04 h`. Seconds are rounded; minutes and hours
/// have passed as a whole.
pub fn spell(time: Duration) -> String {
    let fine = match time.as_millis() {
        0..1_000 => 0,
        1_000..9_950 => 50,
        _ => 500,
    };
    let rounded = time.saturating_add(Duration::from_millis(fine));
    let (seconds, tenths) = (rounded.as_secs(), rounded.subsec_millis() / 100);
    match seconds {
        0 if time.subsec_millis() > 0 => format!("{} ms", time.subsec_millis()),
        1..10 if tenths > 0 => format!("{seconds}.{tenths} s"),
        0..60 => format!("{seconds} s"),
        60..3_600 => pair(seconds, 60, ["min", "s"]),
        3_600..86_400 => pair(seconds / 60, 60, ["h", "min"]),
        _ => pair(seconds / 3_600, 24, ["d", "h"]),
    }
}

/// `3 min 02 s`, `3 min`
fn pair(count: u64, whole: u64, [unit, part]: [&str; 2]) -> String {
    match count % whole {
        0 => format!("{} {unit}", count / whole),
        rest => format!("{} {unit} {rest:02} {part}", count / whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_style() {
        for (millis, text) in [
            (0, "0 s"),
            (350, "350 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_049, "1 s"),
            (1_200, "1.2 s"),
            (1_990, "2 s"),
            (9_949, "9.9 s"),
            (9_950, "10 s"),
            (12_400, "12 s"),
            (59_900, "1 min"),
            (60_000, "1 min"),
            (182_000, "3 min 02 s"),
            (14_579_000, "4 h 02 min"),
            (18_000_000, "5 h"),
            (273_600_000, "3 d 04 h"),
            (86_400_000, "1 d"),
        ] {
            assert_eq!(spell(Duration::from_millis(millis)), text);
        }
        assert_eq!(spell(Duration::from_nanos(1)), "0 s");
        assert!(spell(Duration::MAX).ends_with(" h"));
    }

    #[test]
    fn text_of_others_cannot_steer_a_terminal() {
        assert_eq!(plain("a\x1b[2Jb\u{9b}1m\u{202e}c\nd"), "a\\u{1b}[2Jb\\u{9b}1m\\u{202e}c d");
        assert_eq!(plain("nächtlicher Lauf 夜"), "nächtlicher Lauf 夜");
        for invisible in ['\u{61c}', '\u{200b}', '\u{200f}', '\u{2066}', '\u{feff}', '\u{e0041}'] {
            assert_eq!(plain(&format!("a{invisible}b")), format!("a{}b", invisible.escape_unicode()));
        }
    }

    #[test]
    fn a_long_text_is_cut_to_its_first_characters() {
        assert_eq!(excerpt("nightly index"), "nightly index");
        assert_eq!(excerpt(&"夜".repeat(72)), "夜".repeat(72));
        assert_eq!(excerpt(&"夜".repeat(100_000)), format!("{}…", "夜".repeat(72)));
    }
}
