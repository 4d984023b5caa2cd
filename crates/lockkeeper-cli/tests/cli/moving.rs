//! `copy`: copies from one server to others, with the steps of docs/guide/moving.md.

use std::fmt::Write as _;
use std::process::Output;

use serde_json::Value;
use zookeeper_client as zk;

use crate::harness::*;

/// Returns the persistent nodes as lines `PATH DATA ACL`, without the servers' own nodes, the epoch and its parent.
fn tree(servers: &str) -> String {
    with(servers, async |client| {
        let (mut text, mut left) = (String::new(), vec!["/".to_owned()]);
        while let Some(path) = left.pop() {
            let (data, stat) = client.get_data(&path).await.unwrap();
            let (acl, _) = client.get_acl(&path).await.unwrap();
            if stat.ephemeral_owner == 0 && path != "/" && path != "/lockkeeper" {
                writeln!(text, "{path} {} {acl:?}", String::from_utf8_lossy(&data)).unwrap();
            }
            let above = path.trim_end_matches('/').to_owned();
            let mut names = client.list_children(&path).await.unwrap();
            names.sort();
            let below = names.into_iter().map(|name| format!("{above}/{name}"));
            left.extend(below.filter(|path| path != "/zookeeper" && path != "/lockkeeper/epoch"));
        }
        text
    })
}

fn with<T>(servers: &str, work: impl AsyncFnOnce(&zk::Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = zk::Client::connector().with_auth("digest", b"app:secret").connect(servers).await.unwrap();
        work(&client).await
    })
}

/// Creates what users have: data, access lists, more children than are copied at once.
fn grow(servers: &str) {
    with(servers, async |client| {
        let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        let digest = zk::AuthId::new("digest", "app:F6Y+U5gIoCbNNoLQExmvxRFeatA=");
        let acl = [zk::Acl::new(zk::Permission::ALL, digest), zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone())];
        let listed = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&acl));
        client.create("/config", b"old and new", &open).await.unwrap();
        client.create("/config/guarded", b"\x00\xff", &listed).await.unwrap();
        client.create("/many", b"", &open).await.unwrap();
        for n in 0..150 {
            client.create(&format!("/many/{n}"), n.to_string().as_bytes(), &open).await.unwrap();
        }
    });
}

/// Runs `copy` with credentials that can read every access list.
fn copy(home: &Home, args: &[&str]) -> Output {
    home.secret("auth", "# whose nodes these are\ndigest app:secret\n");
    home.output(&[&["admin", "copy", "--auth-file", "auth"], args].concat())
}

