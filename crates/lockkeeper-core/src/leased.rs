//! The record of a leased lock, in the node of the lock: the ten attributes of Apache Helix's JSON, and the same as an owner and a
//! requestor. Contenders of a queue refuse a path that has one; admin reads describe it. The crate `lockkeeper-helix` decides what is
//! written.
//!
//! Parsing is as tolerant as Helix's own. An attribute that is missing, null or no number has its default, and an empty
//! node is a free lock. Bytes that are no such record at all are an error, never a free lock: another program stores
//! something else there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Revocation;

/// The value in OWNER, MESSAGE and REQUESTOR_ID that means none.
pub const NOBODY: &str = "NONE";

/// The id of the record.
const RECORD_ID: &str = "LOCK";

/// The map field that is ours; Helix keeps or drops it and never reads it.
const OURS: &str = "LOCKKEEPER";

/// In [`OURS`]: the server's time at which the requestor's wait ends, in milliseconds since 1970.
const REQUEST_UNTIL: &str = "REQUEST_UNTIL";

/// In [`OURS`]: the request to release, and the owner's answer, as JSON.
const REVOCATION: &str = "REVOCATION";

/// In [`OURS`]: the notice that the owner gets after its lease's end, in milliseconds.
const NOTICE: &str = "NOTICE";

/// In [`OURS`]: the transaction that granted the owner the lock.
const GRANTED_BY: &str = "GRANTED_BY";

/// The record's ten attributes as Helix names and stores them. Times are milliseconds, ends since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockAttributes {
    /// OWNER: the lock's owner, or `NONE`.
    pub owner: String,
    /// MESSAGE: why, or `NONE`.
    pub message: String,
    /// TIMEOUT: when the owner's lease ends; the largest number is never, −1 without an owner.
    pub timeout: i64,
    /// PRIORITY: the owner's; 0 is the lowest.
    pub priority: i32,
    /// WAITING_TIMEOUT: how long the owner would have waited; 2147483647 is for ever.
    pub waiting_timeout: i64,
    /// CLEANUP_TIMEOUT: how long the owner may clean up when it is preempted.
    pub cleanup_timeout: i64,
    /// REQUESTOR_ID: the client that preempts the owner, or `NONE`.
    pub requestor_id: String,
    /// REQUESTOR_PRIORITY: the requestor's.
    pub requestor_priority: i32,
    /// REQUESTOR_WAITING_TIMEOUT: how long the requestor waits.
    pub requestor_waiting_timeout: i64,
    /// REQUESTING_TIMESTAMP: when the owner was first asked to make room.
    pub requesting_timestamp: i64,
}

impl Default for LockAttributes {
    fn default() -> Self {
        LockAttributes {
            owner: NOBODY.to_owned(),
            message: NOBODY.to_owned(),
            timeout: -1,
            priority: 0,
            waiting_timeout: -1,
            cleanup_timeout: -1,
            requestor_id: NOBODY.to_owned(),
            requestor_priority: 0,
            requestor_waiting_timeout: -1,
            requesting_timestamp: -1,
        }
    }
}

/// The owner of the lock, and its terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The owner.
    pub id: String,
    /// Why, in its words.
    pub message: Option<String>,
    /// When its lease ends by the server's clock, in milliseconds since 1970; `i64::MAX` is never.
    pub until_ms: i64,
    /// Its priority.
    pub priority: i32,
    /// How long it would have waited, in milliseconds, as stored.
    pub waiting_ms: i64,
    /// How long it may clean up, in milliseconds; nothing or less is not at all.
    pub cleanup_ms: i64,
    /// The request to release, and the owner's answer. Only our clients write and read it.
    pub revocation: Option<Box<Revocation>>,
    /// How long a request must be in the record before its client takes the lock after the lease's end, in milliseconds.
    /// `None`: not at all, so the hold ends with the lease. Only our clients write and read it.
    pub notice_ms: Option<i64>,
    /// The transaction that granted it the lock, where one of our clients has written the record since. [`Record::granted_by`] reads it.
    pub granted_by: Option<i64>,
}

/// The client that preempts the owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requested {
    /// The requestor.
    pub id: String,
    /// Its priority.
    pub priority: i32,
    /// How long it waits, in milliseconds, as stored.
    pub waiting_ms: i64,
    /// When the owner was first asked to make room, in milliseconds since 1970. A requestor that replaces another keeps it.
    pub since_ms: i64,
    /// When this requestor's wait ends. Only our clients write it; without it, it follows from the other attributes.
    pub until_ms: Option<i64>,
}

/// The record by its meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The owner, if there is one. Its lease may have ended.
    pub owner: Option<Held>,
    /// The requestor that waits for the owner to make room.
    pub request: Option<Requested>,
}

