//! Every kind of lock from the command line: which holds share it, and how it is shown.

use crate::harness::{Home, Running, failure, names, until};

/// Starts a command that holds the lock until its standard input ends.
fn holder(home: &Home, name: &str, args: &[&str]) -> Running {
    let mut holder = home.spawn(name, args, "echo up; cat");
    assert_eq!(holder.line(), "up", "{name} {args:?}");
    holder
}

fn let_go(mut holders: Vec<Running>) {
    holders.iter_mut().for_each(Running::finish);
}

/// Whether a second command does not get the lock.
fn is_kept_out(home: &Home, name: &str, args: &[&str]) -> bool {
    let output = home.output(&[&["run", name, "--try"], args, &["--", "true"]].concat());
    match output.status.code() {
        Some(0) => false,
        Some(75) => true,
        _ => panic!("{output:?}"),
    }
}

/// T-15, T-22, N-27: shared and exclusive holds, each pair in both orders, in every node format.
#[test]
fn readers_hold_together_and_with_no_writer() {
    let home = Home::new();
    for node_format in ["curator", "recipe", "kazoo"] {
        let kinds = [vec![], vec!["--exclusive"], vec!["--shared"]];
        let kinds = kinds.map(|kind| [kind, vec!["--format", node_format]].concat());
        for first in &kinds {
            let holding = holder(&home, node_format, first);
            for second in &kinds {
                let both_read = first[0] == "--shared" && second[0] == "--shared";
                // The recipes' writers and plain locks have different names, and here they exclude each other.
                assert_eq!(is_kept_out(&home, node_format, second), !both_read, "{first:?}, {second:?}");
            }
            let_go(vec![holding]);
        }
    }
}

/// N-30: a stream of readers does not keep a writer waiting.
#[test]
fn a_reader_behind_a_waiting_writer_waits() {
    let home = Home::new();
    let readers = vec![holder(&home, "a", &["--shared"]), holder(&home, "a", &["--shared"])];
    assert_eq!(home.count("a"), (2, 0));
    let mut writer = home.spawn("a", &[], "echo writer >> order");
    let line = writer.told();
    assert!(
        // On a busy machine, the bounds of the grant are given.
        line.contains(", reading, ") && line.contains(" and 1 more, on ") && line.ends_with(", 2 ahead\n"),
        "{line}"
    );
    let mut reader = home.spawn("a", &["--shared"], "echo reader >> order");
    until("both wait", || home.count("a") == (2, 2));
    assert_eq!(home.show("a")["holders"][0]["mode"], "read");
    let text = home.ok(&["show", "a"]);
    assert!(text.contains("    as       reading\n"), "{text}");
    let_go(readers);
    assert!(writer.wait().success() && reader.wait().success());
    assert_eq!(crate::harness::text(&home.file("order")), "writer\nreader\n");
}

/// C-17: 40 processes of both classes count up a number in a file, with a pause between reading and writing.
#[test]
fn processes_that_count_up_under_one_lock_lose_no_update() {
    const SCRIPT: &str = "n=$(cat number); sleep 0.01; echo $((n + 1)) > number";
    let home = Home::new();
    std::fs::write(home.file("number"), "0\n").unwrap();
    let class = |process: usize| if process.is_multiple_of(2) { "--foreground" } else { "--background" };
    let mut counting: Vec<_> = (0..40).map(|process| home.spawn("save", &[class(process)], SCRIPT)).collect();
    assert!(counting.iter_mut().all(|process| process.wait().success()));
    assert_eq!(crate::harness::text(&home.file("number")), "40\n");
}

