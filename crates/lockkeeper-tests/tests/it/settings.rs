//! Settings: Contentserv's keys, our own, the environment and flags; and their effect on locks.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper::Class;
use lockkeeper::error::{ConnectError, SessionError};
use lockkeeper_config::settings::{Key, Origin, Settings, Sources};
use lockkeeper_contentserv::{MonitorError, MonitorLock};
use lockkeeper_testkit::proxy::Cut;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::interfaces::on_every_server;
use crate::support::{STEADY, Stalls, World, eventually, on_the_embedded_server};

on_every_server!(
    the_negotiated_session_timeout_is_shown,
    the_file_sets_the_order_and_the_timeout_of_each_class,
    swapped_prefixes_swap_priority,
);

on_the_embedded_server!(a_wait_reconnects_as_often_as_the_settings_say, connect_tries_as_often_as_the_settings_say,);

/// The files of one test.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn properties(text: &str) -> Result<Settings, String> {
    let files = Files::new();
    let path = files.write("app.properties", text);
    Sources::none().properties(path).read().map_err(|error| error.to_string())
}

fn toml(text: &str) -> Result<Settings, String> {
    let files = Files::new();
    let path = files.write("config.toml", text);
    Sources::none().config(path).read().map_err(|error| error.to_string())
}

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// The document's own file, word for word.
const DOCUMENT: &str = "\
# comma-separated list of host:port pairs as localhost:2181,localhost:2182,localhost:2183
zookeeper.servers=localhost:2181

# session timeout in milliseconds, It is used to do heartbeats and the minimum session timeout will be twice the tickTime.
zookeeper.session.timeout=5000

# number of retries if there is disconnection
zookeeper.connection.retry=5

# delay in milliseconds between connection try after disconnection
zookeeper.connection.delay=1000

# lock prefix for foreground tasks
# lowest the alphabet index, highest is the priority for the task
zookeeper.foreground.lock.prefix=A

# lock prefix for background tasks
# lowest the alphabet index, highest is the priority for the task
zookeeper.background.lock.prefix=B

# lock wait timeout for foreground tasks in milliseconds
zookeeper.foreground.task.timeout=2000

# lock wait timeout for background tasks in milliseconds
zookeeper.background.task.timeout=2000
";

/// C-35, C-36, C-37, C-38, C-39, C-40, C-42, C-43, C-45: the document's file is read verbatim, and an empty file means the same.
#[test]
fn the_documents_file_is_read_verbatim_and_is_the_default_of_its_keys() {
    let read = properties(DOCUMENT).unwrap();
    let defaults = properties("# nothing\n").unwrap();
    for settings in [&read, &defaults] {
        assert_eq!(settings.servers.value.as_deref(), Some("localhost:2181"));
        assert_eq!(settings.session_timeout.value, MILLIS(5000));
        assert_eq!(settings.reconnect(), Some((5, MILLIS(1000))));
        assert_eq!(settings.foreground.prefix.value, Class::FOREGROUND);
        assert_eq!(settings.background.prefix.value, Class::BACKGROUND);
        assert_eq!(settings.foreground.timeout.value, Some(MILLIS(2000)));
        assert_eq!(settings.background.timeout.value, Some(MILLIS(2000)));
        assert_eq!(settings.retries.value, 3);
        assert_eq!(settings.warnings(), []);
    }
    let line = |origin: &Origin| match origin {
        Origin::File { line, .. } => *line,
        _ => None,
    };
    assert_eq!(line(&read.servers.origin), Some(2));
    assert_eq!(line(&read.background.timeout.origin), Some(25));
    assert!(defaults.entries().iter().all(|entry| entry.origin == Origin::Default));
}

