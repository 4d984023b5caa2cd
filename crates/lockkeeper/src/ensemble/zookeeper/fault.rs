//! What the client's errors mean for the protocol.

use std::time::Duration;

use lockkeeper_client::RequestError;
use lockkeeper_client::wire::ErrorCode;

use crate::ensemble::OpError;

/// The pause before an operation is retried on a connection that is not lost, so that a server in trouble is not
/// flooded.
pub(super) const TROUBLED: Duration = Duration::from_millis(50);

/// The meaning of an error, returned after a pause if an immediate retry would flood a server in trouble.
pub(super) async fn told(error: RequestError) -> OpError {
    let fault = fault(error);
    if fault == OpError::ConnectionLoss && connection_lives(error) {
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

/// The meaning of a client's error for the protocol.
pub(super) fn fault(error: RequestError) -> OpError {
    let code = match error {
        RequestError::Refused(code) => code,
        RequestError::ConnectionLoss => return OpError::ConnectionLoss,
        RequestError::SessionOver(_) | RequestError::DriverEnded => return OpError::SessionOver,
    };
    let refused = |reason: &str| OpError::Refused(reason.to_owned());
    match code {
        ErrorCode::NoNode => OpError::NoNode,
        ErrorCode::NodeExists => OpError::NodeExists,
        ErrorCode::BadVersion => OpError::BadVersion,
        ErrorCode::SessionExpired | ErrorCode::AuthFailed => OpError::SessionOver,
        ErrorCode::Unimplemented => OpError::Unsupported,
        // The server examined the request and refused it, and would refuse it again.
        ErrorCode::NoAuth => refused("not authorized"),
        ErrorCode::InvalidAcl => refused("invalid access list"),
        ErrorCode::NoChildrenForEphemerals => refused("an ephemeral node cannot have children"),
        ErrorCode::NotEmpty => refused("the node has children"),
        ErrorCode::QuotaExceeded => refused("the quota of the path is exceeded"),
        ErrorCode::BadArguments => refused("invalid arguments"),
        // All other errors mean that something went wrong, not that the request is wrong. A server that loses its
        // leader or shuts down answers with a marshalling error, a moved session or a code of its own. Treating that as
        // a refusal would leave a node behind forever. So the operation may have happened, and its result is looked up.
        _ => OpError::ConnectionLoss,
    }
}

/// Whether the connection is not lost although the operation has failed with [`OpError::ConnectionLoss`].
pub(super) fn connection_lives(error: RequestError) -> bool {
    matches!(error, RequestError::Refused(_))
}
