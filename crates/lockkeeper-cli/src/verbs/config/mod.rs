//! `lockkeeper config`: prints every setting with its origin.

use std::fmt::Write as _;
use std::path::Path;

use lockkeeper_config::settings::{Key, Origin, RealmSetting, Setting, SettingEntry};
use lockkeeper_helix::TransferRule;
use serde::Serialize;

use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::output::{self, Printer};
use crate::place::Place;
use crate::settings::Settings;
use crate::text::plain;
use crate::verb::{Context, Verb};

use crate::inquiry::inquire_session_timeout;

/// `lockkeeper config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The later layer counts: defaults, /etc/lockkeeper/config.toml, ~/.config/lockkeeper/config.toml, --properties files, a --config \
file, the environment, flags. With a properties file, the defaults are those of Contentserv's document.

Examples:
  lockkeeper config
  lockkeeper config --servers zk1:2181 --connect")]
pub(crate) struct ConfigArgs {
    /// Open a session, and print the session timeout that the server grants
    #[arg(long)]
    pub connect: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for ConfigArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        config(self, context.printer).await
    }
}

/// Prints the settings; returns the exit status.
async fn config(args: ConfigArgs, printer: &Printer) -> Result<u8, Failure> {
    let create_chroot = args.common.connect.sources.create_chroot;
    let (all, place) = Settings::read_all(args.common.connect, printer)?;
    // Only a session needs a place.
    let place = if args.connect { Ok(place?) } else { place };
    let settings_at =
        |place: &Place| Settings { place: place.clone(), all: all.clone(), create_chroot, printer: *printer };
    let negotiated = match &place {
        Ok(place) if args.connect => {
            let settings = settings_at(place).whole_servers()?;
            match inquire_session_timeout(&settings).await {
                // The settings are the main output, so a missing session is only a note.
                Err(failure) if failure.code == Code::Unreachable && matches!(settings.place, Place::Machine(_)) => {
                    printer.note(&format!("{failure}, so no session timeout was negotiated"));
                    None
                }
                other => other?,
            }
        }
        _ => None,
    };
    let negotiated = negotiated.map(lockkeeper_session::text::typed);
    let entries = all.entries();
    if printer.is_json() {
        output::document(&ConfigView {
            settings: entries.iter().map(EntryView::of).collect(),
            realms: all.realms.iter().map(RealmView::of).collect(),
            transfers: all.transfers.iter().map(TransferView::of).collect(),
            negotiated_session_timeout: negotiated,
        })?;
        return Ok(0);
    }
    let settings = place.as_ref().ok().map(settings_at);
    let has_realms = settings.as_ref().is_none_or(Settings::has_realms);
    let named = all.servers.is_given() && all.routing_directory().is_none();
    let machine = !named && !has_realms && matches!(&place, Ok(Place::Machine(home)) if home.is_shared());
    let unused = match (named, machine) {
        (true, _) => ", not used: servers were named",
        (false, true) => ", not used: this machine's server was chosen",
        (false, false) => "",
    };
    let width = Key::ALL.iter().map(|key| key.name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for entry in entries {
        let value = entry.value.clone().unwrap_or_else(|| match entry.key {
            Key::Servers if has_realms && all.routing_directory().is_some() => {
                "none: the realms of the routing data are used".to_owned()
            }
            Key::Servers if has_realms && !all.realms.is_empty() => "none: the realms below are used".to_owned(),
            key => unset(key, &place),
        });
        let agreed = match (&negotiated, entry.key) {
            (Some(agreed), Key::SessionTimeout) => format!(", {agreed} agreed with the server"),
            (_, Key::Servers) if entry.value.is_some() && all.routing_directory().is_some() => {
                ", not used: the realms of the routing data are used".to_owned()
            }
            (_, Key::RoutingServers) if entry.value.is_some() => unused.to_owned(),
            _ => String::new(),
        };
        // Writing to a string never fails.
        _ = writeln!(
            text,
            "{:width$}  {}  ({}{agreed})",
            entry.key.name(),
            plain(&value),
            plain(&entry.origin.to_string())
        );
    }
    for Setting { value: realm, origin, .. } in &all.realms {
        _ = writeln!(
            text,
            "realm {}  {}  ({}{unused})",
            plain(&realm.prefix),
            plain(&realm.servers),
            plain(&origin.to_string())
        );
    }
    for Setting { value: rule, origin, .. } in &all.transfers {
        let TransferRule { name, owner, requestor, .. } = rule;
        let line = format!("transfer {name:?}  from {owner} to {requestor}  ({origin})");
        _ = writeln!(text, "{}", plain(&line));
    }
    output::data(&text)?;
    Ok(0)
}

/// Returns the effect of a setting that is not set.
fn unset(key: Key, place: &Result<Place, Failure>) -> String {
    match (key, place) {
        (Key::Servers, Ok(place @ Place::Machine(_))) => format!("none: {place}"),
        (Key::Servers, _) => "none: this user's own server".to_owned(),
        (Key::Machine, _) => "none".to_owned(),
        (Key::StateDir, Ok(Place::Machine(home))) if !home.is_shared() => home.dir().display().to_string(),
        (Key::StateDir, Ok(_)) => "not used".to_owned(),
        (Key::StateDir, Err(failure)) => format!("none: {failure}"),
        (Key::ConnectionRetry, _) => "for 10s; in the queue, as long as the session may live".to_owned(),
        (Key::ForegroundTimeout | Key::BackgroundTimeout, _) => "none: waits".to_owned(),
        _ => "none".to_owned(),
    }
}

/// All settings, as `--json` shows them. These fields are documented and stay.
#[derive(Serialize)]
struct ConfigView<'a> {
    settings: Vec<EntryView<'a>>,
    realms: Vec<RealmView<'a>>,
    transfers: Vec<TransferView<'a>>,
    negotiated_session_timeout: Option<String>,
}