/// C-35..C-40, C-42, C-43, C-45: each key sets the setting that it names and no other.
#[test]
fn every_key_of_the_document_sets_its_own_setting() {
    let unlike = |key: &str, value: &str| {
        let (set, usual) = (properties(&format!("{key}={value}")).unwrap(), properties("").unwrap());
        let changed: Vec<_> = set.entries().iter().zip(usual.entries()).filter(|(a, b)| a != b).collect();
        assert_eq!(changed.len(), 1, "{key}: {changed:?}");
        let (entry, _) = &changed[0];
        assert_eq!(entry.key.property(), Some(key));
        entry.value.clone().unwrap()
    };
    assert_eq!(unlike("zookeeper.servers", "zk1:2181, zk2:2182,zk3/app"), "zk1:2181, zk2:2182,zk3/app");
    assert_eq!(unlike("zookeeper.session.timeout", "7000"), "7s");
    assert_eq!(unlike("zookeeper.connection.retry", "9"), "9");
    assert_eq!(unlike("zookeeper.connection.delay", "1500 "), "1s500ms");
    assert_eq!(unlike("zookeeper.foreground.lock.prefix", "FG"), "FG");
    assert_eq!(unlike("zookeeper.background.lock.prefix", "Z"), "Z");
    assert_eq!(unlike("zookeeper.foreground.task.timeout", "250"), "250ms");
    assert_eq!(unlike("zookeeper.background.task.timeout", "60000"), "1m");
    assert_eq!(unlike("elastic.request.retry.count", "7"), "7");
}

/// Java's rules: `:` and blanks also separate, values continue on the next line, and `\u` is a character.
#[test]
fn properties_files_are_read_as_in_java() {
    let settings =
        properties("! x\nzookeeper.servers : zk1:2181,\\\n   zk2:2181\nzookeeper.session.timeout 6000\n").unwrap();
    assert_eq!(settings.servers.value.as_deref(), Some("zk1:2181,zk2:2181"));
    assert_eq!(settings.session_timeout.value, MILLIS(6000));
    let error = properties("zookeeper.servers=\\u12").unwrap_err();
    assert!(error.contains("app.properties:1: "), "{error}");
}

/// C-41: like every other mistake, it is reported with file, line, key, value and a correct example.
#[test]
fn every_mistake_is_reported_with_its_place_and_key() {
    let cases = [
        ("zookeeper.foreground.lock.prefix=B", "prefix", "as well"),
        ("zookeeper.background.lock.prefix=A", "background.lock.prefix", "as well"),
        ("zookeeper.background.lock.prefix=", "background.lock.prefix", "it is empty"),
        ("zookeeper.foreground.lock.prefix=A-", "foreground.lock.prefix", "a - separates"),
        ("zookeeper.foreground.lock.prefix=A/B", "foreground.lock.prefix", "a / separates"),
        ("zookeeper.session.timeout=5s", "session.timeout", "\"5s\" is not a number; write milliseconds, as in 5000"),
        ("zookeeper.session.timeout=", "session.timeout", "is not a number"),
        ("zookeeper.session.timeout=-1", "session.timeout", "is not a number"),
        ("zookeeper.session.timeout=0", "session.timeout", "choose one from 1 to 86400000"),
        ("zookeeper.session.timeout=99999999999999999999", "session.timeout", "is not a number"),
        ("zookeeper.connection.retry=many", "connection.retry", "\"many\" is not a count"),
        ("zookeeper.connection.delay=0", "connection.delay", "out of range"),
        ("zookeeper.background.task.timeout=2.5", "background.task.timeout", "is not a number"),
        ("zookeeper.servers=", "zookeeper.servers", "is not a server"),
        ("zookeeper.servers=zk1:port", "zookeeper.servers", "\"port\""),
        ("elastic.request.retry.count=-3", "elastic.request.retry.count", "\"-3\" is not a count"),
    ];
    for (line, key, problem) in cases {
        let error = properties(&format!("# one\n{line}\n")).unwrap_err();
        assert!(
            error.contains("app.properties:2: ") && error.contains(key) && error.contains(problem),
            "{line}: {error}"
        );
    }
    let cases = [
        ("session_timeout = 5000", ":1: session_timeout: is of the type integer", "write session_timeout = \"5s\""),
        ("session_timeout = \"5\"", ":1: session_timeout", "500ms, 30s"),
        ("\n[connection]\nretry = \"5\"", ":3: connection.retry", "not a number"),
        ("[background]\nprefix = \"A\"", ":2: background.prefix", "the foreground as well (default)"),
        ("sesion_timeout = \"5s\"", ":1: sesion_timeout: there is no such key", "did you mean session_timeout?"),
        ("[foreground]\ntimeuot = \"5s\"", ":2: foreground.timeuot", "did you mean foreground.timeout?"),
        ("colour = 1", ":1: colour", "there is no such key"),
        ("background = 1", ":1: background: is a table", "[background]"),
        ("servers = [\"zk1\", 2]", ":1: servers", "[\"zk1:2181\""),
        ("state_dir = \"here\"", ":1: state_dir", "absolute"),
        ("[background]\ndead_letter = \"file:here\"", ":2: background.dead_letter", "absolute"),
        ("strict = \"yes\"", ":1: strict", "true or false"),
        ("servers = \"zk1:2181\"\nsession", ":2: ", "key with no value"),
    ];
    for (text, place, problem) in cases {
        let error = toml(text).unwrap_err();
        assert!(error.contains(&format!("config.toml{place}")) && error.contains(problem), "{text}: {error}");
    }
    // All mistakes together, in the order of the file.
    let error = properties("zookeeper.session.timeout=x\nzookeeper.connection.retry=y\n").unwrap_err();
    assert!(error.find(":1: ").unwrap() < error.find(":2: ").unwrap(), "{error}");
    let missing = Sources::none().properties("/nowhere/app.properties").read().unwrap_err().to_string();
    assert!(missing.contains("/nowhere/app.properties") && missing.contains("cannot be read"), "{missing}");
}