fn copied(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Takes a lock, releases it, and returns its token.
fn token(home: &Home, name: &str, more: &[&str]) -> i64 {
    let args = [&["run", name], more, &["--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]].concat();
    let output = home.output(&args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Checks everything that a copy must do between two places; returns the greatest token of the first place.
fn moved(from: &str, to: &str) -> i64 {
    let (old, new) = (Home::with_servers(from), Home::with_servers(to));
    let mut holder = old.holds("held", &[]);
    let greatest = token(&old, "nightly", &[]).max(token(&old, "index", &["--lease", "1m"]));

    let looked = copy(&old, &["--to", to, "--dry-run", "--json"]);
    let look = copied(&looked);
    assert_eq!(look["done"], false);
    assert!(look["created"].as_u64() > Some(150), "{look}");
    let output = copy(&old, &["--to", to, "--raise-epoch", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let told = copied(&output);
    assert_eq!((&told["done"], &told["conflicting"], &told["tokens_fall"]), (&true.into(), &0.into(), &false.into()));
    // If the epoch was raised, the node above it was there before the copy.
    let all = |counts: &Value| counts["created"].as_u64().unwrap() + counts["same"].as_u64().unwrap();
    assert_eq!(all(&told), all(&look));
    // The holder's node, and no node of the copy's own.
    assert_eq!(told["ephemeral"], 1, "{told}");
    assert_eq!(tree(from), tree(to));
    assert!(told["source_token"].as_i64() >= Some(greatest), "{told}");

    // The holds of the old place do not exist at the new one, and its new tokens are above all old ones.
    assert_eq!(new.count("held"), (0, 0));
    for (name, more) in [("held", &[][..]), ("nightly", &[]), ("index", &["--lease", "1m"])] {
        assert!(token(&new, name, more) > greatest, "{name}");
    }
    holder.finish();
    greatest
}

/// Persistent nodes are copied with data and access lists, ephemeral ones are counted. Tokens keep growing, and a copy
/// can be repeated.
#[test]
fn a_move_between_embedded_servers_takes_all_that_lasts_and_tokens_grow() {
    let machine = Home::new();
    let (from, to) = (Served::start_after(&machine, 1 << 46), Served::start(&machine));
    grow(&from.address);
    moved(&from.address, &to.address);

    // A lease has changed at the target; everything else is the same.
    let old = Home::with_servers(&from.address);
    let again = copied(&copy(&old, &["--to", &to.address, "/config", "/many", "--json"]));
    assert_eq!((&again["done"], &again["created"], &again["same"]), (&true.into(), &0.into(), &153.into()), "{again}");
}

/// A copy that would mix up data or tokens changes nothing and says what to do.
#[test]
fn a_copy_refuses_other_content_and_tokens_that_fall() {
    let machine = Home::new();
    let (from, to) = (Served::start_after(&machine, 1 << 46), Served::start(&machine));
    grow(&from.address);
    let old = Home::with_servers(&from.address);

    refused(&copy(&old, &["--to", &to.address]), 1, "would not be above");
    assert_eq!(tree(&to.address), "");

    with(&to.address, async |client| {
        let open = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        client.create("/config", b"mine", &open).await.unwrap();
    });
    let before = tree(&to.address);
    let output = copy(&old, &["--to", &to.address, "--raise-epoch", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = copied(&output);
    assert_eq!((&told["done"], &told["conflicts"]), (&false.into(), &serde_json::json!(["/config"])), "{told}");
    assert_eq!(tree(&to.address), before);

    let output = copy(&old, &["--to", &to.address, "--overwrite", "--raise-epoch", "--json", "/config"]);
    assert!(output.status.success(), "{output:?}");
    let told = copied(&output);
    assert_eq!((&told["replaced"], &told["created"]), (&1.into(), &1.into()), "{told}");
    assert!(copy(&old, &["--to", &to.address]).status.success());
    assert_eq!(tree(&from.address), tree(&to.address));

    // An access list that is not fully readable is not copied in part.
    names(&old.failure(&["admin", "copy", "--to", &to.address], 77), &["/config/guarded", "ADMIN"]);

    for (args, said) in [
        (&["admin", "copy", "--to", &to.address, "relative"][..], 64),
        (&["admin", "copy", "--to", &to.address, "/nowhere"], 1),
        (&["admin", "copy", "--to", "127.0.0.1:x"], 64),
    ] {
        assert_eq!(failure(&old.output(args)).0, Some(said), "{args:?}");
    }
}

/// Nobody misses the records of holds that the target had itself, and a copy that replaces other nodes is dangerous.
#[test]
fn a_copy_leaves_the_records_of_holds_that_the_target_has() {
    let machine = Home::new();
    let (from, to) = (Served::start(&machine), Served::start_after(&machine, 1 << 46));
    let homes = [&from, &to].map(|served| Home::with_servers(&served.address));
    for home in &homes {
        home.ok(&["run", "tried", "--", "true"]);
    }
    let history = |home: &Home| home.output(&["history", "tried", "--json"]).stdout;
    let before = homes.each_ref().map(history);
    assert_ne!(before[0], before[1]);
    let output = homes[0].output(&["admin", "copy", "--to", &to.address, "--json"]);
    assert!(output.status.success() && copied(&output)["conflicts"] == serde_json::json!([]), "{output:?}");
    let entries = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap()["entries"].clone();
    assert_eq!(entries(&history(&homes[1])), entries(&before[1]));
}

/// The page's steps on an ensemble of Apache's servers, and back.
#[cfg(deep)]
#[test]
fn a_move_to_an_ensemble_and_back_takes_all_that_lasts_and_tokens_grow() {
    use lockkeeper_testkit::apache::{Apache, Options};
    let machine = Home::new();
    let from = Served::start(&machine);
    grow(&from.address);
    let apache = Apache::ensemble(3, Options::default()).unwrap();
    let first = moved(&from.address, &apache.connect_string());

    let ensemble = Home::with_servers(&apache.connect_string());
    let told = copied(&copy(&ensemble, &["--to", &from.address, "--dry-run", "--json"]));
    let zxid = told["source_token"].as_i64().unwrap();
    assert!(zxid > first, "{told}");
    let zxid = (zxid & ((1 << 48) - 1)).to_string();
    let back = ["serve", "--memory", "--listen", "127.0.0.1:0", "--first-zxid", &zxid];
    let mut back = Running::start(&mut machine.command(&back));
    let address = back.line();
    moved(&apache.connect_string(), &address);
}
