//! The part of `lockkeeper`, which this program plays when the client starts it: its standard streams are those of the script.

use std::ffi::OsStr;
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use serde_json::json;

/// The variable with the socket of the script.
pub(crate) const SOCKET: &str = "LOCKKEEPER_CONFORMANCE_SOCKET";

/// What the script sends: one of these, the number of bytes in four bytes, and the bytes.
pub(crate) const OUTPUT: u8 = b'o';
pub(crate) const ERROR: u8 = b'e';
pub(crate) const EXIT: u8 = b'x';

/// Copies between the script and the standard streams, until the script says how to end.
pub(crate) fn play(socket: &OsStr) -> io::Result<ExitCode> {
    let script = UnixStream::connect(socket)?;
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    writeln!(&script, "{}", json!({ "pid": std::process::id(), "arguments": arguments }))?;
    let mut words = script.try_clone()?;
    // It ends with this process.
    thread::spawn(move || {
        _ = io::copy(&mut io::stdin().lock(), &mut words);
        _ = words.shutdown(Shutdown::Write);
    });
    let mut script = BufReader::new(script);
    loop {
        let mut head = [0; 5];
        script.read_exact(&mut head)?;
        let [what, length @ ..] = head;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        script.read_exact(&mut bytes)?;
        // A client that does not read any more misses nothing that the script needs.
        _ = match what {
            OUTPUT => io::stdout().write_all(&bytes).and_then(|()| io::stdout().flush()),
            ERROR => io::stderr().write_all(&bytes),
            _ => return Ok(ExitCode::from(bytes[0])),
        };
    }
}
