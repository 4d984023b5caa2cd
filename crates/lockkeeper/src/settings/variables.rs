//! The environment variables.

use super::keys::{Key, meant};
use super::layers::{Given, Layers, Unit};
use crate::error::settings::{Fault, Origin};

/// Variables that begin with `LOCKKEEPER_` and are not settings.
const OTHERS: &[&str] = &[
    super::CONFIG_VARIABLE,
    super::PROPERTIES_VARIABLE,
    "LOCKKEEPER_LOG",
    "LOCKKEEPER_IDLE_EXIT",
    "LOCKKEEPER_TOKEN",
    "LOCKKEEPER_PATH",
    "LOCKKEEPER_NODE",
    "LOCKKEEPER_HELD",
    "LOCKKEEPER_SLOT",
];

/// Returns the names of all variables that Lockkeeper uses. These are the variables of the settings, other variables
/// that it reads, and those that it sets for a command under a lock. Another variable that begins with `LOCKKEEPER_`
/// is a mistake, or belongs to another program.
pub fn known_variables() -> Vec<String> {
    Key::ALL.iter().map(|key| key.variable()).chain(OTHERS.iter().map(|name| (*name).to_owned())).collect()
}

/// Reads the variables. An empty variable counts as not set; a misspelt one is reported.
pub(super) fn read(variables: Vec<(String, String)>, layers: &mut Layers) {
    for (name, text) in variables.into_iter().filter(|(name, text)| name.starts_with("LOCKKEEPER_") && !text.is_empty())
    {
        let origin = Origin::Variable(name.clone());
        if let Some(key) = Key::ALL.into_iter().find(|key| key.variable() == name) {
            layers.given.push(Given { key, written: name, text, unit: Unit::Written, origin });
        } else if !OTHERS.contains(&name.as_str()) {
            let known = Key::ALL.map(Key::variable);
            if let Some(meant) = meant(&name, known.iter().map(String::as_str)).filter(|meant| close(&name, meant)) {
                let fault = Fault::new(origin, name, "there is no such variable");
                layers.warnings.push(fault.remedy(format!("did you mean {meant}?")));
            }
        }
    }
}

/// All names begin alike, so similarity alone says little: at most a few letters may differ. Variables of the user may
/// begin with `LOCKKEEPER_` as well.
fn close(name: &str, meant: &str) -> bool {
    strsim::osa_distance(name, meant) <= 2
}