/// The holds are limited to the number of permits, which the output shows; a command with another number is refused.
#[test]
fn permits_are_counted_and_the_number_belongs_to_the_lock() {
    let home = Home::new();
    let pool = ["--permits", "3"];
    let two = holder(&home, "pool", &["--permits", "3", "--take", "2"]);
    assert!(is_kept_out(&home, "pool", &["--permits", "3", "--take", "2"]));
    let one = holder(&home, "pool", &pool);
    assert!(is_kept_out(&home, "pool", &pool));

    let lock = home.show("pool");
    assert_eq!((&lock["permits"], &lock["holders"][0]["permits"]), (&3.into(), &2.into()));
    assert_eq!(lock["holders"][0]["mode"], "permits");
    let text = home.ok(&["show", "pool"]);
    names(&text, &["  3 of 3 permits taken\n", "    as       2 permits\n"]);
    assert!(!text.contains("token"), "{text}");
    let text = home.ok(&["list"]);
    assert!(text.contains(" +1  ") && text.ends_with("  3 of 3 permits taken\n"), "{text}");
    let mut waiter = home.spawn("pool", &pool, "echo in");
    let line = waiter.told();
    assert!(line.contains(" and 1 more, on ") && line.ends_with(", 3 of 3 permits taken, 2 ahead\n"), "{line}");
    let text = home.ok(&["why", "pool"]);
    names(&text, &["3 of 3 permits taken\n", "ask all holders to release it"]);
    assert!(text.contains("  the first holder: its "), "{text}");
    // Also beside a label that is longer than the others.
    let columns: Vec<_> = text.lines().filter_map(|line| line.find("lockkeeper ")).collect();
    assert!(columns.len() > 4 && columns.iter().all(|column| *column == columns[0]), "{text}");

    // To agree with holders of permits, it is not enough to leave out the class.
    names(
        &home.tells(&["run", "pool", "--class", "A", "--", "true"], 64),
        &["no --format and no class, and the same --permits if they hold permits; "],
    );
    let output = home.output(&["run", "pool", "--permits", "4", "--", "touch", "ran"]);
    let (code, line) = failure(&output);
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(told.contains("use --permits 3, or another name; servers forget the number a few minutes after"), "{told}");
    assert_eq!(code, Some(64), "{line}");
    assert!(line.starts_with("/locks/pool has 3 permits, not 4 (on "), "{line}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("use --permits 3"));
    let_go(vec![one]);
    waiter.ends_after("in");
    let_go(vec![two]);
    // The number stays when no contender holds the lock.
    assert_eq!(home.show("pool")["permits"], 3);
    assert_eq!(home.output(&["run", "pool", "--permits", "2", "--", "true"]).status.code(), Some(64));
    assert!(!home.file("ran").exists());
}

/// Several permits are held at a time, so there is no newest token. A token in the environment belongs to another lock.
#[test]
fn permits_have_no_token() {
    let home = Home::new();
    let inner = [crate::harness::BINARY, "run", "pool", "--permits", "2", "--", "sh", "-c"];
    let script = "echo \"${LOCKKEEPER_TOKEN-none} $LOCKKEEPER_PATH $LOCKKEEPER_NODE\"";
    let text = home.ok(&[&["run", "a", "--"], inner.as_slice(), &[script]].concat());
    assert!(text.starts_with("none /locks/pool /locks/pool/_c_") && text.contains("-permits-1-"), "{text}");
}

/// C-09, C-18, C-20: grants follow the order of the classes, then that of arrival; no holder is interrupted.
#[test]
fn classes_are_served_in_their_order() {
    let home = Home::new();
    let mut first = home.spawn("a", &["--background"], "echo $LOCKKEEPER_TOKEN; cat");
    let token = first.line();
    let mut waiters = Vec::new();
    for (at, args) in
        [&["--class", "C"][..], &["--background"], &["--foreground"], &["--class", "A"]].iter().enumerate()
    {
        waiters.push(home.spawn("a", args, &format!("echo {at} >> order")));
        until("it waits", || home.count("a") == (1, at + 1));
    }
    let lock = home.show("a");
    assert_eq!((&lock["holders"][0]["class"], &lock["holders"][0]["mode"]), (&"B".into(), &"class".into()));
    assert_eq!(lock["holders"][0]["token"].to_string(), token);
    let classes: Vec<_> = lock["waiters"].as_array().unwrap().iter().map(|waiter| waiter["class"].clone()).collect();
    assert_eq!(classes, ["A", "A", "B", "C"]);
    names(&waiters[2].told(), &[", class B, since "]);
    assert!(is_kept_out(&home, "a", &["--foreground"]));
    let_go(vec![first]);
    for waiter in &mut waiters {
        assert!(waiter.wait().success());
    }
    assert_eq!(crate::harness::text(&home.file("order")), "2\n3\n1\n0\n");
}

type IsNamed = fn(&str) -> bool;

/// The nodes are named as the foreign clients name theirs.
#[test]
fn node_formats_name_the_nodes() {
    let home = Home::new();
    let cases: [(&[&str], IsNamed); 8] = [
        (&[], |name| name.starts_with("_c_") && name.contains("-lock-")),
        (&["--exclusive"], |name| name.starts_with("_c_") && name.contains("-__WRIT__")),
        (&["--shared", "--format", "curator"], |name| name.starts_with("_c_") && name.contains("-__READ__")),
        (&["--format", "recipe"], |name| name.starts_with("lock-")),
        (&["--format", "recipe", "--shared"], |name| name.starts_with("read-")),
        (&["--format", "kazoo", "--shared"], |name| name[32..].starts_with("__rlock__")),
        (&["--format", "leader-latch"], |name| name.starts_with("_c_") && name.contains("-latch-")),
        (&["--background"], |name| name.starts_with("B-")),
    ];
    for (at, (args, is_named)) in cases.iter().enumerate() {
        let lock = format!("/app/{at}");
        let args = [&["run", &lock], *args, &["--", "sh", "-c", "echo $LOCKKEEPER_NODE"]].concat();
        let node = home.ok(&args);
        let name = node.trim_end().strip_prefix(&format!("{lock}/")).unwrap_or_else(|| panic!("{args:?}: {node}"));
        assert!(is_named(name), "{args:?}: {name}");
    }
}

/// D-06, D-07, D-08, D-17: the format of the document's class. The nodes are beside the path, the commands wait for each other
/// in their order, and a killed waiter leaves no node. One that finds the lock held in another format is refused.
#[test]
fn numbered_commands_queue_beside_the_path() {
    let home = Home::new();
    let numbered = ["--format", "numbered"];
    let mut holding = home.spawn("a", &numbered, "echo $LOCKKEEPER_NODE; cat");
    assert_eq!(holding.line(), "/locks/a0000000000");
    // Another name beside the same parent is another lock.
    assert!(!is_kept_out(&home, "ab", &numbered) && is_kept_out(&home, "a", &numbered));
    let mut killed = home.waits("a", &[&numbered[..], &["--session-timeout", "2s"]].concat(), "true");
    let mut next = home.spawn("a", &numbered, "echo $LOCKKEEPER_NODE");
    until("the second waits", || home.count("a") == (1, 2));
    killed.kill();
    until("the killed waiter's node is deleted", || home.count("a") == (1, 1));
    let other = holder(&home, "c", &[]);
    names(&home.tells(&[&["run", "c"], &numbered[..], &["--", "true"]].concat(), 64), &["no --format and no class"]);
    let_go(vec![other]);
    holding.close_stdin();
    let node = next.line();
    // The one of the name `ab`, the refused ones and the killed one had the numbers between.
    assert!(node.starts_with("/locks/a00000000") && *node > *"/locks/a0000000001", "{node}");
    assert_eq!((holding.wait().code(), next.wait().code()), (Some(0), Some(0)));
    assert_eq!(home.count("a"), (0, 0));
}
