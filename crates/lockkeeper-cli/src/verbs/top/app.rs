//! The state of `lockkeeper top`, and what a key does to it. It draws nothing and asks no server.

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use lockkeeper::admin::{ContenderInfo, LockInfo};

use crate::live::Snapshot;
use crate::verbs::list::ListOrder;
use crate::verbs::list::order;

/// What the screen shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Table,
    /// The holders and waiters of one lock.
    Queue(String),
    /// The last holds of one lock.
    History(String),
    /// The rings of waits.
    Deadlocks,
    /// The servers, one by one.
    Servers,
    Help,
}

/// What is asked of the servers after a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    /// Read the history of this lock.
    History(String),
    /// Ask each server how it is.
    Servers,
    /// Ask this contender to release the lock.
    Revoke(Target),
    /// Remove this contender by force.
    Break(Target),
}

/// One contender, and why it is to go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub path: String,
    pub contender: ContenderInfo,
    pub reason: String,
}

/// A question to the person.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub breaks: bool,
    pub target: Target,
    /// Of a break: the reason is given, and the word that confirms it is typed.
    pub confirms: Option<String>,
}

/// The word that confirms a break.
pub(crate) const CONFIRMED: &str = "yes";

/// The longest text that is typed.
const LONGEST: usize = 1000;

/// What a key leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reaction {
    /// The screen may have changed.
    Draw,
    Ask(Box<Task>),
    Quit,
}

/// The state of the screen.
#[derive(Debug)]
pub(crate) struct App {
    pub view: View,
    /// Where the keys came from, so that Esc goes back.
    before: Vec<View>,
    pub sort: ListOrder,
    pub snapshot: Option<Arc<Snapshot>>,
    /// The paths of the table, in its order.
    pub order: Vec<String>,
    /// The lock that is chosen in the table.
    pub chosen: Option<String>,
    /// The node that is chosen in a queue.
    pub node: Option<String>,
    /// The first line of a text that is shown.
    pub scrolled: u16,
    pub question: Option<Question>,
    /// The result of the last action.
    pub said: Option<String>,
}

impl App {
    pub(crate) fn new(sort: ListOrder) -> Self {
        App {
            view: View::Table,
            before: Vec::new(),
            sort,
            snapshot: None,
            order: Vec::new(),
            chosen: None,
            node: None,
            scrolled: 0,
            question: None,
            said: None,
        }
    }

    /// Takes in what the servers have now. What is chosen stays chosen as long as it is there.
    pub(crate) fn update(&mut self, snapshot: Arc<Snapshot>) {
        self.snapshot = Some(snapshot);
        self.arrange();
    }

    fn arrange(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let mut rows = snapshot.rows();
        order(&mut rows, self.sort);
        let at = self.chosen.as_ref().and_then(|path| self.order.iter().position(|other| other == path));
        self.order = rows.into_iter().map(|row| row.lock.path.clone()).collect();
        if !self.chosen.as_ref().is_some_and(|path| self.order.contains(path)) {
            // The one that took its place.
            let at = at.unwrap_or(0).min(self.order.len().saturating_sub(1));
            self.chosen = self.order.get(at).cloned();
        }
    }

    /// Returns a lock, if it is in use.
    pub(crate) fn lock(&self, path: &str) -> Option<&LockInfo> {
        self.snapshot.as_ref()?.locks.iter().map(|shown| &shown.lock).find(|lock| lock.path == path)
    }

    /// Returns the contenders of a lock in order.
    pub(crate) fn contenders(lock: &LockInfo) -> impl Iterator<Item = &ContenderInfo> {
        lock.holders.iter().chain(&lock.waiters).chain(&lock.sessionless)
    }

    /// Returns the lock of the view.
    fn subject(&self) -> Option<&str> {
        match &self.view {
            View::Queue(path) | View::History(path) => Some(path),
            View::Table => self.chosen.as_deref(),
            View::Deadlocks | View::Servers | View::Help => None,
        }
    }

    /// Returns the contender that an action is about: the chosen one of a queue, or else the first holder.
    fn target(&self) -> Option<Target> {
        let path = self.subject()?;
        let lock = self.lock(path)?;
        let chosen = match (&self.view, &self.node) {
            (View::Queue(_), Some(node)) => Self::contenders(lock).find(|it| it.node == *node),
            _ => lock.holders.first(),
        };
        Some(Target { path: path.to_owned(), contender: chosen?.clone(), reason: String::new() })
    }

    fn go(&mut self, view: View) -> Reaction {
        let before = std::mem::replace(&mut self.view, view);
        self.before.push(before);
        (self.scrolled, self.node, self.said) = (0, None, None);
        if let View::Queue(path) = &self.view {
            self.node = self.lock(path).and_then(|lock| Self::contenders(lock).next()).map(|it| it.node.clone());
        }
        Reaction::Draw
    }