/// C-44: a warning with the place and a suggestion; an error in strict mode. Keys of other programs are ignored.
#[test]
fn an_unknown_key_is_a_warning_and_an_error_in_strict_mode() {
    let files = Files::new();
    let path = files.write(
        "app.properties",
        "elasticsearch.hosts=x\nzookeeper.sesion.timeout=1\nzookeeper.whatever=2\nelastic.request.retry.delay=3\n\
         elastic.request.retry.cuont=4\nzookeeper.connection.retry=1\nzookeeper.connection.retry=2\n",
    );
    let settings = Sources::none().properties(&path).read().unwrap();
    let warnings: Vec<_> = settings.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert!(warnings[0].contains("app.properties:2: zookeeper.sesion.timeout: there is no such key"), "{warnings:?}");
    assert!(warnings[0].contains("did you mean zookeeper.session.timeout?"), "{warnings:?}");
    assert!(warnings[1].contains(":3: zookeeper.whatever"), "{warnings:?}");
    assert!(
        warnings[2].contains(":5: ") && warnings[2].contains("did you mean elastic.request.retry.count?"),
        "{warnings:?}"
    );
    assert!(warnings[3].contains(":7: ") && warnings[3].contains("line 6"), "{warnings:?}");
    assert_eq!(settings.connection_retry.value, Some(2));
    let strict = Sources::none().properties(&path).flag(Key::Strict, "--strict", "true").read().unwrap_err();
    assert_eq!(strict.faults().len(), 4, "{strict}");
    let variables =
        [("LOCKKEEPER_SERVER", "zk1"), ("LOCKKEEPER_TOKEN", "7"), ("LOCKKEEPER_WHATEVER", "x"), ("PATH", "")];
    let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let settings = Sources::none().variables(variables).read().unwrap();
    let warnings: Vec<_> = settings.warnings().iter().map(ToString::to_string).collect();
    let expected = [("SERVER", "; the nearest one is LOCKKEEPER_SERVERS"), ("WHATEVER", "")]
        .map(|(name, remedy)| format!("LOCKKEEPER_{name}: there is no such variable, so it has no effect{remedy}"));
    assert_eq!(warnings, expected);
}

/// A program may take the variables from elsewhere. They name files as the process's own do, and a file that the program names
/// replaces that of the variable.
#[test]
fn given_variables_name_the_files_too() {
    let files = Files::new();
    let config = files.write("named.toml", "servers = \"zk1\"\n");
    let own = files.write("own.toml", "servers = \"zk2\"\n");
    let properties = files.write("app.properties", "zookeeper.session.timeout=6000\n");
    let named = |sources: Sources| {
        let variables = [("LOCKKEEPER_CONFIG", &config), ("LOCKKEEPER_PROPERTIES", &properties)];
        sources.variables(variables.map(|(name, file)| (name.to_owned(), file.to_str().unwrap().to_owned())))
    };
    let settings = named(Sources::none()).read().unwrap();
    assert_eq!(settings.servers.value.as_deref(), Some("zk1"));
    assert_eq!(settings.session_timeout.value, Duration::from_secs(6));
    let settings = named(Sources::none().config(&own)).read().unwrap();
    assert_eq!(settings.servers.value.as_deref(), Some("zk2"));
    let unset = named(Sources::none()).variables([]).read().unwrap();
    assert_eq!(unset, Sources::none().read().unwrap());
}