/// The node holds something other than a lock's record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a Helix lock's record: {0}")]
pub struct RecordError(String);

/// The JSON that Helix calls ZNRecord.
#[derive(Debug, Serialize, Deserialize)]
struct ZnRecord {
    id: String,
    #[serde(rename = "simpleFields", default)]
    simple: BTreeMap<String, Option<String>>,
    #[serde(rename = "mapFields", default)]
    maps: BTreeMap<String, Option<BTreeMap<String, Option<String>>>>,
    #[serde(rename = "listFields", default)]
    lists: BTreeMap<String, serde_json::Value>,
}

impl Record {
    /// The lock has no owner and no requestor.
    pub fn is_free(&self) -> bool {
        self.owner.is_none() && self.request.is_none()
    }

    /// Writes a request to release the lock into a record that was last written by transaction `written`, if this id owns the lock.
    /// Returns whether it does: a later owner is not asked.
    #[must_use]
    pub fn ask(&mut self, id: &str, request: &Revocation, written: i64) -> bool {
        let granted_by = self.granted_by(written);
        let Some(owner) = self.owner.as_mut().filter(|owner| owner.id == id) else { return false };
        owner.revocation = Some(Box::new(request.clone()));
        // The hold goes on, and keeps its token.
        owner.granted_by = granted_by;
        true
    }

    /// The end of the lease by which this id owns the lock, if it does.
    pub fn held_until_ms(&self, id: &str) -> Option<i64> {
        self.owner.as_ref().filter(|owner| owner.id == id).map(|owner| owner.until_ms)
    }

    /// The transaction that granted the owner the lock, in a record that was last written by transaction `written`. `None` if there
    /// is no owner, or if it cannot be known: a foreign client has written the record since and dropped our field.
    pub fn granted_by(&self, written: i64) -> Option<i64> {
        let owner = self.owner.as_ref()?;
        let only_write = self.request.is_none() && owner.revocation.is_none();
        owner.granted_by.or(only_write.then_some(written))
    }

    /// The length of the shortest record with an owner: `{"id":"LOCK","simpleFields":{"OWNER":"a"}}`. An address, which
    /// is what Curator writes into a node without data, is shorter.
    pub const SHORTEST: usize = 41;

    /// Reads a node's bytes.
    ///
    /// # Errors
    /// The bytes are neither empty nor a record with the id `LOCK`.
    pub fn from_bytes(data: &[u8]) -> Result<Record, RecordError> {
        if data.is_empty() {
            return Ok(Record::default());
        }
        let stored: ZnRecord = serde_json::from_slice(data).map_err(|error| RecordError(error.to_string()))?;
        if stored.id != RECORD_ID {
            return Err(RecordError(format!("its id is {:?}, not {RECORD_ID:?}", stored.id)));
        }
        let text = |key: &str| stored.simple.get(key).cloned().flatten();
        let number = |key: &str, default: i64| text(key).and_then(|text| text.parse().ok()).unwrap_or(default);
        // A basic lock has no PRIORITY: that is the lowest, not less than it.
        let priority = |key: &str| i32::try_from(number(key, 0)).unwrap_or(0);
        let somebody = |key: &str| text(key).filter(|id| id != NOBODY);
        let ours = stored.maps.get(OURS).and_then(Option::as_ref);
        let until_ms = ours.and_then(|ours| ours.get(REQUEST_UNTIL)?.as_ref()?.parse().ok());
        // A request that cannot be parsed counts as none.
        let revocation = ours.and_then(|ours| serde_json::from_str(ours.get(REVOCATION)?.as_ref()?).ok());
        let owner = somebody("OWNER").map(|id| Held {
            id,
            message: somebody("MESSAGE"),
            until_ms: number("TIMEOUT", -1),
            priority: priority("PRIORITY"),
            waiting_ms: number("WAITING_TIMEOUT", -1),
            cleanup_ms: number("CLEANUP_TIMEOUT", -1),
            revocation,
            notice_ms: ours.and_then(|ours| ours.get(NOTICE)?.as_ref()?.parse().ok()),
            granted_by: ours.and_then(|ours| ours.get(GRANTED_BY)?.as_ref()?.parse().ok()),
        });
        let request = somebody("REQUESTOR_ID").map(|id| Requested {
            id,
            priority: priority("REQUESTOR_PRIORITY"),
            waiting_ms: number("REQUESTOR_WAITING_TIMEOUT", -1),
            since_ms: number("REQUESTING_TIMESTAMP", -1),
            until_ms,
        });
        Ok(Record { owner, request })
    }

