//! The forms of `flock` in a command line that options of a job replace.

/// A command line under flock.
pub(super) struct Flock {
    /// The options of `run` that do the same, each after a blank.
    pub options: String,
    /// The file that flock locks.
    pub file: String,
    /// The command without flock; `None` if the line does more than flock guards, or shares the file.
    pub command: Option<String>,
    /// Whether it shares the file with other commands that share it. A job holds its lock alone.
    pub shares: bool,
}

/// What a call of flock says before its command.
struct Call<'a> {
    /// The longest wait, in seconds; `None` waits for as long as it takes.
    wait: Option<u32>,
    /// The exit status if the file stays locked.
    status: Option<u32>,
    shares: bool,
    /// The file, or the number of an open one.
    target: &'a str,
    rest: &'a str,
}

impl<'a> Call<'a> {
    /// Reads a call; `None` if it is none, or if a job has no option for one of its options.
    fn read(typed: &'a str) -> Option<Self> {
        let (first, mut rest) = word(typed)?;
        if !is_flock(first) {
            return None;
        }
        let (mut wait, mut status, mut shares) = (None, None, false);
        loop {
            let (option, after) = word(rest)?;
            rest = after;
            let (option, joined) = match option.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value)),
                _ => (option, None),
            };
            let mut value = || {
                let (value, after) = match joined {
                    Some(value) => (value, rest),
                    None => word(rest)?,
                };
                rest = after;
                value.parse::<u32>().ok()
            };
            match option {
                "--nonblock" | "--nb" => wait = Some(0),
                "-w" | "--wait" | "--timeout" => wait = Some(value()?),
                "-E" | "--conflict-exit-code" => status = Some(value()?),
                "--exclusive" => shares = false,
                "--shared" => shares = true,
                "--close" | "--no-fork" | "--verbose" => {}
                target if !target.starts_with('-') => return Some(Call { wait, status, shares, target, rest }),
                text if text.len() > 1 && text[1..].chars().all(|letter| "nsxeoF".contains(letter)) => {
                    wait = if text.contains('n') { Some(0) } else { wait };
                    // The last one counts.
                    shares = text.chars().rfind(|letter| "sxe".contains(*letter)).map_or(shares, |kind| kind == 's');
                }
                _ => return None,
            }
        }
    }

    /// Returns the options of `run` that do the same. flock says nothing if the file stays locked.
    fn options(&self) -> String {
        let status = self.status.map_or_else(String::new, |status| format!(" --conflict-exit-code {status}"));
        match self.wait {
            None => status,
            Some(0) => format!(" --try --quiet{status}"),
            Some(seconds) => format!(" --wait {seconds}s --quiet{status}"),
        }
    }
}

impl Flock {
    /// Reads a command; `None` unless options of a job do the same.
    pub(super) fn read(typed: &str, shell: &str) -> Option<Flock> {
        if let Some(inside) = typed.strip_prefix('(') {
            return Flock::of_subshell(inside.trim_start());
        }
        let call = Call::read(typed)?;
        if !is_literal(call.target) || call.rest.is_empty() {
            return None;
        }
        let file = call.target.to_owned();
        if call.shares {
            return Some(Flock { options: String::new(), file, command: None, shares: true });
        }
        let command = match script(call.rest) {
            Some(script) => format!("{shell} -c {script}"),
            None => call.rest.to_owned(),
        };
        let command = Some(command).filter(|_| is_one(call.rest));
        Some(Flock { options: call.options(), file, command, shares: false })
    }

    /// Reads `flock -n 9 || exit 1; COMMAND ) 9>FILE`, and the same with `&&`.
    fn of_subshell(inside: &str) -> Option<Flock> {
        let (inside, behind) = inside.rsplit_once(')')?;
        let mut call = Call::read(inside)?;
        // Without a blank, what follows the number is a part of its word.
        let digits = call.target.find(|c: char| !c.is_ascii_digit()).unwrap_or(call.target.len());
        let (number, after) = call.target.split_at(digits);
        let rest = format!("{after} {}", call.rest);
        let rest = rest.trim_start();
        let command = if let Some(rest) = rest.strip_prefix("||") {
            let rest = rest.trim_start().strip_prefix("exit")?.trim_start();
            let (status, command) = rest.split_once(';')?;
            match status.trim() {
                // flock's own.
                "" => {}
                // The default of flock is replaced by that of `run`.
                "1" if call.status.is_none() => {}
                status => call.status = Some(status.parse().ok()?),
            }
            command
        } else if let Some(command) = rest.strip_prefix("&&") {
            Some(command).filter(|command| is_one(command))?
        } else {
            // A command behind `;` runs too if the file stays locked.
            rest.strip_prefix(';').filter(|_| call.wait.is_none())?
        };
        let (command, redirected) = (command.trim(), Redirected::read(behind, number)?);
        if number.is_empty() || command.is_empty() || !is_closed(command) || call.shares {
            return None;
        }
        if has_flock(command) || has_descriptor(command, number) || has_descriptor(&redirected.others, number) {
            return None;
        }
        let command = match redirected.others.is_empty() {
            true => command.to_owned(),
            false => format!("({command}){}", redirected.others),
        };
        Some(Flock { options: call.options(), file: redirected.file.to_owned(), command: Some(command), shares: false })
    }
}

