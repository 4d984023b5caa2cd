//! A file behind a gate: complete at every moment, and never replaced by an older holder after a newer one.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockkeeper_fence::{FencedFile, FencingToken, FileError, Refused};

fn token(number: i64) -> FencingToken {
    FencingToken::try_from(number).unwrap()
}

#[test]
fn a_stale_holder_does_not_replace_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let file = FencedFile::new(&path);
    assert_eq!(file.highest().unwrap(), None);
    file.replace(token(5), "five").unwrap();
    file.replace(token(5), "five again").unwrap();
    file.replace(token(7), "seven").unwrap();
    match file.replace(token(6), "six") {
        Err(FileError::Refused { refused, .. }) => {
            assert_eq!(refused, Refused::Stale { offered: token(6), highest: token(7) });
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "seven");
    // Another process, or this one after a restart, sees the same mark.
    assert_eq!(FencedFile::new(&path).highest().unwrap(), Some(token(7)));
    assert_eq!(
        fs::read_to_string(dir.path().join("state.json.fence")).unwrap(),
        "lockkeeper-fence 1 0000000000000000007\n"
    );
    let names = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 2, "a file is left");
}

/// A failed replacement keeps the old file. It also keeps the raised mark, because the lock has a newer holder all the same.
#[test]
fn contents_that_end_in_an_error_leave_the_file_as_it_was() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the generator died"))
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let file = FencedFile::new(&path);
    file.replace(token(1), "old").unwrap();
    let error = file.enter(token(2)).unwrap().replace(&mut Broken).unwrap_err();
    assert!(error.to_string().contains("the generator died"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert!(matches!(file.replace(token(1), "older"), Err(FileError::Refused { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "a file is left");
}

#[test]
fn an_invalid_mark_refuses_every_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = FencedFile::new(dir.path().join("state"));
    for text in ["7\n", "lockkeeper-fence 2 0000000000000000007\n", "lockkeeper-fence 1 00000000000", "\0\0\0\0"] {
        fs::write(dir.path().join("state.fence"), text).unwrap();
        let error = file.replace(token(9), "new").unwrap_err();
        assert!(matches!(error, FileError::NoMark { .. }) && error.to_string().contains("state.fence"), "{error}");
        assert!(!dir.path().join("state").exists());
    }
}

/// Replaced, or with a mark of its own, it would forget the tokens that its gate has seen.
#[test]
fn the_mark_of_a_gate_is_no_file_behind_a_gate() {
    let dir = tempfile::tempdir().unwrap();
    let file = FencedFile::new(dir.path().join("state"));
    file.replace(token(200), "new").unwrap();
    let mark = FencedFile::new(dir.path().join("state.fence"));
    let refused = |error: Option<FileError>| {
        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(matches!(&error, Some(FileError::Mark { .. })) && text.contains("state.fence"), "{error:?}");
    };
    refused(mark.replace(token(300), "").err());
    refused(mark.enter(token(300)).err());
    refused(mark.check_replaceable().err());
    refused(mark.highest().err());
    refused(mark.resets().err());
    refused(mark.reset(None, "why").err());
    // Whether the gate has been used or not.
    refused(FencedFile::new(dir.path().join("new-state.fence")).enter(token(1)).err());
    assert_eq!(names(dir.path()), ["state", "state.fence"]);
    assert_eq!(file.highest().unwrap(), Some(token(200)));
    assert!(matches!(file.replace(token(100), "stale"), Err(FileError::Refused { .. })));
}

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Otherwise a newer token through one name would not stop an older one through another.
#[test]
fn a_file_has_one_gate_however_its_path_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    fs::create_dir_all(real.join("sub")).unwrap();
    symlink(&real, dir.path().join("link")).unwrap();
    FencedFile::new(real.join("f")).replace(token(9), "nine").unwrap();
    for spelling in ["link/f", "real/sub/../f", "real/./f", "link/sub/../f", "real//f", "real/f/"] {
        let file = FencedFile::new(dir.path().join(spelling));
        assert!(matches!(file.replace(token(1), "one"), Err(FileError::Refused { .. })), "{spelling}");
    }
    // A directory is named with a slash or without, or from the inside.
    _ = FencedFile::new(real.join("sub")).enter(token(5)).unwrap();
    for spelling in ["real/sub/", "link/sub/.", "real/sub/../sub"] {
        assert_eq!(FencedFile::new(dir.path().join(spelling)).highest().unwrap(), Some(token(5)), "{spelling}");
    }
    symlink("f", real.join("g")).unwrap();
    let error = FencedFile::new(real.join("g")).replace(token(10), "ten").unwrap_err();
    assert!(matches!(error, FileError::Link { .. }) && error.to_string().contains("g is a symbolic link"), "{error}");
    assert!(
        matches!(FencedFile::new(real.join("g")).enter(token(10)), Err(FileError::Link { .. })),
        "a change of its own"
    );
    assert_eq!(names(&real), ["f", "f.fence", "g", "sub", "sub.fence"]);
    assert_eq!(fs::read_to_string(real.join("f")).unwrap(), "nine");
    assert!(FencedFile::new("/").enter(token(1)).is_err());
}

#[test]
fn only_a_regular_file_is_replaced_and_nothing_is_created_beside_another_thing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).unwrap();
    symlink("/dev/full", at("link")).unwrap();
    let before = names(dir.path());
    for (name, kind) in
        [("directory", "a directory"), ("socket", "a socket"), ("pipe", "a pipe"), ("link", "a symbolic link")]
    {
        let error = FencedFile::new(at(name)).replace(token(1), "new").unwrap_err().to_string();
        assert!(error.contains(&format!("{name} is {kind}")), "{error}");
    }
    assert_eq!(names(dir.path()), before);
    // Root may rename a file over a device, and only root may make one.
    let device = (rustix::fs::FileType::CharacterDevice, 0o666.into(), rustix::fs::makedev(1, 7));
    if rustix::fs::mknodat(rustix::fs::CWD, at("full"), device.0, device.1, device.2).is_ok() {
        let error = FencedFile::new(at("full")).replace(token(1), "new").unwrap_err().to_string();
        assert!(error.contains("full is a device") && !at("full.fence").exists(), "{error}");
    }
    // What a command changes may be anything that has a name.
    _ = FencedFile::new(at("directory")).enter(token(1)).unwrap();
    // The mark's own place, too.
    for name in ["a", "b", "c"] {
        fs::write(at("target"), "target").unwrap();
        let fence = at(&format!("{name}.fence"));
        match name {
            "a" => symlink(at("target"), &fence).unwrap(),
            "b" => fs::create_dir(&fence).unwrap(),
            _ => rustix::fs::mkfifoat(rustix::fs::CWD, &fence, 0o600.into()).unwrap(),
        }
        let error = FencedFile::new(at(name)).replace(token(1), "new").unwrap_err();
        assert!(error.to_string().contains(&format!("{name}.fence")), "{error}");
        assert!(!at(name).exists() && fs::read_to_string(at("target")).unwrap() == "target");
    }
}

