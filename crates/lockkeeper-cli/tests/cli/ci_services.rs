//! The step for GitHub Actions, the job for GitLab CI, the manifests for Kubernetes and the unit of the observer, in contrib. Their commands
//! are read from the files and run as the services run them.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use rustix::process::Signal;

use crate::harness::{BINARY, Home, Running, Served, served, text, until};

fn yaml(file: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file);
    serde_saphyr::from_str(&text(&path)).unwrap()
}

/// A runner: a machine with the command, and servers.
struct Runner {
    home: Home,
    served: Served,
    _machine: Home,
}

/// Values of inputs or variables, by name.
type Values<'v> = &'v [(&'v str, &'v str)];

impl Runner {
    fn new() -> Self {
        let machine = Home::new();
        let served = Served::start(&machine);
        let home = Home::new();
        std::fs::create_dir(home.file("bin")).unwrap();
        std::os::unix::fs::symlink(BINARY, home.file("bin/lockkeeper")).unwrap();
        Runner { home, served, _machine: machine }
    }

    fn run(&self, shell: &[&str], variables: &[(String, String)]) -> Output {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]);
        self.home.prepare(&mut command);
        // A runner without settings.
        command
            .env_remove("LOCKKEEPER_CONFIG")
            .env("XDG_CONFIG_HOME", self.home.file(""))
            .env("HOME", self.home.file(""));
        command.env("PATH", format!("{}:/usr/bin:/bin", self.home.file("bin").display()));
        command.env("RUNNER_TEMP", self.home.file("")).env("GITHUB_SERVER_URL", "https://github.example");
        command.env("GITHUB_REPOSITORY", "o/r").env("GITHUB_RUN_ID", "7").envs(variables.iter().cloned());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs the steps of the action with these inputs, as a runner of GitHub does.
    fn action(&self, inputs: Values<'_>) -> Output {
        let action = yaml("github/with-lock/action.yml");
        let given = |name: &str| {
            let declared = action["inputs"].get(name).unwrap_or_else(|| panic!("no input {name}"));
            let given = inputs.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
            given.or(declared["default"].as_str()).unwrap_or_default().to_owned()
        };
        let [step] = action["runs"]["steps"].as_array().unwrap().as_slice() else { panic!("another step") };
        assert_eq!(step["shell"], "bash");
        let script = step["run"].as_str().unwrap();
        assert!(!script.contains("${{"), "a value is a part of the script");
        let variables = step["env"].as_object().unwrap().iter().map(|(name, value)| {
            let input = value.as_str().unwrap().strip_prefix("${{ inputs.").unwrap().strip_suffix(" }}").unwrap();
            (name.clone(), given(input))
        });
        self.run(&["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], &variables.collect::<Vec<_>>())
    }

    /// Runs the job with these variables, as a runner of GitLab does.
    fn job(&self, values: Values<'_>) -> Output {
        let job = &yaml("gitlab/with-lock.yml")[".with-lock"];
        let [script] = job["script"].as_array().unwrap().as_slice() else { panic!("another line") };
        let variables = job["variables"].as_object().unwrap().iter().map(|(name, value)| {
            let given = values.iter().find(|(given, _)| given == name).map(|(_, value)| *value);
            (name.clone(), given.unwrap_or(value.as_str().unwrap()).to_owned())
        });
        self.run(&["sh", "-ec", script.as_str().unwrap()], &variables.collect::<Vec<_>>())
    }
}

fn said(output: &Output) -> String {
    String::from_utf8([output.stdout.clone(), output.stderr.clone()].concat()).unwrap()
}

const PRINTS: &str =
    "echo \"$LOCKKEEPER_PATH\"; lockkeeper show deploy --json --servers \"$LOCKKEEPER_SERVERS\"; exit 3";

#[test]
fn both_services_run_their_script_under_the_lock_and_pass_its_status_on() {
    let runner = Runner::new();
    let servers = runner.served.address.as_str();
    let script = PRINTS.replace("$LOCKKEEPER_SERVERS", servers);
    runner.home.script("deploy.sh", &script);
    let action = runner.action(&[("lock", "deploy"), ("run", &script), ("servers", servers), ("wait", "1m")]);
    let left = std::fs::read_dir(runner.home.file("")).unwrap().flatten();
    let left: Vec<_> = left.filter(|file| file.file_name().to_string_lossy().starts_with("with-lock")).collect();
    assert!(left.is_empty(), "the action leaves {left:?}");
    let job = runner.job(&[
        ("WITH_LOCK_NAME", "deploy"),
        ("WITH_LOCK_PROGRAM", "./deploy.sh"),
        ("WITH_LOCK_SERVERS", servers),
        ("WITH_LOCK_MESSAGE", "https://gitlab.example/o/r/-/jobs/7"),
    ]);
    for (output, message) in
        [(action, "https://github.example/o/r/actions/runs/7"), (job, "https://gitlab.example/o/r/-/jobs/7")]
    {
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let (path, lock) = text.split_once('\n').unwrap();
        assert_eq!(path, "/locks/deploy");
        let lock: Value = serde_json::from_str(lock).unwrap();
        assert_eq!(lock["holders"][0]["message"], message);
    }
}

#[test]
fn a_lock_that_is_taken_ends_the_step_when_its_time_to_wait_is_over() {
    let runner = Runner::new();
    let servers = runner.served.address.as_str();
    let mut holder = Home::with_servers(servers).spawn("deploy", &["-m", "another run"], "echo up; cat");
    assert_eq!(holder.line(), "up");
    let base = [("lock", "deploy"), ("run", "echo ran"), ("servers", servers), ("wait", "5s")];
    let output = runner.action(&base);
    assert_eq!(output.status.code(), Some(75), "{}", said(&output));
    assert!(said(&output).contains("another run") && output.stdout.is_empty(), "{}", said(&output));
    holder.close_stdin();
    holder.wait();
}

/// What a person who opens a pull request may choose must stay a value, and no part of a command.
#[test]
fn values_of_inputs_are_never_run_and_never_options() {
    let runner = Runner::new();
    let servers = runner.served.address.as_str();
    let hostile =
        ["$(touch pwned)", "a\"; touch pwned; \"", "`touch pwned`", "a\n::set-env name=PATH::x\ntouch pwned", "--try"];
    // Servers that do not exist are waited for.
    let wait = |input: &str| if input.ends_with("ERVERS") || input == "servers" { "1s" } else { "2m" };
    for value in hostile {
        for input in ["lock", "servers", "wait", "shared", "permits", "message"] {
            let mut inputs = vec![("lock", "deploy"), ("run", "echo ran"), ("servers", servers), ("wait", wait(input))];
            inputs.retain(|(name, _)| *name != input);
            inputs.push((input, value));
            let output = runner.action(&inputs);
            // The server may accept an odd name, and a message may be anything.
            let said = said(&output);
            assert!(output.status.success() == (said.trim() == "ran") && !said.contains("\n::"), "{input}: {said}");
            assert!(output.status.success() || input != "message", "{said}");
        }
        for input in ["NAME", "PROGRAM", "SERVERS", "WAIT", "SHARED", "PERMITS", "MESSAGE"] {
            let input = format!("WITH_LOCK_{input}");
            let mut values = vec![
                ("WITH_LOCK_NAME", "deploy"),
                ("WITH_LOCK_PROGRAM", "true"),
                ("WITH_LOCK_SERVERS", servers),
                ("WITH_LOCK_WAIT", wait(&input)),
            ];
            values.retain(|(name, _)| *name != input);
            values.push((&input, value));
            let output = runner.job(&values);
            assert!(output.status.success() || input != "WITH_LOCK_MESSAGE", "{}", said(&output));
            assert!(!output.status.success() || input != "WITH_LOCK_PROGRAM", "{}", said(&output));
        }
        assert!(!runner.home.file("pwned").exists(), "{value:?}");
    }
}

#[test]
fn a_wrong_input_is_named_with_its_remedy() {
    let runner = Runner::new();
    let servers = runner.served.address.as_str();
    let good = [("lock", "deploy"), ("run", "echo ran"), ("servers", servers)];
    for (input, value, say) in [
        ("lock", "", "the input lock is empty: give the name"),
        ("lock", "--try", "the input lock is --try: a name does not begin with -"),
        ("run", "", "the input run is empty: give the script"),
        ("servers", "", "Set the input servers, such as zk1:2181"),
        ("shared", "yes", "the input shared is yes: give true or false"),
    ] {
        let mut inputs = good.to_vec();
        inputs.retain(|(name, _)| *name != input);
        inputs.push((input, value));
        let output = runner.action(&inputs);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(64), "{text}");
        assert!(text.starts_with("::error title=with-lock::") && text.contains(say), "{text}");
    }
    let good = [("WITH_LOCK_NAME", "deploy"), ("WITH_LOCK_PROGRAM", "true"), ("WITH_LOCK_SERVERS", servers)];
    for (input, value, say) in [
        ("WITH_LOCK_NAME", "", "WITH_LOCK_NAME is empty: give the name"),
        ("WITH_LOCK_NAME", "-v", "WITH_LOCK_NAME is -v: a name does not begin with -"),
        ("WITH_LOCK_PROGRAM", "", "WITH_LOCK_PROGRAM is empty: give the program"),
        ("WITH_LOCK_PROGRAM", "./nowhere.sh", "WITH_LOCK_PROGRAM is ./nowhere.sh: no such program"),
        ("WITH_LOCK_SERVERS", "", "Set WITH_LOCK_SERVERS, such as zk1:2181"),
        ("WITH_LOCK_SHARED", "yes", "WITH_LOCK_SHARED is yes: give true or false"),
    ] {
        let mut values = good.to_vec();
        values.retain(|(name, _)| *name != input);
        values.push((input, value));
        let output = runner.job(&values);
        assert_eq!(output.status.code(), Some(64), "{}", said(&output));
        assert!(said(&output).contains(say), "{}", said(&output));
    }
    // A runner that lacks the command.
    std::fs::remove_file(runner.home.file("bin/lockkeeper")).unwrap();
    let values = [("lock", "deploy"), ("run", "true"), ("servers", servers)];
    for output in [runner.action(&values), runner.job(&good)] {
        assert_eq!(output.status.code(), Some(64));
        assert!(said(&output).contains("no program lockkeeper in PATH"), "{}", said(&output));
    }
}

