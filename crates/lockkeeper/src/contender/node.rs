//! What a node says about its contender.

use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{
    FencingToken, ForeignSemaphore, HOLDER_MARKER, Mode, NodeData, NodeFormat, SemaphoreNode, SessionId, Tombstone,
    Zxid,
};
use lockkeeper_session::ensemble::Node;
use lockkeeper_session::text::moment;

use crate::contender::ContenderInfo;

impl ContenderInfo {
    /// A contender of which only the name of its node is known.
    #[doc(hidden)]
    pub fn unread(node: String) -> Self {
        let (zero, owner) = (Zxid(0), SessionId(0));
        let (czxid, mzxid, pzxid, ctime_ms, mtime_ms) = (zero, zero, zero, 0, 0);
        let nothing = Node { data: vec![], czxid, mzxid, pzxid, ctime_ms, mtime_ms, version: 0, owner, children: 0 };
        let read = ContenderInfo::read(node, &nothing);
        ContenderInfo { described: "an unnamed client".to_owned(), token: None, ..read }
    }

    /// Reads the node of a lock's child of this name.
    #[doc(hidden)]
    pub fn read(node: String, seen: &Node) -> Self {
        let node_data = NodeData::read(&seen.data);
        let record = node_data.record();
        let abandoned = Tombstone::read(&node);
        let named = || NodeFormat::of_node(&node).parse(&node).map(|name| name.mode);
        let semaphore = ForeignSemaphore::read(&node);
        let one = semaphore.map(|_| Mode::Permits(1));
        let mode = abandoned.map(|tombstone| tombstone.mode).or(one).or_else(named);
        ContenderInfo {
            mode: match mode {
                Some(mode) => mode.label(),
                None if node == HOLDER_MARKER => "class",
                None => "unknown",
            },
            permits: mode.and_then(Mode::permits),
            class: mode.and_then(Mode::class),
            owner: record.map(|record| record.owner.clone()),
            message: record.and_then(|record| record.message.clone()),
            revocation: record.and_then(|record| record.revocation.clone()).or_else(|| node_data.revocation()),
            described: match abandoned {
                Some(Tombstone { delay, .. }) => {
                    let delay = lockkeeper_core::spell(delay.duration());
                    format!("{node_data}, abandoned (lock delay {delay})")
                }
                None if seen.owner.is_none() && node != HOLDER_MARKER => match &node_data {
                    NodeData::Empty => "a node without a session".to_owned(),
                    data => format!("a node without a session ({data})"),
                },
                None => node_data.to_string(),
            },
            abandoned: abandoned.is_some(),
            since: UNIX_EPOCH + Duration::from_millis(u64::try_from(seen.ctime_ms).unwrap_or(0)),
            granted: match record.and_then(|record| record.granted_ms) {
                Some(ms) => i64::try_from(ms).ok().and_then(moment),
                // Its holder created it with the grant.
                None if node == HOLDER_MARKER => moment(seen.ctime_ms),
                // Kazoo creates a lease when it may have it.
                None if semaphore == Some((ForeignSemaphore::Kazoo, SemaphoreNode::Lease(None))) => {
                    moment(seen.ctime_ms)
                }
                None => None,
            },
            granted_after: None,
            granted_before: None,
            holds: record.map(|record| record.holds.clone()).unwrap_or_default(),
            traceparent: record.and_then(|record| record.traceparent),
            reads: record.is_some_and(|record| record.upgradeable),
            session: seen.owner,
            // Permits have no order.
            token: mode.and_then(Mode::permits).is_none().then(|| FencingToken::from_zxid(seen.czxid)),
            blocked_by: None,
            observed: None,
            id: node_data.id().or_else(|| NodeFormat::of_node(&node).parse(&node)?.id),
            czxid: seen.czxid,
            node,
            // The process of a tombstone has ended its session, or may still run.
            process: record.and_then(|record| record.process).filter(|_| !seen.owner.is_none()),
        }
    }
}
