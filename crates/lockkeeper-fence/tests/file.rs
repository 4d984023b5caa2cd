//! A file behind a gate: complete at every moment, and never replaced by an older holder after a newer one.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};

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