    /// The bytes to store.
    pub fn to_bytes(&self) -> Vec<u8> {
        let info = self.info();
        let fields = [
            ("OWNER", info.owner),
            ("MESSAGE", info.message),
            ("TIMEOUT", info.timeout.to_string()),
            ("PRIORITY", info.priority.to_string()),
            ("WAITING_TIMEOUT", info.waiting_timeout.to_string()),
            ("CLEANUP_TIMEOUT", info.cleanup_timeout.to_string()),
            ("REQUESTOR_ID", info.requestor_id),
            ("REQUESTOR_PRIORITY", info.requestor_priority.to_string()),
            ("REQUESTOR_WAITING_TIMEOUT", info.requestor_waiting_timeout.to_string()),
            ("REQUESTING_TIMESTAMP", info.requesting_timestamp.to_string()),
        ];
        let until = self.request.as_ref().and_then(|request| request.until_ms);
        let until = until.map(|until| (REQUEST_UNTIL.to_owned(), Some(until.to_string())));
        let revocation = self.owner.as_ref().and_then(|owner| owner.revocation.as_ref()).map(|revocation| {
            let text = serde_json::to_string(revocation).expect("a struct of strings and numbers always serialises");
            (REVOCATION.to_owned(), Some(text))
        });
        let notice = self.owner.as_ref().and_then(|owner| owner.notice_ms);
        let notice = notice.map(|notice| (NOTICE.to_owned(), Some(notice.to_string())));
        let granted_by = self.owner.as_ref().and_then(|owner| owner.granted_by);
        let granted_by = granted_by.map(|zxid| (GRANTED_BY.to_owned(), Some(zxid.to_string())));
        let ours: BTreeMap<_, _> = until.into_iter().chain(revocation).chain(notice).chain(granted_by).collect();
        let ours = (!ours.is_empty()).then(|| (OURS.to_owned(), Some(ours)));
        let stored = ZnRecord {
            id: RECORD_ID.to_owned(),
            simple: fields.into_iter().map(|(key, value)| (key.to_owned(), Some(value))).collect(),
            maps: ours.into_iter().collect(),
            lists: BTreeMap::new(),
        };
        serde_json::to_vec_pretty(&stored).expect("maps of strings always serialise")
    }

    /// The ten attributes, with Helix's defaults for missing ones.
    pub fn info(&self) -> LockAttributes {
        let mut info = LockAttributes::default();
        if let Some(owner) = &self.owner {
            info.owner.clone_from(&owner.id);
            info.message = owner.message.clone().unwrap_or_else(|| NOBODY.to_owned());
            info.timeout = owner.until_ms;
            info.priority = owner.priority;
            info.waiting_timeout = owner.waiting_ms;
            info.cleanup_timeout = owner.cleanup_ms;
        }
        if let Some(request) = &self.request {
            info.requestor_id.clone_from(&request.id);
            info.requestor_priority = request.priority;
            info.requestor_waiting_timeout = request.waiting_ms;
            info.requesting_timestamp = request.since_ms;
        }
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttemptId, Owner};

