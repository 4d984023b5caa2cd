//! Contentserv's `.properties` files, with their keys verbatim.
//!
//! Such a file has keys of other programs too, which are ignored. Keys that begin with `zookeeper.` are Lockkeeper's; a
//! misspelt one must not silently leave a setting at its default.

use std::collections::HashMap;
use std::path::Path;

use super::java;
use super::keys::{Key, meant};
use super::layers::{Given, Layers, Unit, at};
use crate::settings::error::Fault;

const OURS: &str = "zookeeper.";

/// Reads a file into the layers. Of a key that is given twice, the last value counts, as in Java, with a warning.
pub(super) fn read(path: &Path, layers: &mut Layers) {
    let Some(bytes) = layers.file(path, false) else {
        return;
    };
    let mut seen: HashMap<String, usize> = HashMap::new();
    for entry in java::entries(&bytes) {
        let (number, written, text) = match entry {
            Ok(entry) => entry,
            Err(number) => {
                let fault = Fault::new(at(path, number), "", "\\u is not followed by four hexadecimal digits");
                return layers.faults.push(fault.remedy("write \\u00e4, or \\\\ for a backslash"));
            }
        };
        let known = Key::ALL.iter().copied().find(|key| key.property() == Some(&written));
        let properties = Key::ALL.iter().copied().filter_map(Key::property);
        match (known, meant(&written, properties)) {
            (Some(key), _) => {
                if let Some(before) = seen.insert(written.clone(), number) {
                    let problem = format!("is given twice, at line {before} too; this one counts");
                    layers.warnings.push(Fault::new(at(path, number), &written, problem));
                    layers.given.retain(|given| given.key != key || given.origin != at(path, before));
                }
                // Java keeps spaces at the end of a value, which are never intended.
                let text = text.trim().to_owned();
                layers.given.push(Given { key, written, text, unit: Unit::Millis, origin: at(path, number) });
            }
            (None, Some(meant)) if written.starts_with(OURS) || misspelt(&written, meant) => {
                let fault = Fault::new(at(path, number), written, "there is no such key");
                layers.warnings.push(fault.remedy(format!("did you mean {meant}?")));
            }
            (None, _) if written.starts_with(OURS) => {
                layers.warnings.push(Fault::new(at(path, number), written, "there is no such key"));
            }
            (None, _) => {}
        }
    }
}

/// Whether an unknown key is one of Lockkeeper's except for one or two letters. The file has similar keys of other
/// programs.
fn misspelt(written: &str, meant: &str) -> bool {
    strsim::osa_distance(written, meant) <= 2
}
