//! Reads a crontab and rewrites its lines as jobs of lockkeeper. It changes no file.
//!
//! A line keeps its schedule: every machine still starts it, and the slot decides which machine runs it. So the slot must
//! contain one start of the line, and no more.

mod flock;
mod naming;

use std::fmt::Write as _;

use jiff::tz::TimeZone;
use lockkeeper::LockPath;
use lockkeeper::admin::LOCKS;

use self::flock::{Flock, has_flock, is_in_background, joined_script};
use self::naming::{BUILTINS, housekeeping, name_of, one_at_a_time, unique};

/// The format of a crontab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Of one user: `crontab -l`.
    User,
    /// With a column for the user: `/etc/crontab` and `/etc/cron.d`.
    System,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewritten {
    /// All lines, also those that did not change.
    pub text: String,
    /// What a person must know about a line, with its number.
    pub notes: Vec<(usize, String)>,
    /// The number of lines that are jobs now.
    pub jobs: usize,
    /// The number of lines that should be jobs and are not.
    pub left: usize,
}

/// What a rewritten line says between `run NAME` and the command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    options: String,
    note: Option<String>,
}

/// Rewrites a crontab. `is_user` says whether a word is a user of this machine. `run` returns the text of `lockkeeper run NAME
/// OPTIONS`, with the options of the place.
pub(crate) fn rewrite(
    text: &str,
    format: Format,
    zone: Option<&str>,
    is_user: impl Fn(&str) -> bool,
    run: impl Fn(&str, &str) -> String,
) -> Rewritten {
    let mut made = Rewritten::default();
    let mut names: Vec<String> = Vec::new();
    let (mut shell, mut zone) = ("/bin/sh".to_owned(), Ok(zone.map(str::to_owned)));
    let files: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let job = job(line.trim(), format, None, &is_user).ok()??;
            Some(Flock::read(split_input(job.command).0, &shell)?.file)
        })
        .collect();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let trimmed = line.trim();
        if let Some((name, value)) = variable(trimmed) {
            match name {
                "SHELL" => shell = value.to_owned(),
                // TZ is only a variable of the commands.
                "CRON_TZ" => zone = known_zone(value).map(|()| Some(value.to_owned())),
                _ => {}
            }
        } else if !trimmed.is_empty() && !trimmed.starts_with('#') {
            let found = job(trimmed, format, zone.as_ref().ok().and_then(Option::as_deref), &is_user);
            let found = match (found, &zone) {
                (Ok(Some(_)), Err(problem)) => Err(String::clone(problem)),
                (found, _) => found,
            };
            match found {
                Ok(None) => {}
                Ok(Some(Job { schedule, user, command, slot })) => {
                    let (typed, input) = split_input(command);
                    let flock = Flock::read(typed, &shell);
                    let is_shared = flock
                        .as_ref()
                        .is_some_and(|flock| files.iter().filter(|file| **file == flock.file).count() > 1);
                    let bare = flock.as_ref().and_then(|flock| flock.command.as_deref());
                    let found = name_of(bare.unwrap_or(command)).filter(|name| is_lock(name));
                    let nameless = found.is_none().then(|| {
                        format!("the line has no program whose name the job could have, so it is line-{number}: choose a name")
                    });
                    let name = unique(found.unwrap_or_else(|| format!("line-{number}")), &names);
                    let user = user.map_or_else(String::new, |user| format!("{user} "));
                    let typed = bare.filter(|_| !is_shared).unwrap_or(typed);
                    let quoted =
                        if is_plain(typed) { typed.to_owned() } else { format!("{shell} -c {}", quoted(typed)) };
                    let options = flock.as_ref().map_or("", |flock| &flock.options);
                    let run = run(&name, &format!("{}{options}", slot.options)).replace('%', "\\%");
                    _ = writeln!(made.text, "{schedule} {user}{run} -- {quoted}{input}");
                    let note = match &flock {
                        Some(Flock { file, .. }) if is_shared => Some(format!(
                            "flock {file} stays, because another line uses the same file: it excludes them on one machine only, and \
                             a run that finds it locked counts as failed"
                        )),
                        Some(Flock { file, shares: true, .. }) => Some(format!(
                            "flock {file} stays, because it shares the file (-s), and a job holds its lock alone; a run that finds the file \
                             locked may count as failed"
                        )),
                        Some(Flock { file, command: None, .. }) => Some(format!(
                            "flock {file} stays, because the line does more than run one command under it; the lock of lockkeeper holds on all machines"
                        )),
                        Some(Flock { file, .. }) => Some(format!(
                            "flock {file} is left out, because the lock of lockkeeper holds on all machines; keep it if other programs lock the file"
                        )),
                        None if has_flock(typed) => {
                            Some("flock stays, and a run that finds its file locked may count as failed: write the line without flock, \
                                  because the lock of lockkeeper holds on all machines".to_owned())
                        }
                        None => one_at_a_time(typed).map(|program| format!(
                            "{program} stays; it can be left out, because the lock of lockkeeper holds on all machines"
                        )),
                    };
                    let local = housekeeping(bare.unwrap_or(typed)).map(|word| {
                        format!("{word} looks like the housekeeping of each machine, and a job runs on one of all machines: keep the old line then")
                    });
                    let notes = slot.note.into_iter().chain(nameless).chain(local).chain(note);
                    made.notes.extend(notes.map(|note| (number, note)));
                    names.push(name);
                    made.jobs += 1;
                    continue;
                }
                Err(problem) => {
                    made.left += 1;
                    made.notes.push((number, format!("{problem}; the line is unchanged")));
                }
            }
        }
        made.text.push_str(line);
        made.text.push('\n');
    }
    made
}

