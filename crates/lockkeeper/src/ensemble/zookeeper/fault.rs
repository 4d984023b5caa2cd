//! What the client's errors mean for the protocol.

use std::time::Duration;

use zookeeper_client as zk;

use crate::ensemble::OpError;

/// The pause before an operation is retried on a connection that is not lost, so that a server in trouble is not
/// flooded.
const TROUBLED: Duration = Duration::from_millis(50);

/// The meaning of an error, returned after a pause if an immediate retry would flood a server in trouble.
pub(super) async fn told(error: &zk::Error) -> OpError {
    let fault = fault(error);
    if fault == OpError::ConnectionLoss && connection_stands(error) {
        tracing::debug!(%error, "the server is in trouble; retrying");
        tokio::time::sleep(TROUBLED).await;
    }
    fault
}

/// A refusal with its node's path as the server knows it: often not the lock's own node, and below a chroot.
pub(super) fn at_node(fault: OpError, path: &str) -> OpError {
    match fault {
        OpError::Refused(reason) => OpError::Refused(format!("{reason} (node {path})")),
        other => other,
    }
}

/// The meaning of a client crate's error for the protocol.
pub(super) fn fault(error: &zk::Error) -> OpError {
    match error {
        zk::Error::NoNode => OpError::NoNode,
        zk::Error::NodeExists => OpError::NodeExists,
        zk::Error::BadVersion => OpError::BadVersion,
        zk::Error::SessionExpired | zk::Error::ClientClosed | zk::Error::AuthFailed => OpError::SessionOver,
        zk::Error::Unimplemented => OpError::Unsupported,
        // The server examined the request and refused it, and would refuse it again.
        zk::Error::NoAuth
        | zk::Error::InvalidAcl
        | zk::Error::NoChildrenForEphemerals
        | zk::Error::NotEmpty
        | zk::Error::QuotaExceeded
        | zk::Error::BadArguments(_) => OpError::Refused(error.to_string()),
        // All other errors mean that something went wrong, not that the request is wrong. A server that loses its
        // leader or shuts down answers with a marshalling error, a moved session or a code of its own. Treating that as
        // a refusal would leave a node behind forever. So the operation may have happened, and its result is looked up.
        _ => OpError::ConnectionLoss,
    }
}

/// Whether the connection is not lost although the operation has failed with [`OpError::ConnectionLoss`].
pub(super) fn connection_stands(error: &zk::Error) -> bool {
    !matches!(error, zk::Error::ConnectionLoss | zk::Error::Custom(_) | zk::Error::UnexpectedError(_))
}
