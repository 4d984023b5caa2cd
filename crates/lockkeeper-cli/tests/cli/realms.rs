//! `[realms]`: assigns paths to ensembles.

use crate::harness::{Home, Served, failure};

/// H-70: each command uses the ensemble of its lock, and fails without a realm.
#[test]
fn a_command_goes_to_the_realm_of_its_lock() {
    let (one, two, home) = (Home::new(), Home::new(), Home::new());
    let (first, second) = (Served::start(&one), Served::start(&two));
    let config = home.file("config.toml");
    let text = format!("[realms]\n\"/locks/a\" = \"{}\"\n\"/locks/b\" = \"{}\"\n", first.address, second.address);
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let mut holder = home.spawn("a/x", &["--config", config], "echo up; cat");
    assert_eq!(holder.line(), "up");
    let mut other = home.spawn("b/x", &["--config", config, "--lease", "10m"], "echo up; cat");
    assert_eq!(other.line(), "up");
    let held = |home: &Home, name: &str| home.count(name).0;
    let (here, there) = (Home::with_servers(&first.address), Home::with_servers(&second.address));
    assert_eq!((held(&here, "a/x"), held(&there, "a/x")), (1, 0));
    assert_eq!((held(&here, "b/x"), held(&there, "b/x")), (0, 1));
    for verb in [&["show", "b/x"][..], &["why", "b/x"], &["list", "b"]] {
        let output = home.output(&[verb, &["--config", config]].concat());
        assert!(output.status.success(), "{verb:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("held"), "{verb:?}: {output:?}");
    }
    let (code, line) = failure(&home.output(&["run", "c", "--config", config, "--", "true"]));
    assert_eq!(code, Some(64));
    assert!(line.contains("no realm covers /locks/c") && line.contains("/locks/a, /locks/b"), "{line}");
    let (code, line) = failure(&home.output(&["run", "a/y", "b/y", "--config", config, "--", "true"]));
    assert!(code == Some(64) && line.contains("in two realms"), "{code:?} {line}");
    // The settings show each realm with its origin.
    let told = String::from_utf8(home.output(&["config", "--config", config]).stdout).unwrap();
    let line = format!("realm /locks/a  {}  ({config}:2)", first.address);
    assert!(told.lines().any(|told| told == line), "{line:?} is missing in {told}");
    // `--servers` overrides the realms.
    assert!(home.output(&["run", "c", "--config", config, "--servers", &first.address, "--", "true"]).status.success());
    for running in [&mut holder, &mut other] {
        running.close_stdin();
        assert!(running.wait().success());
    }
}
