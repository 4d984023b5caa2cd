//! The record of a node's owner, and how nodes that foreign clients wrote are parsed.
//!
//! "Who holds it?" must have an answer at three in the morning (kazoo #412, hazelcast #17260), so each of our nodes has a
//! record. Reading is forgiving: Curator writes an address, Kazoo a host and pid, the recipes nothing; a revocation
//! replaces the record by a word. Nothing read here is trusted for the protocol but the attempt's id.

use serde::{Deserialize, Serialize};

use crate::text::plain;
use crate::{AttemptId, ProcessInstance, TraceParent, Zxid};

/// The words by which foreign clients ask a holder to release.
const REVOCATION_WORDS: [&[u8]; 2] = [b"unlock", b"__REVOKE__"];

/// Longest message accepted, in bytes: it travels with every look at the node. Longer ones are cut when they are written, and, from
/// other programs, when they are read.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Longest name of a user, a machine or a program that is read, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Most holds that a record names, and the longest path of one that is read, in bytes.
const MAX_HOLDS: usize = 16;
const MAX_PATH_BYTES: usize = 1024;

/// The owner of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The user, as the operating system names it.
    #[serde(default)]
    pub user: String,
    /// The machine.
    #[serde(default)]
    pub host: String,
    /// The process on that machine.
    #[serde(default)]
    pub pid: u32,
    /// What the process is: its program, or the command it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// The record in one of our nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// The version of this format, now 1.
    pub lockkeeper: u32,
    /// The attempt that made the node, as a uuid.
    pub id: String,
    /// Its owner.
    #[serde(flatten)]
    pub owner: Owner,
    /// The process whose session has the node, where the operating system tells it apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessInstance>,
    /// Why, in the caller's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was written, in milliseconds since 1970 by the owner's clock. For people; never compared.
    pub since_ms: u64,
    /// The attempt announces its grant to the contenders behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub granted: bool,
    /// When the lock was granted, in milliseconds since 1970 by the servers' clock, if that was long after the create of the node.
    /// For people; never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_ms: Option<u64>,
    /// A request to the owner to release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation: Option<Revocation>,
    /// The nodes of other holds that its caller keeps while it waits for this lock. For people, and to find deadlocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<String>,
    /// The node is a writer's, and its contender reads until it is upgraded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upgradeable: bool,
    /// The span of its caller in a distributed trace. For people and their tools; never compared.
    #[serde(default, deserialize_with = "TraceParent::lenient", skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
}

/// A request to release, and the answer to it.
///
/// Part of the owner's record, so that a request erases nothing. The answer "released" is the deletion of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Revocation {
    /// The asker's name for this request, to recognise the answer by. Empty for a bare word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The requester; unknown for a bare word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Owner>,
    /// Why, in the asker's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When, in milliseconds since 1970 by the asker's clock. For people; never compared.
    #[serde(default)]
    pub at_ms: u64,
    /// The owner refuses, and says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Revocation {
    /// A request. A reason over 4096 bytes is cut at a character.
    #[doc(hidden)]
    pub fn new(id: AttemptId, by: Owner, reason: Option<&str>, at_ms: u64) -> Self {
        Revocation { id: id.to_string(), by: Some(by), reason: reason.map(cut), at_ms, refused: None }
    }

    /// The owner's refusal of it.
    pub fn refuse(&mut self, why: &str) {
        self.refused = Some(cut(why));
    }
}

/// `ops@desk-3 (pid 99): "deploying"`
impl std::fmt::Display for Revocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.by {
            Some(by) => by.fmt(f)?,
            None => f.write_str("someone unnamed")?,
        }
        match &self.reason {
            Some(reason) => write!(f, ": {}", plain(reason)),
            None => Ok(()),
        }
    }
}

/// The content of a lock path's node, if there is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRecord {
    /// The version of this format, now 1.
    pub lockkeeper: u32,
    /// How many permits there are.
    pub permits: u32,
}

impl PathRecord {
    /// The record of a semaphore's path.
    pub const fn new(permits: u32) -> Self {
        PathRecord { lockkeeper: Payload::VERSION, permits }
    }

    /// The bytes to store.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of numbers always serialises")
    }

    /// What a path's bytes, of this version, say of its limit. Any bytes are fine.
    pub fn limit(data: &[u8], version: i32) -> Limit {
        match serde_json::from_slice::<PathRecord>(data) {
            Ok(record) => Limit::Permits(record.permits),
            Err(_) if data.is_empty() || ReleaseRecord::from_bytes(data).is_some() => Limit::Unset { version },
            Err(_) => Limit::Foreign,
        }
    }
}

