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
        RequestError::TooLarge { .. } => return OpError::Refused(error.to_string()),
        RequestError::SessionOver(_) | RequestError::DriverEnded => return OpError::SessionOver,
    };
    // The operation may have happened, so its result is looked up. If this counted as a refusal, a node could stay
    // behind forever.
    if !code.is_refusal() {
        return OpError::ConnectionLoss;
    }
    let refused = |reason: &str| OpError::Refused(reason.to_owned());
    match code {
        ErrorCode::NoNode => OpError::NoNode,
        ErrorCode::NodeExists => OpError::NodeExists,
        ErrorCode::BadVersion => OpError::BadVersion,
        ErrorCode::SessionExpired | ErrorCode::AuthFailed | ErrorCode::SessionClosedRequireSaslAuth => {
            OpError::SessionOver
        }
        ErrorCode::Unimplemented => OpError::Unsupported,
        ErrorCode::NoAuth => refused("not authorized"),
        ErrorCode::InvalidAcl => refused("invalid access list"),
        ErrorCode::NoChildrenForEphemerals => refused("an ephemeral node cannot have children"),
        ErrorCode::NotEmpty => refused("the node has children"),
        ErrorCode::QuotaExceeded => refused("the quota of the path is exceeded"),
        ErrorCode::BadArguments => refused("invalid arguments"),
        ErrorCode::EphemeralOnLocalSession => refused(
            "a local session cannot have ephemeral nodes; set localSessionsUpgradingEnabled=true on the servers",
        ),
        other => refused(&format!("{other:?}")),
    }
}

/// Whether the connection is not lost although the operation has failed with [`OpError::ConnectionLoss`].
pub(super) fn connection_lives(error: RequestError) -> bool {
    matches!(error, RequestError::Refused(_))
}
