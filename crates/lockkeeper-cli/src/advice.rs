//! Builds the lockkeeper commands that are printed for a person to run.
//!
//! Each command can be pasted into a POSIX shell, on any terminal of this user, and reaches the locks that this process
//! reached. It repeats the options that name the place of the locks. On a terminal it leaves out those that a variable set: the
//! next command there has the same variables. Elsewhere it repeats them too, because the reader of a file or another program may
//! lack them. Files in the usual places are not repeated: every command of this user reads them. Commands about a lock come from
//! [`LockCommands`]: they also name what makes it the same lock for a contender.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use lockkeeper::NodeFormat;
use lockkeeper::admin::ContenderInfo;
use lockkeeper::embedded::{MACHINE_DIR, ServerDir};
use lockkeeper_config::settings::{CONFIG_VARIABLE, Key, PROPERTIES_VARIABLE};
use lockkeeper_core::ForeignSemaphore;
use lockkeeper_history::LockUse;
use lockkeeper_jobs::{JobStatus, Rule, Schedule};

use crate::args::connect::{ConnectArgs, SourceArgs};
use crate::text::is_active;

const SERVERS: &str = "--servers";

const ROUTING: &str = "--routing-servers";

const STATE_DIR: &str = "--state-dir";

const MACHINE: &str = "--machine";

/// The options that say where the locks are. One excludes the others.
pub(crate) const WHERE: [&str; 4] = [SERVERS, ROUTING, STATE_DIR, MACHINE];

/// An option that names the place of the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceOption {
    pub flag: &'static str,
    pub value: OsString,
    /// Whether a variable set it, not the command line.
    pub of_variable: bool,
}

impl PlaceOption {
    /// Returns its words on a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let PlaceOption { flag, value, .. } = self;
        if *flag == MACHINE { vec![machine_at(value)] } else { vec![flag.into(), value.clone()] }
    }
}

/// The words of a lockkeeper command, without the options of the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suggested {
    words: Vec<OsString>,
    /// The words after `--`.
    command: Vec<OsString>,
    at: At,
}

/// A command that helps, behind what it does.
pub(crate) type Action = (&'static str, Suggested);

/// The place of the command's locks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// The same as this process's.
    Here,
    /// These servers, reached in the same way.
    Servers(OsString),
    /// No place, or one that the words name.
    Nowhere,
}

impl Suggested {
    /// Returns a command from a verb and its words. Give a lock as a path, because a name may begin with a dash.
    pub(crate) fn new<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> Self {
        Suggested { words: words.into_iter().map(Into::into).collect(), command: Vec::new(), at: At::Here }
    }

    #[must_use]
    pub(crate) fn with<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// Adds the command that it runs.
    #[must_use]
    pub(crate) fn running<W: Into<OsString>>(mut self, command: impl IntoIterator<Item = W>) -> Self {
        self.command.extend(command.into_iter().map(Into::into));
        self
    }

    /// Whether it begins with these words.
    pub(crate) fn is(&self, verb: &[&str]) -> bool {
        self.words.len() >= verb.len() && self.words.iter().zip(verb).all(|(word, verb)| word == verb)
    }

    /// Sets other servers as its place.
    #[must_use]
    pub(crate) fn at(mut self, servers: impl Into<OsString>) -> Self {
        self.at = At::Servers(servers.into());
        self
    }

    /// Removes its place: the command has none, or its words name it.
    #[must_use]
    pub(crate) fn elsewhere(mut self) -> Self {
        self.at = At::Nowhere;
        self
    }

    /// Returns the text to print, with these options of the place.
    pub(crate) fn text<'a>(&self, place: impl IntoIterator<Item = &'a PlaceOption>) -> String {
        let mut words = vec!["lockkeeper".to_owned()];
        words.extend(self.words.iter().map(|word| quoted(word)));
        // An option of the command's own takes the place of that of this process.
        let others = place.into_iter().filter(|option| !self.words.iter().any(|word| word == option.flag));
        let kept = others.filter(|option| match &self.at {
            At::Here => true,
            At::Servers(_) => !WHERE.contains(&option.flag),
            At::Nowhere => false,
        });
        words.extend(kept.flat_map(PlaceOption::words).map(|word| quoted(&word)));
        if let At::Servers(servers) = &self.at {
            words.extend([SERVERS.to_owned(), quoted(servers)]);
        }
        if !self.command.is_empty() {
            words.push("--".to_owned());
            words.extend(self.command.iter().map(|word| quoted(word)));
        }
        words.join(" ")
    }
}

