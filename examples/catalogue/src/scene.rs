//! What there is to see at a moment: who runs, who waits, who tries again, who is gone. No effects: both pictures draw this.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockkeeper::LockInfo;

use crate::work::{Class, Told};

/// What a client is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It has been started.
    Starts,
    /// It stands in the queue.
    Waits,
    /// It has the lock, under this token.
    Runs(i64),
    /// It does not stand in the queue, and will ask again.
    Retries(u32),
    /// It was stopped with all it has.
    Paused,
    /// It is through.
    Done(usize),
    /// It has given up.
    GaveUp,
    /// It was killed.
    Dead,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// In which class it asks.
    pub class: Option<Class>,
    /// For which article.
    pub article: String,
    /// What it is doing.
    pub doing: Doing,
}

/// Somebody in a queue, as the lock server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whose the node is.
    pub who: String,
    /// The node.
    pub node: String,
}

/// A lock, as the lock server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Who has it.
    pub holder: Option<Standing>,
    /// Who waits, the next in line first.
    pub waiters: Vec<Standing>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at: Duration,
    /// What, for people.
    pub text: String,
    /// Whether it is a headline.
    pub headline: bool,
}

/// All there is to see.
#[derive(Clone, Debug)]
pub struct Scene {
    began: Instant,
    /// The locks by article.
    pub queues: BTreeMap<String, Queue>,
    /// The clients by name.
    pub clients: BTreeMap<String, Client>,
    /// What happened, the oldest first.
    pub lines: Vec<Line>,
    /// It is over.
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
    /// How long it has been going on.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Something worth a line.
    pub fn say(&mut self, text: impl Into<String>) {
        self.lines.push(Line { at: self.age(), text: text.into(), headline: false });
    }

    /// Something new begins. Who is through with the last one is taken off.
    pub fn headline(&mut self, text: &str) {
        self.clients.retain(|_, client| !matches!(client.doing, Doing::Done(_) | Doing::GaveUp | Doing::Dead));
        self.lines.push(Line { at: self.age(), text: text.to_owned(), headline: true });
    }

    /// A client is there.
    pub fn enters(&mut self, who: &str, article: &str) {
        let client = Client { class: None, article: article.to_owned(), doing: Doing::Starts };
        self.clients.insert(who.to_owned(), client);
    }

    /// A client is doing something else, by somebody else's hand.
    pub fn does(&mut self, who: &str, doing: Doing, text: &str) {
        if let Some(client) = self.clients.get_mut(who) {
            client.doing = doing;
        }
        self.say(format!("{who} {text}"));
    }

    /// A client says how it goes.
    pub fn told(&mut self, who: &str, told: &Told) {
        let article = self.clients.get(who).map(|client| client.article.clone()).unwrap_or_default();
        let (doing, text) = match told {
            Told::Asks { class } => {
                if let Some(client) = self.clients.get_mut(who) {
                    client.class = Some(*class);
                }
                let class = if *class == Class::Foreground { "foreground" } else { "background" };
                (Doing::Waits, format!("asks for {article} in the {class}"))
            }
            Told::Runs { token } => (Doing::Runs(*token), format!("runs on {article}, token {token}")),
            Told::Done { revision, .. } => {
                (Doing::Done(*revision), format!("is done: {article} is at revision {revision}"))
            }
            Told::Retries { attempt, after_ms, why } => {
                (Doing::Retries(*attempt), format!("tries again in {after_ms} ms, attempt {attempt}: {why}"))
            }
            Told::GivesUp { attempts, letter, why } => {
                let letter = letter.as_ref().map_or_else(String::new, |place| format!("; dead letter in {place}"));
                (Doing::GaveUp, format!("gives up after {attempts}: {why}{letter}"))
            }
        };
        if let Some(client) = self.clients.get_mut(who) {
            client.doing = doing;
        }
        self.say(format!("{who} {text}"));
    }

    /// The lock server says who stands where.
    pub fn queue(&mut self, article: &str, info: &LockInfo) {
        let standing = |contender: &lockkeeper::ContenderInfo| {
            // "client 1: Save Article", as the client says who asks.
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
            return f.write_str("nobody");
        }
        let mut parts = Vec::new();
        parts.extend(self.holder.iter().map(|Standing { who, node }| format!("{node} ({who}) has privateLock")));
        parts.extend(self.waiters.iter().map(|Standing { who, node }| format!("{node} ({who}) waits")));
        f.write_str(&parts.join(", "))
    }
}