/// Set only for the child process of the test below.
const CHILD: &str = "LOCKKEEPER_TEST_SETTINGS";

/// Not a test: a child process that reads its settings twice, and prints what the library logs.
#[test]
fn child() {
    struct Printed;
    impl tracing::field::Visit for Printed {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            if field.name() == "mistake" {
                println!("logged: {value:?}");
            }
        }
    }
    struct Printing;
    impl tracing::Subscriber for Printing {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut Printed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    if std::env::var_os(CHILD).is_some() {
        tracing::subscriber::with_default(Printing, || {
            Settings::read().unwrap();
            Settings::read().unwrap();
        });
    }
}

#[test]
fn an_unknown_variable_is_logged_once_when_a_program_reads_its_settings() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["settings::child", "--exact", "--nocapture"]).env_clear().env(CHILD, "1");
    let told = String::from_utf8(child.output().unwrap().stdout).unwrap();
    let logged: Vec<_> = told.lines().filter(|line| line.contains("logged: ")).collect();
    assert!(logged.len() == 1 && logged[0].contains(&format!("{CHILD}: there is no such variable")), "{told}");
}

/// `connect` of a program knows no path, so it cannot choose a realm.
#[tokio::test]
async fn without_servers_for_all_paths_the_error_names_the_realms_and_how_to_use_them() {
    let files = Files::new();
    let config = files.write("realms.toml", "[realms]\n\"/a\" = \"zk-a:2181\"\n\"/b\" = \"zk-b:2181\"\n");
    let settings = Sources::none().config(&config).read().unwrap();
    let Err(ConnectError::Misuse(error)) = settings.connect().await else { panic!("connected without servers") };
    assert!(error.to_string().ends_with("only for the realms /a, /b"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("Settings::routing")), "{error:?}");
    let Err(ConnectError::Misuse(error)) = Sources::none().read().unwrap().connect().await else {
        panic!("connected without servers")
    };
    assert!(error.hint().is_some_and(|hint| hint.contains("LOCKKEEPER_SERVERS")), "{error:?}");
}

#[test]
fn later_layers_override_earlier_ones_and_are_named() {
    let files = Files::new();
    let first = files.write("a.properties", "zookeeper.servers=p1\nzookeeper.session.timeout=6000\n");
    let second = files.write("b.properties", "zookeeper.session.timeout=7000\nzookeeper.connection.retry=1\n");
    let config = files.write("c.toml", "[connection]\nretry = 2\ndelay = \"3s\"\n[foreground]\ntimeout = \"4s\"\n");
    let sources = Sources::none().properties(&first).properties(&second).config(&config);
    let variables =
        [("LOCKKEEPER_CONNECTION_DELAY", "5s"), ("LOCKKEEPER_FOREGROUND_TIMEOUT", "6s"), ("LOCKKEEPER_SERVERS", "")];
    let sources = sources.variables(variables.map(|(name, text)| (name.to_owned(), text.to_owned())));
    let settings = sources.flag(Key::ForegroundTimeout, "--wait", "8s").read().unwrap();
    let said: Vec<_> = settings.entries().iter().cloned().map(|entry| (entry.key, entry.value, entry.origin)).collect();
    let of = |key: Key| {
        said.iter().find(|(of, ..)| *of == key).map(|(_, value, origin)| (value.as_deref(), origin.to_string()))
    };
    let at = |path: &PathBuf, line: u32| format!("{}:{line}", path.display());
    assert_eq!(of(Key::Servers), Some((Some("p1"), at(&first, 1))));
    assert_eq!(of(Key::SessionTimeout), Some((Some("7s"), at(&second, 1))));
    assert_eq!(of(Key::ConnectionRetry), Some((Some("2"), at(&config, 2))));
    assert_eq!(of(Key::ConnectionDelay), Some((Some("5s"), "LOCKKEEPER_CONNECTION_DELAY".to_owned())));
    assert_eq!(of(Key::ForegroundTimeout), Some((Some("8s"), "--wait".to_owned())));
    assert_eq!(of(Key::BackgroundTimeout), Some((Some("2s"), "default".to_owned())));
}

