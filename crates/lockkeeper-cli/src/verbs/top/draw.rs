//! Draws the state of `lockkeeper top`.

use std::time::{Duration, SystemTime};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use unicode_width::UnicodeWidthStr;

use super::app::{App, CONFIRMED, Question, View};
use crate::colour::Severity;
use crate::output::Printer;
use crate::pastview::{held, short};
use crate::screen::cut;
use crate::table::{judge, lines, severity};
use crate::text::{ahead, counted, plain, who};
use crate::verbs::deadlocks;
use crate::verbs::list::order;

/// The least width of the name of the servers.
const SOURCE: usize = 12;

/// The width of the names of lanes.
const NAMES: usize = 20;

/// What the servers answered about one thing.
#[derive(Debug, Default)]
pub(crate) struct Details {
    pub lines: Vec<String>,
    /// The holds of each holder.
    pub lanes: Vec<Lane>,
    /// The time at the right end of the lanes.
    pub now: Option<SystemTime>,
}

/// The holds of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub who: String,
    /// From when to when, and whether it was lost.
    pub holds: Vec<(SystemTime, SystemTime, bool)>,
}

/// What is drawn beside the state.
#[derive(Debug)]
pub(crate) struct Screen<'a> {
    pub app: &'a App,
    /// The name of the servers.
    pub source: &'a str,
    pub details: Option<&'a Details>,
    pub colours: bool,
    pub printer: Printer,
}

