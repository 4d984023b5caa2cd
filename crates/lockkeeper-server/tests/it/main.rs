//! The server over TCP, judged by a client of our own and by a foreign one.

mod client;
mod foreign;
mod hostile;
mod living;
mod protocol;
mod storage;
mod watching;