#[test]
fn without_a_properties_file_lockkeepers_defaults_apply() {
    let settings = Sources::none().read().unwrap();
    assert_eq!((&settings.servers.value, settings.session_timeout.value), (&None, Duration::from_secs(10)));
    assert_eq!((settings.foreground.timeout.value, settings.background.timeout.value), (None, None));
    assert_eq!((settings.retries.value, settings.reconnect()), (0, None));
    let servers = Sources::none().flag(Key::Servers, "--servers", "zk1:2181").read().unwrap();
    assert_eq!(servers.session_timeout.value, Duration::from_secs(30), "an ensemble may take longer to come back");
    let theirs = Sources::none().contentserv().read().unwrap();
    assert_eq!(theirs.servers.value.as_deref(), Some("localhost:2181"));
}

/// Settings from a file, with this world's servers.
fn settings_for(world: &World, text: &str) -> Settings {
    let settings = properties(&format!("zookeeper.servers={}\n{text}", world.servers())).unwrap();
    assert_eq!(settings.warnings(), []);
    settings
}

/// C-36: the timeout that the server granted; the server raises one below two ticks.
async fn the_negotiated_session_timeout_is_shown(world: &World) {
    let settings = settings_for(world, "zookeeper.session.timeout=6000\n");
    let keeper = settings.connect().await.unwrap();
    world.keep_open(&keeper);
    assert_eq!(keeper.session_timeout(), Some(MILLIS(6000)));
    // Two ticks of the embedded server are 200 ms, those of the tests' Apache servers 1 s.
    let short = settings_for(world, "zookeeper.session.timeout=40\n").connect().await.unwrap();
    world.keep_open(&short);
    let least = if world.is_embedded() { MILLIS(200) } else { MILLIS(1000) };
    assert_eq!(short.session_timeout(), Some(least));
    assert_eq!(properties("zookeeper.session.timeout=400").unwrap().session_timeout.value, MILLIS(400));
}

/// C-27, C-28, C-42, C-43: each class waits for its own timeout, from the file, and at most 100 ms longer. A control tells a busy
/// machine apart.
async fn the_file_sets_the_order_and_the_timeout_of_each_class(world: &World) {
    let text = "zookeeper.foreground.task.timeout=1000\nzookeeper.background.task.timeout=1500\n\
                zookeeper.foreground.lock.prefix=K\nzookeeper.background.lock.prefix=P\n";
    let settings = settings_for(world, text);
    let keeper = settings.connect().await.unwrap();
    world.keep_open(&keeper);
    let object = world.object("P1");
    let lock = |info: &str| MonitorLock::new(info, &keeper, &object).classes(settings.task_classes());
    let holder = lock("holder");
    holder.lock().await.unwrap();
    let (stalls, since, children) = (Stalls::watch(), Instant::now(), format!("/{object}"));
    let ended = async |lock: MonitorLock| (lock.lock_with_timeout().await, since.elapsed());
    let (foreground, background, ()) = tokio::join!(ended(lock("save")), ended(lock("bulk").background()), async {
        for class in ["K-", "P-"] {
            // The holder has a node with the foreground's prefix, too.
            let count = if class == "K-" { 2 } else { 1 };
            eventually("the contender waits in the queue", async || {
                let names = world.children(&children).await;
                names.iter().filter(|name| name.starts_with(class)).count() == count
            })
            .await;
        }
    });
    for ((outcome, took), timeout) in [(foreground, 1000), (background, 1500)] {
        assert!(matches!(outcome, Err(MonitorError::InstanceLock { .. })), "{outcome:?}");
        let most = stalls.allow(MILLIS(timeout + 100));
        assert!(took >= MILLIS(timeout) && took < most, "{took:?}, at most {most:?}");
    }
    holder.unlock().await.unwrap();
    world.remove(&children).await;
}