impl Screen<'_> {
    fn style(&self, severity: Severity) -> Style {
        match severity {
            Severity::Serious if self.colours => Style::new().fg(Color::Red),
            Severity::Notice if self.colours => Style::new().fg(Color::Yellow),
            Severity::Serious => Style::new().add_modifier(Modifier::BOLD),
            _ => Style::new(),
        }
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(2)]).areas(frame.area());
        frame.render_widget(
            Paragraph::new(self.head(head.width)).style(Style::new().add_modifier(Modifier::BOLD)),
            head,
        );
        let (lines, chosen) = self.body(body);
        // The chosen line stays on the screen.
        let height = usize::from(body.height);
        let first = match chosen {
            Some(at) => (at + 1).saturating_sub(height),
            None => usize::from(self.app.scrolled).min(lines.len().saturating_sub(height)),
        };
        let shown: Vec<_> = lines.into_iter().skip(first).take(height).collect();
        frame.render_widget(Paragraph::new(shown), body);
        frame.render_widget(Paragraph::new(self.foot(foot.width)), foot);
    }

    /// `root's own server   5 locks in use, 2 waited for, 1 deadlock`
    fn head(&self, width: u16) -> String {
        let Some(snapshot) = &self.app.snapshot else {
            return cut(&format!("{}   reading", self.source), width.into());
        };
        let waited = snapshot.locks.iter().filter(|shown| !shown.lock.waiters.is_empty()).count();
        let mut text = format!("   {} in use, {waited} waited for", snapshot.locks.len());
        if !snapshot.deadlocks.is_empty() {
            text.push_str(&format!(", {}", counted(snapshot.deadlocks.len() as u64, "deadlock")));
        }
        for said in snapshot.failures.iter().map(String::as_str).chain(snapshot.note()) {
            text.push_str(&format!("   ! {}", plain(said)));
        }
        // A long list of servers says less than what follows.
        let source = cut(&plain(self.source), usize::from(width).saturating_sub(text.width()).max(SOURCE));
        cut(&(source + &text), width.into())
    }

    /// Returns the lines, and the place of the chosen one.
    fn body(&self, area: Rect) -> (Vec<Line<'static>>, Option<usize>) {
        let width = usize::from(area.width);
        match &self.app.view {
            View::Table => self.table(width, area.height.into()),
            View::Queue(path) => self.queue(path, width),
            View::History(path) => (self.history(path, width), None),
            View::Deadlocks => (self.deadlocks(width), None),
            View::Servers => (self.details(width), None),
            View::Help => (HELP.iter().map(|line| Line::raw(*line)).collect(), None),
        }
    }

    fn table(&self, width: usize, height: usize) -> (Vec<Line<'static>>, Option<usize>) {
        let Some(snapshot) = &self.app.snapshot else { return (Vec::new(), None) };
        let mut rows = snapshot.rows();
        order(&mut rows, self.app.sort);
        if rows.is_empty() {
            return (vec![Line::raw("no lock has a holder or a waiter")], None);
        }
        let chosen = rows.iter().position(|row| Some(&row.lock.path) == self.app.chosen.as_ref()).map(|at| at + 1);
        let last = chosen.unwrap_or(0).max(height.saturating_sub(1));
        judge(&mut rows, last.saturating_sub(height)..last, &snapshot.deadlocks);
        let severities = std::iter::once(Severity::None).chain(rows.iter().map(severity));
        let all = lines(&rows, Some(width)).into_iter().zip(severities).enumerate();
        let line = |(at, ([before, state], severity)): (usize, ([String; 2], Severity))| {
            let line = Line::from(vec![Span::raw(before), Span::styled(state, self.style(severity))]);
            match at {
                0 => line.style(Style::new().add_modifier(Modifier::UNDERLINED)),
                at if Some(at) == chosen => line.style(Style::new().add_modifier(Modifier::REVERSED)),
                _ => line,
            }
        };
        (all.map(line).collect(), chosen)
    }

    fn queue(&self, path: &str, width: usize) -> (Vec<Line<'static>>, Option<usize>) {
        let Some(lock) = self.app.lock(path) else {
            return (vec![Line::raw(cut(&format!("{} is free", plain(path)), width))], None);
        };
        let now = self.app.snapshot.as_ref().and_then(|snapshot| snapshot.now());
        let age = |since: SystemTime| now.and_then(|now| now.duration_since(since).ok()).map_or("?".to_owned(), short);
        let mut lines =
            vec![Line::raw(cut(&plain(path), width)).style(Style::new().add_modifier(Modifier::UNDERLINED))];
        let mut chosen = None;
        for (at, contender) in App::contenders(lock).enumerate() {
            let waiter = at.checked_sub(lock.holders.len()).filter(|at| *at < lock.waiters.len());
            let role = match waiter {
                _ if at < lock.holders.len() => format!(
                    "holds  {:>6}",
                    contender.grant().zip(now).map_or("?".to_owned(), |(grant, now)| held(grant.held(now)))
                ),
                Some(waiter) => format!("waits  {:>6}  {:>4} ahead", age(contender.since), ahead(lock, waiter)),
                None => format!("no session {}", age(contender.since)),
            };
            let line = Line::raw(cut(&format!("{role}  {}", who(contender)), width));
            let is_chosen = self.app.node.as_ref() == Some(&contender.node);
            if is_chosen {
                chosen = Some(lines.len());
            }
            lines.push(if is_chosen { line.style(Style::new().add_modifier(Modifier::REVERSED)) } else { line });
        }
        (lines, chosen)
    }

    fn deadlocks(&self, width: usize) -> Vec<Line<'static>> {
        let Some(snapshot) = &self.app.snapshot else { return Vec::new() };
        let text = |(at, it)| {
            let cure = deadlocks::cure(it).map_or_else(String::new, |(what, command)| {
                format!("  {what}:\n        {}\n", self.printer.command(&command, std::io::stdout()))
            });
            deadlocks::described_ring(at + 1, it) + &cure
        };
        let texts: String = snapshot.deadlocks.iter().enumerate().map(text).collect();
        if texts.is_empty() {
            return vec![Line::raw("no contenders wait for each other in a ring")];
        }
        let wrapped = crate::screen::wrapped(&texts, width, 8);
        wrapped.lines().map(|line| Line::raw(line.to_owned())).collect()
    }

    fn details(&self, width: usize) -> Vec<Line<'static>> {
        match self.details {
            Some(details) => details.lines.iter().map(|line| Line::raw(cut(line, width))).collect(),
            None => vec![Line::raw("asking")],
        }
    }

    fn history(&self, path: &str, width: usize) -> Vec<Line<'static>> {
        let title = Line::raw(cut(&plain(path), width)).style(Style::new().add_modifier(Modifier::UNDERLINED));
        let mut lines = vec![title];
        if let Some(Details { lanes, now: Some(now), .. }) = self.details {
            lines.extend(self.lanes(lanes, *now, width));
        }
        lines.extend(self.details(width));
        lines
    }

    /// Draws a lane for each holder on one time axis, the latest holder first.
    fn lanes(&self, lanes: &[Lane], now: SystemTime, width: usize) -> Vec<Line<'static>> {
        let starts = lanes.iter().flat_map(|lane| &lane.holds).map(|(from, ..)| *from);
        let Some(first) = starts.min() else { return Vec::new() };
        let columns = width.saturating_sub(NAMES + 2).max(10);
        let whole = now.duration_since(first).unwrap_or_default().max(Duration::from_secs(1));
        let at = |time: SystemTime| {
            let share = time.duration_since(first).unwrap_or_default().as_secs_f64() / whole.as_secs_f64();
            ((share * columns as f64) as usize).min(columns - 1)
        };
        let mut lines: Vec<_> = lanes
            .iter()
            .map(|lane| {
                let mut cells = vec![(' ', false); columns];
                for (from, to, lost) in &lane.holds {
                    cells[at(*from)..=at(*to)].fill(('█', false));
                    if *lost {
                        cells[at(*to)] = ('x', true);
                    }
                }
                let spans = cells.chunk_by(|one, other| one.1 == other.1).map(|same| {
                    let text: String = same.iter().map(|cell| cell.0).collect();
                    Span::styled(text, self.style(if same[0].1 { Severity::Serious } else { Severity::None }))
                });
                let name = cut(&lane.who, NAMES);
                let pad = " ".repeat(NAMES.saturating_sub(name.width()) + 2);
                Line::from([Span::raw(name + &pad)].into_iter().chain(spans).collect::<Vec<_>>())
            })
            .collect();
        let (from, to) = (format!("{} ago", short(whole)), "now");
        let gap = columns.saturating_sub(from.len() + to.len());
        lines.push(Line::raw(format!("{:NAMES$}  {from}{}{to}", "", " ".repeat(gap))));
        lines.push(Line::raw(""));
        lines
    }

    fn foot(&self, width: u16) -> Vec<Line<'static>> {
        let width = usize::from(width);
        let keys = match self.app.view {
            View::Table => "ENTER queue  i history  d deadlocks  s servers  whrn sort  R revoke  B break  ?",
            View::Queue(_) => "up/down choose  i history  R revoke  B break  ESC back",
            View::History(_) | View::Deadlocks | View::Servers | View::Help => "up/down scroll  ESC back",
        };
        let said = match (&self.app.question, &self.app.said) {
            (Some(question), _) => asked(question, width),
            (None, said) => Line::raw(cut(&plain(said.as_deref().unwrap_or_default()), width)),
        };
        vec![said, Line::raw(cut(keys, width)).style(Style::new().add_modifier(Modifier::DIM))]
    }
}

