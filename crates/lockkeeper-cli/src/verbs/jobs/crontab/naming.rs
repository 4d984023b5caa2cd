//! Names of jobs, from the commands that they run.

use super::flock::is_flock;

/// Programs that run the program after them, and words of a shell before a command. Their own options are skipped in the search
/// for a name.
const WRAPPERS: &[&str] = &[
    "!",
    "bash",
    "chpst",
    "chronic",
    "chroot",
    "command",
    "dash",
    "do",
    "done",
    "else",
    "env",
    "exec",
    "fi",
    "flock",
    "ionice",
    "ksh",
    "lckdo",
    "nice",
    "node",
    "nohup",
    "perl",
    "php",
    "python",
    "python2",
    "python3",
    "ruby",
    "run-one",
    "runuser",
    "setlock",
    "setsid",
    "sh",
    "solo",
    "stdbuf",
    "su",
    "sudo",
    "systemd-cat",
    "then",
    "time",
    "timeout",
    "zsh",
    "{",
    "}",
];

/// Programs that keep one machine in order.
const HOUSEKEEPERS: &[&str] = &[
    "apt",
    "apt-get",
    "dnf",
    "fstrim",
    "journalctl",
    "logrotate",
    "needrestart",
    "ntpdate",
    "smartctl",
    "tmpreaper",
    "tmpwatch",
    "unattended-upgrade",
    "updatedb",
    "yum",
];

/// Programs that delete, and directories that each machine has.
const DELETERS: &[&str] = &["find", "rm"];
const LOCAL: &[&str] = &["/tmp", "/var/tmp", "/var/log", "/var/cache"];

/// Returns the word by which a command looks like the housekeeping of the machine that runs it.
pub(super) fn housekeeping(command: &str) -> Option<&str> {
    let is_one_of = |word: &str, programs: &[&str]| programs.contains(&word.rsplit('/').next().unwrap_or_default());
    let is_local = |word: &str| LOCAL.iter().any(|dir| word == *dir || word.starts_with(&format!("{dir}/")));
    let mut words = command.split_whitespace();
    let deletes = words.clone().any(|word| is_one_of(word, DELETERS));
    words.find(|word| is_one_of(word, HOUSEKEEPERS) || (deletes && is_local(word)))
}

/// Words that only a shell understands at the beginning of a command.
pub(super) const BUILTINS: &[&str] = &[
    ".", ":", "[", "alias", "cd", "eval", "exec", "export", "exit", "if", "for", "set", "source", "test", "time",
    "trap", "type", "ulimit", "umask", "unset", "while", "until", "case", "command",
];

/// Programs that prepare for the real command, if there is another one on the line.
const PREPARATIONS: &[&str] =
    &["cat", "date", "echo", "false", "hostname", "logger", "mkdir", "printf", "renice", "sleep", "true", "wait"];

/// Options with a value in the next word.
const VALUED: &[(&str, &[&str])] = &[
    ("chpst", &["-u", "-U", "-b", "-e", "-/", "-C", "-n", "-l", "-L", "-m", "-d", "-o", "-p", "-f", "-c", "-r", "-t"]),
    ("env", &["-u", "-C"]),
    ("flock", &["-w", "-E", "--wait", "--timeout", "--conflict-exit-code"]),
    ("lckdo", &["-W", "-E"]),
    ("runuser", &["-u", "-g", "-G", "-s"]),
    ("su", &["-s", "-g", "-G"]),
    ("sudo", &["-u", "-g", "-h", "-p", "-C", "-D", "-r", "-t", "--user", "--group"]),
    ("systemd-cat", &["-t", "-p"]),
    ("timeout", &["-k", "-s"]),
];

/// Programs that only keep a second start of a command away, on one machine.
const ONE_AT_A_TIME: &[&str] = &["lckdo", "run-one", "setlock", "solo"];

/// Returns the program before a command that only keeps a second start of it away.
pub(super) fn one_at_a_time(command: &str) -> Option<&str> {
    let base = command.split_whitespace().next()?.rsplit('/').next()?;
    ONE_AT_A_TIME.contains(&base).then_some(base)
}

/// Returns the name of the program that a command runs, as the name of its lock.
pub(super) fn name_of(command: &str) -> Option<String> {
    let command = without_values(command);
    // Each command of a list and of a pipe, without its redirections.
    let commands = command.split(['|', '&', ';']).filter_map(|command| command.split(['>', '<']).next());
    let mut programs = commands.filter_map(program).filter(|name| !BUILTINS.contains(&name.as_str())).peekable();
    let first = programs.peek().cloned();
    let name = programs.find(|name| !PREPARATIONS.contains(&name.as_str())).or(first);
    name.filter(|name| !name.is_empty())
}

/// Returns a command without the quoted values of its assignments and options: their words look like programs.
fn without_values(command: &str) -> String {
    let (mut kept, mut rest) = (String::new(), command);
    while let Some(at) = rest.find("=\"").into_iter().chain(rest.find("='")).min() {
        let (before, value) = rest.split_at(at + 1);
        let Some((_, after)) = value[1..].split_once(&value[..1]) else { break };
        kept.push_str(before);
        rest = after;
    }
    kept + rest
}