/// C-39, C-40, C-41: the prefix that sorts first has priority, so swapped prefixes swap it. Words are prefixes too.
async fn swapped_prefixes_swap_priority(world: &World) {
    for (foreground, background) in [("B", "A"), ("FOREGROUND", "BACKGROUND"), ("FG_B", "FG_A"), ("A", "A!")] {
        the_background_goes_first(world, foreground, background).await;
    }
}

async fn the_background_goes_first(world: &World, foreground: &str, background: &str) {
    let text = format!(
        "zookeeper.foreground.lock.prefix={foreground}\nzookeeper.background.lock.prefix={background}\n\
         zookeeper.foreground.task.timeout=30000\nzookeeper.background.task.timeout=30000\n"
    );
    let settings = properties(&format!("zookeeper.servers={}\n{text}", world.servers())).unwrap();
    assert!(settings.warnings()[0].to_string().contains("the background is served first"), "{:?}", settings.warnings());
    let keeper = settings.connect().await.unwrap();
    world.keep_open(&keeper);
    let object = world.object("P1");
    let lock = |info: &str| MonitorLock::new(info, &keeper, &object).classes(settings.task_classes());
    let holder = lock("holder");
    holder.lock().await.unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    let turn = async |lock: MonitorLock, who: &'static str| {
        lock.lock_with_timeout().await.unwrap();
        order.lock().unwrap().push(who);
        lock.unlock().await.unwrap();
    };
    let path = format!("/{object}");
    let queued = async |count: usize| {
        eventually("all contenders are in the queue", async || world.children(&path).await.len() == count).await;
    };
    tokio::join!(
        turn(lock("save").foreground(), "foreground"),
        async {
            queued(3).await;
            turn(lock("bulk").background(), "background").await;
        },
        async {
            queued(4).await;
            holder.unlock().await.unwrap();
        },
    );
    assert_eq!(order.into_inner().unwrap(), ["background", "foreground"]);
}

/// C-31, C-37, C-38: after a lost connection, a wait fails with ConnectionLoss when exactly the configured number of tries has
/// failed, each after the configured pause: long before its deadline and before the session's end. The request's node is deleted
/// when the connection is back.
async fn a_wait_reconnects_as_often_as_the_settings_say(world: &World) {
    let proxy = world.proxy().await;
    let text = "zookeeper.connection.retry=2\nzookeeper.connection.delay=700\nzookeeper.background.task.timeout=600000\n\
                zookeeper.session.timeout=20000\n";
    let settings = settings_for(world, text);
    let keeper = settings.builder().connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    let other = world.keeper().await;
    let object = world.object("P1");
    let holder = MonitorLock::new("holder", &other, &object);
    holder.lock().await.unwrap();
    let waiting = MonitorLock::new("bulk", &keeper, &object).classes(settings.task_classes()).background();
    let path = format!("/{object}");
    let before = proxy.counts().refused;
    let (cut, failed) = (OnceLock::new(), OnceLock::new());
    let (outcome, ()) = tokio::join!(
        async {
            let outcome = waiting.lock_with_timeout().await;
            failed.set((Instant::now(), proxy.counts().refused - before)).unwrap();
            outcome
        },
        async {
            eventually("the request waits", async || world.children(&path).await.len() == 3).await;
            proxy.refuse();
            proxy.cut(Cut::Reset);
            cut.set(Instant::now()).unwrap();
            // The session is retried further, at the same pace: the third try comes when the wait has failed.
            proxy.wait_until(|counts| counts.refused - before >= 3).await;
            assert!(failed.get().is_some(), "a third try before the wait failed");
        }
    );
    let (at, tries) = failed.get().unwrap();
    assert_eq!(*tries, 2);
    assert!(*at - *cut.get().unwrap() >= 2 * MILLIS(690), "the pauses are shorter than configured");
    match outcome {
        Err(MonitorError::ConnectionLoss { monitor_object, lock_info, .. }) => {
            assert_eq!((monitor_object.as_str(), lock_info.as_str()), (object.as_str(), "bulk"));
        }
        other => panic!("{other:?}"),
    }
    proxy.heal();
    eventually("the request's node is deleted", async || world.children(&path).await.len() == 2).await;
    holder.unlock().await.unwrap();
    // A shorter disconnect does not fail the wait.
    waiting.lock_with_timeout().await.unwrap();
    waiting.unlock().await.unwrap();
}

