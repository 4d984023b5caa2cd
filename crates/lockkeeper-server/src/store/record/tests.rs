//! Which records of a damaged log are accepted.

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const HERE: Origin = Origin { store_id: 0x1234_5678_9abc_def0, log: 7 };

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..60));
    let node = ("/[a-c]{0,3}", value);
    let session = (0_i64..5, prop::option::of((any::<u64>(), any::<[u8; 16]>())));
    let batch = (any::<(i64, i64, u64)>(), prop::collection::vec(node, 0..5), prop::collection::vec(session, 0..3));
    let batch = batch.prop_map(|((zxid, next_session, nodes), changed, sessions)| {
        let totals = Totals { nodes, sessions: nodes ^ 1, data_bytes: nodes ^ 2 };
        let mut batch = Batch { zxid, next_session, totals, ..Batch::default() };
        for (path, value) in changed {
            let range = value.map(|value| {
                let start = batch.bytes.len();
                batch.bytes.extend_from_slice(&value);
                start..batch.bytes.len()
            });
            batch.nodes.push((Arc::from(path), range));
        }
        let stored = |(ms, password)| (Duration::from_millis(ms), password);
        batch.sessions = sessions.into_iter().map(|(id, session)| (id, session.map(stored))).collect();
        batch
    });
    prop::collection::vec(batch, 1..8)
}

/// Returns a file whose first record has the number 5, and the end of each record.
fn file(batches: &[Batch]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let ends = batches.iter().zip(5..).map(|(batch, number)| {
        encode(&mut bytes, HERE, number, batch);
        bytes.len()
    });
    let ends = ends.collect();
    (bytes, ends)
}

/// Reads a file: returns how many records are accepted, or the damage. The accepted records must be those that were
/// written.
fn read_file(bytes: &[u8], written: &[Batch]) -> Result<(usize, End), Damage> {
    let (mut count, mut changes) = (0, Changes::default());
    let end = scan(bytes, HERE, 5, |payload| {
        let mut one = Changes::default();
        one.add(payload)?;
        let expected = Changes::of(&written[count]);
        assert_eq!((&one.nodes, &one.sessions, one.last), (&expected.nodes, &expected.sessions, expected.last));
        count += 1;
        changes.add(payload)
    })?;
    assert_eq!(end.next, 5 + count as u64);
    Ok((count, end))
}

fn whole_before(ends: &[usize], at: usize) -> usize {
    ends.iter().filter(|end| **end <= at).count()
}

fn judge_patched(cut: &[u8], bytes: &[u8], ends: &[usize], batches: &[Batch], whole: usize) {
    let (found, end) = read_file(cut, batches).expect("no valid record follows");
    assert!(found >= whole && end.at == found.checked_sub(1).map_or(0, |last| ends[last]));
    assert!(found == whole || cut[..end.at] == bytes[..end.at]);
}

