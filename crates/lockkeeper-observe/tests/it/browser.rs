//! The page of an observation in Chromium, which this drives over its own pipe. `cargo xtask interop page` installs it.

#![cfg(all(feature = "http", deep))]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::{Guard, Lockkeeper};
use lockkeeper_observe::watch::{JobHealth, JobLine, Jobs, Notice, Observation, Observer, Options};
use lockkeeper_observe::{http, page};
use lockkeeper_server::Server;
use serde_json::{Value, json};

/// The longest wait for something that must come, in seconds.
const PATIENCE: u64 = 60;

/// A browser with one page. Commands and answers are JSON, each with a zero byte behind it.
struct Browser {
    process: Child,
    commands: File,
    answers: BufReader<File>,
    session: Option<String>,
    next: u64,
    /// The addresses of all requests.
    requested: Vec<String>,
    /// What the browser complains about: refused parts and errors of scripts.
    complaints: Vec<Value>,
    _dir: tempfile::TempDir,
}

impl Browser {
    fn start() -> Browser {
        let dir = tempfile::tempdir().unwrap();
        for pipe in ["commands", "answers"] {
            let made = Command::new("mkfifo").arg(dir.path().join(pipe)).status().unwrap();
            assert!(made.success());
        }
        // The shell opens the pipes in the order in which this does.
        let command = "exec timeout 300 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
                       --disable-background-networking --disable-component-update --user-data-dir=\"$1/profile\" \
                       --remote-debugging-pipe about:blank 3<\"$1/commands\" 4>\"$1/answers\"";
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command, "sh"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = shell.spawn().unwrap();
        let commands = File::options().write(true).open(dir.path().join("commands")).unwrap();
        let answers = BufReader::new(File::open(dir.path().join("answers")).unwrap());
        let (session, next, requested, complaints) = (None, 0, Vec::new(), Vec::new());
        let mut browser = Browser { process, commands, answers, session, next, requested, complaints, _dir: dir };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.next += 1;
        let mut command = json!({ "id": self.next, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        loop {
            let message = self.message();
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        let message: Value = serde_json::from_slice(&bytes).unwrap();
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requested.push(message["params"]["request"]["url"].as_str().unwrap().to_owned());
            }
            Some("Log.entryAdded" | "Runtime.exceptionThrown") => self.complaints.push(message["params"].clone()),
            _ => {}
        }
        message
    }

    /// Opens an address, and waits until all of it is there.
    fn open(&mut self, address: &str) {
        self.call("Page.navigate", &json!({ "url": address }));
        while self.message()["method"] != "Page.loadEventFired" {}
    }

    /// What an expression of JavaScript is, or what its promise gives.
    fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", &parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until the page says this, by itself.
    fn until_shown(&mut self, text: &str) {
        let wait = format!(
            "new Promise((done, fail) => {{
                const is = () => document.body.innerText.includes({text:?});
                const look = () => {{ if (is()) {{ done(true); }} }};
                new MutationObserver(look).observe(document.body, {{ subtree: true, childList: true, characterData: true }});
                setTimeout(() => fail(new Error(document.body.innerText)), {PATIENCE}000);
                look();
            }})"
        );
        assert_eq!(self.value(&wait), true);
    }

    fn press_tab(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let key = json!({ "type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9 });
            self.call("Input.dispatchKeyEvent", &key);
        }
    }

    fn resize(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// A server, an observation of it, and its page.
struct Observed {
    servers: String,
    address: String,
    observation: Observation,
    _server: Server,
}

async fn observed() -> Observed {
    let server = Server::ephemeral().await.unwrap();
    let servers = server.connect_string().to_owned();
    let keeper = Lockkeeper::connect(&servers).await.unwrap();
    let observation = Observation::new(Options::default());
    let observer = Observer::new(&keeper, "/locks", [""; 0], &observation).unwrap();
    tokio::spawn(async move {
        let _keeper = keeper;
        let ended = observer.run().await;
        panic!("{ended:?}");
    });
    let notice = tokio::time::timeout(Duration::from_secs(PATIENCE), observation.next_notice()).await.unwrap();
    assert!(matches!(notice, Notice::Started { .. }));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let pages = page::router(observation.clone(), |words: &[&str]| format!("lockkeeper {}", words.join(" ")));
    let router = http::guarded(http::router(observation.clone()).merge(pages), Vec::new());
    tokio::spawn(async move { http::serve(listener, router).await });
    Observed { servers, address, observation, _server: server }
}

impl Observed {
    async fn hold(&self, name: &str) -> (Lockkeeper, Guard) {
        let keeper = Lockkeeper::connect(&self.servers).await.unwrap();
        let guard = keeper.mutex(format!("/locks/{name}")).acquire().await.unwrap();
        (keeper, guard)
    }

    async fn browser<T: Send + 'static>(&self, path: &str, with: impl FnOnce(&mut Browser) -> T + Send + 'static) -> T {
        let address = format!("{}{path}", self.address);
        let browsing = tokio::task::spawn_blocking(move || {
            let mut browser = Browser::start();
            browser.resize(1280, 900, "light");
            browser.open(&address);
            with(&mut browser)
        });
        browsing.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_changes_by_itself_and_loads_nothing_from_elsewhere() {
    let observed = observed().await;
    let first = observed.hold("first").await;
    let (told, mut shown) = tokio::sync::mpsc::unbounded_channel();
    let browsing = observed.browser("/", move |browser| {
        browser.until_shown("/locks/first");
        told.send(()).unwrap();
        browser.until_shown("/locks/second");
        let errors: Vec<_> = browser.complaints.drain(..).collect();
        (browser.requested.clone(), errors)
    });
    let (second, (requested, complaints)) = tokio::join!(
        async {
            shown.recv().await.unwrap();
            observed.hold("second").await
        },
        browsing
    );
    assert_eq!(complaints, Vec::<Value>::new());
    assert!(requested.iter().any(|it| it.ends_with("/events")), "{requested:?}");
    let own = |it: &String| it.starts_with(&observed.address) || it.starts_with("data:") || it == "about:blank";
    assert!(requested.iter().all(own), "{requested:?}");
    drop((first, second));
}

fn job(name: &str, state: &str, health: JobHealth) -> JobLine {
    JobLine {
        path: format!("/locks/{name}"),
        state: state.to_owned(),
        health,
        slot: "2026-11-27".to_owned(),
        started: "02:13:05".to_owned(),
        took: "3 min 02 s".to_owned(),
        host: "db7".to_owned(),
        notes: if health == JobHealth::InOrder { String::new() } else { "failed with exit status 3".to_owned() },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_appears_by_itself_with_its_command() {
    let observed = observed().await;
    let observation = observed.observation.clone();
    let failed = observed
        .browser("/", move |browser| {
            browser.until_shown("No lock is in use");
            let lines = vec![job("backup", "failed", JobHealth::Failed), job("nightly", "ok", JobHealth::InOrder)];
            observation.show_jobs("/locks", Jobs { lines, problem: None });
            browser.until_shown("failed with exit status 3");
            browser.value("document.querySelector('#job-list tbody tr').innerText")
        })
        .await;
    let failed = failed.as_str().unwrap();
    assert!(failed.starts_with("/locks/backup") && failed.contains("failed"), "it is the first one: {failed}");
    assert!(failed.contains("$ lockkeeper jobs /locks/backup --history"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_link_is_reached_by_the_keyboard_and_is_seen_to_be() {
    let observed = observed().await;
    let held = observed.hold("nightly").await;
    for path in ["/", "/lock?path=/locks/nightly"] {
        let (all, reached) = observed
            .browser(path, |browser| {
                browser.until_shown("/locks/nightly");
                browser.until_shown("held for");
                let name = "(element) => element.id || element.getAttribute('href')";
                let all = browser.value(&format!("[...document.querySelectorAll('a, [tabindex=\"0\"]')].map({name})"));
                let all: BTreeSet<_> =
                    all.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect();
                let mut reached = Vec::new();
                for _ in 0..all.len() + 10 {
                    browser.press_tab();
                    let focus = format!(
                        "(() => {{ const it = document.activeElement; const style = getComputedStyle(it);
                            return [({name})(it), style.outlineStyle, style.outlineWidth]; }})()"
                    );
                    reached.push(browser.value(&focus));
                }
                (all, reached)
            })
            .await;
        assert_eq!(reached[0][0], "#main", "the link past the head is first: {reached:?}");
        let names: BTreeSet<_> = reached.iter().filter_map(|it| it[0].as_str().map(str::to_owned)).collect();
        assert!(all.is_subset(&names), "{all:?} {reached:?}");
        let focused = reached.iter().filter(|it| !it[0].is_null());
        assert!(focused.clone().all(|it| it[1] == "solid" && it[2] == "3px"), "{reached:?}");
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_fits_a_narrow_screen_and_needs_no_script() {
    let observed = observed().await;
    let held = observed.hold("a/very/long/path/of/a/lock/that/does/not/fit/into/one/line/of/a/telephone").await;
    let address = observed.address.clone();
    let widths = observed
        .browser("/", move |browser| {
            browser.until_shown("/locks/a/very");
            browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
            let mut widths = Vec::new();
            for path in
                ["/", "/lock?path=/locks/a/very/long/path/of/a/lock/that/does/not/fit/into/one/line/of/a/telephone"]
            {
                browser.resize(400, 800, "dark");
                browser.open(&format!("{address}{path}"));
                let layout = browser.call("Page.getLayoutMetrics", &json!({}));
                widths.push(layout["cssContentSize"]["width"].as_u64());
                let tree = browser.call("DOM.getDocument", &json!({ "depth": 0 }));
                let html = browser.call("DOM.getOuterHTML", &json!({ "nodeId": tree["root"]["nodeId"] }));
                assert!(html["outerHTML"].as_str().unwrap().contains("/locks/a/very"));
            }
            widths
        })
        .await;
    assert_eq!(widths, [Some(400), Some(400)]);
    drop(held);
}
