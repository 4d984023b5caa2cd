//! The protocol's error codes.

use crate::codes::codes;

codes! {
    /// The protocol's errors.
    #[non_exhaustive]
    #[allow(missing_docs, reason = "the protocol's own names")]
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
}