/// Each case tries every byte of a file.
fn cases() -> ProptestConfig {
    ProptestConfig::with_cases(if lockkeeper_testkit::is_deep() { 256 } else { 48 })
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn written_records_are_read(batches in batches(), zeros in 0_usize..200) {
        let (mut bytes, ends) = file(&batches);
        let at = bytes.len();
        bytes.resize(at + zeros, 0);
        let last = Some(ends.len().checked_sub(2).map_or(0, |before| ends[before]));
        let end = End { at, last, next: 5 + batches.len() as u64, torn: false };
        prop_assert_eq!(read_file(&bytes, &batches), Ok((batches.len(), end)));
    }

    /// A file cut anywhere, followed by nothing, zeros or the remains of an older use: every complete record is
    /// accepted, and nothing else.
    #[test]
    fn a_cut_leaves_every_whole_record(batches in batches(), older in batches()) {
        let (bytes, ends) = file(&batches);
        let mut remains = Vec::new();
        older.iter().zip(1..).for_each(|(batch, number)| {
            encode(&mut remains, Origin { log: HERE.log - 2, ..HERE }, number, batch);
        });
        for at in 0..=bytes.len() {
            let mut cut = bytes[..at].to_vec();
            let whole = whole_before(&ends, at);
            prop_assert_eq!(read_file(&cut, &batches).map(|(count, _)| count), Ok(whole));
            // The bytes after the cut may happen to complete the record.
            cut.resize(bytes.len(), 0);
            judge_patched(&cut, &bytes, &ends, &batches, whole);
            cut.truncate(at);
            cut.extend_from_slice(remains.get(at..).unwrap_or_default());
            judge_patched(&cut, &bytes, &ends, &batches, whole);
        }
    }

    /// A flipped bit in the last record makes it incomplete; a flipped bit before that makes the file damaged at that
    /// place.
    #[test]
    fn a_flipped_bit_is_never_accepted(batches in batches(), bit in 0_u32..8) {
        let (bytes, ends) = file(&batches);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let whole = whole_before(&ends, at);
            let start = whole.checked_sub(1).map_or(0, |last| ends[last]);
            match read_file(&flipped, &batches) {
                Ok((count, end)) => {
                    prop_assert_eq!((count, end.at, whole), (whole, start, batches.len() - 1));
                }
                Err(damage) => prop_assert_eq!(damage.at, start),
            }
        }
    }

    #[test]
    fn anything_can_be_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Changes::default().add(&bytes);
        prop_assert_eq!(read_file(&bytes, &[]).map(|(count, _)| count), Ok(0));
    }
}

fn one(zxid: i64) -> Batch {
    let bytes = bytes::BytesMut::from(&[7; 50][..]);
    let nodes: Vec<(Arc<str>, Option<Range<usize>>)> = vec![(Arc::from("/a"), Some(0..50))];
    Batch { zxid, nodes, bytes, ..Batch::default() }
}

#[test]
fn a_bad_record_before_a_good_one_is_refused_with_its_place() {
    let batches = [one(1), one(2), one(3)];
    let (mut bytes, ends) = file(&batches);
    bytes[ends[0] + 20] ^= 1;
    let damage = read_file(&bytes, &batches).unwrap_err();
    assert_eq!((damage.at, damage.missing_before), (ends[0], false));
    assert_eq!(damage.what, format!("the record is unreadable, and a valid one follows at byte {}", ends[1]));
}

#[test]
fn records_of_another_file_are_refused_or_ignored() {
    let judge = |origin, number| {
        let mut bytes = Vec::new();
        encode(&mut bytes, origin, number, &one(1));
        read_file(&bytes, &[one(1)])
    };
    let stranger = judge(Origin { store_id: 1, ..HERE }, 5).unwrap_err();
    assert_eq!(stranger.what, "the record belongs to another data directory");
    assert_eq!(judge(Origin { log: 8, ..HERE }, 5).unwrap_err().what, "the record belongs to file 8");
    let nothing = End { at: 0, last: None, next: 5, torn: false };
    assert_eq!(judge(Origin { log: 6, ..HERE }, 5), Ok((0, nothing)), "an older use of the file");
    let late = judge(HERE, 6).unwrap_err();
    assert!(late.missing_before, "it is missing in the file before: {}", late.what);
    assert!(!judge(HERE, 4).unwrap_err().missing_before);
}

/// An incomplete record contains a client's data that looks like a record. Without the store's id it is not accepted.
#[test]
fn a_clients_data_is_not_accepted_as_a_record() {
    let mut forged = Vec::new();
    encode(&mut forged, Origin { store_id: 1, ..HERE }, 5, &one(9));
    let mut batch = one(1);
    batch.bytes = bytes::BytesMut::from(&forged[..]);
    batch.nodes[0].1 = Some(0..forged.len());
    let mut last = None;
    // At every alignment.
    for shift in 0..8 {
        batch.nodes[0].0 = Arc::from(&"/aaaaaaaa"[..=shift + 1]);
        let (bytes, _) = file(std::slice::from_ref(&batch));
        let end = read_file(&bytes[..bytes.len() - 8], std::slice::from_ref(&batch));
        last = Some(end.unwrap());
        assert_eq!(last.unwrap().0, 0);
    }
    assert!(last.unwrap().1.torn);
}
