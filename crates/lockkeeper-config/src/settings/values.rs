//! Interprets the layers: each value is read, bounded, and checked against the others.

use std::time::Duration;

use lockkeeper::acl::{AclError, LockAcl};
use lockkeeper::{Builder, Class};
use lockkeeper_contentserv::TASK_TIMEOUT;
use lockkeeper_session::ensemble::check_servers;

use super::jobs::jobs;
use super::kafka::kafka;
use super::keys::Key;
use super::layers::{Given, Layers};
use super::read::{Wrong, absolute, duration, take};
use super::types::{CONNECTION_RETRIES, ClassSettings, RETRIES, Settings, TlsSettings};
use crate::settings::error::{Fault, Origin, SettingsError};

/// Below the minimum, an ordinary delay of a machine looks like a crash.
const SESSION_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(24 * 3600));

const TASK_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(30 * 24 * 3600));

const DELAYS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(3600));

const MOST_TRIES: u32 = 1_000_000;

/// Reads the settings from the layers. `contentserv` selects its defaults.
pub(super) fn settings(mut layers: Layers, contentserv: bool) -> Result<Settings, SettingsError> {
    let ours = |theirs: Duration, ours: Duration| if contentserv { theirs } else { ours };
    let task_timeout = contentserv.then_some(TASK_TIMEOUT);
    let localhost = contentserv.then(|| "localhost:2181".to_owned());
    let five_seconds = Duration::from_secs(5);
    let l = &mut layers;
    let servers = take(l, Key::Servers, localhost, |given| servers(given).map(Some));
    let routing_servers = take(l, Key::RoutingServers, None, |given| self::servers(given).map(Some));
    let embedded = servers.value.is_none() && routing_servers.value.is_none() && l.realms.is_empty();
    let session_timeout = if embedded { Builder::EMBEDDED_SESSION_TIMEOUT } else { Builder::SESSION_TIMEOUT };
    let mut settings = Settings {
        servers,
        routing_servers,
        session_timeout: take(l, Key::SessionTimeout, ours(five_seconds, session_timeout), |given| {
            duration(given, SESSION_TIMEOUTS)
        }),
        connection_retry: take(l, Key::ConnectionRetry, contentserv.then_some(CONNECTION_RETRIES), |given| {
            count(given).map(Some)
        }),
        connection_delay: take(l, Key::ConnectionDelay, Duration::from_secs(1), |given| duration(given, DELAYS)),
        foreground: ClassSettings {
            prefix: take(l, Key::ForegroundPrefix, Class::FOREGROUND, class),
            timeout: take(l, Key::ForegroundTimeout, task_timeout, |given| duration(given, TASK_TIMEOUTS).map(Some)),
        },
        background: ClassSettings {
            prefix: take(l, Key::BackgroundPrefix, Class::BACKGROUND, class),
            timeout: take(l, Key::BackgroundTimeout, task_timeout, |given| duration(given, TASK_TIMEOUTS).map(Some)),
        },
        monitor_container: take(l, Key::MonitorContainer, false, flag),
        retries: take(l, Key::Retries, if contentserv { RETRIES } else { 0 }, count),
        retry_delay: take(l, Key::RetryDelay, Duration::from_secs(1), |given| duration(given, DELAYS)),
        dead_letter: take(l, Key::DeadLetter, None, |given| dead_letter(given).map(Some)),
        kafka: kafka(l),
        jobs: jobs(l),
        tls: TlsSettings {
            ca: take(l, Key::TlsCa, None, |given| absolute(given).map(Some)),
            cert: take(l, Key::TlsCert, None, |given| absolute(given).map(Some)),
            key: take(l, Key::TlsKey, None, |given| absolute(given).map(Some)),
        },
        auth_file: take(l, Key::AuthFile, None, |given| absolute(given).map(Some)),
        acl: take(l, Key::Acl, LockAcl::Open, acl),
        state_dir: take(l, Key::StateDir, None, |given| absolute(given).map(Some)),
        machine: take(l, Key::Machine, None, |given| absolute(given).map(Some)),
        history: take(l, Key::History, true, flag),
        strict: take(l, Key::Strict, false, flag),
        realms: std::mem::take(&mut l.realms),
        transfers: std::mem::take(&mut l.transfers),
        entries: Vec::new(),
        warnings: Vec::new(),
    };
    differ(&settings, &mut layers);
    belong_together(&settings.tls, &mut layers);
    one_place(&settings, &mut layers);
    let Layers { mut faults, warnings, mut entries, .. } = layers;
    entries.sort_by_key(|entry| entry.key as usize);
    settings.entries = entries;
    if settings.strict.value {
        faults.extend(warnings);
    } else {
        settings.warnings = warnings;
    }
    if faults.is_empty() { Ok(settings) } else { Err(SettingsError { faults }) }
}