    fn back(&mut self) -> Reaction {
        self.scrolled = 0;
        match self.before.pop() {
            Some(view) => {
                self.view = view;
                Reaction::Draw
            }
            None => Reaction::Quit,
        }
    }

    /// Takes in a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Reaction {
        if key.kind == KeyEventKind::Release {
            return Reaction::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Reaction::Quit;
        }
        if let Some(question) = self.question.take() {
            return self.answer(question, key.code);
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.back(),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.choose(20),
            KeyCode::PageUp => self.choose(-20),
            KeyCode::Home => self.choose(isize::MIN / 2),
            KeyCode::End => self.choose(isize::MAX / 2),
            KeyCode::Enter | KeyCode::Right if self.view == View::Table => match self.chosen.clone() {
                Some(path) => self.go(View::Queue(path)),
                None => Reaction::Draw,
            },
            KeyCode::Left if self.view != View::Table => self.back(),
            KeyCode::Char('i') => match self.subject().map(str::to_owned) {
                Some(path) => {
                    self.go(View::History(path.clone()));
                    Reaction::Ask(Box::new(Task::History(path)))
                }
                None => Reaction::Draw,
            },
            KeyCode::Char('d') => self.go(View::Deadlocks),
            KeyCode::Char('s') => {
                self.go(View::Servers);
                Reaction::Ask(Box::new(Task::Servers))
            }
            KeyCode::Char('?') => self.go(View::Help),
            KeyCode::Char('n') => self.sorted(ListOrder::Name),
            KeyCode::Char('w') => self.sorted(ListOrder::Wait),
            KeyCode::Char('h') => self.sorted(ListOrder::Held),
            KeyCode::Char('r') => self.sorted(ListOrder::Rate),
            KeyCode::Char('R') => self.ask(false),
            KeyCode::Char('B') => self.ask(true),
            _ => Reaction::Draw,
        }
    }

    fn sorted(&mut self, sort: ListOrder) -> Reaction {
        self.sort = sort;
        self.arrange();
        Reaction::Draw
    }

    fn ask(&mut self, breaks: bool) -> Reaction {
        self.question = self.target().map(|target| Question { breaks, target, confirms: None });
        if self.question.is_none() {
            self.said = Some("choose a lock first, in the table (ESC)".to_owned());
        }
        Reaction::Draw
    }

    /// Takes in a key of an answer. Esc gives it up.
    fn answer(&mut self, mut question: Question, key: KeyCode) -> Reaction {
        let text = question.confirms.as_mut().unwrap_or(&mut question.target.reason);
        match key {
            KeyCode::Esc => {
                self.said = Some("nothing was done".to_owned());
                return Reaction::Draw;
            }
            KeyCode::Backspace => _ = text.pop(),
            KeyCode::Char(letter) if text.len() < LONGEST && !letter.is_control() => text.push(letter),
            KeyCode::Enter => return self.answered(question),
            _ => {}
        }
        self.question = Some(question);
        Reaction::Draw
    }

    fn answered(&mut self, question: Question) -> Reaction {
        let Question { breaks, target, confirms } = question;
        match confirms {
            // A record without a reason is of no use to the next person.
            None if target.reason.trim().is_empty() => {
                self.question = Some(Question { breaks, target, confirms });
                Reaction::Draw
            }
            None if breaks => {
                self.question = Some(Question { breaks, target, confirms: Some(String::new()) });
                Reaction::Draw
            }
            None => Reaction::Ask(Box::new(Task::Revoke(target))),
            Some(word) if word == CONFIRMED => Reaction::Ask(Box::new(Task::Break(target))),
            Some(_) => {
                self.said = Some("nothing was broken".to_owned());
                Reaction::Draw
            }
        }
    }

    /// Moves what is chosen, or the text that is shown.
    fn choose(&mut self, by: isize) -> Reaction {
        let moved = |at: usize, count: usize| {
            let last = isize::try_from(count.saturating_sub(1)).unwrap_or(isize::MAX);
            let at = isize::try_from(at).unwrap_or(0).saturating_add(by).clamp(0, last);
            usize::try_from(at).unwrap_or(0)
        };
        match &self.view {
            View::Table => {
                let at = self.chosen.as_ref().and_then(|path| self.order.iter().position(|other| other == path));
                self.chosen = self.order.get(moved(at.unwrap_or(0), self.order.len())).cloned();
            }
            View::Queue(path) => {
                let Some(lock) = self.lock(path) else { return Reaction::Draw };
                let nodes: Vec<_> = Self::contenders(lock).map(|it| it.node.clone()).collect();
                let at = self.node.as_ref().and_then(|node| nodes.iter().position(|other| other == node));
                self.node = nodes.get(moved(at.unwrap_or(0), nodes.len())).cloned();
            }
            _ => self.scrolled = u16::try_from(moved(self.scrolled.into(), 10_000)).unwrap_or(u16::MAX),
        }
        Reaction::Draw
    }
}
