//! Golden names: the names that each client gives its nodes, and how they are parsed.
//!
//! Clients share a path by its names alone, so each name here is a promise. Contenders are ordered by their numbers. A
//! name that is not of the path's node format never counts, whatever number it ends in.

use lockkeeper_core::{AttemptId, Class, Mode, NodeFormat, NodeName, Queue, Sequence};

use Mode::{Exclusive, Read, Write};
use NodeFormat::{Contentserv, Curator, Kazoo, Recipe};

const ID: AttemptId = AttemptId::new(0x0a1b_2c3d_4e5f_4a6b_8c7d_9e0f_1a2b_3c4d);

fn read(id: Option<AttemptId>, mode: Mode, sequence: i32) -> Option<NodeName> {
    Some(NodeName { id, mode, sequence: Sequence::new(sequence), delay: None })
}

/// Case 18: the counter's numbers beyond its wrap, as `%010d` prints them, are read with their sign.
#[test]
fn curators_names_are_read() {
    let curators: [(&str, Option<NodeName>); 14] = [
        // InterProcessMutex: with protection, as it always writes it, and without.
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-0000000001", read(Some(ID), Exclusive, 1)),
        ("_c_0A1B2C3D-4E5F-4A6B-8C7D-9E0F1A2B3C4D-lock-0000000001", read(Some(ID), Exclusive, 1)),
        ("lock-0000000001", read(None, Exclusive, 1)),
        // InterProcessReadWriteLock.
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__READ__0000000002", read(Some(ID), Read, 2)),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__WRIT__0000000003", read(Some(ID), Write, 3)),
        ("__READ__0000000002", read(None, Read, 2)),
        ("__WRIT__0000000003", read(None, Write, 3)),
        // Near and beyond the end of the counter.
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-2147483647", read(Some(ID), Exclusive, i32::MAX)),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock--2147483648", read(Some(ID), Exclusive, i32::MIN)),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__READ__-2147483648", read(Some(ID), Read, i32::MIN)),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__WRIT__-1000000000", read(Some(ID), Write, -1_000_000_000)),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock--000000042", read(Some(ID), Exclusive, -42)),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__READ__-000000001", read(Some(ID), Read, -1)),
        ("lock--2147483647", read(None, Exclusive, -i32::MAX)),
    ];
    for (name, expected) in curators {
        assert_eq!(Curator.parse(name), expected, "{name}");
    }
}

#[test]
fn the_recipes_names_are_read() {
    let recipes: [(&str, Option<NodeName>); 6] = [
        ("lock-0000000001", read(None, Exclusive, 1)),
        ("write-0000000002", read(None, Write, 2)),
        ("read-0000000003", read(None, Read, 3)),
        ("read-2147483647", read(None, Read, i32::MAX)),
        ("write--2147483648", read(None, Write, i32::MIN)),
        ("lock--000000007", read(None, Exclusive, -7)),
    ];
    for (name, expected) in recipes {
        assert_eq!(Recipe.parse(name), expected, "{name}");
    }
}

/// Kazoo names its lock and its writer's lock alike, and its pattern accepts a sign.
#[test]
fn kazoos_names_are_read() {
    let kazoos: [(&str, Option<NodeName>); 8] = [
        ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__0000000001", read(Some(ID), Write, 1)),
        ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__rlock__0000000002", read(Some(ID), Read, 2)),
        ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__-2147483648", read(Some(ID), Write, i32::MIN)),
        ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__rlock__-000000007", read(Some(ID), Read, -7)),
        ("+a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__0000000001", None),
        ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4__lock__0000000001", None),
        ("__lock__0000000001", None),
        ("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__wlock__0000000001", None),
    ];
    for (name, expected) in kazoos {
        assert_eq!(Kazoo.parse(name), expected, "{name}");
    }
    assert_eq!(Kazoo.prefix(Exclusive, ID).as_deref(), Some("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__"));
    assert_eq!(Kazoo.prefix(Read, ID).as_deref(), Some("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__rlock__"));
}

/// C-07, C-08, C-12: a class, a dash and ten digits. The holder marker is no contender.
#[test]
fn contentservs_names_are_read() {
    let class = |letters| Mode::Class(Class::new(letters).expect("a class"));
    let contentservs: [(&str, Option<NodeName>); 8] = [
        ("A-0000000001", read(None, Mode::Class(Class::FOREGROUND), 1)),
        ("B-0000000002", read(None, Mode::Class(Class::BACKGROUND), 2)),
        ("FG-2147483647", read(None, class("FG"), i32::MAX)),
        ("A--2147483648", read(None, class("A"), i32::MIN)),
        ("privateLock", None),
        ("-0000000001", None),
        ("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-0000000001", None),
        ("A0000000001", None),
    ];
    for (name, expected) in contentservs {
        assert_eq!(Contentserv.parse(name), expected, "{name}");
    }
    assert_eq!(Contentserv.prefix(Mode::Class(Class::BACKGROUND), ID).as_deref(), Some("B-"));
}

