//! `lockkeeper dlq`: commands that never got their lock.
//!
//! During a replay, the replayer holds a lock of the letter, in the ensemble of the letter's own lock, and reads the
//! letter again under it. So two concurrent replays run a letter once. It marks the letter as begun before it runs the
//! command line. If no other mark follows, the result is unknown, and the letter runs again only with `--again`.

mod args;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper::admin::{OWN_LOCKS, Owner};
use lockkeeper::error::AcquireError;
use lockkeeper::{Holding, LockPath, Lockkeeper};
use lockkeeper_letters::{Fate, Filed, Letter, LetterEvent, LetterRecord, Mark, Records, Sink, SinkError, fold};
use lockkeeper_session::text::spell;
use serde::Serialize;
use tokio::time::timeout;
use unicode_width::UnicodeWidthStr;

pub(crate) use self::args::DlqArgs;
use self::args::{DlqPlace, DlqVerb};
use crate::advice::{Suggested, quoted};
use crate::args::common::Common;
use crate::child::{Extras, RunTerms, Supervised};
use crate::exit::{Code, Failure};
use crate::grace::Term;
use crate::held::Held;
use crate::letters::{self, CommandLine};
use crate::output::{self, Printer};
use crate::place::Place;
use crate::screen::INDENT;
use crate::settings::Settings;
use crate::signals::{ENDING, RUNNING, Signals};
use crate::streams::STDERR;
use crate::text::{counted, moment, plain};
use crate::verb::{Context, Verb};
use crate::verbs::run::args::parse_run;
use crate::verbs::run::args::{JobSignal, OnRevoke, OnSuspect};
use crate::verbs::run::lock_paths;
use crate::{confirm, local};

impl Verb for DlqArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.verb.place().common)
    }

    fn takes_a_while(&self) -> bool {
        matches!(self.verb, DlqVerb::Replay { .. })
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        dlq(self, context.printer).await
    }
}

/// Time limit for the release of a replay's lock.
const LEAVING: Duration = Duration::from_secs(2);

/// Runs a verb of `dlq`; returns the exit status.
async fn dlq(args: DlqArgs, printer: &Printer) -> Result<u8, Failure> {
    let DlqPlace { dead_letter, common } = args.verb.place().clone();
    let settings = Settings::read(common.connect, printer)?;
    let at = letters::options(dead_letter.as_deref());
    let place = dead_letter.or_else(|| settings.all.dead_letter.value.clone()).unwrap_or_else(|| "file".to_owned());
    let desk = Desk { sink: letters::open(&place, &settings)?, at, printer: *printer };
    match args.verb {
        DlqVerb::List { all, .. } => desk.list(all).await,
        DlqVerb::Show { operation, .. } => desk.show(&operation).await,
        DlqVerb::Replay { operations, all, again, foreign, yes, .. } => {
            desk.replay(operations, ReplayTerms { all, again, foreign, yes }).await
        }
        DlqVerb::Drop { operations, reason, .. } => desk.drop(operations, reason).await,
    }
}

/// A store of letters, with what the verbs need.
struct Desk {
    sink: Arc<dyn Sink>,
    /// The options with which printed commands find the store.
    at: Vec<OsString>,
    printer: Printer,
}

/// The options of a replay.
#[derive(Clone, Copy)]
struct ReplayTerms {
    all: bool,
    again: bool,
    foreign: bool,
    yes: bool,
}

impl Desk {
    /// Returns a command about these letters, to be printed.
    fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Suggested {
        Suggested::new(["dlq"]).with(words).with(self.at.iter().cloned())
    }

    /// Returns the replay of a letter on these terms.
    fn replay_of(&self, operation: &str, terms: ReplayTerms) -> Suggested {
        let options = [("--again", terms.again), ("--foreign", terms.foreign)];
        let options = options.into_iter().filter(|(_, is_set)| *is_set).map(|(option, _)| option);
        self.command(["replay", operation].into_iter().chain(options))
    }

    /// Returns every letter with its fate, and what could not be read, which is reported unless the output is JSON.
    async fn filed(&self) -> Result<(Vec<Filed>, Vec<String>), Failure> {
        let (filed, read) = self.filed_from().await?;
        Ok((filed, read.unreadable))
    }