/// The names that another program can guess, it may have made links; and they may be files of the user.
#[test]
fn no_neighbour_of_the_file_is_followed_or_changed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("victim"), "victim").unwrap();
    symlink(at("victim"), at("state.new")).unwrap();
    fs::write(at("a.new"), "another resource").unwrap();
    FencedFile::new(at("state")).replace(token(1), "one").unwrap();
    FencedFile::new(at("a")).replace(token(1), "one").unwrap();
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "victim");
    assert_eq!(fs::read_to_string(at("a.new")).unwrap(), "another resource");
    assert_eq!(names(dir.path()), ["a", "a.fence", "a.new", "state", "state.fence", "state.new", "victim"]);
}

#[test]
fn a_replaced_file_keeps_its_owner_and_its_permissions_without_setuid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    let file = FencedFile::new(&path);
    file.replace(token(1), "one").unwrap();
    assert_eq!(mode(&path) & 0o600, 0o600);
    // Who can open it for reading can lock it.
    assert_eq!(mode(&dir.path().join("state.fence")), 0o600);
    fs::set_permissions(&path, Permissions::from_mode(0o6751)).unwrap();
    file.replace(token(1), "two").unwrap();
    assert_eq!(mode(&path), 0o751);
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: the owner, which only root may give");
        return;
    }
    chown(&path, Some(1234), Some(4321)).unwrap();
    file.replace(token(2), "three").unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), mode(&path)), (1234, 4321, 0o751));
    assert_eq!(fs::read_to_string(&path).unwrap(), "three");
}

