use lockkeeper::admin::SessionId;

use super::*;

const ID: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn node(data: &str) -> Node {
    Node {
        data: data.into(),
        czxid: Zxid(10),
        mzxid: Zxid(10),
        pzxid: Zxid(10),
        ctime_ms: 1_000,
        mtime_ms: 1_000,
        version: 0,
        owner: SessionId(0),
        children: 0,
    }
}

/// What a node with this name and this data is, beside others.
fn kind_of(name: &str, data: &str, others: &[&str]) -> Option<LeftoverKind> {
    let names = others.iter().chain([&name]).map(|name| (*name).to_owned()).collect();
    kind(name, &node(data), Names::default().of(&Directory { path: "/locks/a".to_owned(), names }))
}

#[test]
fn a_leaf_is_told_by_its_name_and_its_data() {
    let alone = |name: &str, data: &str| kind_of(name, data, &[]);
    assert_eq!(alone("nightly", ""), Some(LeftoverKind::Empty));
    assert_eq!(alone("pool", r#"{"lockkeeper":1,"permits":3}"#), Some(LeftoverKind::Empty), "a semaphore's path");
    assert_eq!(alone("README", "ask Ann before you touch this"), Some(LeftoverKind::Note));
    assert_eq!(alone("\u{1b}[2J", "\u{1b}[2J"), Some(LeftoverKind::Note));
    assert_eq!(alone("lock-0000000007", ""), Some(LeftoverKind::Sessionless));
    assert_eq!(alone(&format!("_c_{ID}-lock-0000000007"), "10.0.0.7"), Some(LeftoverKind::Sessionless));
    assert_eq!(alone("order-0000004711", ""), Some(LeftoverKind::Empty), "anything may be named like a class");
    let kazoo =
        ["0123456789abcdef0123456789abcdef__lock__0000000001", "0123456789abcdef0123456789abcdef__lock__0000000002"];
    assert_eq!(kind_of("lock-0000000007", "", &kazoo), Some(LeftoverKind::Empty), "Kazoo does not count it");
}

#[test]
fn a_tombstone_is_left_only_if_its_hold_has_ended() {
    let name = format!("_s_{ID}-x-d30000");
    let delay = Duration::from_secs(30);
    assert_eq!(kind_of(&name, "", &["lock-0000000001"]), Some(LeftoverKind::Tombstone { delay }));
    assert_eq!(kind_of(&name, "", &[&format!("_c_{ID}-d30000-lock-0000000007")]), None);
}

/// The last use has no time. The next node that has one says that it was no later.
#[test]
fn the_last_use_is_dated_by_the_next_transaction_with_a_time() {
    let mut found = Found::default();
    found.dates.note(&node(""));
    found.dates.note(&Node { czxid: Zxid(20), ctime_ms: 5_000, mzxid: Zxid(30), mtime_ms: 9_000, ..node("") });
    for last in [5, 10, 11, 20, 30, 31] {
        let (path, kind) = (format!("{last:02}"), LeftoverKind::Empty);
        let leftover = Leftover { path, kind, created_ms: 0, unused_since_ms: None, version: 0 };
        found.nodes.push((leftover, Zxid(last)));
    }
    let found = found.dated(None);
    let since: Vec<_> = found.nodes.iter().map(|node| node.unused_since_ms).collect();
    assert_eq!(since, [Some(1_000), Some(1_000), Some(5_000), Some(5_000), Some(9_000), None]);
    assert_eq!(found.now_ms, 9_000, "the latest known time");
    let unused: Vec<_> = found.nodes.iter().map(|node| node.unused_for(found.now_ms).as_secs()).collect();
    assert_eq!(unused, [8, 8, 4, 4, 0, 0]);
}

#[test]
fn a_tombstone_is_overdue_once_its_delay_has_passed_since_a_known_time() {
    let kind = LeftoverKind::Tombstone { delay: Duration::from_secs(30) };
    let at = |since| Leftover { path: String::new(), kind, created_ms: 0, unused_since_ms: since, version: 0 };
    assert!(at(Some(1_000)).is_overdue(31_000));
    assert!(!at(Some(1_001)).is_overdue(31_000));
    assert!(!at(None).is_overdue(i64::MAX));
    assert!(!Leftover { kind: LeftoverKind::Empty, ..at(Some(0)) }.is_overdue(31_000));
}