/// The commands about one lock that are printed for a person to run. Those that contend for it name in which way it is used, and its
/// schedule if it is a job: without that, a command would hold it beside another contender, or run beside the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockCommands<'a> {
    name: &'a str,
    /// `None` if it is not known for sure.
    used_as: Option<LockUse>,
    job: Option<&'a JobStatus>,
}

impl<'a> LockCommands<'a> {
    /// The name is printed as it was typed, unless it would be read as an option.
    pub(crate) fn new(typed: &'a str, path: &'a str, used_as: Option<LockUse>, job: Option<&'a JobStatus>) -> Self {
        LockCommands { name: if typed.starts_with('-') { path } else { typed }, used_as, job }
    }

    /// Returns a command with this verb, which does not contend for the lock.
    pub(crate) fn about(&self, verb: &str) -> Suggested {
        Suggested::new([verb, self.name])
    }

    /// Returns a command about the job.
    pub(crate) fn of_job(&self, words: &[&str]) -> Suggested {
        Suggested::new(["jobs"]).with(words).with([self.name])
    }

    /// Returns the command that runs a command under the lock as its other contenders do, with these options beside those that all of them
    /// have; that of a job runs its slot. `None` if it is not sure in which way the lock is used.
    pub(crate) fn run(&self, options: &[&str]) -> Option<Suggested> {
        let shared = match (self.job, self.used_as) {
            (Some(job), _) => schedule(job)?,
            (None, None) => return None,
            (None, Some(LockUse::Plain(NodeFormat::Curator))) => Vec::new(),
            (None, Some(format @ LockUse::Plain(_))) => vec!["--format".to_owned(), format.to_string()],
            (None, Some(LockUse::Permits(permits))) => vec!["--permits".to_owned(), permits.to_string()],
            (None, Some(LockUse::Class(class))) => vec!["--class".to_owned(), class.to_string()],
            (None, Some(LockUse::Lease)) => vec!["--lease".to_owned(), "10m".to_owned()],
            (None, Some(_)) => return None,
        };
        Some(Suggested::new(["run", self.name]).with(shared).with(options).running(["COMMAND"]))
    }

    /// Returns the command that makes a plain lock a job. `None` if it is one, or if its other contenders would not queue with it.
    pub(crate) fn as_job(&self) -> Option<Suggested> {
        let is_possible = self.job.is_none() && self.used_as == Some(LockUse::Plain(NodeFormat::Curator));
        let run = Suggested::new(["run", self.name, "--once-per", "day"]).running(["COMMAND"]);
        is_possible.then_some(run)
    }
}

/// Returns the options that give a job the schedule and the rules that its last host has stated; `None` if these are not known. The slots
/// of `--slot` are texts of the caller's.
fn schedule(job: &JobStatus) -> Option<Vec<String>> {
    let mut options = match job.schedule.as_ref()? {
        Schedule::Calendar { per, time_zone } => {
            vec!["--once-per".to_owned(), per.to_string(), "--time-zone".to_owned(), time_zone.clone()]
        }
        Schedule::Every { every_ms } => {
            let every = humantime::format_duration(Duration::from_millis(*every_ms)).to_string();
            vec!["--every".to_owned(), every.replace(' ', "")]
        }
        Schedule::Text { .. } => vec!["--slot".to_owned(), "SLOT".to_owned()],
        _ => return None,
    };
    for (option, rule) in [("--on-failure", job.on_failure), ("--on-crash", job.on_crash)] {
        if rule != Rule::default() {
            options.extend([option.to_owned(), rule.to_string()]);
        }
    }
    Some(options)
}

/// Whether this holder can receive a request to release. Some clients' nodes have no room for one, and no process reads
/// the node of an abandoned hold, or that of a process that has ended. A foreign client that was asked and still holds has no answer to
/// give: perhaps its program does not listen for requests.
pub(crate) fn can_be_asked(holder: &ContenderInfo) -> bool {
    let format = NodeFormat::of_node(&holder.node);
    let understood = || {
        let of_semaphore = ForeignSemaphore::read(&holder.node).is_some();
        format.revocation_word().is_some() && holder.revocation.is_none() && !of_semaphore
    };
    !holder.abandoned
        && format.allows_new_data()
        && !holder.process_has_ended()
        && (holder.mode == "lease" || holder.owner.is_some() || understood())
}

