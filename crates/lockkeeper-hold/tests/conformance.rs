//! The clients of docs/examples/hold pass each case of the conformance program, and it finds the mistakes that are planted in them.
//!
//! `cargo xtask interop hold` builds that program, says where it is, and leaves out what the machine does not have.

#![cfg(deep)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A mistake: a text of the client, the one in its place, and a part of the name of a case that finds it.
type Mistake = (&'static str, &'static str, &'static str);

/// A client of the examples.
struct Client {
    file: &'static str,
    /// Returns how its adapter is started in this directory.
    adapter: fn(&Path) -> Vec<String>,
    mistakes: &'static [Mistake],
    /// It takes the clock that stands still while the machine sleeps.
    wrong_clock: (&'static str, &'static str),
}

const PYTHON: Client = Client {
    file: "hold.py",
    adapter: |there| vec!["python3".to_owned(), there.join("adapter.py").display().to_string()],
    mistakes: &[
        ("time.CLOCK_MONOTONIC)) < self.until", "time.CLOCK_MONOTONIC)) and self.until > 0", "silence past"),
        ("kind in (\"valid\", \"checked\") and self.held()", "kind in (\"valid\", \"checked\")", "after the time"),
        (
            "kind in (\"valid\", \"checked\") and",
            "kind in (\"valid\", \"checked\", \"rumour\") and",
            "unknown event extends",
        ),
        ("stdin=PIPE, stdout=PIPE", "stdin=open('/dev/null'), stdout=PIPE", "a hold is held"),
        ("and not is_last and kind != \"ended\"", "and False", "nothing revives"),
        ("\"make_way\": min(self.until, 0)}", "}", "crosses make_way"),
        ("                self.child.stdin.close()\n", "", "another version"),
        ("(\"lost\", \"released\", \"failed\")", "(\"released\", \"failed\")", "lost at once: removed"),
        ("code = self.child.wait()", "code = 0", "an end without a line"),
        ("max(code, 0) or 70", "code", "an end with 0"),
        ("\"ended\" if self.until else \"failed\"", "\"lost\" if self.until else \"failed\"", "was killed holds"),
        ("        except (OSError, ValueError): pass", "        finally: pass", "harms nothing"),
    ],
    wrong_clock: ("getattr(time, \"CLOCK_BOOTTIME\", time.CLOCK_MONOTONIC)", "time.CLOCK_MONOTONIC"),
};

const NODE: Client = Client {
    file: "hold.mjs",
    adapter: |there| vec!["node".to_owned(), there.join("adapter.mjs").display().to_string()],
    mistakes: &[
        ("    return process.hrtime.bigint() < this.until &&", "    return this.until > 0n ||", "silence past"),
        (" && this.held() && event", " && event", "after the time"),
        (
            "this.tell(event);",
            "for (const lock of event.locks ?? []) lock.token = String(Number(lock.token));\n    this.tell(event);",
            "2^53",
        ),
        ("split(\"\\n\")", "split(/[\\n\\u2028]/)", "text in UTF-8"),
        ("setEncoding(\"utf8\")", "setEncoding(\"latin1\")", "text in UTF-8"),
        ("this.#text = lines.pop();", "", "in two writes"),
        (
            "if (this.until < 0n && !isLast) return;",
            "if (kind === \"valid\") this.until = BigInt(event.valid_until_ns);",
            "crosses make_way",
        ),
        ("        this.child.stdin.end();\n", "", "no JSON is refused"),
        ("catch {}", "catch { throw new Error(line); }", "no JSON is refused"),
        ("make_way: 0n", "make_way: this.until", "makes way is held again"),
        ("code || 70", "code", "killed during the wait"),
    ],
    wrong_clock: (" && BigInt(Math.ceil(uptime() * 100) + 1) * 10_000_000n < this.until", ""),
};

const GO: Client = Client {
    file: "hold.go",
    adapter: |there| {
        let go = Command::new("go").args(["build", "adapter.go", "hold.go"]).current_dir(there).output().unwrap();
        assert!(go.status.success(), "{go:?}");
        vec![there.join("adapter").display().to_string()]
    },
    mistakes: &[
        ("	return now() < h.until\n", "	return h.until > 0\n", "silence past"),
        ("(kind == \"valid\" || kind == \"checked\") && now() < h.until", "kind == \"valid\"", "after the time"),
        ("(kind == \"valid\" || kind == \"checked\")", "event.ValidUntil != 0", "unknown event extends"),
        (
            "json.Unmarshal(line, &event)",
            "if json.Unmarshal(line, &event) != nil {\n break\n }",
            "unknown event is ignored",
        ),
        ("bufio.NewReader(output)", "bufio.NewReader(io.LimitReader(output, 65536))", "megabyte"),
        ("	child.Wait()\n", "	child.Process.Release()\n	child.ProcessState = &os.ProcessState{}\n", "reaped"),
        ("h.until = min(h.until, 0)", "h.until = -1", "held again"),
        ("			h.Input.Close()\n", "", "no hello"),
    ],
    wrong_clock: ("const boottime = 7", "const boottime = 1"),
};

/// The client is right, and a mistake in it is found.
mod clients {
    use super::*;

    #[test]
    fn in_python() {
        check(&PYTHON, &[], PYTHON.mistakes);
    }

    #[test]
    fn in_node() {
        check(&NODE, &[], NODE.mistakes);
    }

    #[test]
    fn in_go() {
        check(&GO, &[], GO.mistakes);
    }
}

/// The same on a machine that has slept for an hour, for which the clock of a time namespace stands.
mod slept {
    use super::*;

    const SLEPT: &[&str] = &["unshare", "--user", "--map-root-user", "--fork", "--time", "--boottime", "3600"];

    fn check_clock(client: &Client) {
        let (from, to) = client.wrong_clock;
        check(client, SLEPT, &[(from, to, "silence past")]);
    }

    #[test]
    fn in_python() {
        check_clock(&PYTHON);
    }

    #[test]
    fn in_node() {
        check_clock(&NODE);
    }

    #[test]
    fn in_go() {
        check_clock(&GO);
    }
}

fn check(client: &Client, within: &[&str], mistakes: &[Mistake]) {
    let place = tempfile::tempdir().unwrap();
    let there = place.path();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/hold");
    for file in fs::read_dir(examples).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), there.join(file.file_name())).unwrap();
        }
    }
    let conform = |arguments: &[&str]| -> Output {
        let conformance = std::env::var("LOCKKEEPER_CONFORMANCE").expect("run `cargo xtask interop hold`");
        let all = [within, &[&conformance], arguments].concat();
        Command::new(all[0]).args(&all[1..]).args((client.adapter)(there)).output().unwrap()
    };
    // Those about time depend on the clock.
    let output = conform(if within.is_empty() { &[] } else { &["--case", "time"] });
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.ends_with(" passed, 0 failed\n"), "{told}{output:?}");
    let right = fs::read_to_string(there.join(client.file)).unwrap();
    let is_missed = |&&(from, to, case): &&Mistake| {
        assert_eq!(right.matches(from).count(), 1, "{from}");
        fs::write(there.join(client.file), right.replace(from, to)).unwrap();
        let output = conform(&["--case", case, "--patience", "2"]);
        // Shown if one is missed.
        println!("{to:?} in place of {from:?}: {}", String::from_utf8_lossy(&output.stdout));
        output.status.code() != Some(1)
    };
    let missed: Vec<_> = mistakes.iter().filter(is_missed).collect();
    assert!(missed.is_empty(), "not found: {missed:#?}");
}