/// The question to the person. What is typed stays on the screen.
fn asked(Question { breaks, target, confirms }: &Question, width: usize) -> Line<'static> {
    let who = plain(&target.contender.described);
    let (question, typed) = match confirms {
        Some(word) => (format!("type {CONFIRMED} to break {who}: "), word),
        None if *breaks => (format!("reason to break {who}: "), &target.reason),
        None => (format!("reason to ask {who} to release: "), &target.reason),
    };
    let end: String = typed.chars().rev().take(width / 2).collect::<Vec<_>>().into_iter().rev().collect();
    let end = plain(&end);
    Line::raw(format!("{}{end}_", cut(&question, width.saturating_sub(end.width() + 1))))
}

const HELP: &[&str] = &[
    "ENTER  the queue of the chosen lock",
    "i      its history: who held it, and how each hold ended",
    "d      deadlocks",
    "s      the servers, asked now",
    "w h r n   sort by the longest wait, the longest hold, contenders per hour, name",
    "R      ask the holder, or the chosen contender of a queue, to release the lock",
    "B      remove it by force; asks for a reason and a confirmation",
    "ESC q  back, and out of the table",
    "",
    "The table follows each change. HELD counts from the grant, OLDEST from the",
    "arrival of the first waiter. ? is what nobody knows.",
];
