//! Clients that are broken, slow, silent or malicious.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use lockkeeper_server::{Config, Server};

use crate::client::*;

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

fn expect_refusal(server: &Server, sent: &[u8]) {
    let mut stream = socket(server.addr());
    // The server may close before all bytes are written.
    let _ = stream.write_all(sent);
    assert!(read_frame(&mut stream).is_err(), "answered {sent:?}");
}

#[test]
fn garbage_closes_its_own_connection_and_no_other() {
    let server = server();
    let mut good = Client::connect(server.addr());
    expect_refusal(&server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect_refusal(&server, &[0xff; 64]);
    expect_refusal(&server, &[0, 0, 0, 0]);
    expect_refusal(&server, &[0, 0, 0, 4, 0, 0, 0, 0]);
    expect_refusal(&server, &[0x80, 0, 0, 0, 1, 2, 3, 4]);
    for len in [0_usize, 1, 4, 7] {
        let mut client = Client::connect(server.addr());
        write_frame(&mut client.stream, &vec![0; len]).unwrap();
        client.expect_end();
    }
    good.create("/a", 0).unwrap();
}

#[test]
fn a_body_that_cannot_be_read_is_a_marshalling_error() {
    let server = server();
    let mut client = Client::connect(server.addr());
    for opcode in [CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, MULTI, CREATE2, CREATE_TTL, SET_WATCHES, SYNC] {
        assert_eq!(client.call(opcode, bytes()).error, -5, "{opcode} without a body");
        assert_eq!(client.call(opcode, bytes().int(i32::MAX).int(7)).error, -5, "{opcode} with a lie");
        assert_eq!(client.call(opcode, bytes().int(-7)).error, -5, "{opcode} with a negative length");
    }
    let greedy = bytes().long(0).int(i32::MAX).int(0).int(0);
    assert_eq!(client.call(SET_WATCHES, greedy).error, -5, "a vector longer than its frame");
    client.ping();
}

/// Case 36.
#[test]
fn a_frame_beyond_the_limit_closes_its_connection() {
    let server = wait(Server::start(Config::default().with_max_frame(1_000))).unwrap();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.call(CREATE, bytes().create("/fits", &[7; 900], 0)).error, 0);
    client.send(CREATE, bytes().create("/too-long", &[7; 1_000], 0));
    client.expect_end();
    let mut other = Client::connect(server.addr());
    assert_eq!(other.children("/", false).unwrap(), ["fits", "zookeeper"]);
}

#[test]
fn random_frames_never_stop_the_server() {
    let server = server();
    // It says nothing until the end, however busy the machine is.
    let mut good = Client::connect_with(server.addr(), 60_000);
    let mut seed: u64 = 0x2545_f491_4f6c_dd1d;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..300 {
        let mut client = Client::connect(server.addr());
        for _ in 0..10 {
            let len = random() as usize % 60;
            let mut frame: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if len >= 8 {
                frame[4..8].copy_from_slice(&(random() as i32 % 24).to_be_bytes());
            }
            if write_frame(&mut client.stream, &frame).is_err() {
                break;
            }
        }
    }
    good.create("/still-here", 0).unwrap();
}

/// A client that sends requests and never reads must not grow the server or delay other clients.
#[test]
fn a_client_that_never_reads_delays_no_other_client() {
    let server = server();
    let mut writer = Client::connect(server.addr());
    assert_eq!(writer.call(CREATE, bytes().create("/big", &[7; 500_000], 0)).error, 0);
    let mut unread = Client::connect_with(server.addr(), 60_000);
    unread.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    // 25 GB of answers if the server queued them all.
    for xid in 0..50_000 {
        let get = bytes().int(xid).int(GET_DATA).text("/big").flag(false);
        if write_frame(&mut unread.stream, &get.0).is_err() {
            break;
        }
    }
    assert!(server.stats().requests(lockkeeper_server::OpCode::GetData) < 1_000, "requests wait while answers do");
    // Well before any timeout of the client that does not read.
    let start = Instant::now();
    for _ in 0..100 {
        writer.set("/big", b"small");
    }
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    until("the session and the connection of the client that never reads have ended", || {
        writer.ping();
        server.stats().sessions == 1 && server.stats().connections == 1
    });
}

/// The answers would have 2.2 GB, and the server would have to build them for each client.
#[test]
fn a_small_request_for_long_answers_costs_an_error_and_the_connection_stays() {
    let config = Config::default().with_limits(lockkeeper_server::Limits::default().with_answer_bytes(3_000_000));
    let server = wait(Server::start(config)).unwrap();
    let mut client = Client::connect(server.addr());
    assert_eq!(client.call(CREATE, bytes().create("/big", &[7; 1_000_000], 0)).error, 0);
    let reads = |count| (0..count).fold(bytes(), |ops, _| ops.op(GET_DATA).text("/big").flag(false)).end();
    assert_eq!(client.call(MULTI_READ, reads(2_200)).error, -5);
    let answer = client.call(MULTI_READ, reads(2));
    assert_eq!((answer.error, answer.body.len() > 2_000_000), (0, true));
    assert!(server.stats().bytes_sent < 3_000_000);
}

/// The request and the close have both arrived when the server reads.
#[test]
fn a_client_that_closes_right_after_its_request_is_answered() {
    let server = server();
    let mut client = Client::connect(server.addr());
    wait(server.faults().freeze()).unwrap();
    client.send(EXISTS, bytes().text("/").flag(false));
    client.stream.shutdown(Shutdown::Write).unwrap();
    wait(server.faults().thaw()).unwrap();
    assert_eq!(client.answer().error, 0);
    client.expect_end();
}

#[test]
fn a_silent_connection_delays_no_other_client() {
    let server = server();
    let _silent: Vec<_> = (0..50).map(|_| socket(server.addr())).collect();
    let mut half = socket(server.addr());
    half.write_all(&[0, 0, 0]).unwrap();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
}