#[derive(Serialize)]
struct RealmView<'a> {
    prefix: &'a str,
    servers: &'a str,
    origin: String,
}

impl<'a> RealmView<'a> {
    fn of(realm: &'a Setting<RealmSetting>) -> Self {
        let RealmSetting { prefix, servers, .. } = &realm.value;
        RealmView { prefix, servers, origin: realm.origin.to_string() }
    }
}

#[derive(Serialize)]
struct TransferView<'a> {
    name: &'a str,
    owner: &'a str,
    requestor: &'a str,
    origin: String,
}

impl<'a> TransferView<'a> {
    fn of(rule: &'a Setting<TransferRule>) -> Self {
        let TransferRule { name, owner, requestor, .. } = &rule.value;
        TransferView { name, owner, requestor, origin: rule.origin.to_string() }
    }
}

#[derive(Serialize)]
struct EntryView<'a> {
    key: &'static str,
    value: Option<&'a str>,
    /// `default`, `file`, `variable` or `flag`.
    origin: &'static str,
    file: Option<&'a Path>,
    line: Option<usize>,
    /// The variable or the flag.
    name: Option<&'a str>,
    variable: String,
    property: Option<&'static str>,
}

impl<'a> EntryView<'a> {
    fn of(entry: &'a SettingEntry) -> Self {
        let (origin, file, line, name) = match &entry.origin {
            Origin::File { path, line } => ("file", Some(path.as_path()), *line, None),
            Origin::Variable(name) => ("variable", None, None, Some(name.as_str())),
            Origin::Flag(name) => ("flag", None, None, Some(name.as_str())),
            _ => ("default", None, None, None),
        };
        let (key, value) = (entry.key.name(), entry.value.as_deref());
        EntryView {
            key,
            value,
            origin,
            file,
            line,
            name,
            variable: entry.key.variable(),
            property: entry.key.property(),
        }
    }
}