/// Checks the zone that a crontab names.
fn known_zone(zone: &str) -> Result<(), String> {
    match TimeZone::get(zone) {
        Err(error) if !zone.is_empty() => {
            Err(format!("CRON_TZ={zone}: {error}; write a name of the tz database, such as Europe/Berlin"))
        }
        _ => Ok(()),
    }
}

/// Whether `run` takes this name: one that looks like the node of a contender is refused.
fn is_lock(name: &str) -> bool {
    LockPath::parse(&format!("{LOCKS}/{name}")).is_ok()
}

/// A line that starts a command.
struct Job<'a> {
    schedule: &'a str,
    user: Option<&'a str>,
    command: &'a str,
    slot: Slot,
}

/// Reads a line; `None` for a line that stays as it is.
fn job<'a>(
    line: &'a str,
    format: Format,
    zone: Option<&str>,
    is_user: impl Fn(&str) -> bool,
) -> Result<Option<Job<'a>>, String> {
    let count = if line.starts_with('@') { 1 } else { 5 };
    let (schedule, mut rest) = take_words(line, count)
        .ok_or_else(|| format!("{line:?} is neither a comment, a variable nor a schedule with a command"))?;
    let slot = match schedule {
        "@reboot" => return Err("@reboot runs on each machine when it starts, and has no slot".to_owned()),
        nickname if nickname.starts_with('@') => slot_of_nickname(nickname, zone)?,
        fields => slot_of(fields, zone)?,
    };
    let mut user = None;
    if format == Format::System {
        let (name, after) = take_words(rest, 1).ok_or_else(|| format!("{line:?} has no user and command"))?;
        if name.contains('/') || after.starts_with('-') {
            return Err(format!(
                "{name:?} before the command is not a user: without such a column, leave out --system"
            ));
        }
        (user, rest) = (Some(name), after);
    }
    if rest.is_empty() {
        return Err(format!("{line:?} has no command"));
    }
    let (first, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let is_column =
        format == Format::User && is_user(first) && !after.is_empty() && !after.trim_start().starts_with('-');
    if is_column {
        return Err(format!(
            "{first:?} is a user of this machine: if that is the column of /etc/crontab, add --system; if it is a program, write its path"
        ));
    }
    if first.rsplit('/').next() == Some("lockkeeper") {
        return Ok(None);
    }
    if is_in_background(split_input(rest).0) {
        let problem = "the line starts a command in the background (&), and a job holds its lock only until its own command ends: leave out the &";
        return Err(problem.to_owned());
    }
    if let Some(option) = joined_script(rest) {
        return Err(format!(
            "flock would take the word that begins with {option} for a program: write {option} 'COMMAND'"
        ));
    }
    Ok(Some(Job { schedule, user, command: rest, slot }))
}

