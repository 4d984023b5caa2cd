//! A blocking client that writes the protocol's bytes itself, so that it is independent of the codec.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a test waits for something that must arrive.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) const CREATE: i32 = 1;
pub(crate) const DELETE: i32 = 2;
pub(crate) const EXISTS: i32 = 3;
pub(crate) const GET_DATA: i32 = 4;
pub(crate) const SET_DATA: i32 = 5;
pub(crate) const GET_ACL: i32 = 6;
pub(crate) const SET_ACL: i32 = 7;
pub(crate) const GET_CHILDREN: i32 = 8;
pub(crate) const SYNC: i32 = 9;
pub(crate) const PING: i32 = 11;
pub(crate) const GET_CHILDREN2: i32 = 12;
pub(crate) const CHECK: i32 = 13;
pub(crate) const MULTI: i32 = 14;
pub(crate) const CREATE2: i32 = 15;
pub(crate) const CHECK_WATCHES: i32 = 17;
pub(crate) const REMOVE_WATCHES: i32 = 18;
pub(crate) const CREATE_CONTAINER: i32 = 19;
pub(crate) const CREATE_TTL: i32 = 21;
pub(crate) const MULTI_READ: i32 = 22;
pub(crate) const AUTH: i32 = 100;
pub(crate) const SET_WATCHES: i32 = 101;
pub(crate) const SASL: i32 = 102;
pub(crate) const GET_EPHEMERALS: i32 = 103;
pub(crate) const GET_ALL_CHILDREN_NUMBER: i32 = 104;
pub(crate) const SET_WATCHES2: i32 = 105;
pub(crate) const ADD_WATCH: i32 = 106;
pub(crate) const WHO_AM_I: i32 = 107;
pub(crate) const RECONFIG: i32 = 16;
pub(crate) const CLOSE_SESSION: i32 = -11;

/// Bytes under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(pub Vec<u8>);

impl Bytes {
    pub(crate) fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn flag(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }
    pub(crate) fn buffer(mut self, value: &[u8]) -> Self {
        self = self.int(value.len().try_into().unwrap());
        self.0.extend(value);
        self
    }
    pub(crate) fn text(self, value: &str) -> Self {
        self.buffer(value.as_bytes())
    }
    pub(crate) fn texts(mut self, values: &[&str]) -> Self {
        self = self.int(values.len().try_into().unwrap());
        values.iter().fold(self, |bytes, value| bytes.text(value))
    }
    pub(crate) fn acl(self, perms: i32, scheme: &str, id: &str) -> Self {
        self.int(1).int(perms).text(scheme).text(id)
    }
    pub(crate) fn open_acl(self) -> Self {
        self.acl(31, "world", "anyone")
    }
    pub(crate) fn create(self, path: &str, data: &[u8], flags: i32) -> Self {
        self.text(path).buffer(data).open_acl().int(flags)
    }
    pub(crate) fn op(self, opcode: i32) -> Self {
        self.int(opcode).flag(false).int(-1)
    }
    pub(crate) fn end(self) -> Self {
        self.int(-1).flag(true).int(-1)
    }
}

pub(crate) fn bytes() -> Bytes {
    Bytes::default()
}

/// Bytes to be read.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    pub(crate) error: i32,
    pub(crate) body: Vec<u8>,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) cversion: i32,
    pub(crate) aversion: i32,
    pub(crate) owner: i64,
    pub(crate) data_length: i32,
    pub(crate) num_children: i32,
    pub(crate) pzxid: i64,
}

impl Answer {
    pub(crate) fn take(&mut self, len: usize) -> &[u8] {
        self.at += len;
        &self.body[self.at - len..self.at]
    }
    pub(crate) fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }
    pub(crate) fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().unwrap())
    }
    pub(crate) fn flag(&mut self) -> bool {
        self.take(1)[0] != 0
    }
    pub(crate) fn buffer(&mut self) -> Option<Vec<u8>> {
        let len = self.int();
        usize::try_from(len).ok().map(|len| self.take(len).to_vec())
    }
    pub(crate) fn text(&mut self) -> String {
        String::from_utf8(self.buffer().unwrap()).unwrap()
    }
    pub(crate) fn texts(&mut self) -> Vec<String> {
        (0..self.int()).map(|_| self.text()).collect()
    }
    pub(crate) fn stat(&mut self) -> Stat {
        Stat {
            czxid: self.long(),
            mzxid: self.long(),
            ctime: self.long(),
            mtime: self.long(),
            version: self.int(),
            cversion: self.int(),
            aversion: self.int(),
            owner: self.long(),
            data_length: self.int(),
            num_children: self.int(),
            pzxid: self.long(),
        }
    }
    pub(crate) fn is_finished(&self) -> bool {
        self.at == self.body.len()
    }
}

