//! What is special to each kind of lock, request by request and node by node.

mod revoking;
mod sharing;
