//! Java's `.properties` format, as `java.util.Properties.load` reads it.

/// A key and its value with the number of the line on which the key begins, or the line on which an escape is malformed.
pub(super) type Line = Result<(usize, String, String), usize>;

/// Reads the entries of a file in ISO 8859-1, in order. Comments and blank lines are left out.
pub(super) fn entries(bytes: &[u8]) -> Vec<Line> {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = text.split('\n').map(|line| line.trim_start_matches(BLANKS)).zip(1..);
    let mut entries = Vec::new();
    while let Some((line, number)) = lines.next() {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        // A line that ends in an unescaped backslash continues on the next one.
        let mut logical = line.to_owned();
        while logical.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1 {
            logical.pop();
            logical.push_str(lines.next().map_or("", |(line, _)| line));
        }
        entries.push(entry(&logical).map(|(key, value)| (number, key, value)).ok_or(number));
    }
    entries
}

const BLANKS: [char; 3] = [' ', '\t', '\x0c'];

fn entry(line: &str) -> Option<(String, String)> {
    let mut escaped = false;
    let ends = |char: char| {
        let ends = !escaped && (BLANKS.contains(&char) || char == '=' || char == ':');
        escaped = char == '\\' && !escaped;
        ends
    };
    let (key, rest) = line.split_at(line.find(ends).unwrap_or(line.len()));
    let rest = rest.trim_start_matches(BLANKS);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(BLANKS);
    Some((unescaped(key)?, unescaped(value)?))
}

/// The text with its escapes replaced; `None` if a `\u` does not have four hexadecimal digits.
fn unescaped(text: &str) -> Option<String> {
    // Java's escapes are UTF-16: two of them may encode one character.
    let mut units = Vec::new();
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        units.extend(before.encode_utf16());
        let mut chars = escape.chars();
        match chars.next() {
            Some('u') => {
                let digits =
                    chars.as_str().get(..4).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
                units.push(u16::from_str_radix(digits, 16).ok()?);
                chars = chars.as_str()[4..].chars();
            }
            Some(char) => {
                let char = match char {
                    't' => '\t',
                    'n' => '\n',
                    'r' => '\r',
                    'f' => '\x0c',
                    other => other,
                };
                units.extend(char.encode_utf16(&mut [0; 2]).iter());
            }
            None => {}
        }
        rest = chars.as_str();
    }
    units.extend(rest.encode_utf16());
    Some(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_java_reads_them() {
        for (text, key, value) in [
            ("a=b", "a", "b"),
            ("  a : b ", "a", "b "),
            ("a b=c", "a", "b=c"),
            ("a\t=\tb", "a", "b"),
            ("a", "a", ""),
            ("=b", "", "b"),
            ("a\\=\\:\\ b = c\\=d", "a=: b", "c=d"),
            ("a=b\\\n   c\\\r\n\td", "a", "bcd"),
            ("a=b\\\\", "a", "b\\"),
            ("a=b\\", "a", "b"),
            ("a=1\\\n#2", "a", "1#2"),
            ("a=\\t\\n\\r\\f\\x\\\\", "a", "\t\n\r\x0cx\\"),
            ("a=\\u00e9\\uD83D\\uDE00", "a", "é\u{1f600}"),
            ("a\\u003Db=c", "a=b", "c"),
        ] {
            assert_eq!(entries(text.as_bytes()), [Ok((1, key.to_owned(), value.to_owned()))], "{text:?}");
        }
        assert_eq!(entries(b"a=\xe9"), [Ok((1, "a".to_owned(), "é".to_owned()))]);
    }

    #[test]
    fn comments_and_blank_lines_count_as_lines_only() {
        let text = b"# a=b\\\n! c=d\n \t\n\na=1\\\n\nb=2\r\rc=\\u12";
        let pair = |line, key: &str, value: &str| Ok((line, key.to_owned(), value.to_owned()));
        assert_eq!(entries(text), [pair(5, "a", "1"), pair(7, "b", "2"), Err(9)]);
        for malformed in ["\\u", "\\u12", "\\u+123", "\\u00g0", "\\u12é4"] {
            assert_eq!(entries(malformed.as_bytes()), [Err(1)], "{malformed}");
        }
    }
}