/// C-31, C-37: `connect` tries as often as the settings say, then reports that no server answers.
async fn connect_tries_as_often_as_the_settings_say(world: &World) {
    let proxy = world.proxy().await;
    proxy.refuse();
    let before = proxy.counts().refused;
    let builder = lockkeeper::Lockkeeper::builder().session_timeout(STEADY).reconnect(2, MILLIS(10));
    let outcome = builder.connect(&proxy.connect_string()).await;
    assert!(matches!(outcome, Err(ConnectError::Session(SessionError::Unreachable { .. }))), "{outcome:?}");
    assert_eq!(proxy.counts().refused - before, 3);
    proxy.heal();
}

/// H-70: a table of prefixes; each mistake is reported with its place and its remedy.
#[tokio::test]
async fn realms_are_read_from_the_file() {
    let read = toml("[realms]\n\"/search\" = \"zk-a:2181\"\n\"/\" = \"zk-b:2181,zk-c:2181\"\n").unwrap();
    let routing = read.routing().await.unwrap().unwrap();
    assert_eq!(routing.servers("/search/x").unwrap(), "zk-a:2181");
    assert_eq!(routing.servers("/billing").unwrap(), "zk-b:2181,zk-c:2181");
    assert!(read.realms[0].origin.to_string().ends_with("config.toml:2"), "{}", read.realms[0].origin);
    for (text, say) in [
        ("[realms]\nsearch = \"a:1\"", ["config.toml:2", "\"search\"", "absolute path"]),
        ("[realms]\n\"/a\" = 5", ["config.toml:2", "integer", "zk1:2181"]),
        ("[realms]\n\"/a\" = \"a:x\"", ["config.toml:2", "a:x", "as in zk1:2181"]),
        ("servers = \"a:1\"\n[realms]\n\"/a\" = \"a:1\"", ["config.toml:1", "realms as well", "[realms]"]),
    ] {
        let error = toml(text).unwrap_err();
        assert!(say.iter().all(|say| error.contains(say)), "{text:?}: {error}");
    }
    let files = Files::new();
    let path = files.write("config.toml", "[realms]\n\"/a\" = \"a:1\"\n");
    let over = Sources::none().config(path).flag(Key::Servers, "--servers", "b:2").read().unwrap();
    assert!(over.routing().await.unwrap().is_none(), "explicit servers override the realms");
}

/// H-77: rules that decide a transfer in advance.
#[test]
fn transfer_rules_are_read_from_the_file() {
    let rule = "[[transfer]]\nname = \"batch yields\"\nowner = \"batch-*\"\nrequestor = \"online-*\"\n";
    let read = toml(&format!("{rule}\n[[transfer]]\nname = \"second\"\nowner = \"*\"\nrequestor = \"sre\"\n")).unwrap();
    let rules: Vec<_> = read.transfers.iter().map(|rule| rule.value.name.as_str()).collect();
    assert_eq!(rules, ["batch yields", "second"]);
    assert_eq!(
        (read.transfers[0].value.owner.as_str(), read.transfers[0].value.requestor.as_str()),
        ("batch-*", "online-*")
    );
    for (text, say) in [
        ("[[transfer]]\nname = \"x\"\nowner = \"*\"", ["config.toml:1", "transfer.requestor", "missing"]),
        (
            "[[transfer]]\nname = \"x\"\nonwer = \"*\"\nrequestor = \"*\"",
            ["config.toml:3", "transfer.onwer", "did you mean owner"],
        ),
        ("[[transfer]]\nname = 7\nowner = \"*\"\nrequestor = \"*\"", ["config.toml:2", "transfer.name", "integer"]),
        ("transfer = 1", ["config.toml:1", "transfer", "[[transfer]]"]),
    ] {
        let error = toml(text).unwrap_err();
        assert!(say.iter().all(|say| error.contains(say)), "{text:?}: {error}");
    }
}
