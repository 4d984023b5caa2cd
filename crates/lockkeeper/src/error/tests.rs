use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AttemptId, IncompatibleFormat, LockPath, Loss, Owner, Payload, Revocation, SessionId, Zxid};
use lockkeeper_session::ensemble::{Node, Proof};

use super::*;
use crate::broken::Broken;
use crate::contender::ContenderInfo;

/// A text of another client, and how it is shown.
pub(crate) const ACTIVE: &str = "a\x1b[2J\u{202e}rtl\nfake: line";
const SHOWN: &str = "a\\u{1b}[2J\\u{202e}rtl fake: line";

pub(crate) const WAITED: Duration = Duration::from_secs(2);

pub(crate) fn path() -> String {
    "/locks/nightly".to_owned()
}

pub(crate) fn text() -> String {
    "because".to_owned()
}

/// Checks the kind of each error, as itself and as an [`Error`].
pub(crate) fn are<E: Clone + std::fmt::Debug + Into<Error>>(kind: ErrorKind, own: fn(&E) -> ErrorKind, errors: Vec<E>) {
    for error in errors {
        assert_eq!(own(&error), kind, "{error:?}");
        let any: Error = error.clone().into();
        assert_eq!(any.kind(), kind, "{error:?}");
        assert_eq!(any.is_retryable(), kind.is_retryable(), "{error:?}");
    }
}

#[test]
fn what_every_call_can_meet_has_a_kind() {
    are(
        ErrorKind::Misuse,
        |error: &Misuse| error.kind(),
        vec![crate::error::misuse::no_locks(), LockPath::parse("x").unwrap_err().into()],
    );
    let own = |error: &SessionError| error.kind();
    let unreachable = SessionError::Unreachable { servers: text(), waited: WAITED, detail: text() };
    are(ErrorKind::Unavailable, own, vec![unreachable, SessionError::ConnectionLost { path: path() }]);
    let refused = SessionError::Refused { path: path(), reason: text() };
    let required = SessionError::AuthRequired { servers: text() };
    are(ErrorKind::Refused, own, vec![refused, SessionError::AuthFailed { servers: text() }, required]);
    let no_chroot = SessionError::NoChroot { servers: text(), chroot: path() };
    are(ErrorKind::Mismatch, own, vec![no_chroot, SessionError::TokenEpoch { node: path(), problem: text() }]);
    are(ErrorKind::System, own, vec![SessionError::Thread(Arc::new(io::Error::other("no thread")))]);
    are(ErrorKind::Cancelled, own, vec![SessionError::Closed]);
    are(ErrorKind::Misuse, own, vec![SessionError::Forked]);
    are(ErrorKind::Cancelled, |error: &ConnectError| error.kind(), vec![SessionError::Closed.into()]);
    are(ErrorKind::Misuse, |error: &ConnectError| error.kind(), vec![crate::error::misuse::no_locks().into()]);
}

#[cfg(feature = "embedded")]
#[test]
fn every_error_of_an_embedded_server_has_a_kind() {
    let own = |error: &EmbeddedError| error.kind();
    are(ErrorKind::Unavailable, own, vec![EmbeddedError::NotRunning { dir: "/srv".into() }]);
    let in_use = lockkeeper_server::ServerError::InUse { path: "/srv".into() };
    let file = EmbeddedError::File { what: "cannot read", file: "/srv".into(), cause: Arc::new(io::Error::other("x")) };
    are(ErrorKind::System, own, vec![in_use.into(), file]);
}

/// A server of this machine has no address that others could check.
#[test]
fn the_hint_about_a_silent_server_fits_the_server() {
    let hint = |servers: &str| {
        SessionError::Unreachable { servers: servers.to_owned(), waited: WAITED, detail: text() }.hint().unwrap()
    };
    assert!(hint("zk1:2181").contains("a ZooKeeper server runs at zk1:2181"));
    for own in ["the server of /srv", "unix:/srv/socket"] {
        assert!(!hint(own).contains("ZooKeeper") && hint(own).contains(own), "{}", hint(own));
    }
}

/// Programs print an error and its sources, one after the other.
#[cfg(feature = "embedded")]
#[test]
fn no_source_of_an_error_is_a_part_of_its_text() {
    use lockkeeper_server::ServerError;
    let cause = || io::Error::other("quota exceeded");
    let (file, path) = (EmbeddedError::file("cannot read", "/srv", cause()), || "/srv".into());
    let disk = ServerError::Disk { path: path(), cause: cause() };
    let socket = ServerError::Socket { path: path(), cause: cause() };
    let embedded = [file, disk.into(), socket.into()].map(SessionError::from);
    for error in embedded.into_iter().chain([SessionError::Thread(Arc::new(cause()))]) {
        let error = Error::from(error);
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let told: Vec<_> = chain.map(ToString::to_string).collect();
        assert_eq!(told.concat().matches("quota exceeded").count(), 1, "{told:?}");
    }
}

