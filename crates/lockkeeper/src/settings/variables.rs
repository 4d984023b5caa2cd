//! The environment.

use super::fault::{Fault, Origin};
use super::keys::{Key, meant};
use super::layers::{Given, Layers, Unit};

/// Variables that begin like ours and are no settings.
const OTHERS: &[&str] = &[
    super::CONFIG_VARIABLE,
    super::PROPERTIES_VARIABLE,
    "LOCKKEEPER_LOG",
    "LOCKKEEPER_IDLE_EXIT",
    "LOCKKEEPER_TOKEN",
    "LOCKKEEPER_PATH",
    "LOCKKEEPER_NODE",
    "LOCKKEEPER_HELD",
];

/// The names of all variables that mean something to Lockkeeper: those of the settings, those that it reads besides, and those
/// that it sets for a command under a lock. Whoever finds another one that begins with `LOCKKEEPER_` has found a mistake, or
/// somebody else's variable.
pub fn known_variables() -> Vec<String> {
    Key::ALL.iter().map(|key| key.variable()).chain(OTHERS.iter().map(|name| (*name).to_owned())).collect()
}

/// Takes in variables. One that is set to nothing counts as not set; one that is misspelt is told.
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

/// All begin alike, so likeness alone says little: a few letters may be wrong, no more. Variables of a user's own may begin so
/// as well.
fn close(name: &str, meant: &str) -> bool {
    strsim::osa_distance(name, meant) <= 2
}