/// Splits after this many words; `None` if there are fewer, or nothing after them.
fn take_words(line: &str, count: usize) -> Option<(&str, &str)> {
    let mut end = 0;
    for _ in 0..count {
        let start = end + line[end..].find(|c: char| !c.is_whitespace())?;
        end = start + line[start..].find(char::is_whitespace)?;
    }
    Some((&line[..end], line[end..].trim_start()))
}

/// Returns the name and the value of a line that sets a variable.
fn variable(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let bare = |text: &str| text.trim().trim_matches(['"', '\'']).len();
    let name = name.trim().trim_matches(['"', '\'']);
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let value = value.trim();
    let kept = bare(value);
    let value = if kept < value.len() { value.trim_matches(['"', '\'']) } else { value };
    is_name.then_some((name, value))
}

fn slot_of_nickname(nickname: &str, zone: Option<&str>) -> Result<Slot, String> {
    match nickname {
        "@hourly" => Ok(per("hour", zone, true)),
        "@daily" | "@midnight" => Ok(per("day", zone, true)),
        // It starts when Sunday begins, and the week of the slot begins on Monday.
        "@weekly" => Ok(per("week", zone, false)),
        // A year has one start, and so has the month of this start.
        "@monthly" | "@yearly" | "@annually" => Ok(per("month", zone, true)),
        other => Err(format!("{other} is not a schedule: write @hourly, @daily, @weekly, @monthly or five fields")),
    }
}

/// Returns the slot of a line with five fields.
fn slot_of(fields: &str, zone: Option<&str>) -> Result<Slot, String> {
    let words: Vec<_> = fields.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = words[..] else { return Err(format!("{fields:?} is not five fields")) };
    let minutes = values(minute, "minute", 0, 59, &[])?;
    let hours = values(hour, "hour", 0, 23, &[])?;
    let days = values(day, "day of the month", 1, 31, &[])?;
    values(month, "month", 1, 12, MONTHS)?;
    let mut weekdays: Vec<_> = values(weekday, "day of the week", 0, 7, WEEKDAYS)?.iter().map(|day| day % 7).collect();
    weekdays.sort_unstable();
    weekdays.dedup();
    if minutes.len() > 1 {
        // Between two hours without a pause the last and the first minute are neighbours too.
        let next_hour = hours.windows(2).any(|pair| pair[1] == pair[0] + 1) || hours.len() == 24;
        let over = (minutes[0] + 60 - minutes[minutes.len() - 1]).max(1);
        let gaps = minutes.windows(2).map(|pair| pair[1] - pair[0]).chain(next_hour.then_some(over));
        let gap = gaps.min().unwrap_or(60);
        let every = if gap % 2 == 0 { format!("{}m", gap / 2) } else { format!("{}s", gap * 30) };
        let note = format!(
            "it starts every {gap} min at the shortest, so --every is half of that: machines whose clocks differ by less run it once"
        );
        return Ok(Slot { options: format!("--every {every}"), note: Some(note) });
    }
    let on_the_hour = minutes == [0];
    Ok(match (hours.len(), weekday.starts_with('*'), day.starts_with('*')) {
        (2.., ..) => per("hour", zone, on_the_hour),
        (_, false, true) if weekdays.len() == 1 => per("week", zone, on_the_hour && hours == [0] && weekdays == [1]),
        (_, true, false) if days.len() == 1 => per("month", zone, on_the_hour && hours == [0] && days == [1]),
        _ => per("day", zone, on_the_hour && hours == [0]),
    })
}

/// Returns a calendar slot. At a `boundary`, two machines may be in two slots.
fn per(period: &str, zone: Option<&str>, boundary: bool) -> Slot {
    let zone = zone.filter(|zone| period != "hour" && !["UTC", "Etc/UTC", ""].contains(zone));
    let zone = zone.map_or_else(String::new, |zone| format!(" --time-zone {}", quoted_if_needed(zone)));
    let note = boundary.then(|| {
        format!(
            "it starts when the {period} begins: a machine whose clock is ahead of the servers' would run it for the {period} \
             before; start it some minutes later"
        )
    });
    Slot { options: format!("--once-per {period}{zone}"), note }
}