/// Returns the first container of a manifest, and the words of its list.
fn container(file: &str, list: &str) -> (Value, Vec<String>) {
    let manifest = yaml(&format!("kubernetes/{file}.yaml"));
    let job = &manifest["spec"]["jobTemplate"]["spec"];
    let template = if job.is_null() { &manifest["spec"]["template"] } else { &job["template"] };
    let container = template["spec"]["containers"][0].clone();
    let words = container[list].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
    let words = words.collect();
    (container, words)
}

/// Starts words behind the program's name, with other texts in place of the directories of a container or a machine.
fn start(home: &Home, words: &[String], instead: &[(&str, &str)]) -> Running {
    let words: Vec<_> =
        words.iter().map(|word| instead.iter().fold(word.clone(), |word, (from, to)| word.replace(from, to))).collect();
    Running::start(&mut home.command(&words.iter().map(String::as_str).collect::<Vec<_>>()))
}

#[test]
fn the_cron_job_of_kubernetes_runs_once_a_day_whatever_pod_starts_it() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let (_, words) = container("cronjob", "command");
    assert_eq!(words[0], "lockkeeper");
    let script = machine.file("job.sh").display().to_string();
    machine.script("job.sh", &format!("echo ran >> {}", machine.file("ran").display()));
    for _ in 0..2 {
        let pod = Home::with_servers(&served.address);
        let mut run = start(&pod, &words[1..], &[("/job.sh", &script)]);
        assert!(run.wait().success());
    }
    assert_eq!(text(&machine.file("ran")), "ran\n");
}