/// C-09: the lowest letter first, then the lowest number. The holder marker is recognized.
#[test]
fn contentservs_listing_is_ordered_by_class_first() {
    let listed = ["B-0000000001", "privateLock", "A-0000000004", "C-0000000000", "A-0000000002", "LOCK"];
    let queue = Queue::read(Contentserv, &listed);
    let order: Vec<_> = queue.entries().iter().map(|e| e.name).collect();
    assert_eq!(order, ["A-0000000002", "A-0000000004", "B-0000000001", "C-0000000000"]);
    assert_eq!((queue.has_holder_marker(), queue.unknown()), (true, &["LOCK"][..]));
}

/// Names that count in neither node format. Case 26: such children must not disturb either.
const FOREIGN: [&str; 31] = [
    // Kazoo: Lock, ReadLock, Semaphore; with and without the dash of its later versions.
    "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__0000000001",
    "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__rlock__0000000001",
    "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__-0000000001",
    "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__-2147483648",
    "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d",
    // Curator's semaphore, leader latch and counters.
    "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lease-0000000001",
    "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-latch-0000000001",
    "leases",
    "locks",
    // Contentserv.
    "A-0000000001",
    "B-0000000002",
    "privateLock",
    // Helix.
    "LOCK",
    "{\"id\":\"LOCK\"}",
    // Protection that is cut short, or not a uuid.
    "_c_-lock-0000000001",
    "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4-lock-0000000001",
    "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4dlock-0000000001",
    "_c_0a1b2c3d_4e5f_4a6b_8c7d_9e0f1a2b3c4d-lock-0000000001",
    "_c_zzzzzzzz-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-0000000001",
    "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-0000000001",
    "_c_ümläütümläütümläütümläütümläüt-lock-0000000001",
    // Numbers that `%010d` of a 32-bit counter never prints: short, long, 64 bits wide, out of range, not ASCII.
    "lock-1",
    "lock-00000001",
    "lock-00000000001",
    "lock-0000000000000000001",
    "lock-9223372036854775807",
    "lock-2147483648",
    "lock-٠٠٠٠٠٠٠٠٠١",
    // Junk.
    "",
    "-",
    "0000000001",
];

#[test]
fn case_26_foreign_names_count_nowhere() {
    for node_format in [Curator, Recipe] {
        for name in FOREIGN {
            assert_eq!(node_format.parse(name), None, "{name:?} in {node_format:?}");
        }
        let queue = Queue::read(node_format, &FOREIGN);
        assert!(queue.entries().is_empty());
        assert_eq!(queue.unknown(), FOREIGN);
    }
}

/// Where the name shapes differ, a name that counts in one node format does not count in the other: a path has one
/// format.
#[test]
fn case_26_each_node_format_refuses_the_other() {
    for name in ["_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-0000000001", "__READ__0000000001", "__WRIT__0000000001"]
    {
        assert_eq!(Recipe.parse(name), None, "{name}");
    }
    for name in ["read-0000000001", "write-0000000001"] {
        assert_eq!(Curator.parse(name), None, "{name}");
    }
}

/// Case 20: only the name of a protected node identifies its owner. Other nodes have only the number, and the server
/// assigns the same number again after the parent is recreated.
#[test]
fn case_20_only_protected_names_carry_an_id() {
    assert!(Curator.protects() && !Recipe.protects());
    for (node_format, id) in [(Curator, Some(ID)), (Recipe, None)] {
        for mode in [Exclusive, Read] {
            let name = node_format.prefix(mode, ID).map(|prefix| format!("{prefix}{}", Sequence::new(0)));
            let parsed = name.as_deref().and_then(|name| node_format.parse(name));
            assert_eq!(parsed.map(|node| node.id), Some(id), "{name:?}");
        }
    }
}

/// Case 29: ordered by number, whatever precedes it in the name, in a listing that several kinds of client share.
#[test]
fn case_29_a_shared_listing_is_ordered_by_number_alone() {
    let listed = [
        "_c_ffffffff-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-0000000002",
        "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__0000000000",
        "_c_00000000-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__WRIT__0000000004",
        "privateLock",
        "lock-0000000003",
        "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__READ__0000000001",
        "lock-0000000000000000005",
    ];
    let queue = Queue::read(Curator, &listed);
    assert_eq!(queue.entries().iter().map(|e| e.sequence.get()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(queue.unknown(), [listed[1], listed[3], listed[6]]);
}

/// Case 18: after 2^31 creates, the next contender is still the next one.
#[test]
fn case_18_a_shared_listing_is_ordered_across_the_wrap() {
    let listed = [
        "_c_00000000-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock--2147483648",
        "_c_ffffffff-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-2147483647",
        "_c_11111111-4e5f-4a6b-8c7d-9e0f1a2b3c4d-__READ__-2147483647",
        "lock-2147483646",
    ];
    let queue = Queue::read(Curator, &listed);
    let order: Vec<_> = queue.entries().iter().map(|e| e.sequence.get()).collect();
    assert_eq!(order, [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1]);
}
