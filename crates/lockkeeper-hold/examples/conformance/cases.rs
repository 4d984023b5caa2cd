//! The cases. The name of each says what a client does.

use serde_json::{Value, json};

use crate::play::{LOCK, LONG, Play, SHORT, Verdict, acquired, fence, from_now, pass};

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn(&mut Play) -> Verdict + Sync>,
}

/// A time within which even a slow client reads two lines that were written at once.
const ENOUGH: u64 = 3_000;

/// The reasons for a loss that version 1 has.
const LOSSES: [&str; 7] =
    ["session_expired", "unreachable", "removed", "auth_failed", "lease_ended", "preempted", "other"];

/// What a text may contain. U+2028 is the end of a line for some libraries, and is none here.
const TEXT: &str = "\"Größe\" \\ 鎖\u{2028}\u{85}🔒\tend";

type Run = fn(&mut Play) -> Verdict;

pub(crate) fn all() -> Vec<Case> {
    let tables = [GRANTS, TEXTS, FAILURES, TIMES, LOSS, WORDS, ENDS];
    let named = tables.into_iter().flatten().map(|&(name, run)| Case { name: name.to_owned(), run: Box::new(run) });
    let losses = LOSSES
        .map(|why| Case { name: format!("a hold is lost at once: {why}"), run: Box::new(move |play| lost(play, why)) });
    named.chain(losses).collect()
}

/// How a lock is granted.
const GRANTS: &[(&str, Run)] = &[
    ("lockkeeper is started with the verb and the name", |play| {
        let arguments = play.arguments.clone();
        play.grant(LONG)?;
        let has_name = arguments.as_array().is_some_and(|all| all.contains(&json!(LOCK)));
        if arguments[0] == "hold" && has_name {
            Ok(())
        } else {
            Err(format!("expected the arguments hold {LOCK}, and there were {arguments}"))
        }
    }),
    ("a hold is held from its grant to its release", |play| {
        play.grant(LONG)?;
        play.held()?;
        play.is_told("release")?;
        play.ends(json!({"event": "released"}), 0);
        play.expect("released", Value::Null)?;
        play.not_held()
    }),
    ("a lockkeeper that starts slowly holds nothing yet", |play| {
        play.not_held()?;
        play.hello();
        play.not_held()?;
        play.grants("7")?;
        play.held()
    }),
    ("a wait that is told several times is no hold", |play| {
        play.hello();
        for ahead in [3, 2, 1] {
            play.say(json!({"event": "waiting", "path": "/locks/a", "ahead": ahead, "holder": "build@ci-7"}));
            play.not_held()?;
        }
        play.say(json!({"event": "waiting", "path": "/locks/a", "ahead": 1}));
        play.grants("7")?;
        play.held()
    }),
    ("tokens above 2^53 are exact", |play| {
        play.hello();
        play.grants("9007199254740993")
    }),
    ("the greatest token is exact", |play| {
        play.hello();
        play.grants("18446744073709551615")
    }),
    ("a permit has no token", |play| {
        play.hello();
        let lock = json!({"path": "/locks/a", "node": "/locks/a/n-1", "token": null});
        let until = from_now(LONG);
        play.say(json!({"event": "acquired", "locks": [lock], "path": "/locks/a", "node": "/locks/a/n-1",
            "token": null, "valid_until_ns": until}));
        play.expect("acquired", json!([null]))?;
        play.held()
    }),
    ("each of several locks has its token", |play| {
        play.hello();
        let lock = |path: &str, token| json!({"path": path, "node": format!("{path}/n-1"), "token": token});
        let locks = json!([lock("/locks/a", "12"), lock("/locks/b", "5")]);
        play.say(json!({"event": "acquired", "locks": locks, "valid_until_ns": from_now(LONG)}));
        play.expect("acquired", json!(["12", "5"]))?;
        play.held()
    }),
];

