//! The environment variables.

use super::keys::{self, Key};
use super::layers::{Given, Layers, Unit};
use crate::settings::error::{Fault, Origin};

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
    "LOCKKEEPER_HOLD",
    "LOCKKEEPER_SLOT",
];

/// Returns the names of all variables that Lockkeeper uses. These are the variables of the settings, other variables
/// that it reads, and those that it sets for a command under a lock. Another variable that begins with `LOCKKEEPER_`
/// is a mistake, or belongs to another program.
pub fn known_variables() -> Vec<String> {
    Key::ALL.iter().map(|key| key.variable()).chain(OTHERS.iter().map(|name| (*name).to_owned())).collect()
}

/// What the names of all variables begin with.
const PREFIX: &str = "LOCKKEEPER_";

/// Reads the variables. An empty variable counts as not set. An unknown one is reported, because its author expects an effect.
pub(super) fn read(mut variables: Vec<(String, String)>, layers: &mut Layers) {
    variables.sort();
    for (name, text) in variables.into_iter().filter(|(_, text)| !text.is_empty()) {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let origin = Origin::Variable(name.clone());
        if let Some(key) = Key::ALL.iter().copied().find(|key| key.variable() == name) {
            layers.given.push(Given { key, written: name, text, unit: Unit::Written, origin });
        } else if !OTHERS.contains(&name.as_str()) && !is_of_kubernetes(rest) {
            let fault = Fault::new(origin, &name, "there is no such variable, so it has no effect");
            layers.warnings.push(match (rest, nearest(rest)) {
                ("REALMS", _) => fault.remedy("write the realms in a settings file, in the table [realms]"),
                (_, Some(nearest)) => fault.remedy(format!("the nearest one is {nearest}")),
                (_, None) => fault,
            });
        }
    }
}

/// Returns the known variable whose name lacks its first words, otherwise the one that was probably meant, if one is similar enough.
fn nearest(rest: &str) -> Option<String> {
    let known = known_variables();
    let end = format!("_{rest}");
    if let Some(whole) = known.iter().find(|known| known.ends_with(&end)) {
        return Some(whole.clone());
    }
    let meant = keys::meant(rest, known.iter().map(|known| known.trim_start_matches(PREFIX)))?;
    Some(format!("{PREFIX}{meant}"))
}

/// Whether Kubernetes sets this variable: it does so for a service called lockkeeper, or lockkeeper-something.
fn is_of_kubernetes(rest: &str) -> bool {
    let words: Vec<_> = rest.split('_').collect();
    let number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let pair = |pair: &[&str]| match pair {
        ["SERVICE", what] => matches!(*what, "HOST" | "PORT"),
        ["PORT", what] => number(what),
        _ => false,
    };
    words.windows(2).any(pair) || words.last() == Some(&"PORT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_variable_is_reported_with_the_probable_one() {
        let warned = |name: &str| {
            let mut layers = Layers::default();
            read(vec![(name.to_owned(), "x".to_owned())], &mut layers);
            layers.warnings.pop().map(|warning| warning.to_string()).unwrap_or_default()
        };
        for known in ["LOCKKEEPER_SERVERS", "LOCKKEEPER_TOKEN", "LOCKKEEPER_LOG", "LOCKKEEPER_CONFIG", "PATH"] {
            assert_eq!(warned(known), "");
        }
        assert!(warned("LOCKKEEPER_TIMEOUT").ends_with("; the nearest one is LOCKKEEPER_SESSION_TIMEOUT"));
        assert!(warned("LOCKKEEPER_SERVER").ends_with("; the nearest one is LOCKKEEPER_SERVERS"));
        for far in ["LOCKKEEPER_WAIT", "LOCKKEEPER_WHATEVER"] {
            assert!(warned(far).ends_with(", so it has no effect"), "{}", warned(far));
        }
        assert!(warned("LOCKKEEPER_REALMS").ends_with("; write the realms in a settings file, in the table [realms]"));
        for of_kubernetes in
            ["SERVICE_HOST", "SERVICE_PORT_CLIENT", "PORT", "PORT_2181_TCP", "PORT_2181_TCP_ADDR", "ADMIN_SERVICE_HOST"]
        {
            assert_eq!(warned(&format!("LOCKKEEPER_{of_kubernetes}")), "");
        }
    }
}