#[test]
fn every_error_of_an_acquire_has_a_kind() {
    let own = |error: &AcquireError| error.kind();
    are(
        ErrorKind::Taken,
        own,
        vec![
            AcquireError::Held { path: path(), holder: None, ahead: None },
            AcquireError::Timeout { path: path(), waited: WAITED, holder: None, ahead: None },
            AcquireError::TooManyWaiters { path: path(), ahead: 2, most: 1 },
        ],
    );
    are(
        ErrorKind::Withdrawn,
        own,
        vec![
            AcquireError::Revoked { path: path(), by: Box::default() },
            AcquireError::Evicted { path: path(), node: text(), by: None },
            AcquireError::ParentVanishes { path: path() },
        ],
    );
    are(ErrorKind::Cancelled, own, vec![AcquireError::Cancelled { path: path() }, SessionError::Closed.into()]);
    let lost = |loss| AcquireError::SessionLost { path: path(), loss };
    are(ErrorKind::Unavailable, own, vec![lost(Loss::SessionExpired), lost(Loss::Unreachable)]);
    are(ErrorKind::Refused, own, vec![lost(Loss::AuthFailed), lost(Loss::AuthRequired)]);
    are(ErrorKind::NotFound, own, vec![AcquireError::NoSuchLock { path: path() }]);
    are(
        ErrorKind::Misuse,
        own,
        vec![AcquireError::AlreadyHeld { path: path() }, crate::error::misuse::no_locks().into()],
    );
    are(ErrorKind::Mismatch, own, mismatches().into_iter().map(AcquireError::from).collect());
}

/// For a caller that has to return an `io::Error`, as the clients of ZooKeeper's recipes for Java do.
#[test]
fn errors_of_locks_become_errors_of_files_and_sockets() {
    let kind_of = |error: AcquireError| io::Error::from(error).kind();
    let timeout = AcquireError::Timeout { path: path(), waited: WAITED, holder: None, ahead: None };
    let text = timeout.to_string();
    let converted = io::Error::from(timeout);
    assert_eq!((converted.kind(), converted.to_string()), (io::ErrorKind::TimedOut, text));
    assert!(converted.get_ref().is_some_and(|error| error.is::<AcquireError>()));
    assert_eq!(kind_of(AcquireError::Held { path: path(), holder: None, ahead: None }), io::ErrorKind::WouldBlock);
    assert_eq!(kind_of(AcquireError::NoSuchLock { path: path() }), io::ErrorKind::NotFound);
    assert_eq!(kind_of(AcquireError::Cancelled { path: path() }), io::ErrorKind::Other);
    let lost = io::Error::from(ReleaseError::NotHeld { loss: Loss::SessionExpired });
    assert_eq!(lost.kind(), io::ErrorKind::ConnectionAborted);
}

pub(crate) fn mismatches() -> [Mismatch; 3] {
    [
        Mismatch::Permits { path: path(), ours: 2, stated: Some(3) },
        Mismatch::Format { path: path(), theirs: IncompatibleFormat::Leased },
        Mismatch::NotARecord { path: path(), problem: text() },
    ]
}

#[test]
fn every_error_of_a_hold_has_a_kind() {
    let loss = Loss::SessionExpired;
    let own = |error: &ReleaseError| error.kind();
    are(ErrorKind::Lost, own, vec![ReleaseError::NotHeld { loss }]);
    are(ErrorKind::Misuse, own, vec![ReleaseError::NotLocked { path: path() }]);
    are(ErrorKind::Unconfirmed, own, vec![ReleaseError::Timeout { path: path(), waited: WAITED }]);
    are(ErrorKind::Refused, own, vec![ReleaseError::Failed { reason: text() }]);
    let own = |error: &ChangeError| error.kind();
    are(ErrorKind::Taken, own, vec![ChangeError::Timeout { path: path(), waited: WAITED }]);
    are(ErrorKind::Cancelled, own, vec![ChangeError::Cancelled { path: path() }]);
    are(ErrorKind::Lost, own, vec![ChangeError::Lost(loss)]);
    let own = |error: &VerifyError| error.kind();
    are(ErrorKind::Lost, own, vec![VerifyError::Lost(loss)]);
    are(ErrorKind::Refused, own, vec![VerifyError::Refused { path: path(), reason: text() }]);
    let own = |error: &WriteError| error.kind();
    are(ErrorKind::Lost, own, vec![WriteError::Lost { path: path(), loss }]);
    are(ErrorKind::Unconfirmed, own, vec![WriteError::Unknown { path: path() }]);
    are(ErrorKind::Unavailable, own, vec![WriteError::NotSent { path: path() }]);
    are(ErrorKind::NotFound, own, vec![WriteError::NoNode { path: path() }]);
    let version = WriteError::BadVersion { path: path(), expected: 1 };
    are(ErrorKind::Mismatch, own, vec![WriteError::NodeExists { path: path() }, version]);
    are(ErrorKind::Refused, own, vec![WriteError::Refused { path: path(), reason: text() }]);
    are(
        ErrorKind::Misuse,
        own,
        vec![crate::error::misuse::no_locks().into(), WriteError::TooLarge { bytes: 2, max: 1 }],
    );
}