const MONTHS: &[&str] = &["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

const WEEKDAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Returns the values of a field, in order.
fn values(field: &str, what: &str, least: u32, most: u32, names: &[&str]) -> Result<Vec<u32>, String> {
    let wrong = |text: &str| format!("{what} {text:?} is not {least} to {most}, a list, a range or a step such as */5");
    let number = |text: &str| {
        let named = names.iter().position(|name| !name.is_empty() && text.eq_ignore_ascii_case(name));
        let number = named.and_then(|at| u32::try_from(at).ok()).or_else(|| text.parse().ok());
        number.filter(|number| (least..=most).contains(number))
    };
    let mut all = Vec::new();
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse().ok().filter(|step| *step > 0).ok_or_else(|| wrong(part))?),
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (least, most),
            Some((from, to)) => (number(from).ok_or_else(|| wrong(part))?, number(to).ok_or_else(|| wrong(part))?),
            None => {
                let from = number(range).ok_or_else(|| wrong(part))?;
                (from, if step > 1 { most } else { from })
            }
        };
        if from > to {
            return Err(wrong(part));
        }
        all.extend((from..=to).step_by(step));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Splits a command at its first `%` without a backslash, as cron does: the rest is its standard input.
fn split_input(command: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in command.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '%' => return (command[..at].trim_end(), &command[at..]),
            _ => {}
        }
    }
    (command, "")
}

/// Whether a command has the same meaning without a shell.
fn is_plain(command: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || " /._-,:=@+".contains(c);
    let first = command.split(' ').next().unwrap_or_default();
    command.chars().all(plain) && !first.contains('=') && !BUILTINS.contains(&first)
}

