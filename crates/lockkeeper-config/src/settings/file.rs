//! Lockkeeper's own files, in TOML.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{Key, SWITCH, meant};
use super::layers::{Given, Layers, Unit, at};
use super::tables;
use crate::settings::error::Fault;

/// Reads a file into the layers. With `may_miss`, a missing file counts as empty.
pub(super) fn read(path: &Path, may_miss: bool, layers: &mut Layers) {
    let Some(bytes) = layers.file(path, may_miss) else {
        return;
    };
    let Ok(text) = String::from_utf8(bytes) else {
        return layers.faults.push(Fault::new(at(path, 1), "", "is not UTF-8"));
    };
    let file = File { path, text: &text };
    match DeTable::parse(&text) {
        Ok(table) => file.table("", table.get_ref(), layers),
        Err(error) => {
            let line = file.line(error.span().map_or(0, |span| span.start));
            // The parser's full text repeats the place and shows an excerpt.
            layers.faults.push(Fault::new(at(path, line), "", error.message()));
        }
    }
}

/// A file and its text, to find the line of a value.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    /// Reads one table, whose keys begin with `before`.
    fn table(&self, before: &str, table: &DeTable<'_>, layers: &mut Layers) {
        // Tables are sorted by key; mistakes are reported in the order of the file.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let written = format!("{before}{}", key.get_ref());
            let origin = at(self.path, self.line(key.span().start));
            let known = Key::ALL.iter().copied().find(|key| key.name() == written);
            let opens = format!("{written}.");
            let is_table = before.is_empty() && Key::ALL.iter().copied().any(|key| key.name().starts_with(&opens));
            let place = |offset| at(self.path, self.line(offset));
            match (known, value.get_ref()) {
                (None, DeValue::Table(inner)) if written == tables::REALMS => tables::realms(inner, place, layers),
                (None, _) if written == tables::TRANSFER => tables::transfers(value, place, layers),
                (Some(key), _) => match text(key, value) {
                    Ok(text) => layers.given.push(Given { key, written, text, unit: Unit::Written, origin }),
                    Err((problem, remedy)) => layers.faults.push(Fault::new(origin, written, problem).remedy(remedy)),
                },
                (None, DeValue::Table(inner)) if is_table => self.table(&opens, inner, layers),
                (None, _) if is_table => {
                    let fault = Fault::new(origin, &written, "is a table");
                    layers.faults.push(fault.remedy(format!("write [{written}] and its keys below")));
                }
                (None, _) => {
                    let fault = Fault::new(origin, &written, "there is no such key");
                    layers.faults.push(match meant(&written, Key::ALL.iter().copied().map(Key::name)) {
                        Some(meant) => fault.remedy(format!("did you mean {meant}?")),
                        None => fault,
                    });
                }
            }
        }
    }
}

/// A value as text if it has the key's type; otherwise the problem and the remedy.
fn text(key: Key, value: &Spanned<DeValue<'_>>) -> Result<String, (String, String)> {
    let wrong = |expected: &str, example: &str| {
        let kind = value.get_ref().type_str();
        Err((format!("is of the type {kind}, not {expected}"), format!("write {key} = {example}", key = last(key))))
    };
    match (key.row().value, value.get_ref()) {
        ("SERVERS", DeValue::Array(servers)) => {
            let mut list = Vec::new();
            for server in servers {
                match server.get_ref() {
                    DeValue::String(server) => list.push(server.to_string()),
                    _ => return wrong("a list of texts", r#"["zk1:2181", "zk2:2181"]"#),
                }
            }
            Ok(list.join(","))
        }
        ("COUNT" | "SIZE", DeValue::Integer(number)) => Ok(number.as_str().to_owned()),
        ("COUNT", _) => wrong("a number", "5"),
        (SWITCH, DeValue::Boolean(is)) => Ok(is.to_string()),
        (SWITCH, _) => wrong(SWITCH, "true"),
        (_, DeValue::String(text)) => Ok(text.to_string()),
        ("DURATION", _) => wrong("a time with its unit", r#""5s""#),
        ("SIZE", _) => wrong("a size", r#""4k""#),
        _ => wrong("a text", r#""…""#),
    }
}

/// The key within its table.
fn last(key: Key) -> &'static str {
    key.name().rsplit('.').next().unwrap_or(key.name())
}

#[cfg(test)]
mod tests {
    use super::super::Sources;
    use super::*;

    #[test]
    fn each_count_size_time_and_switch_is_written_as_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (file, mut tried) = (dir.path().join("config.toml"), 0);
        for key in Key::ALL {
            let value = match key.row().value {
                "COUNT" => "5",
                "SIZE" => "4096",
                "DURATION" => "\"5s\"",
                SWITCH => "true",
                _ => continue,
            };
            std::fs::write(&file, format!("{} = {value}\n", key.name())).unwrap();
            let read = Sources::none().config(&file).read();
            assert!(read.is_ok(), "{}", read.unwrap_err());
            tried += 1;
        }
        assert!(tried > 10, "{tried}");
    }
}