/// How lines are read.
const TEXTS: &[(&str, Run)] = &[
    ("an unknown event is ignored", |play| {
        play.hello();
        play.say(json!({"event": "rumour", "valid_until_ns": from_now(LONG)}));
        play.not_held()?;
        play.grants("7")?;
        play.say(json!({"event": "rumour", "why": 7, "locks": "none", "valid_until_ns": 0}));
        play.catch_up()?;
        play.held()
    }),
    ("an unknown event extends nothing", |play| {
        let until = play.grant(SHORT)?;
        play.say(json!({"event": "rumour", "valid_until_ns": from_now(LONG)}));
        pass(until);
        play.not_held()
    }),
    ("unknown fields are ignored", |play| {
        play.say(json!({"event": "hello", "protocol": 1, "program": "lockkeeper 2.0.0", "colours": ["red"]}));
        let mut grant = acquired("7", from_now(LONG));
        grant["lost"] = json!({"event": "lost", "why": "removed"});
        grant["locks"][0]["weight"] = json!(1.5);
        play.say(grant);
        play.expect("acquired", json!(["7"]))?;
        play.held()
    }),
    ("fields come in any order, with blanks between", |play| {
        play.write("{ \"program\" : \"x\" , \"protocol\" : 1 , \"event\" : \"hello\" }\n");
        let until = from_now(LONG);
        let lock = "{ \"token\" : \"7\" , \"node\" : \"/a/n\" , \"path\" : \"/a\" }";
        play.write(format!(
            "\t{{ \"valid_until_ns\" : {until} , \"locks\" : [ {lock} ] , \"event\" : \"acquired\" }} \r\n"
        ));
        play.expect("acquired", json!(["7"]))?;
        play.held()
    }),
    ("a line in two writes is one line", |play| {
        play.grant(LONG)?;
        let lines = concat!(r#"{"event":"wanted"}"#, "\n", r#"{"event":"asked","path":"/a","why":"Größe"}"#, "\n");
        // Within a character. What comes before it shows that the client has read so far.
        let (first, rest) = lines.as_bytes().split_at(lines.find('ö').unwrap_or_default() + 1);
        play.write(first);
        play.expect("wanted", Value::Null)?;
        play.write(rest);
        play.expect("asked", json!("Größe"))
    }),
    ("several lines in one write are several events", |play| {
        let hello = json!({"event": "hello", "protocol": 1, "program": "lockkeeper 0.1.0"});
        let asked = json!({"event": "asked", "path": "/locks/a", "why": "soon"});
        let all = [hello, acquired("7", from_now(LONG)), asked, json!({"event": "wanted"})];
        play.write(all.map(|event| event.to_string() + "\n").concat());
        play.expect("acquired", json!(["7"]))?;
        play.expect("asked", json!("soon"))?;
        play.expect("wanted", Value::Null)?;
        play.held()
    }),
    ("a line of a megabyte is read", |play| {
        play.grant(LONG)?;
        let why = "x".repeat(1 << 20);
        play.say(json!({"event": "asked", "path": "/locks/a", "why": why}));
        play.expect("asked", json!(why))?;
        play.held()
    }),
    ("text in UTF-8 is exact", |play| {
        play.grant(LONG)?;
        play.say(json!({"event": "asked", "path": "/locks/a", "by": TEXT, "why": TEXT}));
        play.expect("asked", json!(TEXT))
    }),
    ("escaped characters are read", |play| {
        play.grant(LONG)?;
        play.write(b"{\"event\":\"asked\",\"path\":\"\\/a\",\"why\":\"\\u00d6l \\ud83d\\udd12 \\\"\\\\\\n\"}\n");
        play.expect("asked", json!("Öl 🔒 \"\\\n"))
    }),
];

/// How a lock is not granted.
const FAILURES: &[(&str, Run)] = &[
    ("another version of the protocol is refused, and the input is closed", |play| {
        play.say(json!({"event": "hello", "protocol": 2, "program": "lockkeeper 9.0.0"}));
        play.say(acquired("7", from_now(LONG)));
        refused(play, "2")
    }),
    ("a first line that is no JSON is refused, and the input is closed", |play| {
        play.write("Segmentation fault\n");
        refused(play, "Segmentation fault")
    }),
    ("a first line that is no hello is refused, and the input is closed", |play| {
        play.say(acquired("7", from_now(LONG)));
        refused(play, "acquired")
    }),
    ("an end without a line is a failure with the status", |play| {
        play.complain("error: unknown option '--tyr'\n");
        play.exit(64);
        play.expect("failed", json!({"exit_code": 64}))?;
        play.not_held()
    }),
    ("a failure has its status, its message and its hint", |play| {
        play.hello();
        play.ends(json!({"event": "failed", "why": "taken", "exit_code": 75, "message": TEXT, "hint": "wait"}), 75);
        play.expect("failed", json!({"exit_code": 75, "message": TEXT, "hint": "wait"}))?;
        play.not_held()
    }),
    ("a wait that fails is no hold", |play| {
        play.waits();
        play.ends(json!({"event": "failed", "why": "timeout", "exit_code": 75, "message": "30 s are over"}), 75);
        play.expect("failed", json!({"exit_code": 75, "message": "30 s are over"}))?;
        play.not_held()
    }),
    ("a failure of a later version is a failure", |play| {
        play.hello();
        play.ends(json!({"event": "failed", "why": "bored", "exit_code": 79, "message": "no more"}), 79);
        play.expect("failed", json!({"exit_code": 79}))
    }),
    ("an end with 0 and without a line is a failure", |play| {
        play.hello();
        play.exit(0);
        has_failed(play)
    }),
    ("a lockkeeper that is killed during the wait is a failure", |play| {
        play.waits();
        play.kill_lockkeeper();
        has_failed(play)
    }),
    ("an end during the wait is a failure", |play| {
        play.waits();
        play.exit(137);
        play.expect("failed", json!({"exit_code": 137}))?;
        play.not_held()
    }),
];

/// Until when a hold may be trusted.
const TIMES: &[(&str, Run)] = &[
    ("silence past the time is a loss", |play| {
        let until = play.grant(SHORT)?;
        pass(until);
        play.not_held()
    }),
    ("a grant whose time has passed is no hold", |play| {
        play.hello();
        play.say(acquired("7", from_now(0)));
        play.expect_any(&["acquired", "lost"])?;
        play.not_held()
    }),
    ("a heartbeat makes the hold longer", |play| {
        play.hello();
        let until = from_now(ENOUGH);
        play.write(format!("{}\n{}\n", acquired("7", until), valid()));
        pass(until);
        play.expect("acquired", json!(["7"]))?;
        play.held()
    }),
    ("the answer to a check makes the hold longer", |play| {
        let until = play.grant(ENOUGH)?;
        play.is_told("check")?;
        play.say(json!({"event": "checked", "valid_until_ns": from_now(LONG)}));
        play.expect("checked", Value::Null)?;
        pass(until);
        play.held()
    }),
    ("a heartbeat after the time does not revive the hold", |play| {
        let until = play.grant(SHORT)?;
        pass(until);
        play.say(valid());
        play.say(fence());
        play.expect_any(&["asked", "lost"])?;
        play.not_held()
    }),
    ("an earlier time makes no hold longer", |play| {
        let until = play.grant(SHORT)?;
        play.say(json!({"event": "valid", "valid_until_ns": until - 1_000_000}));
        pass(until);
        play.not_held()
    }),
    ("a suspected hold is good until its time", |play| {
        let until = play.grant(LONG)?;
        play.say(json!({"event": "suspected", "valid_until_ns": until}));
        play.catch_up()?;
        play.held()
    }),
    ("a suspected hold is lost after its time", |play| {
        let until = play.grant(SHORT)?;
        play.say(json!({"event": "suspected", "valid_until_ns": until}));
        pass(until);
        play.not_held()
    }),
    ("a suspected hold that is confirmed goes on", |play| {
        play.hello();
        let until = from_now(ENOUGH);
        let suspected = json!({"event": "suspected", "valid_until_ns": until});
        play.write(format!("{}\n{suspected}\n{}\n", acquired("7", until), valid()));
        pass(until);
        play.expect("acquired", json!(["7"]))?;
        play.held()
    }),
    ("a lockkeeper that was killed holds until the time", |play| {
        play.grant(LONG)?;
        play.exit(137);
        play.expect("ended", Value::Null)?;
        play.held()
    }),
    ("a lockkeeper that was killed within a line holds until the time", |play| {
        play.grant(LONG)?;
        play.write("{\"event\":\"lost\",\"why\":\"remov");
        play.exit(137);
        play.expect("ended", Value::Null)?;
        play.held()
    }),
    ("a lockkeeper that was killed has lost after the time", |play| {
        let until = play.grant(SHORT)?;
        play.exit(137);
        pass(until);
        play.not_held()
    }),
    ("a program that was stopped past its time holds nothing", |play| {
        let until = play.grant(SHORT)?;
        play.stop()?;
        pass(until);
        play.go_on();
        play.not_held()
    }),
    ("a heartbeat that was not read in time is too late", |play| {
        let until = play.grant(SHORT)?;
        play.stop()?;
        play.say(valid());
        play.say(fence());
        pass(until);
        play.go_on();
        play.expect_any(&["asked", "lost"])?;
        play.not_held()
    }),
];

/// How a hold is lost. [`LOSSES`] are cases too.
const LOSS: &[(&str, Run)] = &[
    ("a hold is lost at once: a reason of a later version", |play| lost(play, "eclipse")),
    ("nothing revives a lost hold", |play| {
        play.grant(LONG)?;
        let lost = json!({"event": "lost", "why": "removed", "message": "it was broken"});
        play.write(format!("{lost}\n{}\n{}\n", valid(), acquired("8", from_now(LONG))));
        play.exit(76);
        play.expect("lost", json!("removed"))?;
        play.child_is_reaped()?;
        play.not_held()
    }),
    ("a release that nobody has asked for is the end", |play| {
        play.grant(LONG)?;
        play.ends(json!({"event": "released"}), 0);
        play.expect("released", Value::Null)?;
        play.not_held()
    }),
];

/// What a client says, and what it is answered.
const WORDS: &[(&str, Run)] = &[
    ("a loss is an answer to a check", |play| {
        play.grant(LONG)?;
        play.is_told("check")?;
        play.ends(json!({"event": "lost", "why": "session_expired", "message": "the session has expired"}), 76);
        play.expect("lost", json!("session_expired"))?;
        play.not_held()
    }),
    ("an error as the answer to a check ends the check and not the hold", |play| {
        play.grant(LONG)?;
        play.is_told("check")?;
        play.say(json!({"event": "error", "message": "no answer", "hint": "ask again"}));
        play.expect("error", json!("no answer"))?;
        play.held()
    }),
    ("a check without an answer ends with the time of the hold", |play| {
        play.grant(SHORT)?;
        play.is_told("check")?;
        play.expect_any(&["lost"])?;
        play.not_held()
    }),
    ("a request is told, and its refusal is said", |play| {
        play.grant(LONG)?;
        play.say(json!({"event": "asked", "path": "/locks/a", "by": "ops@desk (pid 1)", "why": "deploy"}));
        play.expect("asked", json!("deploy"))?;
        play.order(r#"refuse until "five" \ Größe"#);
        play.hear(json!({"do": "refuse", "why": r#"until "five" \ Größe"#}))?;
        play.held()
    }),
    ("a request without a reason is told", |play| {
        play.grant(LONG)?;
        play.say(json!({"event": "asked", "path": "/locks/a"}));
        play.expect("asked", Value::Null)?;
        play.held()
    }),
    ("a hold that makes way is held again with its new token", |play| {
        makes_way(play)?;
        play.not_held()?;
        play.say(json!({"event": "waiting", "path": "/locks/a", "ahead": 1}));
        play.not_held()?;
        play.grants("9")?;
        play.held()
    }),
    ("a heartbeat that crosses make_way is no hold", |play| {
        makes_way(play)?;
        play.say(valid());
        play.catch_up()?;
        play.not_held()
    }),
    ("the hold after make_way has a time of its own", |play| {
        makes_way(play)?;
        let until = from_now(SHORT);
        play.say(acquired("9", until));
        play.expect("acquired", json!(["9"]))?;
        pass(until);
        play.not_held()
    }),
    ("an end after make_way is a failure", |play| {
        makes_way(play)?;
        play.exit(137);
        play.expect_any(&["failed", "lost"])?;
        play.not_held()
    }),
    ("a release ends the wait", |play| {
        play.waits();
        play.is_told("release")?;
        play.ends(json!({"event": "released"}), 0);
        play.expect("released", Value::Null)
    }),
    ("a grant that crosses the release is no hold", |play| {
        play.hello();
        play.is_told("release")?;
        play.say(acquired("7", from_now(LONG)));
        play.say(fence());
        // It may tell them or not.
        play.order("held?");
        while play.expect_any(&["not held", "acquired", "asked"])?.0 != "not held" {}
        play.ends(json!({"event": "released"}), 0);
        while play.expect_any(&["released", "acquired", "asked"])?.0 != "released" {}
        Ok(())
    }),
    ("a hold ends with its release, before the answer", |play| {
        play.grant(LONG)?;
        play.is_told("release")?;
        play.not_held()?;
        play.say(valid());
        play.not_held()?;
        play.ends(json!({"event": "released"}), 0);
        play.expect("released", Value::Null)?;
        play.not_held()
    }),
    ("a release that no server confirms has a message", |play| {
        play.grant(LONG)?;
        play.is_told("release")?;
        play.ends(json!({"event": "released", "message": "it is free in 30 s at the latest"}), 0);
        play.expect("released", json!("it is free in 30 s at the latest"))
    }),
    ("a loss is an answer to a release", |play| {
        play.grant(LONG)?;
        play.is_told("release")?;
        play.ends(json!({"event": "lost", "why": "session_expired", "message": "the session has expired"}), 76);
        play.expect("lost", json!("session_expired"))?;
        play.not_held()
    }),
    ("an error releases nothing", |play| {
        play.grant(LONG)?;
        play.order("refuse x");
        play.hear(json!({"do": "refuse", "why": "x"}))?;
        play.say(json!({"event": "error", "message": "nobody asks for the lock", "hint": "refuse after asked"}));
        play.catch_up()?;
        play.held()
    }),
    ("a word to a lockkeeper that was killed harms nothing", |play| {
        play.grant(LONG)?;
        play.exit(137);
        play.child_is_reaped()?;
        play.order("refuse x");
        play.order("refuse y");
        play.held()
    }),
];

/// How a program ends. Each case that leaves a hold behind is also one of these: see `Play::finish`.
const ENDS: &[(&str, Run)] = &[
    ("the end of the program ends the wait", |play| {
        play.waits();
        play.not_held()
    }),
    ("the end of the program closes the input, and it waits for its child", |play| play.grant(LONG).map(|_| ())),
    ("the child of a hold that is over is reaped", |play| {
        play.grant(LONG)?;
        play.say(json!({"event": "lost", "why": "removed", "message": "it was broken"}));
        play.expect("lost", json!("removed"))?;
        play.exit(76);
        play.child_is_reaped()?;
        play.not_held()
    }),
    ("a program that is killed leaves no input open", |play| {
        play.grant(LONG)?;
        play.kill();
        play.input_ends()
    }),
];

/// A heartbeat that lasts for the case.
fn valid() -> Value {
    json!({"event": "valid", "valid_until_ns": from_now(LONG)})
}

fn lost(play: &mut Play, why: &str) -> Verdict {
    play.grant(LONG)?;
    play.ends(json!({"event": "lost", "why": why, "message": "the lock is lost"}), 76);
    play.expect("lost", json!(why))?;
    play.not_held()
}

/// Expects a failure with any status but 0.
fn has_failed(play: &mut Play) -> Verdict {
    let failure = play.expect_any(&["failed"])?.1;
    if failure["exit_code"].as_u64().is_some_and(|status| status > 0) {
        play.not_held()
    } else {
        Err(format!("expected a failure with a status, and it was {failure}"))
    }
}

/// Expects a failure whose message has this text. The script ends when the client closes the input.
fn refused(play: &mut Play, text: &str) -> Verdict {
    let failure = play.expect_any(&["failed"])?.1;
    if !failure["message"].as_str().is_some_and(|message| message.contains(text)) {
        return Err(format!("expected a failure whose message names {text:?}, and it was {failure}"));
    }
    play.not_held()?;
    play.input_ends()?;
    play.exit(0);
    Ok(())
}

fn makes_way(play: &mut Play) -> Verdict {
    play.grant(LONG)?;
    play.say(json!({"event": "wanted"}));
    play.expect("wanted", Value::Null)?;
    play.is_told("make_way")
}
