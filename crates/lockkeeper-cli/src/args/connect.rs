//! The options that name the place of the locks, and what else the settings say.
//!
//! A setting whose row has a flag is an option of each verb.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::ValueHint;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, value_parser};
use lockkeeper_config::settings::{Flag, Key};

use super::values::Completes;

/// The heading of these options.
const HEADING: &str = "Where the locks are";

/// The place of the locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectArgs {
    /// The settings that were typed.
    typed: Vec<(Key, OsString)>,
    /// Where they are read from.
    pub sources: SourceArgs,
}

/// The files of the settings, and what is no setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = HEADING)]
#[group(skip)]
pub(crate) struct SourceArgs {
    /// Create the chroot of the servers, and the nodes above it, if it is missing
    ///
    /// Without this option, a missing chroot is an error (64): most often it is misspelt.
    #[arg(long, hide_short_help = true)]
    pub create_chroot: bool,
    /// Read settings from this TOML file, not from /etc/lockkeeper/config.toml and ~/.config/lockkeeper/config.toml
    /// [env: LOCKKEEPER_CONFIG]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub config: Option<PathBuf>,
    /// Read settings from this Contentserv properties file; may be repeated [env: LOCKKEEPER_PROPERTIES]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub properties: Vec<PathBuf>,
}

impl ConnectArgs {
    /// Returns what was typed for a setting.
    pub(crate) fn get(&self, key: Key) -> Option<&OsStr> {
        self.typed.iter().find(|(typed, _)| *typed == key).map(|(_, value)| value.as_os_str())
    }

    /// Returns all that was typed.
    pub(crate) fn typed(&self) -> impl Iterator<Item = (Key, &OsStr)> {
        self.typed.iter().map(|(key, value)| (*key, value.as_os_str()))
    }

    /// The same as if this was typed too.
    #[must_use]
    pub(crate) fn with(mut self, key: Key, value: impl Into<OsString>) -> Self {
        self.typed.push((key, value.into()));
        self
    }
}

/// Returns the settings that have a flag.
fn flags() -> impl Iterator<Item = (Key, Flag)> {
    Key::ALL.iter().filter_map(|key| Some((*key, key.row().flag?)))
}

/// Returns the option of a setting; its id is the name of the setting.
fn option(key: Key, flag: Flag) -> Arg {
    let help = format!("{} [env: {}]", flag.help, key.variable());
    let option = Arg::new(key.name()).long(flag.name.trim_start_matches('-')).help(&help);
    let option = option.help_heading(HEADING).hide_short_help(flag.hidden);
    let option = if flag.more.is_empty() { option } else { option.long_help(format!("{help}\n\n{}", flag.more)) };
    if key.row().is_switch() {
        return option.action(ArgAction::SetTrue);
    }
    let option = option.value_name(key.row().value).value_parser(value_parser!(OsString));
    let option = if key.row().is_path() { option.value_hint(ValueHint::AnyPath) } else { option };
    match key {
        Key::RoutingServers => option.conflicts_with_all([Key::Servers, Key::Machine].map(Key::name)),
        Key::Machine => option
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(lockkeeper::embedded::MACHINE_DIR)
            .conflicts_with_all([Key::Servers, Key::StateDir].map(Key::name)),
        Key::Acl => option.add(Completes::Words(&["open", "creator-all", "creator-all-world-read"])),
        _ => option,
    }
}

impl clap::Args for ConnectArgs {
    fn augment_args(command: Command) -> Command {
        SourceArgs::augment_args(command.args(flags().map(|(key, flag)| option(key, flag))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConnectArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |key: Key| match key.row().is_switch() {
            true => matches.get_flag(key.name()).then(|| OsString::from("true")),
            false => matches.get_one::<OsString>(key.name()).cloned(),
        };
        let typed = flags().filter_map(|(key, _)| Some((key, value(key)?))).collect();
        Ok(ConnectArgs { typed, sources: SourceArgs::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ConnectArgs::from_arg_matches(matches)?;
        Ok(())
    }
}
