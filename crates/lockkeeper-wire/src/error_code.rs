//! The protocol's error codes.

use crate::codes::codes;

codes! {
    #[non_exhaustive]
    pub enum ErrorCode {
        SystemError = -1,
        RuntimeInconsistency = -2,
        DataInconsistency = -3,
        ConnectionLoss = -4,
        MarshallingError = -5,
        Unimplemented = -6,
        OperationTimeout = -7,
        BadArguments = -8,
        UnknownSession = -12,
        NewConfigNoQuorum = -13,
        ReconfigInProgress = -14,
        ApiError = -100,
        NoNode = -101,
        NoAuth = -102,
        BadVersion = -103,
        NoChildrenForEphemerals = -108,
        NodeExists = -110,
        NotEmpty = -111,
        SessionExpired = -112,
        InvalidCallback = -113,
        InvalidAcl = -114,
        AuthFailed = -115,
        SessionMoved = -118,
        NotReadOnly = -119,
        EphemeralOnLocalSession = -120,
        NoWatcher = -121,
        RequestTimeout = -122,
        ReconfigDisabled = -123,
        SessionClosedRequireSaslAuth = -124,
        QuotaExceeded = -125,
        ThrottledOp = -127,
    }
}

impl ErrorCode {
    /// Returns the error with this number; an unknown number becomes [`ErrorCode::SystemError`].
    pub fn known_or_system(number: i32) -> Self {
        Self::from_i32(number).unwrap_or(Self::SystemError)
    }

    /// Returns whether a server that answers a request with this error has examined the request, and has carried out
    /// nothing of it.
    ///
    /// All other errors mean that something went wrong, not that the request is wrong. A server that loses its leader or
    /// shuts down answers with a marshalling error, a moved session or a code of its own. The request may have been
    /// carried out.
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::Unimplemented
                | Self::BadArguments
                | Self::NoNode
                | Self::NoAuth
                | Self::BadVersion
                | Self::NoChildrenForEphemerals
                | Self::NodeExists
                | Self::NotEmpty
                | Self::SessionExpired
                | Self::InvalidAcl
                | Self::AuthFailed
                | Self::EphemeralOnLocalSession
                | Self::SessionClosedRequireSaslAuth
                | Self::QuotaExceeded
        )
    }
}