/// What a holder leaves in the data of a lock's path when it releases: the node of its hold. So the contender behind that node
/// knows that it ended as a holder's, and need not list a long queue again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRecord {
    lockkeeper: u32,
    /// The transaction that created the node. No two nodes of a path have the same, not even across the path's own deletion.
    freed: Zxid,
}

impl ReleaseRecord {
    /// The record of a release by the holder whose node this transaction created.
    pub const fn new(freed: Zxid) -> Self {
        ReleaseRecord { lockkeeper: Payload::VERSION, freed }
    }

    /// The transaction that created the node of the holder that released.
    pub const fn freed(&self) -> Zxid {
        self.freed
    }

    /// The bytes to store.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of numbers always serialises")
    }

    /// Reads a record; `None` for any other data.
    pub fn from_bytes(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// What a path's bytes, of this version, say of the last release. Any bytes are fine.
    pub fn last(data: &[u8], version: i32) -> LastRelease {
        let record = Self::from_bytes(data);
        let ours = record.is_some() || data.is_empty();
        LastRelease { freed: record.map(|record| record.freed), version: ours.then_some(version) }
    }
}

/// What the data of a lock's path says of the last release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LastRelease {
    /// The transaction that created the node of the holder that released, if there is a record.
    pub freed: Option<Zxid>,
    /// The version of the data, if a record may replace it.
    pub version: Option<i32>,
}

/// How many permits there are, by the parent's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// This many.
    Permits(u32),
    /// Nothing yet; the data has this version.
    Unset {
        /// The version.
        version: i32,
    },
    /// The data of a foreign client, which we must not replace.
    Foreign,
}

/// At most 4096 bytes of a text, cut at a character.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}

/// The same in place, for a text that another program wrote.
fn shorten(text: &mut String, max: usize) {
    text.truncate(text.floor_char_boundary(max));
}

impl Owner {
    fn shorten(&mut self) {
        shorten(&mut self.user, MAX_NAME_BYTES);
        shorten(&mut self.host, MAX_NAME_BYTES);
        self.program.iter_mut().for_each(|program| shorten(program, MAX_MESSAGE_BYTES));
    }
}

impl Payload {
    /// The format written today.
    pub const VERSION: u32 = 1;

    /// A record. A message over 4096 bytes is cut at a character, so that no caller can make a node unlistable.
    pub fn new(id: AttemptId, owner: Owner, message: Option<&str>, since_ms: u64) -> Self {
        let message = message.map(cut);
        let (process, granted, granted_ms, revocation) = (None, false, None, None);
        let (holds, upgradeable, traceparent) = (Vec::new(), false, None);
        Payload {
            lockkeeper: Self::VERSION,
            id: id.to_string(),
            owner,
            process,
            message,
            since_ms,
            granted,
            granted_ms,
            revocation,
            holds,
            upgradeable,
            traceparent,
        }
    }

    /// The same record of a contender whose caller keeps these holds while it waits. Only the first 16 are named.
    pub fn while_holding(self, mut holds: Vec<String>) -> Self {
        holds.truncate(MAX_HOLDS);
        Payload { holds, ..self }
    }

    /// The same record of a contender that reads with a writer's node.
    pub fn upgradeable(self, upgradeable: bool) -> Self {
        Payload { upgradeable, ..self }
    }

    /// The same record of a contender whose caller is in this span of a trace.
    pub fn traced(self, traceparent: Option<TraceParent>) -> Self {
        Payload { traceparent, ..self }
    }

    /// The same record of this process.
    pub fn of_process(self, process: Option<ProcessInstance>) -> Self {
        Payload { process, ..self }
    }

    /// The bytes to store.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of strings and numbers always serialises")
    }

    /// The record with every text cut to what this version writes.
    fn shortened(mut self) -> Self {
        self.owner.shorten();
        self.message.iter_mut().for_each(|message| shorten(message, MAX_MESSAGE_BYTES));
        // A path that is cut would be another one.
        self.holds.retain(|path| path.len() <= MAX_PATH_BYTES);
        self.holds.truncate(MAX_HOLDS);
        if let Some(revocation) = &mut self.revocation {
            shorten(&mut revocation.id, MAX_NAME_BYTES);
            revocation.by.iter_mut().for_each(Owner::shorten);
            revocation
                .reason
                .iter_mut()
                .chain(&mut revocation.refused)
                .for_each(|text| shorten(text, MAX_MESSAGE_BYTES));
        }
        self
    }
}

/// The content of a node's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeData {
    /// Our record.
    Record(Box<Payload>),
    /// A word that asks the owner to release, in place of the record.
    Revoked,
    /// Text of a foreign client: an address, a host and pid.
    Text(String),
    /// Nothing.
    Empty,
    /// Bytes that are not text.
    Opaque(usize),
}