/// Whether a word is a variable, whose value only the shell knows.
fn is_variable(word: &str) -> bool {
    let last = word.trim_matches(['"', '\'', '(', ')', '`']).rsplit('/').next().unwrap_or_default();
    last.strip_prefix('$').is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphanumeric() || "_{".contains(c)))
}

/// Returns the name of the program of one command; an empty one if the program is in a variable.
fn program(command: &str) -> Option<String> {
    let words = command.split_whitespace();
    let mut words = words.map(|typed| (typed, typed.trim_matches(['"', '\'', '(', ')', '`', '$'])));
    let mut wrapper = "";
    // Whether the next word belongs to an option, or is the file of flock or setlock, the user of su, the directory of chroot.
    let (mut is_value, mut has_operand) = (false, false);
    let (typed, program) = words.find(|(_, word)| {
        let base = word.rsplit('/').next().unwrap_or_default();
        if std::mem::take(&mut is_value) || word.is_empty() {
            return false;
        }
        if word.starts_with('-') {
            is_value = VALUED.iter().any(|(name, options)| *name == wrapper && options.contains(word));
            // With -u, no word of runuser is the user.
            has_operand &= !(wrapper == "runuser" && *word == "-u");
            return false;
        }
        if std::mem::take(&mut has_operand) {
            return false;
        }
        if WRAPPERS.contains(&base) {
            wrapper = base;
            has_operand = is_flock(base) || ["su", "runuser", "chroot", "setlock", "lckdo"].contains(&base);
            return false;
        }
        let is_number = word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || ".smhd".contains(c));
        !word.contains('=') && !is_number
    })?;
    if is_variable(typed) {
        return Some(String::new());
    }
    let base = program.trim_end_matches('/').rsplit('/').next()?;
    let base = base.rsplit_once('.').map_or(base, |(stem, _)| if stem.is_empty() { base } else { stem });
    if BUILTINS.contains(&base) {
        return Some(base.to_owned());
    }
    let name: String =
        base.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '-' }).collect();
    let name = name.trim_matches('-').to_owned();
    (!name.is_empty()).then_some(name)
}

/// Returns a name that no earlier line has.
pub(super) fn unique(name: String, names: &[String]) -> String {
    let taken = |name: &String| names.contains(name);
    if !taken(&name) {
        return name;
    }
    (2..).map(|count| format!("{name}-{count}")).find(|name| !taken(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_name_of_the_command_that_does_the_work() {
        for (command, name) in [
            ("sleep 30; real-job", "real-job"),
            ("sleep $((RANDOM \\% 60)) && real-job --all", "real-job"),
            ("perl -e 'sleep int(rand(43200))' && certbot -q renew", "certbot"),
            ("echo start >> /var/log/x; /opt/real-job.sh", "real-job"),
            ("cat list | real-job", "real-job"),
            ("sleep 30", "sleep"),
            ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run-parts"),
            ("command -v debian-sa1 > /dev/null && debian-sa1 1 1", "debian-sa1"),
            ("if [ -x /opt/a ]; then /opt/a; fi", "a"),
            ("sh -c 'cd /opt && ./job.sh'", "job"),
            ("sudo -u www-data php /srv/queue.php", "queue"),
            ("su - postgres -c \"pg_dumpall > x\"", "pg_dumpall"),
            ("runuser -u app -- /opt/job.sh", "job"),
            ("timeout -s KILL 30m /opt/job.sh", "job"),
            ("run-one /opt/a.sh --all", "a"),
            ("setlock -n F /opt/g.sh", "g"),
            ("/usr/bin/setlock -nX /run/f.lock g.sh", "g"),
            ("lckdo -w -W 30 /run/f.lock g.sh", "g"),
            ("solo -port=3801 ./g.sh", "g"),
            ("chpst -u app -L /run/f.lock g.sh", "g"),
            ("nice -n 10 7z a x", "7z"),
            ("flock -s -w 10 /tmp/j job", "job"),
            ("(flock -n 9 || exit 1; job) 9>/tmp/j", "job"),
            ("A=1 B=2 ./job.sh 2>&1 | logger", "job"),
            ("A=\"x; y\" B='z w' ./job.sh --all", "job"),
            ("sh -c \"A='x y' ./job.sh\"", "job"),
            ("\"$HOME/bin/job.sh\" --all", "job"),
            ("cd \"$DIR\" && ./job.sh", "job"),
        ] {
            assert_eq!(name_of(command).as_deref(), Some(name), "{command}");
        }
        // The value may be another one on each machine.
        for command in [": $(x)", "\"$JOB\" --all", "${JOB} | logger", "nice -n 10 $DIR/$JOB"] {
            assert_eq!(name_of(command), None, "{command}");
        }
    }
}