#[test]
fn one_replica_of_the_deployment_leads_and_is_ready_and_the_next_one_leads_when_it_is_drained() {
    let served = Served::start(&Home::new());
    let (container, words) = container("lead", "command");
    let probe = container["readinessProbe"]["exec"]["command"].as_array().unwrap();
    assert_eq!(probe.iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>(), ["test", "-e", "/tmp/leads"]);
    let pods = [(); 2].map(|()| Home::with_servers(&served.address));
    let replicas = pods.iter().map(|pod| {
        pod.script("scheduler", "exec sleep 1000");
        let instead = [("/tmp/leads", pod.file("leads")), ("/scheduler", pod.file("scheduler"))];
        let instead = instead.map(|(from, to)| (from, to.display().to_string()));
        start(pod, &words[1..], &instead.each_ref().map(|(from, to)| (*from, to.as_str())))
    });
    let mut replicas: Vec<_> = replicas.collect();
    let ready = || pods.each_ref().map(|pod| pod.file("leads").exists());
    until("one leads and the other stands by", || ready().contains(&true) && pods[0].count("scheduler") == (1, 1));
    let leader = ready().iter().position(|ready| *ready).unwrap();
    assert!(!ready()[1 - leader]);
    replicas[leader].signal(Signal::TERM);
    assert!(replicas[leader].wait().success());
    assert!(!ready()[leader]);
    until("the other one leads", || ready()[1 - leader]);
    replicas[1 - leader].signal(Signal::TERM);
    assert!(replicas[1 - leader].wait().success());
}

