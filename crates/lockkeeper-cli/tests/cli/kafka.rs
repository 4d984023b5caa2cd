//! Dead letters of the command in a Kafka topic: `cargo xtask interop kafka`.

use lockkeeper_testkit::kafka::Broker;
use serde_json::Value;

use crate::harness::Home;

/// Runs `run NAME --background` behind a holder; its command is `touch NAME`.
fn give_up(home: &Home, name: &str, place: &str) {
    let mut holder = home.spawn(name, &["--foreground"], "echo up; cat");
    assert_eq!(holder.line(), "up");
    let args = ["run", name, "--background", "--wait", "3s", "--dead-letter", place, "--", "touch", name];
    let output = home.output(&args);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{told}");
    assert!(told.contains("kept as the dead letter"), "{told}");
    holder.close_stdin();
    assert_eq!(holder.end().0, Some(0));
}

/// Returns the fate of the letter of each path.
fn fates(home: &Home, place: &str) -> Vec<(String, String, String)> {
    let output = home.output(&["dlq", "list", "--all", "--json", "--dead-letter", place]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |letter: &Value, field: &str| letter[field].as_str().unwrap().to_owned();
    let letters = told["letters"].as_array().unwrap();
    let mut fates: Vec<_> =
        letters.iter().map(|letter| (text(letter, "path"), text(letter, "fate"), text(letter, "operation"))).collect();
    fates.sort();
    fates
}

/// C-47: a letter in a topic can be listed, shown, replayed and dropped like one in a file. A letter that was written
/// while the broker was down is there too.
#[test]
fn kafka_letters_are_dealt_with_like_those_in_a_file() {
    let broker = Broker::start().unwrap();
    let place = format!("kafka:{}/Letters", broker.addr());
    let home = Home::new();
    give_up(&home, "a", &place);
    broker.kill();
    // Stored in the spool.
    give_up(&home, "b", &place);
    broker.restart().unwrap();
    give_up(&home, "c", &place);
    let told = fates(&home, &place);
    let short: Vec<_> = told.iter().map(|(path, fate, _)| (path.as_str(), fate.as_str())).collect();
    assert_eq!(short, [("/locks/a", "waiting"), ("/locks/b", "waiting"), ("/locks/c", "waiting")]);

    assert!(home.output(&["dlq", "show", &told[0].2, "--dead-letter", &place]).status.success());
    let replay = ["dlq", "replay", &told[0].2, &told[1].2, "--dead-letter", &place];
    // Others may have written the topic.
    assert_eq!(home.output(&replay).status.code(), Some(77));
    assert!(!home.file("a").exists());
    let replayed = home.output(&[&replay[..], &["--foreign", "--yes"]].concat());
    assert!(replayed.status.success(), "{replayed:?}");
    assert!(home.file("a").exists() && home.file("b").exists() && !home.file("c").exists());
    assert!(home.output(&["dlq", "drop", &told[2].2, "--dead-letter", &place]).status.success());
    let short: Vec<_> = fates(&home, &place).into_iter().map(|(path, fate, _)| (path, fate)).collect();
    let settled = [("/locks/a", "replayed"), ("/locks/b", "replayed"), ("/locks/c", "dropped")];
    assert_eq!(short, settled.map(|(path, fate)| (path.to_owned(), fate.to_owned())));
    // Nothing is left to replay.
    assert_eq!(home.output(&["dlq", "replay", &told[0].2, "--dead-letter", &place]).status.code(), Some(1));
}
