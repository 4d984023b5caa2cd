//! `top` and `list --watch`, on a real terminal.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::harness::{Home, failure, until};
use crate::terminal::Screen;

/// Every change comes by itself; nothing is read again without one.
#[test]
fn top_shows_each_change_and_a_person_ends_a_hold_from_it() {
    let home = Home::new();
    let mut holder = home.spawn(
        "nightly",
        &["-m", "index"],
        "trap 'echo told; exit 0' TERM; echo up; until [ -e stop ]; do sleep 0.01; done",
    );
    assert_eq!(holder.line(), "up");
    let mut screen = Screen::with_columns(80, &home, crate::harness::BINARY, &["top"]);
    let mut terminal = vt100::Parser::new(24, 80, 0);
    let mut shows = |screen: &mut Screen, text: &str| screen.until_shown(&mut terminal, text);
    shows(&mut screen, "1 in use, 0 waited for");
    let mut waiter = home.spawn("nightly", &[], "echo in; cat");
    let table = shows(&mut screen, "1 in use, 1 waited for");
    assert!(table.contains("\nnightly  ") && table.contains("(index)"), "{table}");
    screen.press(b"\r");
    let queue = shows(&mut screen, "1 ahead");
    assert!(queue.contains("\n/locks/nightly ") && queue.contains("\nholds "), "{queue}");
    screen.press(b"R");
    shows(&mut screen, "reason to ask ");
    // A request without a reason is not sent.
    screen.press(b"\rdeploying\r");
    shows(&mut screen, "asked ");
    assert_eq!(holder.line(), "told");
    assert_eq!(waiter.line(), "in");
    shows(&mut screen, "1 in use, 0 waited for");
    screen.press(b"qB");
    shows(&mut screen, "reason to break ");
    screen.press(b"gone\r");
    shows(&mut screen, "type yes to break ");
    screen.press(b"no\r");
    shows(&mut screen, "nothing was broken");
    assert_eq!(home.count("nightly"), (1, 0));
    screen.press(b"Bgone\ryes\r");
    shows(&mut screen, "was taken from");
    assert_eq!(waiter.wait().code(), Some(76));
    shows(&mut screen, "0 in use");
    screen.press(b"d");
    shows(&mut screen, "no contenders wait for each other in a ring");
    screen.press(b"qq");
    assert!(screen.end().success());
    holder.wait();
}

#[test]
fn top_without_a_terminal_says_what_to_use() {
    let home = Home::new();
    let (code, said) = failure(&home.output(&["top"]));
    assert_eq!((code, said.contains("top needs a terminal")), (Some(64), true), "{said}");
}

#[test]
fn a_watched_list_is_drawn_again_after_a_change() {
    let home = Home::new();
    let mut holder = home.spawn("a", &[], "echo up; cat");
    assert_eq!(holder.line(), "up");
    let mut screen = Screen::with_columns(80, &home, crate::harness::BINARY, &["list", "--watch"]);
    screen.expect("a     ");
    let mut other = home.spawn("other", &[], "echo up; cat");
    assert_eq!(other.line(), "up");
    screen.expect("other ");
    other.close_stdin();
    other.wait();
    until("it is free", || home.count("other") == (0, 0));
    screen.press(crate::terminal::INTERRUPT);
    screen.end();
    holder.close_stdin();
    holder.wait();
}

/// As in `lockkeeper list --watch | head -1`.
#[test]
fn what_follows_for_ever_ends_when_nobody_reads_it_any_more() {
    let home = Home::new();
    assert!(home.output(&["run", "a", "--", "true"]).status.success());
    for verb in [&["list", "--watch"][..], &["history", "a", "--follow"]] {
        let mut command = home.command(verb);
        let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(follower.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let mut status = None;
        until("it ends at the next change", || {
            home.output(&["run", "a", "--", "true"]);
            status = follower.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success() && !first.is_empty(), "{verb:?} {first}");
    }
}