/// Files set either servers for all paths or realms; a variable or a flag that sets servers overrides both. The realms are those of the
/// table or of the routing data, never of both.
fn one_place(settings: &Settings, layers: &mut Layers) {
    let (servers, routing) = (&settings.servers, &settings.routing_servers);
    if let Some(theirs) = &routing.value {
        let fault = |problem: String| {
            Fault::new(routing.origin.clone(), Key::RoutingServers.name(), format!("{theirs:?}: {problem}"))
        };
        if let Some(realm) = settings.realms.first() {
            let fault = fault(format!("there is a table of realms as well ({})", realm.origin));
            layers.faults.push(fault.remedy("keep the table [realms] or the servers of the routing data, not both"));
        }
        if servers.is_given() && servers.origin.rank() == routing.origin.rank() {
            let fault = fault(format!("there are servers for all paths as well ({})", servers.origin));
            layers.faults.push(fault.remedy("leave out one of the two"));
        }
    }
    if let (Some(realm), Origin::File { .. }) = (settings.realms.first(), &settings.servers.origin) {
        let problem = format!("there are realms as well ({})", realm.origin);
        let fault = Fault::new(settings.servers.origin.clone(), Key::Servers.name(), problem);
        layers.faults.push(fault.remedy("write the servers of all other paths as \"/\" below [realms]"));
    }
}

/// The classes must differ, and the foreground is probably meant to be served first.
fn differ(settings: &Settings, layers: &mut Layers) {
    let (foreground, background) = (&settings.foreground.prefix, &settings.background.prefix);
    if foreground.value < background.value {
        return;
    }
    let given = |key, origin: &Origin| layers.given.iter().rfind(|given| given.key == key && given.origin == *origin);
    let given = given(Key::BackgroundPrefix, &background.origin).or(given(Key::ForegroundPrefix, &foreground.origin));
    let Some(given) = given else {
        return;
    };
    let (other, origin) = match given.key {
        Key::BackgroundPrefix => ("foreground", &foreground.origin),
        _ => ("background", &background.origin),
    };
    if foreground.value != background.value {
        let problem = format!(
            "the background is served first: its prefix {} sorts before {}",
            background.value, foreground.value
        );
        layers.warnings.push(given.fault(problem).remedy("give the foreground the prefix that sorts first"));
        return;
    }
    let problem = format!("{:?} is the prefix of the {other} as well ({origin})", given.text);
    let fault = given.fault(problem).remedy("give them two; the one that sorts first has priority");
    layers.faults.push(fault);
}

/// A certificate needs its key, and both need a trusted authority.
fn belong_together(tls: &TlsSettings, layers: &mut Layers) {
    let of = [(Key::TlsCa, &tls.ca), (Key::TlsCert, &tls.cert), (Key::TlsKey, &tls.key)];
    for (key, needed) in [(Key::TlsCert, Key::TlsKey), (Key::TlsKey, Key::TlsCert), (Key::TlsCert, Key::TlsCa)] {
        let is_set = |wanted| of.iter().any(|(key, setting)| *key == wanted && setting.value.is_some());
        // A value that could not be read is already reported.
        let was_given = layers.given.iter().any(|given| given.key == needed);
        if let Some(given) = layers.given.iter().rfind(|given| given.key == key).filter(|_| is_set(key) && !was_given) {
            let fault = given.fault(format!("{:?} cannot be used without {}", given.text, needed.name()));
            layers.faults.push(fault.remedy(format!("set {} or {} too", needed.name(), needed.variable())));
        }
    }
}

