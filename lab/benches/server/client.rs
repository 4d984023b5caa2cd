//! Sessions over the bare protocol for work that is not measured: creating nodes, staying idle.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};

/// Makes the nodes that the workloads use.
pub(crate) fn prepare(addr: SocketAddr) -> Result<()> {
    let mut session = Session::open(addr)?;
    session.call(create("/load", &[7; 200], 0))?;
    for number in 0..64 {
        session.call(create(&format!("/load/{number}"), &[7; 200], 0))?;
    }
    Ok(())
}

/// Opens sessions that then keep still; they live as long as the result.
pub(crate) fn idle_sessions(addr: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(count);
    // In groups, so that they share their fsyncs.
    for group in 0..count.div_ceil(500) {
        let from = streams.len();
        for _ in group * 500..count.min((group + 1) * 500) {
            let mut stream = TcpStream::connect(addr)?;
            stream.write_all(&framed(greeting()))?;
            streams.push(stream);
        }
        for stream in &mut streams[from..] {
            read_frame(stream)?;
        }
    }
    Ok(streams)
}

/// Makes this many nodes with 100 bytes each, a thousand below a parent.
pub(crate) fn fill(addr: SocketAddr, nodes: usize) -> Result<()> {
    const OK: [u8; 4] = [0; 4];
    let mut session = Session::open(addr)?;
    session.call(create("/many", b"", 0))?;
    for parent in 0..nodes.div_ceil(1_000) {
        let parent_path = format!("/many/parent-{parent:06}");
        session.call(create(&parent_path, b"", 0))?;
        let mut multi = request(14);
        for child in 0..(nodes - parent * 1_000).min(1_000) {
            int(&mut multi, 1);
            multi.push(0);
            int(&mut multi, -1);
            multi.extend_from_slice(&create(&format!("{parent_path}/node-{child:06}"), &[7; 100], 0)[8..]);
        }
        int(&mut multi, -1);
        multi.push(1);
        int(&mut multi, -1);
        let answer = session.call(multi)?;
        ensure!(answer[16..20] == 1_i32.to_be_bytes() && answer[21..25] == OK, "the server refused to be filled");
    }
    Ok(())
}

/// One session whose calls block.
pub(crate) struct Session(pub(crate) TcpStream);

impl Session {
    pub(crate) fn open(addr: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(addr).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.write_all(&framed(greeting()))?;
        read_frame(&mut stream)?;
        Ok(Self(stream))
    }

    /// One request and its answer.
    fn call(&mut self, body: Vec<u8>) -> Result<Vec<u8>> {
        self.0.write_all(&framed(body))?;
        let answer = read_frame(&mut self.0)?;
        ensure!(answer[12..16] == [0; 4], "error {:?} from the server", &answer[12..16]);
        Ok(answer)
    }
}

fn greeting() -> Vec<u8> {
    let mut body = Vec::new();
    int(&mut body, 0);
    body.extend([0; 8]);
    int(&mut body, 40_000);
    body.extend([0; 8]);
    text(&mut body, &[0; 16]);
    body.push(0);
    body
}

pub(crate) fn request(opcode: i32) -> Vec<u8> {
    let mut out = Vec::with_capacity(300);
    int(&mut out, 1);
    int(&mut out, opcode);
    out
}

pub(crate) fn create(path: &str, data: &[u8], flags: i32) -> Vec<u8> {
    let mut out = request(1);
    text(&mut out, path.as_bytes());
    text(&mut out, data);
    int(&mut out, 1);
    int(&mut out, 31);
    text(&mut out, b"world");
    text(&mut out, b"anyone");
    int(&mut out, flags);
    out
}

pub(crate) fn int(out: &mut Vec<u8>, value: i32) {
    out.extend(value.to_be_bytes());
}

pub(crate) fn text(out: &mut Vec<u8>, value: &[u8]) {
    int(out, i32::try_from(value.len()).expect("short"));
    out.extend(value);
}

pub(crate) fn framed(body: Vec<u8>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 4);
    int(&mut frame, i32::try_from(body.len()).expect("short"));
    frame.extend(body);
    frame
}

fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).context("waiting for an answer")?;
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut body).context("reading an answer")?;
    Ok(body)
}