    /// Returns every letter with its fate, and what is known of their places. What could not be read is reported unless the output
    /// is JSON.
    async fn filed_from(&self) -> Result<(Vec<Filed>, Records), Failure> {
        let mut read = self.sink.records().await?;
        if !self.printer.is_json() {
            for torn in &read.unreadable {
                self.printer.note(&format!("cannot read {torn}"));
            }
        }
        Ok((fold(std::mem::take(&mut read.records)), read))
    }

    /// Returns the letter that an id means: its own id, or the id of its operation or the beginning of that. Of several letters of one
    /// operation, that is the only one that is not settled, or the last one.
    fn find<'a>(&self, filed: &'a [Filed], id: &str) -> Result<&'a Filed, Failure> {
        if let Some(filed) = filed.iter().find(|filed| filed.letter.id == id) {
            return Ok(filed);
        }
        let mut all: Vec<_> = filed.iter().filter(|filed| filed.letter.operation.starts_with(id)).collect();
        if all.iter().any(|filed| filed.letter.operation == id) {
            all.retain(|filed| filed.letter.operation == id);
        }
        if let [first, .., last] = &all[..]
            && all.iter().all(|filed| filed.letter.operation == first.letter.operation)
        {
            let open: Vec<_> = all.iter().filter(|filed| !filed.fate.is_settled()).collect();
            return match open[..] {
                [] => Ok(last),
                [filed] => Ok(filed),
                _ => Err(Failure::new(Code::Usage, format!("{} dead letters of {id:?} wait", open.len()))
                    .hint("name one by its own id")
                    .advise("see which there are", self.command(["list"]))),
            };
        }
        match all[..] {
            [filed] => Ok(filed),
            [] => {
                Err(Failure::new(Code::NoSuchLock, format!("there is no dead letter {id:?} in {}", self.sink.name()))
                    .advise("see which there are", self.command(["list", "--all"])))
            }
            _ => Err(Failure::new(Code::Usage, format!("{} dead letters begin with {id:?}", all.len()))
                .hint("write more of the id")
                .advise("see which there are", self.command(["list", "--all"]))),
        }
    }

    async fn list(&self, all: bool) -> Result<u8, Failure> {
        let (mut filed, unreadable) = self.filed().await?;
        filed.retain(|filed| all || !filed.fate.is_settled());
        if self.printer.is_json() {
            let letters = filed.iter().map(LetterView::of).collect();
            output::document(&LettersView { letters, unreadable })?;
        } else if filed.is_empty() {
            self.printer.note(&format!("no dead letter waits in {}", self.sink.name()));
        } else {
            output::lines(&table(&filed), INDENT)?;
        }
        Ok(0)
    }

    async fn show(&self, id: &str) -> Result<u8, Failure> {
        let (filed, _) = self.filed().await?;
        let filed = self.find(&filed, id)?;
        if self.printer.is_json() {
            output::document(&LetterView::of(filed))?;
        } else {
            output::data(&text(filed))?;
        }
        Ok(0)
    }

    async fn drop(&self, ids: Vec<String>, why: Option<String>) -> Result<u8, Failure> {
        let (filed, _) = self.filed().await?;
        // All or none: a misspelt id is reported before any letter is marked.
        let mut chosen = Vec::new();
        for id in &ids {
            let filed = self.find(&filed, id)?;
            settled(filed)?;
            chosen.push(filed);
        }
        for filed in chosen {
            self.mark(&filed.letter, LetterEvent::Dropped { reason: why.clone() }).await?;
            self.printer.note(&format!("dropped {}", filed.letter.operation));
        }
        Ok(0)
    }

    async fn mark(&self, letter: &Letter, event: LetterEvent) -> Result<(), Failure> {
        self.sink.append(&LetterRecord::Mark(Mark::new(letter, event))).await?;
        Ok(())
    }

    async fn replay(&self, ids: Vec<String>, terms: ReplayTerms) -> Result<u8, Failure> {
        let (filed, read) = self.filed_from().await?;
        let mut chosen = Vec::new();
        if terms.all {
            let may_run = |fate: &Fate| match fate {
                Fate::Begun { .. } => terms.again,
                fate => matches!(fate, Fate::Waiting),
            };
            chosen.extend(filed.iter().filter(|filed| may_run(&filed.fate)));
            if chosen.is_empty() {
                self.printer.note(&format!("no dead letter waits in {}", self.sink.name()));
            }
        }
        for id in &ids {
            let filed = self.find(&filed, id)?;
            settled(filed)?;
            chosen.push(filed);
        }
        if !self.may_run(&chosen, &read.foreign, terms)? {
            return Ok(Code::NotAcquired.status());
        }
        let mut signals = Signals::default();
        signals.add(ENDING)?;
        let mut stayed = 0;
        for (index, filed) in chosen.iter().enumerate() {
            if signals.are_to_end() {
                let left = counted((chosen.len() - index) as u64, "letter");
                self.printer.note(&format!("stopped by a signal: {left} not replayed"));
                return Ok(Code::NotAcquired.status());
            }
            let operation = &filed.letter.operation;
            match self.replay_one(&filed.letter, terms, &mut signals).await {
                Ok(()) => self.printer.note(&format!("replayed {operation}")),
                // Another process replayed or dropped it first.
                Err(failure) if failure.code == Code::NoSuchLock => self.printer.note(&failure.message),
                Err(failure) => {
                    stayed += 1;
                    self.printer.failure(&failure);
                }
            }
        }
        Ok(if stayed == 0 { 0 } else { Code::NotAcquired.status() })
    }

    /// Returns whether the commands of these letters are to be run. Letters from where other users may write need `--foreign`, and
    /// these and all letters at once are shown before they run.
    fn may_run(&self, chosen: &[&Filed], foreign: &[String], terms: ReplayTerms) -> Result<bool, Failure> {
        if chosen.is_empty() {
            return Ok(true);
        }
        if let Some(why) = foreign.first() {
            let operation = &chosen[0].letter.operation;
            if !terms.foreign {
                let name = self.sink.name();
                return Err(Failure::new(Code::Refused, format!("letters of {name} are not replayed: {why}"))
                    .hint("a replay runs as you what another user may have written; read each letter, and replay it by name")
                    .advise("see what it would run", self.command(["show", operation]))
                    .advise("run it", self.replay_of(operation, ReplayTerms { foreign: true, ..terms })));
            }
            confirm::possible("replay --foreign", terms.yes)?;
        } else if !(terms.all && confirm::on_terminal()) {
            return Ok(true);
        }
        if terms.yes {
            return Ok(true);
        }
        for filed in chosen {
            STDERR.push(text(filed) + "\n");
        }
        Ok(confirm::agreed(&format!(
            "Run {}?",
            if chosen.len() == 1 { "it".to_owned() } else { format!("these {} commands", chosen.len()) }
        )))
    }

    /// Runs the command line of a letter once, and marks the letter.
    async fn replay_one(&self, letter: &Letter, terms: ReplayTerms, signals: &mut Signals) -> Result<(), Failure> {
        let operation = &letter.operation;
        let stays = |why: String| Failure::new(Code::NotAcquired, format!("{operation} stays: {why}"));
        let typed: CommandLine = serde_json::from_value(letter.payload.clone()).map_err(|_| {
            stays("its payload is not a command line of lockkeeper run".to_owned())
                .hint("the program that wrote it knows what to do with it")
                .advise("see what it says", self.command(["show", operation]))
        })?;
        let args =
            parse_run(typed.words()).map_err(|problem| stays(format!("its command line cannot be read: {problem}")))?;
        std::env::set_current_dir(&typed.directory)
            .map_err(|error| stays(format!("cannot work in {}: {error}", typed.directory.display())))?;
        let paths = lock_paths(&args.names)?;
        let settings =
            Settings::read(args.common.connect, &self.printer)?.at(paths.iter().map(LockPath::as_str)).await?;
        let keeper = connect(&settings, &self.printer).await?;
        let path = LockPath::parse_node(OWN_LOCKS)?.join(operation)?;
        let taken = keeper.own_mutex(path).try_acquire().message(format!("replay of {operation}")).await;
        let guard = match taken {
            Ok(guard) => guard,
            Err(error) => {
                _ = timeout(LEAVING, keeper.close()).await;
                return Err(match error {
                    AcquireError::Held { holder, .. } => {
                        let by = holder.map_or_else(String::new, |holder| format!(" by {holder}"));
                        stays(format!("it is being replayed{by}"))
                    }
                    error => error.into(),
                });
            }
        };
        let outcome = self.replay_locked(letter, &typed, terms, &keeper, &guard, signals).await;
        _ = timeout(LEAVING, guard.release()).await;
        _ = timeout(LEAVING, keeper.close()).await;
        outcome
    }

    async fn replay_locked(
        &self,
        letter: &Letter,
        typed: &CommandLine,
        replay: ReplayTerms,
        keeper: &Lockkeeper,
        held: &Holding,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let operation = &letter.operation;
        let stays = |why: String| Failure::new(Code::NotAcquired, format!("{operation} stays: {why}"));
        // Read again under the lock of the replay.
        let now = fold(self.sink.records().await?.records);
        let filed = self.find(&now, &letter.id)?;
        settled(filed)?;
        if let Fate::Begun { at_ms, by } = &filed.fate
            && !replay.again
        {
            let why = format!("{by} began a replay at {} and recorded no result", when(*at_ms));
            return Err(stays(why)
                .hint("check whether its work was done")
                .advise("run it anyway", self.replay_of(operation, ReplayTerms { again: true, ..replay }))
                .advise("or forget it", self.command(["drop", operation])));
        }
        self.mark(letter, LetterEvent::Begun).await?;
        let program = std::env::current_exe().unwrap_or_else(|_| "lockkeeper".into()).into_os_string();
        let command: Vec<OsString> = [program, "run".into()].into_iter().chain(typed.words()).collect();
        let grace = Term::Fixed(held.session_timeout()).grace(None)?;
        let (on_suspect, on_revoke) = (OnSuspect::Wait, OnRevoke::Signal(JobSignal::Term));
        // The letter's own lockkeeper run keeps its --max-run.
        let terms = RunTerms { grace, on_suspect, on_revoke, on_yield: None, preemption: None, max_run: None };
        let ran = async {
            let held = Held::One(held);
            let job = Supervised::start(&command, held, terms.grace, Extras::default())?;
            signals.add(RUNNING)?;
            job.attend(Some(keeper), held, signals, terms, self.printer).await
        };
        let why = match ran.await {
            // The command is done, even if the lock of the replay was lost, so the letter is marked.
            Ok(outcome) if outcome.status == 0 => return self.mark(letter, LetterEvent::Replayed).await,
            Ok(outcome) => {
                signals.note_end(outcome.status);
                format!("lockkeeper run ended with {}", outcome.status)
            }
            Err(failure) => failure.message,
        };
        self.mark(letter, LetterEvent::Failed { reason: why.clone() }).await?;
        Err(stays(why))
    }
}