    /// What Helix 1.4.3 stores for a priority lock (its null requestor included).
    const BY_HELIX: &[u8] = br#"{
  "id" : "LOCK",
  "simpleFields" : {
    "CLEANUP_TIMEOUT" : "2000",
    "MESSAGE" : "test lock",
    "OWNER" : "test Id",
    "PRIORITY" : "5",
    "REQUESTING_TIMESTAMP" : "0",
    "REQUESTOR_ID" : null,
    "REQUESTOR_PRIORITY" : "0",
    "REQUESTOR_WAITING_TIMEOUT" : "0",
    "TIMEOUT" : "1700000003600",
    "WAITING_TIMEOUT" : "1000"
  },
  "mapFields" : { },
  "listFields" : { }
}"#;

    fn held() -> Held {
        Held {
            id: "test Id".into(),
            message: Some("test lock".into()),
            until_ms: 1_700_000_003_600,
            priority: 5,
            waiting_ms: 1000,
            cleanup_ms: 2000,
            revocation: None,
            notice_ms: None,
            granted_by: None,
        }
    }

    /// H-66: what Helix writes, null requestor included.
    #[test]
    fn helixs_own_record_is_read() {
        assert_eq!(Record::from_bytes(BY_HELIX), Ok(Record { owner: Some(held()), request: None }));
    }

    /// H-64, H-66: no more attributes, and no other form.
    #[test]
    fn a_record_has_helixs_ten_attributes_as_decimal_strings_under_the_id_lock() {
        let request =
            Requested { id: "B".into(), priority: 9, waiting_ms: 30, since_ms: 1_700_000_000_000, until_ms: None };
        let record = Record { owner: Some(held()), request: Some(request) };
        let stored: serde_json::Value = serde_json::from_slice(&record.to_bytes()).unwrap();
        let expected = serde_json::json!({
            "id": "LOCK",
            "simpleFields": {
                "OWNER": "test Id", "MESSAGE": "test lock", "TIMEOUT": "1700000003600", "PRIORITY": "5",
                "WAITING_TIMEOUT": "1000", "CLEANUP_TIMEOUT": "2000", "REQUESTOR_ID": "B", "REQUESTOR_PRIORITY": "9",
                "REQUESTOR_WAITING_TIMEOUT": "30", "REQUESTING_TIMESTAMP": "1700000000000",
            },
            "mapFields": {}, "listFields": {},
        });
        assert_eq!(stored, expected);
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }

    /// H-65: as Helix has them.
    #[test]
    fn a_free_lock_has_the_defaults() {
        let stored: serde_json::Value = serde_json::from_slice(&Record::default().to_bytes()).unwrap();
        let expected = serde_json::json!({
            "OWNER": "NONE", "MESSAGE": "NONE", "TIMEOUT": "-1", "PRIORITY": "0", "WAITING_TIMEOUT": "-1",
            "CLEANUP_TIMEOUT": "-1", "REQUESTOR_ID": "NONE", "REQUESTOR_PRIORITY": "0",
            "REQUESTOR_WAITING_TIMEOUT": "-1", "REQUESTING_TIMESTAMP": "-1",
        });
        assert_eq!(stored["simpleFields"], expected);
        assert_eq!(Record::from_bytes(b""), Ok(Record::default()));
        assert!(Record::from_bytes(&Record::default().to_bytes()).unwrap().is_free());
    }

    /// H-27: nor does one that is no number.
    #[test]
    fn case_39_a_record_without_a_priority_counts_as_the_lowest() {
        let basic = br#"{"id":"LOCK","simpleFields":{"OWNER":"a","TIMEOUT":"5"},"mapFields":{},"listFields":{}}"#;
        let owner = Record::from_bytes(basic).unwrap().owner.unwrap();
        assert_eq!((owner.priority, owner.message, owner.cleanup_ms), (0, None, -1));
        let odd = br#"{"id":"LOCK","simpleFields":{"OWNER":"a","TIMEOUT":"x","PRIORITY":"y"}}"#;
        let owner = Record::from_bytes(odd).unwrap().owner.unwrap();
        assert_eq!((owner.priority, owner.until_ms), (0, -1));
    }

    #[test]
    fn a_time_that_is_missing_counts_as_not_set() {
        let short = br#"{"id":"LOCK","simpleFields":{"OWNER":"a","REQUESTOR_ID":"b"}}"#;
        let Record { owner: Some(owner), request: Some(request) } = Record::from_bytes(short).unwrap() else {
            panic!("both are named");
        };
        assert_eq!((owner.until_ms, owner.waiting_ms, owner.cleanup_ms), (-1, -1, -1));
        assert_eq!((request.priority, request.waiting_ms, request.since_ms), (0, -1, -1));
    }

    #[test]
    fn something_else_is_no_free_lock() {
        for data in [&b"10.1.2.3"[..], b"{}", br#"{"id":"IDEALSTATE"}"#, &[0x1f, 0x8b, 8, 0]] {
            assert!(Record::from_bytes(data).is_err(), "{data:?}");
        }
    }

    #[test]
    fn the_end_of_a_wait_is_kept_beside_helixs_fields() {
        let request = Requested { id: "B".into(), priority: 9, waiting_ms: 3, since_ms: 10, until_ms: Some(12) };
        let record = Record { owner: None, request: Some(request) };
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }

    #[test]
    fn the_transaction_that_granted_the_lock_is_known_as_long_as_it_can_be() {
        let held = |granted_by| Record { owner: Some(Held { granted_by, ..held() }), request: None };
        let request = Requested { id: "B".into(), priority: 9, waiting_ms: 3, since_ms: 10, until_ms: None };
        assert_eq!(held(None).granted_by(7), Some(7), "it was not written since");
        assert_eq!(held(Some(3)).granted_by(7), Some(3));
        assert_eq!(Record::from_bytes(&held(Some(3)).to_bytes()), Ok(held(Some(3))));
        let by_helix = Record { request: Some(request), ..held(None) };
        assert_eq!(by_helix.granted_by(7), None, "a foreign client has");
        assert_eq!(Record::default().granted_by(7), None);
    }

    #[test]
    fn the_notice_is_kept_beside_helixs_fields() {
        let record = Record { owner: Some(Held { notice_ms: Some(10_000), ..held() }), request: None };
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }

    #[test]
    fn a_request_to_let_go_is_kept_beside_helixs_fields() {
        let mut revocation = Revocation::new(AttemptId::new(7), Owner::default(), Some("\"deploying\""), 3);
        revocation.refuse("not now");
        let record = Record { owner: Some(Held { revocation: Some(Box::new(revocation)), ..held() }), request: None };
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record.clone()));
        assert_eq!(record.info().owner, "test Id");
    }
}