/// Quotes for a shell behind cron. Only single quotes are safe: cron reads a backslash before `%` itself.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn quoted_if_needed(text: &str) -> String {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c));
    if plain { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, format: Format) -> Rewritten {
        let run = |name: &str, options: &str| format!("lockkeeper run {name} {options}");
        rewrite(text, format, Some("Europe/Berlin"), |word| word == "root" || word == "mail", run)
    }

    fn line(text: &str) -> String {
        lines(text, Format::User).text.trim_end().to_owned()
    }

    #[test]
    fn a_line_keeps_its_schedule_and_gets_the_slot_of_one_start() {
        let zone = "--time-zone Europe/Berlin";
        for (schedule, slot) in [
            ("13 2 * * *", format!("--once-per day {zone}")),
            ("13 2 * * 1-5", format!("--once-per day {zone}")),
            ("13 2 1,15 * *", format!("--once-per day {zone}")),
            ("13 2 1 * 5", format!("--once-per day {zone}")),
            ("13 2 * * sun", format!("--once-per week {zone}")),
            // Both are Sunday.
            ("13 2 * * 0,7", format!("--once-per week {zone}")),
            ("13 2 1 JAN *", format!("--once-per month {zone}")),
            ("@monthly", format!("--once-per month {zone}")),
            ("@yearly", format!("--once-per month {zone}")),
            ("@weekly", format!("--once-per week {zone}")),
            ("@daily", format!("--once-per day {zone}")),
            ("@hourly", "--once-per hour".to_owned()),
            ("7 */6 * * *", "--once-per hour".to_owned()),
            ("*/10 * * * *", "--every 5m".to_owned()),
            ("* * * * *", "--every 30s".to_owned()),
            ("0,5,50 3 * * *", "--every 150s".to_owned()),
            ("0,58 * * * *", "--every 1m".to_owned()),
        ] {
            assert_eq!(
                line(&format!("{schedule} /opt/job.sh")),
                format!("{schedule} lockkeeper run job {slot} -- /opt/job.sh")
            );
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        let text = "# backups\n\nMAILTO=ops@example.org\n  # 0 2 * * * old\n5 2 * * * lockkeeper run a -- b\n";
        assert_eq!(lines(text, Format::User), Rewritten { text: text.to_owned(), ..Rewritten::default() });
    }

    #[test]
    fn a_shell_command_is_quoted_for_the_shell_of_the_crontab() {
        let per_day = "lockkeeper run job --once-per day --time-zone Europe/Berlin --";
        for (command, is) in [
            ("./job.sh --all", "./job.sh --all"),
            ("cd /opt && ./job.sh", "/bin/sh -c 'cd /opt && ./job.sh'"),
            ("./job.sh >/dev/null 2>&1", "/bin/sh -c './job.sh >/dev/null 2>&1'"),
            ("A=1 ./job.sh", "/bin/sh -c 'A=1 ./job.sh'"),
            ("./job.sh 'it is'", "/bin/sh -c './job.sh '\\''it is'\\'''"),
            ("./job.sh +\\%F", "/bin/sh -c './job.sh +\\%F'"),
            ("./job.sh%first%second", "./job.sh%first%second"),
        ] {
            assert_eq!(line(&format!("5 2 * * * {command}")), format!("5 2 * * * {per_day} {is}"));
        }
        let bash = lines("SHELL=/bin/bash\n5 2 * * * ./job.sh; true\n", Format::User);
        assert!(bash.text.ends_with("-- /bin/bash -c './job.sh; true'\n"), "{}", bash.text);
    }

    #[test]
    fn flock_becomes_the_options_that_do_the_same() {
        let run = "lockkeeper run job --every 5m";
        for (command, is) in [
            ("/usr/bin/flock -n /tmp/j ./job.sh", " --try --quiet -- ./job.sh"),
            ("flock -xn -E 0 /tmp/j ./job.sh", " --try --quiet --conflict-exit-code 0 -- ./job.sh"),
            ("flock -w 10 /tmp/j ./job.sh", " --wait 10s --quiet -- ./job.sh"),
            ("flock --timeout=0 /tmp/j ./job.sh", " --try --quiet -- ./job.sh"),
            ("flock /tmp/j ./job.sh", " -- ./job.sh"),
            ("flock -n /tmp/j ./job.sh >/dev/null 2>&1", " --try --quiet -- /bin/sh -c './job.sh >/dev/null 2>&1'"),
            (
                "flock -n /tmp/j -c './job.sh; true'",
                " --try --quiet -- /bin/sh -c '/bin/sh -c '\\''./job.sh; true'\\'''",
            ),
            ("(flock -n 9 || exit 1; ./job.sh --all) 9>/tmp/j", " --try --quiet -- ./job.sh --all"),
            (
                "( flock -n 9||exit 0; cd /opt; ./job.sh ) 9> /tmp/j",
                " --try --quiet --conflict-exit-code 0 -- /bin/sh -c 'cd /opt; ./job.sh'",
            ),
            ("(/usr/bin/flock -w 5 200 && ./job.sh) 200>>/tmp/j", " --wait 5s --quiet -- ./job.sh"),
            ("( flock 9; ./job.sh ) 9>/tmp/j", " -- ./job.sh"),
            (
                "(flock -xn 9 || exit 1; ./job.sh) 9>/tmp/j >/dev/null 2>&1",
                " --try --quiet -- /bin/sh -c '(./job.sh) >/dev/null 2>&1'",
            ),
            // flock's status is not the one that the line ends with.
            ("(flock -n -E 5 9 || exit 1; ./job.sh) 9>/tmp/j", " --try --quiet --conflict-exit-code 1 -- ./job.sh"),
            ("(flock -n -E 5 9 || exit; ./job.sh) 9>/tmp/j", " --try --quiet --conflict-exit-code 5 -- ./job.sh"),
            // The number of a file is 9 too, and so is another descriptor.
            (
                "(flock -n 9 || exit 1; ./job.sh 9 19>/tmp/k) 9>/tmp/j",
                " --try --quiet -- /bin/sh -c './job.sh 9 19>/tmp/k'",
            ),
            // The command uses the descriptor, which it would not have.
            ("(flock 9; echo 1 >&9; ./job.sh) 9>/tmp/j", " -- /bin/sh -c '(flock 9; echo 1 >&9; ./job.sh) 9>/tmp/j'"),
            ("(flock 9; ./job.sh 9>&-) 9>/tmp/j", " -- /bin/sh -c '(flock 9; ./job.sh 9>&-) 9>/tmp/j'"),
            (
                "(flock 9; cat /dev/fd/9; ./job.sh) 9</tmp/j",
                " -- /bin/sh -c '(flock 9; cat /dev/fd/9; ./job.sh) 9</tmp/j'",
            ),
            (
                "(flock 9; ./job.sh; flock -u 9; ./b) 9>/tmp/j",
                " -- /bin/sh -c '(flock 9; ./job.sh; flock -u 9; ./b) 9>/tmp/j'",
            ),
            ("(flock 9; ./job.sh) 9>/tmp/j 2>&9", " -- /bin/sh -c '(flock 9; ./job.sh) 9>/tmp/j 2>&9'"),
            ("(flock 9; ./job.sh) 9>&8", " -- /bin/sh -c '(flock 9; ./job.sh) 9>&8'"),
            // The command runs although the file is locked, and flock guards only a part, or another file.
            ("( flock -n 9; ./job.sh ) 9>/tmp/j", " -- /bin/sh -c '( flock -n 9; ./job.sh ) 9>/tmp/j'"),
            ("(flock -n 9 && ./job.sh; true) 9>/tmp/j", " -- /bin/sh -c '(flock -n 9 && ./job.sh; true) 9>/tmp/j'"),
            ("(flock -n 9 || exit 1; ./job.sh) 8>/tmp/j", " -- /bin/sh -c '(flock -n 9 || exit 1; ./job.sh) 8>/tmp/j'"),
            (
                "(flock -n 9 || exit 1; ./job.sh) 9>/tmp/j; true",
                " -- /bin/sh -c '(flock -n 9 || exit 1; ./job.sh) 9>/tmp/j; true'",
            ),
            // A job holds its lock alone, and what follows is not under flock.
            ("flock -s /tmp/j ./job.sh", " -- flock -s /tmp/j ./job.sh"),
            ("flock -ns /tmp/j ./job.sh", " -- flock -ns /tmp/j ./job.sh"),
            ("(flock -s 9; ./job.sh) 9>/tmp/j", " -- /bin/sh -c '(flock -s 9; ./job.sh) 9>/tmp/j'"),
            ("flock -s -x /tmp/j ./job.sh", " -- ./job.sh"),
            ("flock -n /tmp/j --command './job.sh'", " --try --quiet -- /bin/sh -c '/bin/sh -c '\\''./job.sh'\\'''"),
            ("flock -n /tmp/j ./job.sh || true", " --try --quiet -- /bin/sh -c 'flock -n /tmp/j ./job.sh || true'"),
        ] {
            let made = lines(&format!("*/10 * * * * {command}\n"), Format::User);
            assert_eq!(made.text, format!("*/10 * * * * {run}{is}\n"));
            assert!(made.notes.iter().any(|(_, note)| note.contains("flock")), "{command}");
        }
        for command in ["flock --shared /tmp/j ./job.sh", "flock -s -w 5 /tmp/j ./job.sh"] {
            let made = lines(&format!("*/10 * * * * {command}\n"), Format::User);
            assert_eq!(made.text, format!("*/10 * * * * {run} -- {command}\n"));
            assert!(made.notes.iter().any(|(_, note)| note.contains("shares the file (-s)")), "{:?}", made.notes);
        }
        // The reader keeps its file, and so does the writer.
        let made = lines("1 * * * * flock -s /tmp/j ./a\n2 * * * * flock /tmp/j ./b\n", Format::User);
        assert_eq!(made.text.matches(" -- flock ").count(), 2, "{}", made.text);
        // flock itself takes them for programs.
        for script in ["-c'./job.sh'", "--command=./job.sh"] {
            let text = format!("*/10 * * * * flock /tmp/j {script}\n");
            let made = lines(&text, Format::User);
            assert_eq!((made.text.as_str(), made.left), (text.as_str(), 1));
            assert!(made.notes.iter().any(|(_, note)| note.contains("for a program: write -")), "{:?}", made.notes);
        }
        let made = lines("1 * * * * flock -n /tmp/j ./a\n2 * * * * flock -n /tmp/j ./b\n", Format::User);
        assert_eq!(made.text.matches(" --try --quiet -- flock -n /tmp/j ./").count(), 2, "{}", made.text);
        assert!(
            made.notes.iter().all(|(_, note)| note.contains("another line uses the same file")),
            "{:?}",
            made.notes
        );
    }

    /// A job holds its lock until its command ends. (flock holds its file until the last process that inherited it ends.)
    #[test]
    fn a_command_in_the_background_stays() {
        for command in [
            "(flock -n 9 || exit 1; ./a &) 9>/tmp/j",
            "(flock -n 9 || exit 1; ./a & ./b) 9>/tmp/j",
            "(flock -n 9 || exit 1; ./a) 9>/tmp/j &",
            "flock -n /tmp/j ./a &",
            "flock -n /tmp/j ./a&",
            "flock -n /tmp/j -c './a & wait'",
            "cd /opt && flock /tmp/j sh -c \"./a 'b' &\"",
            "./a &",
            "nohup ./a >/dev/null 2>&1 &",
            "./a; ./b &",
            "sh -c './a &'",
        ] {
            let text = format!("*/10 * * * * {command}\n");
            let made = lines(&text, Format::User);
            assert_eq!((made.text.as_str(), made.left, made.jobs), (text.as_str(), 1, 0));
            assert!(made.notes[0].1.contains("in the background (&)"), "{:?}", made.notes);
        }
        for command in [
            "flock /tmp/j ./a 'b & c'",
            "flock /tmp/j ./a >/dev/null 2>&1 && ./b",
            "flock /tmp/j ./a &>/dev/null",
            "flock /tmp/j sh -c \"./a 'b&c' >&2 && ./b\"",
            "./a 2>&1 | ./b && ./c",
            "./a%b & c",
        ] {
            assert_eq!(lines(&format!("*/10 * * * * {command}\n"), Format::User).jobs, 1, "{command}");
        }
    }

    #[test]
    fn a_program_that_excludes_on_one_machine_stays_with_a_note_and_is_not_the_name() {
        for (command, program) in
            [("run-one /opt/job.sh", "run-one"), ("/usr/bin/setlock -n /run/j ./job.sh", "setlock")]
        {
            let made = lines(&format!("*/10 * * * * {command}\n"), Format::User);
            assert_eq!(made.text, format!("*/10 * * * * lockkeeper run job --every 5m -- {command}\n"));
            let note = format!("{program} stays; it can be left out");
            assert!(made.notes.iter().any(|(_, told)| told.starts_with(&note)), "{:?}", made.notes);
        }
    }

    #[test]
    fn the_housekeeping_of_each_machine_is_pointed_out() {
        let pointed_out = |command: &str| {
            let made = lines(&format!("5 2 * * * {command}\n"), Format::User);
            assert_eq!(made.jobs, 1, "{command}");
            made.notes.iter().any(|(_, note)| note.contains("looks like the housekeeping of each machine"))
        };
        for command in [
            "find /tmp -mtime +1 -delete",
            "/usr/sbin/logrotate /etc/logrotate.conf",
            "sudo apt-get -y upgrade",
            "rm -f /var/log/app/*.old",
            "cd /var/tmp && rm -rf cache",
        ] {
            assert!(pointed_out(command), "{command}");
        }
        for command in ["/opt/report.sh", "/opt/find-customers /srv/tmp", "pg_dump app >/tmp/dump", "/opt/tmp/x"] {
            assert!(!pointed_out(command), "{command}");
        }
    }

    #[test]
    fn a_system_crontab_keeps_its_user_and_a_zone_is_the_crontabs() {
        let made = lines("CRON_TZ=America/New_York\n5 2 * * * root  /opt/job.sh\n", Format::System);
        let job = "5 2 * * * root lockkeeper run job --once-per day --time-zone America/New_York -- /opt/job.sh\n";
        assert!(made.text.ends_with(job), "{}", made.text);
        // TZ is not for the schedule.
        let made = lines("CRON_TZ=America/New_York\nTZ=Asia/Tokyo\n5 2 * * * root  /opt/job.sh\n", Format::System);
        assert!(made.text.ends_with(job), "{}", made.text);
    }

    #[test]
    fn lines_in_an_unknown_zone_stay() {
        let text = "CRON_TZ=Nowhere/Town\n5 2 * * * /opt/a.sh\nCRON_TZ=America/New_York\n5 2 * * * /opt/b.sh\n";
        let made = lines(text, Format::User);
        assert!(made.text.starts_with("CRON_TZ=Nowhere/Town\n5 2 * * * /opt/a.sh\n"), "{}", made.text);
        assert_eq!((made.left, made.jobs, made.notes[0].0), (1, 1, 2));
        assert!(made.notes[0].1.starts_with("CRON_TZ=Nowhere/Town: "), "{:?}", made.notes);
    }

    /// What a person pipes from /etc/crontab has no name that says so.
    #[test]
    fn a_line_with_a_user_where_none_belongs_stays_and_one_without_its_user_too() {
        let text = "5 2 * * * root cd / && run-parts /etc/cron.daily\n";
        let made = lines(text, Format::User);
        assert_eq!((made.text.as_str(), made.left, made.jobs), (text, 1, 0));
        assert!(made.notes[0].0 == 1 && made.notes[0].1.contains("add --system"), "{:?}", made.notes);
        assert!(lines(text, Format::System).text.contains(" root lockkeeper run run-parts "));
        // A program of the same name.
        assert_eq!(lines("5 2 * * * mail -s x y\n", Format::User).jobs, 1);
        for text in ["5 2 * * * /opt/job.sh --all\n", "5 2 * * * job --all\n"] {
            let made = lines(text, Format::System);
            assert_eq!((made.text.as_str(), made.left), (text, 1));
            assert!(made.notes[0].1.contains("leave out --system"), "{:?}", made.notes);
        }
    }

    /// A slot that begins when the line starts is one of two, by which clock is ahead. A week of cron begins on Sunday.
    #[test]
    fn only_a_line_that_starts_with_its_period_is_said_to() {
        let noted = |schedule: &str| {
            let made = lines(&format!("{schedule} /opt/job.sh\n"), Format::User);
            made.notes.iter().any(|(_, note)| note.contains("begins: a machine whose clock is ahead"))
        };
        for schedule in ["@hourly", "@daily", "@monthly", "0 0 * * 1"] {
            assert!(noted(schedule), "{schedule}");
        }
        for schedule in ["@weekly", "0 0 * * 0", "5 0 * * 1"] {
            assert!(!noted(schedule), "{schedule}");
        }
    }

    #[test]
    fn odd_lines_are_named_with_their_number() {
        let text = "@reboot ./a\n61 2 * * * ./b\n5 2 * * *\nhello\n5 2 * * mon-xyz ./c\n@dayly ./d\n5-1 * * * * ./e\n*/0 * * * * ./f\n";
        let made = lines(text, Format::User);
        assert_eq!((made.text.as_str(), made.left, made.jobs), (text, 8, 0));
        let numbers: Vec<_> = made.notes.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(made.notes[1].1.contains("minute \"61\" is not 0 to 59"), "{:?}", made.notes[1]);
        let made = lines("-5 2 * * * ./a\n", Format::User);
        assert!(made.notes[0].1.contains("minute \"-5\" is not 0 to 59"), "{:?}", made.notes);
    }

    #[test]
    fn each_line_has_its_own_name() {
        let text = "5 2 * * * /opt/backup.sh a\n5 3 * * * /opt/backup.sh b\n5 4 * * * python3 /opt/index.py\n5 5 * * * : $(x)\n";
        let made = lines(text, Format::User);
        assert!(made.notes.iter().any(|(at, note)| *at == 4 && note.contains("choose a name")), "{:?}", made.notes);
        // Such a name would be that of a contender's node.
        for program in ["backup-2026112600", "lock-0000000000"] {
            let made = lines(&format!("5 2 * * * /opt/{program}\n"), Format::User);
            assert!(made.text.contains(" run line-1 ") && made.notes.len() == 1, "{made:?}");
        }
        let made = made.text;
        for name in ["run backup ", "run backup-2 ", "run index ", "run line-4 "] {
            assert!(made.contains(name), "{name} is not in {made}");
        }
    }
}
