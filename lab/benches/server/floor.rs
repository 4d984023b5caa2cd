//! The least that a server can cost: answers of the right length to whatever comes, and nothing behind them.
//!
//! No tree, no session, no disk, no task: threads with an epoll each, one read and one write for each connection that has
//! asked. What stands beside this shows how much of a measurement is the kernel's sockets and the client, which no server can
//! save.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Events that are taken at a time: more than any row has connections.
const EVENTS: usize = 256;
/// More than any connection has in flight, both ways.
const BUFFER: usize = 64 << 10;
/// Bytes in an answer: of its header, a path with a number, data, a stat.
const HEADER: usize = 16;
const PATH: usize = 64;
const DATA: usize = 4 + 200;
const STAT: usize = 68;

/// One thread's connections by their numbers; nothing where one was closed.
#[derive(Debug)]
struct Part {
    epoll: OwnedFd,
    streams: Mutex<Vec<Option<TcpStream>>>,
}

/// Says where it serves, and does with so many threads for as long as the process lives.
pub(crate) fn serve(threads: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut parts = Vec::with_capacity(threads);
    for _ in 0..threads {
        let part = Arc::new(Part { epoll: epoll::create(CreateFlags::CLOEXEC)?, streams: Mutex::default() });
        parts.push(Arc::clone(&part));
        thread::spawn(move || part.answer());
    }
    println!("{}", listener.local_addr()?);
    for (stream, part) in listener.incoming().zip(parts.iter().cycle()) {
        part.add(stream?)?;
    }
    Ok(())
}

impl Part {
    fn add(&self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut streams = self.streams.lock().expect("nobody panics with it");
        let number = EventData::new_u64(streams.len() as u64);
        epoll::add(&self.epoll, &stream, number, EventFlags::IN | EventFlags::ET)?;
        streams.push(Some(stream));
        Ok(())
    }

    fn answer(&self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let (mut incoming, mut outgoing) = (vec![0; BUFFER], Vec::with_capacity(BUFFER));
        loop {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
            let mut streams = self.streams.lock().expect("nobody panics with it");
            for event in &events {
                let data = event.data;
                let slot = &mut streams[usize::try_from(data.u64())?];
                let Some(stream) = slot else { continue };
                match stream.read(&mut incoming) {
                    Ok(len) if len > 0 => {
                        answers(&incoming[..len], &mut outgoing)?;
                        stream.write_all(&outgoing)?;
                        outgoing.clear();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    _ => *slot = None,
                }
            }
        }
    }
}

/// Answers requests. None arrives in part, because the client writes few and short ones at a time.
fn answers(mut requests: &[u8], out: &mut Vec<u8>) -> Result<()> {
    while let Some((len, rest)) = requests.split_first_chunk() {
        let (request, more) = rest.split_at(u32::from_be_bytes(*len) as usize);
        let len = match request[4..8] {
            [0, 0, 0, 1] => HEADER + PATH,
            [0, 0, 0, 4] => HEADER + DATA + STAT,
            [0, 0, 0, 5] => HEADER + STAT,
            _ => HEADER,
        };
        out.extend_from_slice(&u32::try_from(len)?.to_be_bytes());
        out.resize(out.len() + len, 0);
        requests = more;
    }
    Ok(())
}