/// Between two tokens, its owner could lower the mark. Only root can make the files of another user for this test.
#[test]
fn a_mark_of_a_user_who_does_not_own_the_file_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let file = FencedFile::new(&path);
    file.replace(token(5), "five").unwrap();
    chown(dir.path().join("state.fence"), Some(54321), None).unwrap();
    let error = file.enter(token(6)).unwrap_err().to_string();
    assert!(error.contains("state.fence belongs to user 54321, who could lower its mark"), "{error}");
    chown(&path, Some(54321), None).unwrap();
    _ = file.enter(token(6)).unwrap();
}

#[test]
fn a_wait_for_the_gate_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let file = FencedFile::new(&path).max_wait(Duration::from_millis(20));
    let pass = file.enter(token(1)).unwrap();
    for limited in [file.clone(), file.clone().max_wait(Duration::ZERO)] {
        let error = limited.enter(token(2)).unwrap_err();
        assert!(matches!(error, FileError::Busy { .. }), "{error}");
        assert!(matches!(limited.highest(), Err(FileError::Busy { .. })));
    }
    drop(pass);
    // The threads that gave up leave the gate open.
    let file = FencedFile::new(&path);
    assert_eq!(file.highest().unwrap(), Some(token(1)), "a token that did not get in raised the mark");
    file.replace(token(2), "two").unwrap();
    file.max_wait(Duration::from_secs(60)).replace(token(3), "three").unwrap();
}

#[test]
fn a_token_of_a_far_epoch_does_not_close_the_gate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let (file, epoch) = (FencedFile::new(&path), |epoch: i64| token((epoch << 48) + 7));
    file.replace(epoch(0), "0").unwrap();
    for far in [epoch(2), token(i64::MAX)] {
        let error = file.replace(far, "far").unwrap_err();
        assert!(matches!(error, FileError::EpochAhead { .. }), "{error}");
    }
    file.replace(epoch(1), "1").unwrap();
    file.replace(epoch(2), "2").unwrap();
    file.clone().any_epoch().replace(epoch(30), "30").unwrap();
    assert!(matches!(file.replace(epoch(3), "3"), Err(FileError::Refused { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "30");
}

#[test]
fn a_reset_opens_the_gate_and_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let file = FencedFile::new(&path);
    assert!(file.reset(None, "nothing to reset").is_err());
    file.replace(token(i64::MAX), "wrong").unwrap();
    file.reset(Some(token(5)), "by a\nwith a wrong token").unwrap();
    assert!(matches!(file.replace(token(4), "stale"), Err(FileError::Refused { .. })));
    file.replace(token(6), "six").unwrap();
    file.reset(None, "by b").unwrap();
    assert_eq!(file.highest().unwrap(), None);
    file.replace(token(2), "two").unwrap();
    fs::write(dir.path().join("state.fence"), "garbage").unwrap();
    file.reset(None, "by c").unwrap();
    file.reset(None, "by d").unwrap();
    file.replace(token(3), "three").unwrap();
    assert_eq!(file.resets().unwrap(), ["by c", "by d"]);
    assert_eq!(file.highest().unwrap(), Some(token(3)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "three");
}

/// Each writer replaces the file with its own token while others overtake it. At the end the file is that of the greatest
/// admitted token.
#[test]
fn racing_writers_leave_the_file_of_the_newest() {
    const WRITERS: i64 = 4;
    const ROUNDS: i64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let (next, newest) = (AtomicI64::new(1), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let file = FencedFile::new(&path);
                for _ in 0..ROUNDS {
                    let own = next.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    match file.enter(token(own)) {
                        Ok(pass) => {
                            assert!(newest.swap(own, Ordering::SeqCst) < own, "an older holder after a newer one");
                            pass.replace(&mut own.to_string().as_bytes()).unwrap();
                        }
                        Err(FileError::Refused { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let seen: i64 = fs::read_to_string(&path).unwrap().parse().unwrap();
                    assert!(seen > 0);
                }
            });
        }
    });
    let last = newest.into_inner();
    assert_eq!(fs::read_to_string(&path).unwrap(), last.to_string());
    assert_eq!(FencedFile::new(&path).highest().unwrap(), Some(token(last)));
}
