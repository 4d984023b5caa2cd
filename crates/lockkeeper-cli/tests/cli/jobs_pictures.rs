//! The pictures of the guide: what `jobs` shows on a terminal, drawn from the screen itself. Needs libfaketime.
//!
//! The records have fixed times, and so have the clocks of server and command. `LOCKKEEPER_DRAW=1` draws the pictures again.

use anstream::adapter::strip_str;
use serde_json::{Value, json};
use zookeeper_client as zk;

use crate::harness::BINARY;
use crate::jobs_clock::Clock;
use crate::pictures::{self, Svg, letter};
use crate::terminal::{INTERRUPT, Screen};

/// The names of the machines, and of their node of a hold.
const NODE: &str = "_c_7700baf2-6cfe-4051-9750-4b7e9500d8ae-lock-0000000000";

fn ms(at: &str) -> i64 {
    at.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// A run: its slot, the begin of the slot, its host, its start and its duration; without a duration it goes on.
fn run(
    token: u64,
    (slot, begin): (&str, Option<&str>),
    host: &str,
    start: &str,
    took_ms: Option<i64>,
    end: Value,
) -> Value {
    let start_ms = ms(start);
    let mut run = json!({
        "id": format!("00000000-0000-4000-8000-{token:012}"),
        "slot": { "name": slot, "start_ms": begin.map_or(start_ms, ms) },
        "attempt": 1,
        "by": { "user": "ops", "host": host, "pid": 4711, "program": "lockkeeper" },
        "token": token.to_string(),
        "node": NODE,
        "start_ms": start_ms,
    });
    if let Some(begin) = begin.map(ms) {
        run["slot"]["end_ms"] = json!(begin + 24 * 3_600_000);
    }
    if let Some(took_ms) = took_ms {
        run["end_ms"] = json!(start_ms + took_ms);
        run["end"] = end;
    }
    run
}

/// The nights of a week: all succeeded but one.
fn nights() -> Vec<Value> {
    let took = [184_000, 191_000, 205_000, 188_000, 233_000, 262_000];
    let ok = || json!({ "kind": "succeeded", "status": 0 });
    let mut runs = Vec::new();
    for (day, took) in (17..).zip(took) {
        let (slot, host) = (format!("2026-11-{day}"), ["db1", "db7", "db3"][day as usize % 3]);
        let (begin, start) = (format!("{slot}T00:00:00Z"), format!("{slot}T02:13:0{}Z", day % 10));
        let end = match day {
            20 => json!({ "kind": "failed", "status": 3, "output": "dump: no space left on /var/backup\n" }),
            _ => ok(),
        };
        let token = 211 + (day - 17) * 12;
        runs.push(run(token, (&slot, Some(&begin)), host, &start, Some(took), end));
    }
    runs
}

/// Replaces the runs of a job.
async fn keep(client: &zk::Client, job: &str, runs: Vec<Value>) {
    let node = format!("/lockkeeper/jobs/locks%2F{job}");
    let (data, _) = client.get_data(&node).await.unwrap();
    let mut log: Value = serde_json::from_slice(&data).unwrap();
    assert!(log["runs"].is_array(), "{log}");
    log["runs"] = runs.into();
    client.set_data(&node, log.to_string().as_bytes(), None).await.unwrap();
}

/// Draws lines of text as a terminal shows them.
fn svg(lines: &[&str]) -> String {
    const FONT_SIZE: u8 = 14;
    const LINE: usize = 20;
    const EDGE: usize = 16;
    let columns = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = (columns as f64 * letter(FONT_SIZE)).ceil() as usize + 2 * EDGE;
    let height = lines.len() * LINE + 2 * EDGE;
    let screen = format!("<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#1d1f21\"/>\n");
    let mut svg = Svg::new((width, height), FONT_SIZE, &screen, " fill=\"#e0e0e0\"");
    for (row, line) in lines.iter().enumerate() {
        svg.line((EDGE, EDGE + (row + 1) * LINE - 6), "", line);
    }
    svg.end()
}

/// Compares a screen with the picture of the guide.
fn compare(name: &str, command: &str, screen: &str) {
    let shown: Vec<_> = screen.lines().map(|line| line.trim_end_matches(['\r', ' '])).collect();
    let typed = format!("$ {command}");
    let lines = [&[typed.as_str()][..], &shown].concat();
    pictures::compare(name, &svg(&lines), &lines.join("\n"));
}

#[test]
fn the_pictures_of_the_guide_show_what_a_terminal_shows() {
    let clock = Clock::start("2026-11-22T08:28:00Z");
    let home = &clock.home;
    let schedules: [(&str, &[&str]); 5] = [
        ("nightly", &["--once-per", "day"]),
        ("backup", &["--every", "6h"]),
        ("deploy", &["--slot", "4711"]),
        ("billing", &["--once-per", "month", "--on-failure", "keep"]),
        ("reindex", &["--every", "24h"]),
    ];
    for (job, schedule) in schedules {
        let output = home.output(&[&["run", job], schedule, &["--", "true"]].concat());
        assert!(output.status.success(), "{output:?}");
    }
    assert!(home.output(&["jobs", "forget", "first"]).status.success());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let client = zk::Client::connect(&clock.address).await.unwrap();
        let every = |hour: u64, took, end| {
            run(270 + hour, ("every 6h", None), "db3", &format!("2026-11-22T{hour:02}:00:11Z"), Some(took), end)
        };
        let ok = || json!({ "kind": "succeeded", "status": 0 });
        let timed_out = json!({ "kind": "timed_out", "signal": 15, "why": "ran longer than 30 min" });
        let failed = json!({ "kind": "failed", "status": 1 });
        keep(&client, "nightly", nights()).await;
        keep(&client, "backup", vec![every(1, 700_000, ok()), every(7, 1_800_000, timed_out)]).await;
        let deploy = run(283, ("4711", None), "ci-2", "2026-11-22T08:02:40Z", Some(41_000), ok());
        keep(&client, "deploy", vec![deploy]).await;
        let month = ("2026-11", Some("2026-11-01T00:00:00Z"));
        let billing = run(87, month, "db1", "2026-11-01T03:00:02Z", Some(7_000), failed);
        keep(&client, "billing", vec![billing]).await;
        let before = run(264, ("every 24h", None), "db7", "2026-11-21T08:26:40Z", Some(310_000), ok());
        let now = run(286, ("every 24h", None), "db1", "2026-11-22T08:26:40Z", None, Value::Null);
        keep(&client, "reindex", vec![before, now]).await;
        // While this node exists, the run goes on.
        let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
        client.create(&format!("/locks/reindex/{NODE}"), b"", &options).await.unwrap();
        client
    });
    let typed = |words: &str| {
        let variables: String =
            clock.wrong.variables().unwrap().iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        let line = format!("TZ=UTC {variables} {BINARY} {words} --servers {}; echo end of the screen", clock.address);
        Screen::with_columns(160, home, "sh", &["-c", &line])
    };
    for (name, words) in [("jobs-history", "jobs nightly --history"), ("jobs-check", "jobs --check --late 26h")] {
        let shown = typed(words).expect("end of the screen");
        compare(name, &format!("lockkeeper {words}"), shown.trim_end_matches("end of the screen"));
    }
    // The table with a run that goes on; all of its lines but this one stay the same.
    let mut screen = typed("jobs --watch");
    let shown = screen.expect("1 min 35 s so far") + &screen.expect("\x1b[J");
    screen.press(INTERRUPT);
    let (_, shown) = shown.rsplit_once("\x1b[H").unwrap();
    let shown = strip_str(shown).to_string();
    compare("jobs-watch", "lockkeeper jobs --watch", &shown);
    drop(client);
}