impl NodeData {
    /// Reads a node's bytes. Any bytes are fine. Texts that are longer than we write them are cut.
    pub fn read(data: &[u8]) -> Self {
        if data.is_empty() {
            return NodeData::Empty;
        }
        if REVOCATION_WORDS.contains(&data) {
            return NodeData::Revoked;
        }
        if let Ok(record) = serde_json::from_slice::<Payload>(data) {
            return NodeData::Record(Box::new(record.shortened()));
        }
        match std::str::from_utf8(data) {
            Ok(text) if !text.contains(char::is_control) => NodeData::Text(cut(text)),
            _ => NodeData::Opaque(data.len()),
        }
    }

    /// The attempt that wrote the node, if its record contains the id.
    pub fn id(&self) -> Option<AttemptId> {
        match self {
            NodeData::Record(record) => record.id.parse().ok(),
            _ => None,
        }
    }

    /// The request to release that has no answer yet.
    pub fn revocation(&self) -> Option<Revocation> {
        match self {
            NodeData::Record(record) => record.revocation.clone().filter(|asked| asked.refused.is_none()),
            NodeData::Revoked => Some(Revocation::default()),
            _ => None,
        }
    }

    /// The record, if it is ours.
    pub fn record(&self) -> Option<&Payload> {
        match self {
            NodeData::Record(record) => Some(record),
            _ => None,
        }
    }
}

