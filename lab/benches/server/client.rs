//! Sessions over the bare protocol for work that is not measured: creating nodes, staying idle.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use bytes::BytesMut;
use lockkeeper_wire::{ConnectRequest, Create, CreateMode, OpCode, Request, WriteOp, request};

/// Makes the nodes that the workloads use.
pub(crate) fn prepare(addr: SocketAddr) -> Result<()> {
    let mut session = Session::open(addr)?;
    for path in std::iter::once("/load".to_owned()).chain((0..64).map(|number| format!("/load/{number}"))) {
        session.call(&Request::Create(create(&path, &[7; 200], CreateMode::Persistent)))?;
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
            stream.write_all(&greeting())?;
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
    let parent = |path: &str| Request::Create(create(path, b"", CreateMode::Persistent));
    session.call(&parent("/many"))?;
    for number in 0..nodes.div_ceil(1_000) {
        let path = format!("/many/parent-{number:06}");
        session.call(&parent(&path))?;
        let children = (0..(nodes - number * 1_000).min(1_000)).map(|child| {
            WriteOp::Create(create(&format!("{path}/node-{child:06}"), &[7; 100], CreateMode::Persistent))
        });
        let answer = session.call(&Request::Multi(children.collect()))?;
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
        stream.write_all(&greeting())?;
        read_frame(&mut stream)?;
        Ok(Self(stream))
    }

    /// One request and its answer.
    fn call(&mut self, request: &Request) -> Result<Vec<u8>> {
        self.0.write_all(&framed(request))?;
        let answer = read_frame(&mut self.0)?;
        ensure!(answer[12..16] == [0; 4], "error {:?} from the server", &answer[12..16]);
        Ok(answer)
    }
}

fn greeting() -> BytesMut {
    let connect =
        ConnectRequest { timeout_ms: 40_000, password: vec![0; 16], has_read_only: true, ..Default::default() };
    let mut frame = BytesMut::new();
    request::encode_connect(&mut frame, &connect);
    frame
}

/// A create whose answer ends with the path.
pub(crate) fn create(path: &str, data: &'static [u8], mode: CreateMode) -> Create {
    Create { opcode: OpCode::Create, ..Create::new(path, data, mode) }
}

pub(crate) fn framed(request: &Request) -> Vec<u8> {
    let mut frame = BytesMut::new();
    request::encode(&mut frame, 1, request);
    frame.into()
}

fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).context("waiting for an answer")?;
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut body).context("reading an answer")?;
    Ok(body)
}