#[test]
fn every_error_of_an_admin_call_has_a_kind() {
    let own = |error: &AdminError| error.kind();
    are(
        ErrorKind::NotFound,
        own,
        vec![
            AdminError::NoSuchLock { path: path() },
            AdminError::NobodyHolds { path: path() },
            AdminError::NotContending { path: path(), node: text() },
        ],
    );
    let several = AdminError::SeveralHold { path: path(), holders: Vec::new() };
    are(ErrorKind::Misuse, own, vec![several, crate::error::misuse::no_reason("/a").into()]);
    are(ErrorKind::Refused, own, vec![AdminError::CannotAsk { path: path(), node: text() }]);
    are(ErrorKind::Mismatch, own, mismatches().into_iter().map(AdminError::from).collect());
    are(ErrorKind::Cancelled, own, vec![SessionError::Closed.into()]);
}

/// What `run` of a guard returns.
#[test]
fn a_loss_is_an_error_of_the_library() {
    are(ErrorKind::Lost, |_: &Loss| ErrorKind::Lost, vec![Loss::Removed, Loss::SessionExpired]);
    assert_eq!(Error::from(Loss::Removed).to_string(), "the lock is lost: the node was deleted by someone else");
}

/// Every client that may write a lock's node could otherwise move the cursor of a terminal or fake a line of a log.
#[test]
fn the_texts_of_other_clients_are_shown_without_control_characters() {
    let text = || ACTIVE.to_owned();
    let person = || Owner { user: text(), host: text(), pid: 1, program: None };
    let data = Payload::new(AttemptId::new(7), person(), Some(ACTIVE), 0).to_bytes();
    let name = "_c_00000000-0000-0000-0000-000000000007-lock-0000000001".to_owned();
    let session = SessionId(1);
    let (czxid, mzxid, owner) = (Zxid(7), Zxid(7), session);
    let seen = Node { data, czxid, mzxid, pzxid: czxid, ctime_ms: 0, mtime_ms: 0, version: 0, owner, children: 0 };
    let holder = ContenderInfo::read(name, &seen);
    let leased = ContenderInfo { described: text(), ..holder.clone() };
    let behind = ContenderInfo { blocked_by: Some(text()), ..holder.clone() };
    let held = |holder: &ContenderInfo| Some(Box::new(holder.clone()));
    let mut asked = Revocation::default();
    (asked.by, asked.reason) = (Some(person()), Some(text()));
    let broken = Broken {
        path: path(),
        node: text(),
        held: false,
        owner: None,
        described: text(),
        message: None,
        since_ms: 0,
        session,
        token: None,
        by: person(),
        proof: Proof::Unknown,
        reason: text(),
        at: std::time::UNIX_EPOCH,
    };
    let evicted = |by| AcquireError::Evicted { path: path(), node: text(), by };
    check_shown(vec![
        AcquireError::Held { path: path(), holder: held(&holder), ahead: None }.into(),
        AcquireError::Held { path: path(), holder: held(&behind), ahead: None }.into(),
        AcquireError::Timeout { path: path(), waited: WAITED, holder: held(&leased), ahead: None }.into(),
        AcquireError::Revoked { path: path(), by: Box::new(asked) }.into(),
        evicted(None).into(),
        evicted(Some(Box::new(broken))).into(),
    ]);
}

/// Checks errors with the text [`ACTIVE`] of another client.
pub(crate) fn check_shown(errors: Vec<Error>) {
    for error in errors {
        for shown in [format!("{error}"), format!("{error:#}")] {
            assert!(shown.contains(SHOWN) && !shown.contains(lockkeeper_core::is_active), "{shown:?}");
        }
    }
}

/// A service keeps errors in its state and passes them between its tasks.
#[test]
fn errors_can_be_cloned_and_sent() {
    fn check<E: std::error::Error + Clone + Send + Sync + 'static>() {}
    check::<Error>();
    check::<AcquireError>();
    check::<AdminError>();
    check::<ConnectError>();
    check::<ReleaseError>();
    check::<WriteError>();
}