/// One line for people: `build@ci-7 (pid 4711)`.
impl std::fmt::Display for NodeData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NodeData::Record(record) => record.owner.fmt(f),
            NodeData::Revoked => f.write_str("an owner that was asked to release"),
            NodeData::Text(text) => plain(text).fmt(f),
            NodeData::Empty => f.write_str("an unnamed owner"),
            NodeData::Opaque(bytes) => write!(f, "an owner of another make ({bytes} bytes)"),
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{} (pid {})", plain(&self.user), plain(&self.host), self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { user: "build".into(), host: "ci-7".into(), pid: 4711, program: Some("job.sh".into()) }
    }

    #[test]
    fn case_56_a_record_reads_back_and_names_its_owner() {
        let id = AttemptId::new(7);
        let process = ProcessInstance { place: u64::MAX, pid: 4711, started: 515_032 };
        let written = Payload::new(id, owner(), Some("nightly index"), 1_700_000_000_000).of_process(Some(process));
        let read = NodeData::read(&written.to_bytes());
        assert_eq!(read, NodeData::Record(Box::new(written)));
        assert_eq!(read.id(), Some(id));
        assert_eq!(read.to_string(), "build@ci-7 (pid 4711)");
    }

    #[test]
    fn owners_and_requests_are_shown_without_control_characters() {
        const ACTIVE: &str = "a\x1b[2J\u{202e}rtl\nfake: line";
        const SHOWN: &str = "a\\u{1b}[2J\\u{202e}rtl fake: line";
        let by = Owner { user: ACTIVE.into(), host: ACTIVE.into(), pid: 1, program: None };
        assert_eq!(by.to_string(), format!("{SHOWN}@{SHOWN} (pid 1)"));
        let asked = Revocation { by: Some(by.clone()), reason: Some(ACTIVE.into()), ..Revocation::default() };
        assert_eq!(asked.to_string(), format!("{by}: {SHOWN}"));
        assert_eq!(NodeData::read("a\u{202e}b".as_bytes()).to_string(), "a\\u{202e}b");
    }

    #[test]
    fn a_bad_traceparent_is_dropped_and_the_record_stays() {
        const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = |traceparent: String| {
            let data = format!(
                r#"{{"lockkeeper":1,"id":"?","user":"a","host":"b","pid":1,"since_ms":5,"traceparent":{traceparent}}}"#
            );
            NodeData::read(data.as_bytes()).record().map(|record| record.traceparent)
        };
        assert_eq!(read(format!("{GOOD:?}")), Some(Some(GOOD.parse().unwrap())));
        let long = format!("{:?}", "a".repeat(100_000));
        for bad in ["\"\"", "\"00-0-0-0\"", "7", "null", "{\"a\":[1]}", &long] {
            assert_eq!(read(bad.to_owned()), Some(None), "{}", &bad[..bad.len().min(20)]);
        }
        let record = Payload::new(AttemptId::new(7), owner(), None, 0);
        assert!(!String::from_utf8(record.to_bytes()).unwrap().contains("traceparent"));
        let traced = record.traced(GOOD.parse().ok());
        assert_eq!(NodeData::read(&traced.to_bytes()), NodeData::Record(Box::new(traced)));
    }

    #[test]
    fn records_of_later_versions_still_name_their_owner() {
        let data = br#"{"lockkeeper":9,"id":"?","user":"a","host":"b","pid":1,"since_ms":5,"new":[1]}"#;
        assert_eq!(NodeData::read(data).to_string(), "a@b (pid 1)");
        assert_eq!(NodeData::read(data).id(), None);
    }

    #[test]
    fn foreign_bytes_are_understood_as_far_as_they_go() {
        assert_eq!(NodeData::read(b""), NodeData::Empty);
        assert_eq!(NodeData::read(b"unlock"), NodeData::Revoked);
        assert_eq!(NodeData::read(b"__REVOKE__"), NodeData::Revoked);
        assert_eq!(NodeData::read(b"10.1.2.3"), NodeData::Text("10.1.2.3".into()));
        assert_eq!(NodeData::read(&[0, 159, 146, 150]), NodeData::Opaque(4));
        assert_eq!(NodeData::read(b"a\x1b[2Jb"), NodeData::Opaque(6));
        let asked = |data: &[u8]| NodeData::read(data).revocation();
        assert_eq!(
            [asked(b"unlock"), asked(b"__REVOKE__")],
            [Some(Revocation::default()), Some(Revocation::default())]
        );
        assert_eq!([asked(b""), asked(b"10.1.2.3")], [None, None]);
    }

    #[test]
    fn a_record_shows_its_request_until_that_is_answered() {
        let id = AttemptId::new(7);
        let mut asked = Revocation::new(AttemptId::new(8), owner(), Some("\"deploying\""), 3);
        let record = |revocation| Payload { revocation, ..Payload::new(id, owner(), None, 0) }.to_bytes();
        assert_eq!(NodeData::read(&record(None)).revocation(), None);
        assert_eq!(NodeData::read(&record(Some(asked.clone()))).revocation(), Some(asked.clone()));
        asked.refuse("busy");
        assert_eq!(NodeData::read(&record(Some(asked))).revocation(), None);
    }

    /// A path's node with data of another client belongs to that client.
    #[test]
    fn the_number_of_permits_is_read_and_foreign_data_is_not_taken_for_none() {
        assert_eq!(PathRecord::limit(&PathRecord::new(3).to_bytes(), 5), Limit::Permits(3));
        assert_eq!(PathRecord::limit(b"", 5), Limit::Unset { version: 5 });
        assert_eq!(PathRecord::limit(b"10.1.2.3", 5), Limit::Foreign);
        assert_eq!(PathRecord::limit(&ReleaseRecord::new(Zxid(7)).to_bytes(), 5), Limit::Unset { version: 5 });
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let long = "é".repeat(MAX_MESSAGE_BYTES);
        let payload = Payload::new(AttemptId::new(0), owner(), Some(&long), 0);
        assert_eq!(payload.message.map(|m| m.len()), Some(MAX_MESSAGE_BYTES));
    }

    /// Otherwise one node of another program is a line of its whole length in every listing.
    #[test]
    fn what_another_program_wrote_is_cut_when_it_is_read() {
        let long = "é".repeat(150_000);
        assert_eq!(NodeData::read(long.as_bytes()).to_string().len(), MAX_MESSAGE_BYTES);
        let big = Owner { user: long.clone(), host: long.clone(), pid: 1, program: Some(long.clone()) };
        let mut revocation = Revocation { by: Some(big.clone()), reason: Some(long.clone()), ..Revocation::default() };
        revocation.id = long.clone();
        revocation.refused = Some(long.clone());
        let message = Some(long);
        let record = Payload { message, revocation: Some(revocation), ..Payload::new(AttemptId::new(7), big, None, 0) };
        let NodeData::Record(read) = NodeData::read(&record.to_bytes()) else { panic!("no record") };
        assert_eq!(read.id, record.id);
        assert!(read.to_bytes().len() < 6 * MAX_MESSAGE_BYTES, "{}", read.to_bytes().len());
    }

    #[test]
    fn a_record_of_a_release_replaces_nothing_but_its_like() {
        let record = ReleaseRecord::new(Zxid(0x0012_3456_789a)).to_bytes();
        let last = |freed, version| LastRelease { freed, version };
        assert_eq!(ReleaseRecord::last(&record, 4), last(Some(Zxid(0x0012_3456_789a)), Some(4)));
        assert_eq!(ReleaseRecord::last(b"", 4), last(None, Some(4)));
        let more = [&record[..record.len() - 1], br#","more":1}"#].concat();
        for foreign in [&b"10.1.2.3"[..], &PathRecord::new(3).to_bytes(), &more] {
            assert_eq!(ReleaseRecord::last(foreign, 4), last(None, None), "{}", foreign.escape_ascii());
        }
        assert!(record.len() < crate::leased::Record::SHORTEST, "a listing would read it as a leased lock's");
    }
}