/// The redirections behind a subshell.
struct Redirected<'a> {
    /// The file with the number that flock locks.
    file: &'a str,
    /// The others, each after a blank.
    others: String,
}

impl<'a> Redirected<'a> {
    /// Reads them; `None` if there is anything else.
    fn read(behind: &'a str, number: &str) -> Option<Self> {
        let (mut file, mut others) = (None, String::new());
        let mut words = behind.split_whitespace();
        while let Some(redirection) = words.next() {
            let digits = redirection.find(|c: char| !c.is_ascii_digit())?;
            let (of, target) = redirection.split_at(digits);
            let target = target.strip_prefix(['>', '<'])?.trim_start_matches(['>', '<', '|']);
            if of == number {
                let target = if target.is_empty() { words.next()? } else { target };
                file = Some(target).filter(|target| is_literal(target) && is_one(target) && !target.starts_with('&'));
                continue;
            }
            let is_plain = target.strip_prefix('&').unwrap_or(target).chars().all(|c| !";|&()".contains(c));
            if target.is_empty() || !is_plain {
                return None;
            }
            others.push(' ');
            others.push_str(redirection);
        }
        Some(Redirected { file: file?, others })
    }
}

/// Returns the script that flock gives to a shell, from the words behind its file.
fn script(rest: &str) -> Option<&str> {
    let (option, script) = word(rest)?;
    ["-c", "--command"].contains(&option).then_some(script)
}

/// Returns flock's option for a script if the script is in the same word: flock takes that word for a program.
pub(super) fn joined_script(typed: &str) -> Option<&'static str> {
    let rest = Call::read(typed)?.rest;
    let option = if rest.starts_with("--command") { "--command" } else { "-c" };
    let after = rest.strip_prefix(option)?;
    (!after.is_empty() && !after.starts_with(char::is_whitespace)).then_some(option)
}

/// Whether a command line calls flock.
pub(super) fn has_flock(command: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    command.split(|c| !is_of_name(c)).any(is_flock)
}

/// Whether a command runs on in the background: the process does not inherit the lock of a job, as it inherits flock's file.
pub(super) fn is_in_background(command: &str) -> bool {
    let bare = unquoted(command);
    let is_alone =
        |(at, _)| !bare[..at].ends_with(['&', '>', '<', '|', '\\']) && !bare[at + 1..].starts_with(['&', '>']);
    let scripts = [" -c ", " --command "].into_iter().filter_map(|option| command.split_once(option));
    let mut scripts = scripts.filter_map(|(_, script)| script.trim_start().strip_prefix(['\'', '"']));
    bare.match_indices('&').any(is_alone) || scripts.any(is_in_background)
}

/// Whether a command uses the open file with this number.
fn has_descriptor(command: &str, number: &str) -> bool {
    command.match_indices(number).any(|(at, _)| {
        let (before, after) = (&command[..at], &command[at + number.len()..]);
        let is_whole = !before.ends_with(char::is_alphanumeric) && !after.starts_with(|c: char| c.is_ascii_digit());
        is_whole && (before.ends_with('&') || before.ends_with("/fd/") || after.starts_with(['>', '<']))
    })
}

pub(super) fn is_flock(word: &str) -> bool {
    word.rsplit('/').next() == Some("flock")
}

fn word(text: &str) -> Option<(&str, &str)> {
    let (word, rest) = text.split_once(char::is_whitespace)?;
    Some((word, rest.trim_start()))
}

/// Whether a shell changes nothing in a word.
fn is_literal(word: &str) -> bool {
    !word.contains(['\'', '"', '$', '`'])
}

/// Whether flock guards all of a command: behind `;` and `||` follows what it does not guard.
fn is_one(command: &str) -> bool {
    let bare = unquoted(command);
    !bare.contains(';') && !bare.contains("||")
}

/// Whether each parenthesis of a command has its other one.
fn is_closed(command: &str) -> bool {
    let depth = unquoted(command).chars().try_fold(0u32, |depth, c| match c {
        '(' => Some(depth + 1),
        ')' => depth.checked_sub(1),
        _ => Some(depth),
    });
    depth == Some(0)
}

/// The parts of a command outside of quotes.
fn unquoted(command: &str) -> String {
    let mut quote = None;
    let bare = command.chars().filter(|c| match quote {
        Some(open) => {
            quote = Some(open).filter(|open| open != c);
            false
        }
        None => {
            quote = Some(*c).filter(|c| ['\'', '"'].contains(c));
            quote.is_none()
        }
    });
    bare.collect()
}