/// Fails if the letter was replayed or dropped before.
fn settled(filed: &Filed) -> Result<(), Failure> {
    let operation = &filed.letter.operation;
    match &filed.fate {
        Fate::Replayed { at_ms, by } => {
            let message = format!("{operation} was replayed by {by} at {}", when(*at_ms));
            Err(Failure::new(Code::NoSuchLock, message))
        }
        Fate::Dropped { at_ms, by, .. } => {
            Err(Failure::new(Code::NoSuchLock, format!("{operation} was dropped by {by} at {}", when(*at_ms))))
        }
        _ => Ok(()),
    }
}

async fn connect(settings: &Settings, printer: &Printer) -> Result<Lockkeeper, Failure> {
    let builder = settings.builder();
    match &settings.place {
        Place::Ensemble(servers) => Ok(builder.connect(servers).await?),
        Place::Machine(home) => local::connect(home, &builder, printer).await,
    }
}

fn when(ms: u64) -> String {
    moment(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

/// The heads of the table of letters.
const HEADS: [&str; 6] = ["LETTER", "FATE", "LOCK", "ATTEMPTS", "LAST", "COMMAND"];

/// Returns the table of letters. On a terminal, each line fits into its width but for the last cell, which is wrapped.
fn table(filed: &[Filed]) -> String {
    let has_others = |operation: &str| filed.iter().filter(|it| it.letter.operation == operation).count() > 1;
    let heads = HEADS.map(str::to_owned);
    let rows: Vec<_> = filed.iter().map(|filed| cells(filed, has_others(&filed.letter.operation))).collect();
    let lines = || std::iter::once(&heads).chain(&rows);
    let widths: [usize; 5] = std::array::from_fn(|at| lines().map(|cells| cells[at].width()).max().unwrap_or_default());
    let line = |cells: &[String; 6]| {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            // Writing to a string never fails.
            _ = write!(text, "{cell}{}  ", " ".repeat(width - cell.width()));
        }
        (text + &cells[5]).trim_end().to_owned() + "\n"
    };
    lines().map(line).collect()
}

/// The id of the operation, or that of the letter if other letters have the same operation.
fn cells(filed: &Filed, has_others: bool) -> [String; 6] {
    let Filed { letter, fate, failures, .. } = filed;
    let Letter { id, operation, path, attempts, error, last_ms, .. } = letter;
    let mut told = command(letter).unwrap_or_default();
    let mut notes: Vec<_> = letter.lock_info.iter().cloned().collect();
    if let Fate::Dropped { reason: Some(why), .. } = fate {
        notes.push(format!("dropped: {why}"));
    }
    if *failures > 0 {
        notes.push(counted(*failures, "failed replay"));
    }
    if !notes.is_empty() {
        _ = write!(told, "  ({})", notes.join("; "));
    }
    let cells = [
        if has_others { id.clone() } else { operation.clone() },
        fate.name().to_owned(),
        path.clone(),
        attempts.to_string(),
        format!("{}, {}", when(*last_ms), said(error)),
        told.trim_start().to_owned(),
    ];
    cells.map(|cell| plain(&cell))
}

/// Says in words why the last attempt ended. The names are those of Contentserv's specification; programs may have others.
fn said(error: &str) -> &str {
    match error {
        "InstanceLock" => "not granted in time",
        "SessionExpired" => "the session expired",
        "ConnectionLoss" => "no server answered",
        other => other,
    }
}

/// Returns the command of a letter, if lockkeeper wrote it.
fn command(letter: &Letter) -> Option<String> {
    let typed: CommandLine = serde_json::from_value(letter.payload.clone()).ok()?;
    Some(typed.command.iter().map(|word| quoted(OsStr::new(word))).collect::<Vec<_>>().join(" "))
}

fn text(filed: &Filed) -> String {
    let Filed { letter, fate, failures, last_failure, .. } = filed;
    let mut text = String::new();
    let mut row = |name: &str, value: &str| _ = writeln!(text, "{name:<16}{}", plain(value));
    row("letter", &letter.id);
    row("operation", &letter.operation);
    row("fate", fate.name());
    match fate {
        Fate::Begun { at_ms, by } | Fate::Replayed { at_ms, by } => row("", &format!("{} by {by}", when(*at_ms))),
        Fate::Dropped { at_ms, by, reason: why } => {
            let why = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            row("", &format!("{} by {by}{why}", when(*at_ms)));
        }
        _ => {}
    }
    row("monitor object", &letter.monitor_object);
    row("lock", &letter.path);
    row("lock info", letter.lock_info.as_deref().unwrap_or("-"));
    row("class", letter.class.as_deref().unwrap_or("-"));
    let waited = spell(Duration::from_millis(letter.waited_ms));
    row("attempts", &format!("{}, {waited} in the queue", letter.attempts));
    row("first, last", &format!("{}, {}", when(letter.first_ms), when(letter.last_ms)));
    row("last error", &format!("{}: {}", said(&letter.error), letter.detail));
    row("behind", letter.behind.as_deref().unwrap_or("-"));
    row("given up by", &letter.owner.to_string());
    row("replay failures", &failures.to_string());
    if let Some(why) = last_failure {
        row("", why);
    }
    match serde_json::from_value::<CommandLine>(letter.payload.clone()) {
        Ok(typed) => {
            row("directory", &typed.directory.display().to_string());
            let typed = Suggested::new(["run"]).with(&typed.run).running(&typed.command).elsewhere();
            row("command", &typed.text(&[]));
        }
        Err(_) => row("payload", &letter.payload.to_string()),
    }
    text
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        Failure::new(Code::Internal, format!("{error}: {}", error.source))
    }
}

#[derive(Serialize)]
struct LettersView<'a> {
    letters: Vec<LetterView<'a>>,
    unreadable: Vec<String>,
}

/// A letter, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct LetterView<'a> {
    fate: &'static str,
    /// Set unless the letter waits.
    fate_at_ms: Option<u64>,
    fate_by: Option<&'a Owner>,
    failures: u32,
    last_failure: Option<&'a str>,
    #[serde(flatten)]
    letter: &'a Letter,
}

impl<'a> LetterView<'a> {
    fn of(filed: &'a Filed) -> Self {
        let (fate_at_ms, fate_by) = match &filed.fate {
            Fate::Begun { at_ms, by } | Fate::Replayed { at_ms, by } | Fate::Dropped { at_ms, by, .. } => {
                (Some(*at_ms), Some(by))
            }
            _ => (None, None),
        };
        LetterView {
            fate: filed.fate.name(),
            fate_at_ms,
            fate_by,
            failures: filed.failures,
            last_failure: filed.last_failure.as_deref(),
            letter: &filed.letter,
        }
    }
}
