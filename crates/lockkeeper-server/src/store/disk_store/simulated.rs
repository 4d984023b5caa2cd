//! The store on a simulated disk, which fails and forgets as real ones do.
//!
//! A write goes to memory. A sync writes the changed pages to the disk. If it fails, some pages are on the disk, and none
//! is ever written again: the system takes them for clean. A power loss leaves what is on the disk, and any sectors of
//! pages that were about to be written. The same is true of the names in the directory, but they stay in order. At any
//! time the system may forget a page that it takes for clean, and then read it from the disk again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use redb::StorageBackend;

use super::tests::{Model, fresh};
use super::*;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// The number of a file, which it keeps when it is renamed.
type Id = usize;
type Names = BTreeMap<String, Id>;

#[derive(Debug, Default)]
struct Inode {
    memory: Vec<u8>,
    disk: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl Inode {
    fn sector(&mut self, at: usize) {
        let end = (at + SECTOR).min(self.memory.len());
        if at < end {
            self.disk.resize(self.disk.len().max(end), 0);
            self.disk[at..end].copy_from_slice(&self.memory[at..end]);
        }
    }

    fn write_back(&mut self, page: usize) {
        (0..PAGE / SECTOR).for_each(|sector| self.sector(page * PAGE + sector * SECTOR));
    }

    /// Reads a page from the disk again, unless it is to be written.
    fn forget(&mut self, page: usize) {
        let (from, to) = ((page * PAGE).min(self.memory.len()), (page * PAGE + PAGE).min(self.memory.len()));
        if !self.dirty.contains(&page) {
            for at in from..to {
                self.memory[at] = self.disk.get(at).copied().unwrap_or(0);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Sync,
    Write,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    /// How many succeed before.
    after: u64,
    only: Option<Operation>,
    /// All operations from there on, or only this one.
    for_ever: bool,
    full: bool,
}

#[derive(Debug)]
struct Disk {
    rng: fastrand::Rng,
    inodes: Vec<Inode>,
    /// As the system sees them, as they are on the disk, and the states between the two.
    names: Names,
    durable: Names,
    changes: Vec<Names>,
    fault: Option<Fault>,
    /// Whether the system takes the advice to forget.
    forgets: bool,
    failures: u64,
    losses: u64,
}

#[derive(Debug, Clone)]
struct Simulated(Arc<Mutex<Disk>>);

#[derive(Debug)]
struct Handle(Simulated, Id);

impl Simulated {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let forgets = rng.bool();
        Self(Arc::new(Mutex::new(Disk {
            rng,
            inodes: Vec::new(),
            names: Names::new(),
            durable: Names::new(),
            changes: Vec::new(),
            fault: None,
            forgets,
            failures: 0,
            losses: 0,
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    fn fail(&self) {
        let mut disk = self.disk();
        let (only, most) = match disk.rng.u8(..4) {
            0 => (None, 300),
            1 => (Some(Operation::Write), 30),
            _ => (Some(Operation::Sync), 8),
        };
        let (after, for_ever, full) = (disk.rng.u64(..most), disk.rng.u8(..3) == 0, disk.rng.bool());
        disk.fault = Some(Fault { after, only, for_ever, full });
    }

    fn heal(&self) {
        self.disk().fault = None;
    }

    fn lose_power(&self) {
        let mut disk = self.disk();
        let disk = &mut *disk;
        disk.losses += 1;
        // Nothing, everything, or a part.
        let luck = disk.rng.choice([0, 256, 128]).unwrap();
        for inode in &mut disk.inodes {
            for page in std::mem::take(&mut inode.dirty) {
                for sector in (0..PAGE).step_by(SECTOR) {
                    if disk.rng.u16(..256) < luck {
                        inode.sector(page * PAGE + sector);
                    }
                }
            }
            if disk.rng.u16(..256) < luck {
                inode.disk.resize(inode.memory.len(), 0);
            }
            inode.memory = inode.disk.clone();
        }
        let kept = disk.rng.usize(..=disk.changes.len());
        if let Some(names) = std::mem::take(&mut disk.changes).into_iter().nth(kept.wrapping_sub(1)) {
            disk.durable = names;
        }
        disk.names = disk.durable.clone();
    }
}

impl Disk {
    /// Counts an operation, and fails if it is to fail. Meanwhile the system works in the background.
    fn operate(&mut self, operation: Operation) -> io::Result<()> {
        if !self.inodes.is_empty() && self.rng.u8(..64) == 0 {
            let id = self.rng.usize(..self.inodes.len());
            let inode = &mut self.inodes[id];
            let page = self.rng.usize(..=inode.memory.len() / PAGE);
            match self.rng.bool() {
                true => inode.forget(page),
                false if inode.dirty.remove(&page) => inode.write_back(page),
                false => {}
            }
        }
        let Some(fault) = &mut self.fault else { return Ok(()) };
        if fault.only.is_some_and(|only| only != operation) {
            return Ok(());
        }
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        let full = fault.full && operation != Operation::Other;
        if !fault.for_ever {
            self.fault = None;
        }
        self.failures += 1;
        Err(if full { io::ErrorKind::StorageFull.into() } else { io::Error::other("the disk failed") })
    }

    fn change_names(&mut self, change: impl FnOnce(&mut Names)) {
        change(&mut self.names);
        self.changes.push(self.names.clone());
    }
}

impl Files for Simulated {
    fn path(&self) -> &Path {
        Path::new("simulated")
    }

    fn lock(&self) -> Result<Option<File>, ServerError> {
        Ok(None)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut disk = self.disk();
        disk.operate(Operation::Other)?;
        Ok(disk.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let mut disk = self.disk();
        let exists = disk.names.get(name).copied();
        disk.operate(if exists.is_some() { Operation::Other } else { Operation::Write })?;
        let id = exists.unwrap_or_else(|| {
            disk.inodes.push(Inode::default());
            let id = disk.inodes.len() - 1;
            disk.change_names(|names| {
                names.insert(name.to_owned(), id);
            });
            id
        });
        Ok(Box::new(Handle(self.clone(), id)))
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate(Operation::Other)?;
        if disk.forgets {
            let inode = disk.names[name];
            let inode = &mut disk.inodes[inode];
            (0..=inode.memory.len() / PAGE).for_each(|page| inode.forget(page));
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate(Operation::Write)?;
        let id = *disk.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        disk.change_names(|names| {
            names.remove(from);
            names.insert(to.to_owned(), id);
        });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate(Operation::Write)?;
        if !disk.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change_names(|names| {
            names.remove(name);
        });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate(Operation::Sync)?;
        disk.durable = disk.names.clone();
        disk.changes.clear();
        Ok(())
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        let mut disk = self.0.disk();
        disk.operate(Operation::Other)?;
        Ok(disk.inodes[self.1].memory.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut disk = self.0.disk();
        disk.operate(Operation::Other)?;
        let start = usize::try_from(offset).unwrap();
        let bytes = disk.inodes[self.1].memory.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.0.disk();
        disk.operate(Operation::Write)?;
        let (len, inode) = (usize::try_from(len).unwrap(), &mut disk.inodes[self.1]);
        // A system writes a new length and what it frees in order: what is added later is zeros on the disk as well.
        inode.disk.truncate(len);
        inode.dirty.retain(|page| page * PAGE < len);
        inode.memory.resize(len, 0);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.0.disk();
        let done = disk.operate(Operation::Write);
        let data = if done.is_ok() { data } else { &data[..disk.rng.usize(..data.len())] };
        let (start, inode) = (usize::try_from(offset).unwrap(), &mut disk.inodes[self.1]);
        if !data.is_empty() {
            inode.memory.resize(inode.memory.len().max(start + data.len()), 0);
            inode.memory[start..start + data.len()].copy_from_slice(data);
            inode.dirty.extend(start / PAGE..=(start + data.len() - 1) / PAGE);
        }
        done
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.0.disk();
        let done = disk.operate(Operation::Sync);
        let disk = &mut *disk;
        let inode = &mut disk.inodes[self.1];
        for page in std::mem::take(&mut inode.dirty) {
            if done.is_ok() || disk.rng.bool() {
                inode.write_back(page);
            }
        }
        if done.is_ok() {
            inode.disk.resize(inode.memory.len(), 0);
        }
        done
    }
}

/// What was acknowledged, and what may be there beside it.
struct Known {
    acknowledged: Model,
    attempted: Option<Model>,
}

impl Known {
    /// A store that opens has what was acknowledged, and perhaps the batch whose commit failed.
    fn check(&mut self, state: &StoredState, seed: u64) {
        let found = Model::of(state);
        let attempted = self.attempted.take();
        if let Some(attempted) = attempted.filter(|attempted| attempted.has(&found)) {
            self.acknowledged = attempted;
        }
        assert!(self.acknowledged.has(&found), "seed {seed}: {:?} instead of {:?}", found, self.acknowledged);
        self.acknowledged.is(state);
    }

    /// Works until the disk fails or enough is done. Returns how many folds failed.
    fn work(&mut self, store: &mut DiskStore, rng: &mut fastrand::Rng) -> u64 {
        let mut failed_folds = 0;
        for _ in 0..rng.u8(1..12) {
            if rng.u8(..4) > 0 {
                let mut next = self.acknowledged.clone();
                if store.commit(&next.step()).is_err() {
                    self.attempted = Some(next);
                    return failed_folds;
                }
                self.acknowledged = next;
                continue;
            }
            let begun = if matches!(store.folding, Folding::Full { .. }) { store.fold() } else { store.rotate() };
            if begun.is_err() {
                return failed_folds;
            }
            let result = store.folder.wait();
            failed_folds += u64::from(result.is_err());
            if store.folded(result).is_err() {
                return failed_folds;
            }
        }
        if rng.bool() {
            store.close();
        }
        failed_folds
    }
}

/// Returns how many operations and folds failed, and how often the power was lost.
fn history(seed: u64, rounds: u32) -> (u64, u64, u64) {
    let disk = Simulated::new(seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut known = Known { acknowledged: Model::sized(rng.usize(..3_000)), attempted: None };
    let sizes = Sizes { chunk: 1 << 10, ..Sizes::default() };
    let open = || DiskStore::open_on(Arc::new(disk.clone()), sizes, fresh);
    let mut failed_folds = 0;
    for _ in 0..rounds {
        // The failure may hit the start.
        if rng.u8(..4) > 0 {
            disk.fail();
        }
        if let Ok((mut store, state)) = open() {
            known.check(&state, seed);
            // A start folds what was not folded, on its own thread.
            if matches!(store.folding, Folding::Running) {
                let result = store.folder.wait();
                failed_folds += u64::from(result.is_err());
                if store.folded(result).is_err() {
                    continue;
                }
            }
            if rng.bool() {
                disk.fail();
            }
            failed_folds += known.work(&mut store, &mut rng);
        }
        // The process is gone.
        disk.heal();
        if rng.bool() {
            disk.lose_power();
        }
        if rng.bool() {
            let (_, state) = open().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            known.check(&state, seed);
        }
    }
    // The last round may have ended with a disk that fails for ever.
    disk.heal();
    disk.lose_power();
    let (_, state) = open().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    known.check(&state, seed);
    let disk = disk.disk();
    (disk.failures, failed_folds, disk.losses)
}

/// The write or the fsync fails: the batch is not acknowledged, and everything acknowledged before is durable.
#[test]
fn a_failed_write_or_fsync_of_the_log_is_an_error_and_loses_nothing_before_it() {
    use Operation::{Sync, Write};
    for (operation, full) in [(Write, false), (Write, true), (Sync, false), (Sync, true)] {
        let disk = Simulated::new(1);
        let mut model = Model::sized(0);
        let open = || DiskStore::open_on(Arc::new(disk.clone()), Sizes::default(), fresh).unwrap();
        let (mut store, _) = open();
        model.commit(&mut store, 3);
        disk.disk().fault = Some(Fault { after: 0, only: Some(operation), for_ever: true, full });
        let error = store.commit(&model.clone().step()).unwrap_err();
        assert_eq!(matches!(error, ServerError::DiskFull { .. }), full, "{error:?}");
        drop(store);
        disk.heal();
        disk.lose_power();
        let mut known = Known { attempted: Some(model.clone()), acknowledged: model };
        known.attempted.as_mut().unwrap().step();
        known.check(&open().1, 1);
    }
}

/// redb marks a file when it opens it and when it closes it. On a file whose last fold is not on the disk, the mark would be
/// the only thing that is, and redb would believe the rest.
#[test]
fn neither_a_start_nor_an_end_writes_to_the_snapshot() {
    let disk = Simulated::new(1);
    let open = || DiskStore::open_on(Arc::new(disk.clone()), Sizes::default(), fresh).unwrap().0;
    drop(open());
    let snapshot = || {
        let disk = disk.disk();
        disk.inodes[disk.names[STATE]].memory.clone()
    };
    let made = snapshot();
    let mut store = open();
    Model::sized(0).commit(&mut store, 3);
    assert!(snapshot() == made, "a start");
    store.rotate().unwrap();
    store.folder.wait().unwrap();
    let folded = snapshot();
    assert!(folded != made, "a fold");
    drop(store);
    assert!(snapshot() == folded, "an end");
}

/// A client may be told of what is in a file before the next sync of the directory.
#[test]
fn a_start_makes_the_names_durable_that_an_interrupted_one_left() {
    for after in 0.. {
        let disk = Simulated::new(after);
        let open = || DiskStore::open_on(Arc::new(disk.clone()), Sizes::default(), fresh);
        disk.disk().fault = Some(Fault { after, only: Some(Operation::Sync), for_ever: true, full: false });
        let interrupted = open().is_err();
        disk.heal();
        drop(open().unwrap());
        let disk = disk.disk();
        assert_eq!(disk.durable, disk.names, "after {after} syncs");
        if !interrupted {
            break;
        }
    }
}

/// The new snapshot takes the place of one that is in doubt, and the log that it contains is removed after that.
#[test]
fn the_log_stays_until_the_name_of_a_new_snapshot_is_durable() {
    for after in 0.. {
        let disk = Simulated::new(after);
        let mut store = DiskStore::open_on(Arc::new(disk.clone()), Sizes::default(), fresh).unwrap().0;
        let mut model = Model::sized(0);
        model.commit(&mut store, 3);
        let fail = |after, for_ever| {
            disk.disk().fault = Some(Fault { after, only: Some(Operation::Sync), for_ever, full: true });
        };
        // The sync of the directory by the rotation succeeds, and that of the file fails.
        fail(1, false);
        store.rotate().unwrap();
        store.folder.wait().unwrap_err();
        fail(after, true);
        store.fold().unwrap();
        let failed = store.folder.wait().is_err();
        {
            let disk = disk.disk();
            let is_durable = disk.durable.get(STATE) == disk.names.get(STATE);
            assert!(is_durable || disk.names.contains_key(&log_name(1)), "after {after} syncs");
        }
        drop(store);
        disk.heal();
        disk.lose_power();
        let (_, state) = DiskStore::open_on(Arc::new(disk.clone()), Sizes::default(), fresh).unwrap();
        model.is(&state);
        if !failed {
            break;
        }
    }
}

/// `LOCKKEEPER_HISTORIES=n` tries n histories of ten rounds, and `LOCKKEEPER_SEED` is the first seed; `cargo xtask crash`
/// sets both.
#[test]
fn nothing_acknowledged_is_lost_by_operations_that_fail_and_by_power_loss() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (histories, first) = (number("LOCKKEEPER_HISTORIES").unwrap_or(15), number("LOCKKEEPER_SEED").unwrap_or(1));
    let (mut failures, mut folds, mut losses) = (0, 0, 0);
    for seed in first..first + histories {
        let (more_failures, more_folds, more_losses) = history(seed, 10);
        (failures, folds, losses) = (failures + more_failures, folds + more_folds, losses + more_losses);
    }
    println!("{} rounds: {failures} operations failed, {folds} folds, and the power {losses} times", histories * 10);
    assert!(failures > histories * 3 && folds > histories / 5 && losses > histories * 3);
}