/// Starts an observer of contrib, with a free port, and checks that it observes and keeps a journal.
fn observes(words: &[String], journal: &str) {
    let (_served, home) = served();
    let own = home.file("journal").display().to_string();
    let mut words = words.to_vec();
    match words.iter().position(|word| word == "--listen") {
        Some(at) => words[at + 1] = "127.0.0.1:0".to_owned(),
        None => words.extend(["--listen", "127.0.0.1:0"].map(str::to_owned)),
    }
    assert_eq!(words[..2], ["observe", "/"]);
    let mut observer = start(&home, &words, &[(journal, &own)]);
    assert!(observer.line().starts_with("http://"));
    home.ok(&["run", "a", "--", "true"]);
    until("the journal has the run", || {
        std::fs::read_to_string(home.file("journal/history.jsonl")).is_ok_and(|journal| journal.contains("/locks/a"))
    });
    observer.signal(Signal::TERM);
    assert!(observer.wait().success());
}

#[test]
fn the_observer_of_the_manifest_keeps_a_journal() {
    let (container, words) = container("observe", "args");
    assert_eq!(words[2..4], ["--listen", "0.0.0.0:9750"]);
    assert_eq!(container["ports"][0]["containerPort"], 9750);
    observes(&words, "/journal");
}

#[test]
fn the_observer_of_the_unit_keeps_a_journal_in_the_directory_that_systemd_makes_for_it() {
    let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/lockkeeper-observe.service");
    let unit = text(&unit);
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/lockkeeper ")).unwrap();
    assert!(unit.contains("\nStateDirectory=lockkeeper-observe\n"));
    observes(&shlex::split(start).unwrap(), "/var/lib/lockkeeper-observe");
}

/// With Node, the program in which the runner of GitHub runs such an action, and with Ansible.
#[cfg(deep)]
mod over_steps {
    use super::*;

    impl Runner {
        /// Runs a part of the action that holds a lock, as a child of this process, which is the runner's of the job.
        fn part(&self, part: &str, more: Values<'_>) -> Output {
            let file = script(part);
            let files = ["GITHUB_STATE", "GITHUB_OUTPUT", "GITHUB_ENV"];
            let files = files.map(|name| (name.to_owned(), self.home.file(name).display().to_string()));
            let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            self.run(&["node", &file], &files.into_iter().chain(more).collect::<Vec<_>>())
        }

        /// Returns the lines of a file that the action has written.
        fn written(&self, name: &str) -> Vec<(String, String)> {
            let lines = text(&self.home.file(name));
            let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            lines.lines().filter_map(pair).collect()
        }
    }

    /// Returns the file of a part of the action.
    fn script(part: &str) -> String {
        let action = yaml("github/hold-lock/action.yml");
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/github/hold-lock");
        dir.join(action["runs"][part].as_str().unwrap()).display().to_string()
    }

    fn count(servers: &str) -> (usize, usize) {
        Home::with_servers(servers).count("deploy")
    }

    #[test]
    fn a_pipeline_of_three_steps_holds_one_lock_and_the_post_step_releases_it() {
        let runner = Runner::new();
        let servers = runner.served.address.as_str();
        let inputs = [("INPUT_LOCK", "deploy"), ("INPUT_SERVERS", servers), ("INPUT_WAIT", "1m")];
        let output = runner.part("main", &inputs);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(count(servers), (1, 0));
        let environment = runner.written("GITHUB_ENV");
        let token = environment.iter().find(|(name, _)| name == "LOCKKEEPER_TOKEN").unwrap().1.clone();
        for step in 1..=3 {
            let line = format!("lockkeeper with-hold -- sh -c 'echo {step} $LOCKKEEPER_TOKEN'");
            let output = runner.run(&["bash", "-ec", &line], &environment);
            assert_eq!(
                String::from_utf8(output.stdout.clone()).unwrap(),
                format!("{step} {token}\n"),
                "{}",
                said(&output)
            );
        }
        // Another job of the same machine waits for it.
        let output = runner.part("main", &[inputs[0], inputs[1], ("INPUT_WAIT", "100ms")]);
        let told = said(&output);
        assert!(output.status.code() == Some(75) && told.contains("actions/runs/7"), "{told}");
        assert!(told.contains("::error title=hold-lock::waited"), "{told}");
        let state = runner.written("GITHUB_STATE");
        let state: Vec<_> = state.into_iter().map(|(name, value)| (format!("STATE_{name}"), value)).collect();
        let state: Vec<_> = state.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let output = runner.part("post", &state);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(count(servers), (0, 0));
        // Lost, or released in a step.
        let output = runner.part("post", &state);
        assert!(output.status.code() == Some(1) && said(&output).contains("::the hold is over: the lock was lost"));
        // Cancelled before it held anything.
        assert!(runner.part("post", &[]).status.success());
        // Permits have no token, and the steps do not keep that of another lock.
        let output = runner.part("main", &[inputs[0], inputs[1], ("INPUT_PERMITS", "2")]);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(runner.written("GITHUB_ENV").last().unwrap(), &("LOCKKEEPER_TOKEN".to_owned(), String::new()));
        let (_, hold) = runner.written("GITHUB_STATE").pop().unwrap();
        assert!(runner.part("post", &[("STATE_hold", hold.as_str())]).status.success());
    }