/// A watch event. Its transaction is in `event_zxids`, because few tests can predict it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: i32,
    pub(crate) path: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: i64,
    pub(crate) timeout: i32,
    pub(crate) password: Vec<u8>,
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) session: Session,
    pub(crate) last_zxid: i64,
    xid: i32,
    /// Events in the order of arrival, with the number of answers before each one.
    pub(crate) events: Vec<(usize, Event)>,
    /// The transactions of all events.
    pub(crate) event_zxids: Vec<i64>,
    pub(crate) answers: usize,
}

/// Runs a future without a runtime.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Waits for a condition, never for a time.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "never came to pass: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn socket(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(crate) fn write_frame(stream: &mut TcpStream, body: &[u8]) -> io::Result<()> {
    let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(body);
    stream.write_all(&frame)
}

pub(crate) fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

pub(crate) fn connect_frame(last_zxid: i64, timeout: i32, session: i64, password: &[u8]) -> Bytes {
    bytes().int(0).long(last_zxid).int(timeout).long(session).buffer(password)
}

pub(crate) fn four_letters(addr: SocketAddr, word: &str) -> String {
    let mut stream = socket(addr);
    stream.write_all(word.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self::connect_with(addr, 10_000)
    }

    pub(crate) fn connect_with(addr: SocketAddr, timeout: i32) -> Self {
        Self::open(socket(addr), 0, timeout, 0, &[0; 16]).expect("a new session is always given")
    }

    /// Opens a new session; returns an error if the server closes the connection.
    pub(crate) fn open_if_let(addr: SocketAddr) -> Option<Self> {
        let mut stream = TcpStream::connect(addr).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write_frame(&mut stream, &connect_frame(0, 10_000, 0, &[0; 16]).flag(false).0).ok()?;
        let mut answer = Answer { xid: 0, zxid: 0, error: 0, body: read_frame(&mut stream).ok()?, at: 4 };
        let session = Session { timeout: answer.int(), id: answer.long(), password: answer.buffer()? };
        Some(Self { stream, session, last_zxid: 0, xid: 0, events: Vec::new(), event_zxids: Vec::new(), answers: 0 })
    }

    pub(crate) fn resume(addr: SocketAddr, session: &Session, last_zxid: i64) -> Option<Self> {
        Self::open(socket(addr), last_zxid, session.timeout, session.id, &session.password)
    }

    pub(crate) fn open(
        mut stream: TcpStream,
        last_zxid: i64,
        timeout: i32,
        session: i64,
        password: &[u8],
    ) -> Option<Self> {
        write_frame(&mut stream, &connect_frame(last_zxid, timeout, session, password).flag(false).0).unwrap();
        let body = read_frame(&mut stream).ok()?;
        let mut answer = Answer { xid: 0, zxid: 0, error: 0, body, at: 0 };
        assert_eq!(answer.int(), 0);
        let timeout = answer.int();
        let id = answer.long();
        let password = answer.buffer().unwrap();
        assert!(!answer.flag() && answer.is_finished());
        if id == 0 {
            assert_eq!((timeout, password), (0, vec![0; 16]));
            return None;
        }
        let session = Session { id, timeout, password };
        Some(Self { stream, session, last_zxid, xid: 0, events: Vec::new(), event_zxids: Vec::new(), answers: 0 })
    }

    pub(crate) fn send(&mut self, opcode: i32, body: Bytes) -> i32 {
        self.try_send(opcode, body).unwrap()
    }

    pub(crate) fn try_send(&mut self, opcode: i32, body: Bytes) -> io::Result<i32> {
        self.xid += 1;
        let frame = bytes().int(self.xid).int(opcode);
        write_frame(&mut self.stream, &[frame.0, body.0].concat())?;
        Ok(self.xid)
    }

    fn frame(&mut self) -> io::Result<Answer> {
        let body = read_frame(&mut self.stream)?;
        let mut answer = Answer { xid: 0, zxid: 0, error: 0, body, at: 0 };
        answer.xid = answer.int();
        answer.zxid = answer.long();
        answer.error = answer.int();
        if answer.xid == -1 {
            let kind = answer.int();
            assert_eq!(answer.int(), 3, "the state of an event");
            let event = Event { kind, path: answer.text() };
            assert!(answer.is_finished());
            self.event_zxids.push(answer.zxid);
            self.events.push((self.answers, event));
        } else {
            self.answers += 1;
            self.last_zxid = self.last_zxid.max(answer.zxid);
        }
        Ok(answer)
    }

    /// Returns the next answer that is not an event.
    pub(crate) fn try_answer(&mut self) -> io::Result<Answer> {
        loop {
            let answer = self.frame()?;
            if answer.xid != -1 {
                return Ok(answer);
            }
        }
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer().unwrap()
    }

    pub(crate) fn call(&mut self, opcode: i32, body: Bytes) -> Answer {
        self.try_call(opcode, body).unwrap()
    }

    pub(crate) fn try_call(&mut self, opcode: i32, body: Bytes) -> io::Result<Answer> {
        let xid = self.try_send(opcode, body)?;
        let answer = self.try_answer()?;
        assert_eq!(answer.xid, xid, "answers come in the order of the requests");
        Ok(answer)
    }

    /// Returns the next event, and waits for it if necessary.
    pub(crate) fn event(&mut self) -> Event {
        while self.events.is_empty() {
            self.frame().unwrap();
        }
        self.events.remove(0).1
    }

    pub(crate) fn create(&mut self, path: &str, flags: i32) -> Result<String, i32> {
        let mut answer = self.call(CREATE, bytes().create(path, b"data", flags));
        if answer.error == 0 { Ok(answer.text()) } else { Err(answer.error) }
    }

    pub(crate) fn create2(&mut self, path: &str, flags: i32) -> Result<(String, Stat), i32> {
        let mut answer = self.call(CREATE2, bytes().create(path, b"data", flags));
        if answer.error == 0 { Ok((answer.text(), answer.stat())) } else { Err(answer.error) }
    }

    pub(crate) fn delete(&mut self, path: &str) -> i32 {
        self.call(DELETE, bytes().text(path).int(-1)).error
    }

    pub(crate) fn set(&mut self, path: &str, data: &[u8]) -> i32 {
        self.call(SET_DATA, bytes().text(path).buffer(data).int(-1)).error
    }

    pub(crate) fn exists(&mut self, path: &str, watch: bool) -> Option<Stat> {
        let mut answer = self.call(EXISTS, bytes().text(path).flag(watch));
        if answer.error == 0 {
            return Some(answer.stat());
        }
        assert_eq!(answer.error, -101);
        None
    }

    pub(crate) fn get(&mut self, path: &str, watch: bool) -> Result<(Option<Vec<u8>>, Stat), i32> {
        let mut answer = self.call(GET_DATA, bytes().text(path).flag(watch));
        if answer.error == 0 { Ok((answer.buffer(), answer.stat())) } else { Err(answer.error) }
    }

    pub(crate) fn children(&mut self, path: &str, watch: bool) -> Result<Vec<String>, i32> {
        let mut answer = self.call(GET_CHILDREN, bytes().text(path).flag(watch));
        if answer.error == 0 { Ok(answer.texts()) } else { Err(answer.error) }
    }

    pub(crate) fn ping(&mut self) {
        self.send(PING, bytes());
        assert_eq!(self.answer().xid, -2);
    }

    pub(crate) fn close(mut self) {
        assert_eq!(self.call(CLOSE_SESSION, bytes()).error, 0);
        self.expect_end();
    }

    /// Waits until the server has closed this connection.
    pub(crate) fn expect_end(&mut self) {
        loop {
            match self.frame() {
                Ok(answer) => assert_eq!(answer.xid, -1, "an answer after the end"),
                Err(error) => {
                    assert!(!matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
                    return;
                }
            }
        }
    }
}