fn servers(given: &Given) -> Result<String, Wrong> {
    match check_servers(&given.text) {
        Ok(_) => Ok(given.text.clone()),
        Err(error) => Err((error.to_string(), "as in zk1:2181,zk2:2181/app".to_owned())),
    }
}

fn count(given: &Given) -> Result<u32, Wrong> {
    let count = given.text.parse().ok().filter(|count| *count <= MOST_TRIES);
    count.ok_or_else(|| (format!("{:?} is not a count", given.text), format!("write a number from 0 to {MOST_TRIES}")))
}

fn class(given: &Given) -> Result<Class, Wrong> {
    Class::new(&given.text).map_err(|error| (error.to_string(), "write letters such as A and B".to_owned()))
}

fn flag(given: &Given) -> Result<bool, Wrong> {
    match given.text.as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        text => Err((format!("{text:?} is neither true nor false"), "write true or false".to_owned())),
    }
}

fn acl(given: &Given) -> Result<LockAcl, Wrong> {
    let remedy = "write open, creator-all, creator-all-world-read, or SCHEME:ID:PERMS with commas between several";
    given.text.parse().map_err(|error: AclError| (error.to_string(), remedy.to_owned()))
}

fn dead_letter(given: &Given) -> Result<String, Wrong> {
    let text = &given.text;
    let remedy = || "write file: and an absolute path".to_owned();
    match text.split_once(':') {
        Some(("file", "")) => Err((format!("{text:?} does not name a file"), remedy())),
        Some(("file", path)) if !path.starts_with('/') && matches!(given.origin, Origin::File { .. }) => {
            Err((format!("{text:?} is not an absolute path"), remedy()))
        }
        _ if text.is_empty() => Err(("is empty".to_owned(), remedy())),
        _ => Ok(text.clone()),
    }
}

impl Layers {
    /// The text of the only mistake, for tests.
    #[cfg(test)]
    fn message(self, contentserv: bool) -> String {
        settings(self, contentserv).map(|_| "fine".to_owned()).unwrap_or_else(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::layers::Unit;

    fn given(key: Key, text: &str, unit: Unit) -> Layers {
        let origin = Origin::Flag(key.name().to_owned());
        let given = Given { key, written: key.name().to_owned(), text: text.to_owned(), unit, origin };
        Layers { given: vec![given], ..Layers::default() }
    }

    #[test]
    fn bounds_are_told_in_the_unit_that_was_written() {
        let message = |text, unit| given(Key::SessionTimeout, text, unit).message(true);
        assert!(message("0", Unit::Millis).contains("from 1 to 86400000"), "{}", message("0", Unit::Millis));
        assert!(message("0s", Unit::Written).contains("from 1ms to 1day"), "{}", message("0s", Unit::Written));
        assert!(message("5s", Unit::Millis).contains("milliseconds, as in 5000"));
        assert!(message("5000", Unit::Written).contains("500ms, 30s"));
        assert_eq!(message("5000", Unit::Millis), "fine");
    }

    #[test]
    fn a_foreground_that_is_served_last_is_a_probable_mistake() {
        let warned = |prefix| settings(given(Key::ForegroundPrefix, prefix, Unit::Written), false).unwrap().warnings;
        assert_eq!(warned("A"), []);
        let warnings = warned("Z");
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.to_string().contains("the background is served first"), "{warning}");
    }

    #[test]
    fn a_default_collides_as_well_as_a_given_prefix() {
        let message = given(Key::ForegroundPrefix, "B", Unit::Written).message(false);
        assert!(
            message.contains("foreground.prefix") && message.contains("background") && message.contains("default"),
            "{message}"
        );
    }
}
