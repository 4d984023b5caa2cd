//! Asks each realm the same question, for the commands that show all locks.

use futures_util::future::join_all;

use crate::exit::Failure;
use crate::output::Printer;
use crate::place::{Source, realm};
use crate::settings::Part;

/// The answers of realms, or the one answer without realms.
pub(crate) struct Answers<'a, T> {
    /// The answers, at least one.
    pub from: Vec<(&'a Part, T)>,
    failures: Vec<Failure>,
}

/// Asks each part. A failure of some realms leaves the answers of the others.
///
/// # Errors
/// No part has answered.
pub(crate) async fn ask_each<'a, T>(
    parts: &'a [Part],
    printer: &Printer,
    question: impl AsyncFn(&'a Part) -> Result<T, Failure>,
) -> Result<Answers<'a, T>, Failure> {
    let (mut from, mut failures) = (Vec::new(), Vec::new());
    let asked = join_all(parts.iter().map(|part| question(part))).await;
    for (part, answer) in parts.iter().zip(asked) {
        match answer {
            Ok(answer) => from.push((part, answer)),
            Err(failure) if parts.len() == 1 => return Err(failure),
            Err(failure) => failures.push(left_out(part, failure)),
        }
    }
    let answers = Answers { from, failures };
    if answers.from.is_empty() { Err(answers.failure(printer)) } else { Ok(answers) }
}

/// Returns the failure of a realm, with its name. Commands in it name the realm's servers.
fn left_out(part: &Part, mut failure: Failure) -> Failure {
    if let Some((prefix, servers)) = &part.realm {
        failure.message = format!("{} is left out: {}", realm(prefix, servers), failure.message);
        failure.advice = failure.advice.into_iter().map(|(what, command)| (what, command.at(servers))).collect();
    }
    failure.at(&part.settings.place)
}

impl<T> Answers<'_, T> {
    /// Returns where the answers come from.
    pub(crate) fn source(&self) -> Source {
        match &self.from[..] {
            [(part, _)] if self.failures.is_empty() => Source::One(part.settings.place.clone()),
            several => Source::Realms(several.iter().filter_map(|(part, _)| part.realm.clone()).collect()),
        }
    }

    /// Returns the exit status, if each realm has answered.
    ///
    /// # Errors
    /// The first failure; the others are printed.
    pub(crate) fn end(self, status: u8, printer: &Printer) -> Result<u8, Failure> {
        if self.failures.is_empty() { Ok(status) } else { Err(self.failure(printer)) }
    }

    fn failure(self, printer: &Printer) -> Failure {
        let mut failures = self.failures.into_iter();
        let first = failures.next().unwrap_or_else(|| Failure::system("no realm was asked", "there is none"));
        failures.for_each(|failure| printer.failure(&failure));
        first
    }
}
