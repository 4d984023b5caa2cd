//! What to show at one moment: which clients run, wait, retry or have ended. No effects: both views draw this.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper::admin::LockInfo;

use crate::work::{Class, Report};

/// What a client is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It has been started.
    Starts,
    /// It waits in the queue.
    Waits,
    /// It holds the lock, with this token.
    Runs(i64),
    /// It is not in the queue, and will try again.
    Retries(u32),
    /// Its process was stopped.
    Paused,
    /// It is done.
    Done(usize),
    /// It has given up.
    GaveUp,
    /// It was killed.
    Dead,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The class of its request.
    pub class: Option<Class>,
    /// The article that it wants.
    pub article: String,
    /// What it is doing.
    pub doing: Doing,
}

/// A contender in a queue, as the lock server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The client that owns the node.
    pub who: String,
    /// The node.
    pub node: String,
}

/// A lock, as the lock server reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The holder.
    pub holder: Option<Standing>,
    /// The waiters, the next one first.
    pub waiters: Vec<Standing>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The time since the start.
    pub at: Duration,
    /// The text.
    pub text: String,
    /// Whether it is a headline.
    pub headline: bool,
}

/// Everything to show.
#[derive(Clone, Debug)]
pub struct Scene {
    began: Instant,
    /// The locks by article.
    pub queues: BTreeMap<String, Queue>,
    /// The clients by name.
    pub clients: BTreeMap<String, Client>,
    /// What happened, the oldest first.
    pub lines: Vec<Line>,
    /// The scenarios have ended.
    pub ended: bool,
}

impl Default for Scene {
    fn default() -> Self {
        Scene {
            began: Instant::now(),
            queues: BTreeMap::new(),
            clients: BTreeMap::new(),
            lines: Vec::new(),
            ended: false,
        }
    }
}

impl Scene {
    /// Returns the time since the start.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Adds a line.
    pub fn say(&mut self, text: impl Into<String>) {
        self.lines.push(Line { at: self.age(), text: text.into(), headline: false });
    }

    /// Begins a new scenario, and removes the clients that have ended.
    pub fn headline(&mut self, text: &str) {
        self.clients.retain(|_, client| !matches!(client.doing, Doing::Done(_) | Doing::GaveUp | Doing::Dead));
        self.lines.push(Line { at: self.age(), text: text.to_owned(), headline: true });
    }

    /// Adds a client.
    pub fn enters(&mut self, who: &str, article: &str) {
        let client = Client { class: None, article: article.to_owned(), doing: Doing::Starts };
        self.clients.insert(who.to_owned(), client);
    }

    /// Changes what a client is doing, because of an action from outside.
    pub fn does(&mut self, who: &str, doing: Doing, text: &str) {
        if let Some(client) = self.clients.get_mut(who) {
            client.doing = doing;
        }
        self.say(format!("{who} {text}"));
    }

    /// Takes a report of a client.
    pub fn report(&mut self, who: &str, report: &Report) {
        let article = self.clients.get(who).map(|client| client.article.clone()).unwrap_or_default();
        let (doing, text) = match report {
            Report::Asks { class } => {
                if let Some(client) = self.clients.get_mut(who) {
                    client.class = Some(*class);
                }
                let class = if *class == Class::Foreground { "foreground" } else { "background" };
                (Doing::Waits, format!("asks for {article} in the {class}"))
            }
            Report::Runs { token } => (Doing::Runs(*token), format!("runs on {article}, token {token}")),
            Report::Done { revision, .. } => {
                (Doing::Done(*revision), format!("is done: {article} is at revision {revision}"))
            }
            Report::Retries { attempt, after_ms, why } => {
                (Doing::Retries(*attempt), format!("tries again in {after_ms} ms, attempt {attempt}: {why}"))
            }
            Report::GivesUp { attempts, letter, why } => {
                let letter = letter.as_ref().map_or_else(String::new, |place| format!("; dead letter in {place}"));
                (Doing::GaveUp, format!("gives up after {attempts}: {why}{letter}"))
            }
        };
        if let Some(client) = self.clients.get_mut(who) {
            client.doing = doing;
        }
        self.say(format!("{who} {text}"));
    }

    /// Takes the state of a lock from the lock server.
    pub fn queue(&mut self, article: &str, info: &LockInfo) {
        let standing = |contender: &lockkeeper::admin::ContenderInfo| {
            // "client 1: Save Article": the message begins with the client's name.
            let message = contender.message.clone().unwrap_or_default();
            let who = message.split_once(": ").map_or(message.clone(), |(who, _)| who.to_owned());
            Standing { who, node: contender.node.clone() }
        };
        let queue =
            Queue { holder: info.holders.first().map(standing), waiters: info.waiters.iter().map(standing).collect() };
        let before = self.queues.insert(article.to_owned(), queue.clone());
        if before.unwrap_or_default() != queue {
            self.say(format!("  /{article}: {queue}"));
        }
    }
}

/// `A-0000000000 (client 1) holds privateLock, A-0000000002 (client 3) waits`
impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.holder.is_none() && self.waiters.is_empty() {
            return f.write_str("free");
        }
        let mut parts = Vec::new();
        parts.extend(self.holder.iter().map(|Standing { who, node }| format!("{node} ({who}) has privateLock")));
        parts.extend(self.waiters.iter().map(|Standing { who, node }| format!("{node} ({who}) waits")));
        f.write_str(&parts.join(", "))
    }
}