    #[test]
    fn a_wrong_input_of_the_step_is_an_error_and_holds_nothing() {
        let runner = Runner::new();
        let servers = runner.served.address.as_str();
        for (name, value, named) in
            [("INPUT_LOCK", "-x", "-x"), ("INPUT_SHARED", "yes\n::x", "yes\\n::x"), ("INPUT_SERVERS", "", "no servers")]
        {
            let mut inputs = [("INPUT_LOCK", "deploy"), ("INPUT_SERVERS", servers), ("INPUT_SHARED", "false")];
            inputs.iter_mut().filter(|(input, _)| *input == name).for_each(|input| input.1 = value);
            let output = runner.part("main", &inputs);
            assert_eq!(output.status.code(), Some(64), "{name}: {}", said(&output));
            let first = said(&output);
            assert!(first.starts_with("::error title=hold-lock::") && first.contains(named), "{name}: {first}");
            assert_eq!(first.lines().count(), 1, "{first}");
        }
        assert_eq!(count(servers), (0, 0));
    }

    /// The runner sends a signal to the process of the step only.
    #[test]
    fn a_step_that_is_cancelled_while_it_waits_leaves_nothing_that_waits() {
        let runner = Runner::new();
        let servers = runner.served.address.as_str();
        let mut holder = Home::with_servers(servers).spawn("deploy", &[], "echo up; cat");
        assert_eq!(holder.line(), "up");
        let line = "node \"$STEP\" & step=$!
            until lockkeeper show deploy --json --servers \"$INPUT_SERVERS\" | grep -q '\"waiters\":\\[{'; do :; done
            kill -INT $step; wait $step";
        let step = script("main");
        let variables = [("STEP", step.as_str()), ("INPUT_LOCK", "deploy"), ("INPUT_SERVERS", servers)];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let output = runner.run(&["bash", "-c", line], &variables);
        assert!(
            output.status.code() == Some(70) && said(&output).contains("the wait was ended by"),
            "{}",
            said(&output)
        );
        assert_eq!(count(servers), (1, 0));
        holder.close_stdin();
        holder.wait();
    }

    /// The playbook fails in the middle, and its `always` releases the lock.
    #[test]
    fn a_playbook_acquires_a_lock_and_releases_it_also_after_a_failure() {
        let Some(ansible) = std::env::var_os("LOCKKEEPER_INTEROP_ANSIBLE") else {
            eprintln!("Ansible is missing: cargo xtask interop pipeline installs it");
            return;
        };
        let runner = Runner::new();
        let contrib = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/ansible");
        let contrib = contrib.canonicalize().unwrap().display().to_string();
        let play = include_str!("../../../../docs/examples/playbook.yml").replace("contrib/ansible", &contrib);
        std::fs::write(runner.home.file("playbook.yml"), play).unwrap();
        let variables =
            format!("lockkeeper_servers={} command='{}'", runner.served.address, "lockkeeper with-hold -- false");
        let playbook = format!("{} -i localhost, -e \"$PLAY\" playbook.yml", ansible.display());
        let output = runner.run(&["bash", "-ec", &playbook], &[("PLAY".to_owned(), variables)]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("Acquire the lock") && said.contains("Release the lock") && said.contains("failed=1"),
            "{said}"
        );
        assert_eq!(count(&runner.served.address), (0, 0));
        let history = Home::with_servers(&runner.served.address).output(&["history", "deploy"]);
        assert!(String::from_utf8(history.stdout).unwrap().contains("released"));
    }
}