/// Returns the options that name the place of the locks, from the command line or from variables. Paths are absolute,
/// because another terminal has another directory.
pub(crate) fn place(typed: &ConnectArgs, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PlaceOption> {
    let mut options: Vec<PlaceOption> = Vec::new();
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    // What was typed overrides a variable.
    let either = |flag, typed: Option<OsString>, variable: &str| {
        let of_variable = typed.is_none();
        typed.or_else(|| set(variable)).map(|value| PlaceOption { flag, value, of_variable })
    };
    let file = |option: PlaceOption| PlaceOption { value: absolute(option.value), ..option };
    let SourceArgs { config, properties, .. } = &typed.sources;
    options.extend(either("--config", config.clone().map(OsString::from), CONFIG_VARIABLE).map(file));
    let given = set(PROPERTIES_VARIABLE).unwrap_or_default();
    let given = std::env::split_paths(&given).filter(|path| !path.as_os_str().is_empty());
    let given = given.map(|path| (path, true)).chain(properties.iter().cloned().map(|path| (path, false)));
    options.extend(
        given.map(|(path, of_variable)| file(PlaceOption { flag: "--properties", value: path.into(), of_variable })),
    );
    let is_typed = |key| typed.get(key).is_some();
    let of = |key: Key| either(key.flag()?, typed.get(key).map(OsStr::to_owned), &key.variable());
    let servers = of(Key::Servers)
        .filter(|servers| !servers.of_variable || !(is_typed(Key::Machine) || is_typed(Key::RoutingServers)));
    // What was typed overrides this variable, too.
    let routing = of(Key::RoutingServers)
        .filter(|routing| !routing.of_variable || (servers.is_none() && !is_typed(Key::Machine)));
    // The parser refuses --machine with either of the others, so a typed option overrides a variable.
    let is_named = servers.is_some() || routing.is_some() || is_typed(Key::StateDir);
    let shared = is_typed(Key::Machine) || (!is_named && set(&Key::Machine.variable()).is_some());
    options.extend(servers);
    options.extend(routing);
    let here = if shared { Key::Machine } else { Key::StateDir };
    for key in [here].iter().chain(Key::ALL.iter().filter(|key| is_of_an_ensemble(**key))) {
        options.extend(of(*key).map(|option| if key.row().is_path() { file(option) } else { option }));
    }
    let state_dir = typed.get(Key::StateDir);
    if shared || (state_dir.is_some() && !options.iter().any(|option| [SERVERS, ROUTING].contains(&option.flag))) {
        return on_this_machine(&options);
    }
    options
}

/// Returns these options without those that only servers of an ensemble use: variables may set them for other commands.
pub(crate) fn on_this_machine(options: &[PlaceOption]) -> Vec<PlaceOption> {
    let only_ensembles: Vec<_> =
        Key::ALL.iter().filter(|key| is_of_an_ensemble(**key)).filter_map(|key| key.flag()).collect();
    options.iter().filter(|option| !only_ensembles.contains(&option.flag)).cloned().collect()
}

/// Whether a setting belongs to the place, and only to that of an ensemble.
fn is_of_an_ensemble(key: Key) -> bool {
    matches!(key, Key::TlsCa | Key::TlsCert | Key::TlsKey | Key::AuthFile | Key::Acl)
}

pub(crate) fn absolute(path: OsString) -> OsString {
    // It fails only in a deleted directory; then the path is printed unchanged.
    std::path::absolute(Path::new(&path)).map_or(path, OsString::from)
}

/// Returns the option that chooses this server of the whole machine.
pub(crate) fn machine(home: &ServerDir) -> String {
    match home.dir() {
        dir if dir == Path::new(MACHINE_DIR) => MACHINE.to_owned(),
        dir => quoted(&machine_at(dir.as_os_str())),
    }
}

/// The option with its value, which is optional and so no word of its own.
fn machine_at(dir: &OsStr) -> OsString {
    [OsStr::new(MACHINE), OsStr::new("="), dir].into_iter().collect()
}

/// Quotes a word for a POSIX shell, with characters that are safe to print. Of an option with its value, only the value is quoted.
pub(crate) fn quoted(word: &OsStr) -> String {
    let option = word
        .to_str()
        .and_then(|text| text.split_once('='))
        .filter(|(option, _)| option.starts_with("--") && option.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    if let Some((option, value)) = option {
        return format!("{option}={}", quoted(OsStr::new(value)));
    }
    let plain = word.to_str().filter(|text| !text.contains(is_active));
    if let Some(quoted) = plain.and_then(|text| shlex::try_quote(text).ok()) {
        return quoted.into_owned();
    }
    // Quotes would pass the byte to the terminal; printf creates it when the command runs.
    let mut escaped = String::new();
    for byte in word.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b' ' => {
                escaped.push(char::from(*byte))
            }
            other => escaped.push_str(&format!("\\{other:03o}")),
        }
    }
    format!("\"$(printf '{escaped}')\"")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use lockkeeper::admin::ContenderInfo;
    use lockkeeper::admin::SessionId;
    use lockkeeper_session::Zxid;
    use lockkeeper_session::ensemble::Node;

    use super::*;

    /// Returns a word as a shell reads it.
    fn read(word: &OsStr) -> OsString {
        let script = format!("printf %s {}", quoted(word));
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        OsStr::from_bytes(&output.stdout).to_owned()
    }

    #[test]
    fn a_shell_reads_every_word_as_it_was() {
        for word in [
            "nightly",
            "/locks/a b",
            "it's",
            "\"$HOME\" `id` \\ $(id)",
            "-x",
            "--",
            "--wait=5m",
            "--message=it's a=b",
            "--a$b=c",
            "a;b|c&d>e<f*g?h[i]j{k}l~m#n!o^p=q%r",
            "",
            "näch\u{202e}t",
            "a\nb\tc\u{1b}[2J'\"%s\\",
        ] {
            assert_eq!(read(OsStr::new(word)), word, "{word:?}");
            assert!(!quoted(OsStr::new(word)).contains(is_active), "{word:?}");
        }
        let bytes = OsStr::from_bytes(b"/tmp/\xff\x80x'%");
        assert_eq!(read(bytes), bytes);
    }

    #[test]
    fn the_shared_server_is_printed_without_the_options_that_it_excludes() {
        let all = |name: &str| match name {
            "LOCKKEEPER_SERVERS" => Some("zk9:2181".into()),
            "LOCKKEEPER_STATE_DIR" => Some("/var/own".into()),
            "LOCKKEEPER_MACHINE" => Some("/var/shared".into()),
            "LOCKKEEPER_ACL" => Some("creator-all".into()),
            _ => None,
        };
        let without_servers = |name: &str| all(name).filter(|_| name != "LOCKKEEPER_SERVERS");
        let text = |typed: &ConnectArgs, variable: &dyn Fn(&str) -> Option<OsString>| {
            Suggested::new(["list"]).text(&place(typed, variable))
        };
        let machine = ConnectArgs::default().with(Key::Machine, "/typed");
        assert_eq!(text(&machine, &all), "lockkeeper list --machine=/typed");
        let none = ConnectArgs::default();
        assert_eq!(text(&none, &all), "lockkeeper list --servers zk9:2181 --state-dir /var/own --acl creator-all");
        assert_eq!(text(&none, &without_servers), "lockkeeper list --machine=/var/shared");
        let own = ConnectArgs::default().with(Key::StateDir, "/typed");
        assert_eq!(text(&own, &without_servers), "lockkeeper list --state-dir /typed");
    }

    /// Curator writes `__REVOKE__`; a client whose program does not listen never reads it.
    #[test]
    fn a_foreign_holder_can_be_asked_once_and_a_lease_of_a_semaphore_never() {
        let id = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
        let holder = |name: &str, data: &[u8]| {
            let node = Node {
                data: data.to_vec(),
                czxid: Zxid(1),
                mzxid: Zxid(1),
                pzxid: Zxid(1),
                ctime_ms: 0,
                mtime_ms: 0,
                version: 0,
                owner: SessionId(7),
                children: 0,
            };
            can_be_asked(&ContenderInfo::read(name.to_string(), &node))
        };
        let curator = format!("_c_{id}-lock-0000000001");
        assert!(holder(&curator, b"10.0.0.7"));
        assert!(!holder(&curator, b"__REVOKE__"), "it was asked, and holds on");
        assert!(!holder(&format!("leases/_c_{id}-lease-0000000001"), b"10.0.0.7"));
    }

    #[test]
    fn the_place_is_what_was_typed_or_what_a_variable_says() {
        let typed = ConnectArgs::default().with(Key::Servers, "zk1:2181/a b");
        let variable = |name: &str| match name {
            "LOCKKEEPER_SERVERS" => Some("zk9:2181".into()),
            "LOCKKEEPER_STATE_DIR" => Some("/var/a b".into()),
            "LOCKKEEPER_PROPERTIES" => Some("/a.properties:/b.properties".into()),
            "LOCKKEEPER_CONFIG" => Some("".into()),
            _ => None,
        };
        let place = place(&typed, variable);
        let command = Suggested::new(["run", "/locks/a"]).running(["echo", "a b"]);
        assert_eq!(
            command.text(&place),
            "lockkeeper run /locks/a --properties /a.properties --properties /b.properties --servers 'zk1:2181/a b' \
             --state-dir '/var/a b' -- echo 'a b'"
        );
        assert_eq!(command.clone().elsewhere().text(&place), "lockkeeper run /locks/a -- echo 'a b'");
        assert_eq!(
            Suggested::new(["admin", "epoch", "--above", "7"]).at("zk2:2181").text(&place),
            "lockkeeper admin epoch --above 7 --properties /a.properties --properties /b.properties --servers zk2:2181"
        );
    }
}
