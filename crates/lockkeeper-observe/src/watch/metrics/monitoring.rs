//! The files for Prometheus and Grafana name metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::watch::{Contender, End};

/// Each name that a text has.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("lockkeeper_")).collect()
}

/// The names of all samples, after something of each kind has happened.
fn samples() -> BTreeSet<String> {
    let (who, message, session) = (None, None, None);
    let (lock, node, mode) = ("/locks/a".into(), "/locks/a/n".into(), "exclusive");
    let contender = Arc::new(Contender { lock, node, who, message, mode, session });
    let (at, time) = (Moment { ms: 0, wall_ms: 0 }, Duration::from_secs(1));
    let root: Arc<str> = "/locks".into();
    let mut metrics = Metrics::default();
    for what in [
        What::Granted { contender: contender.clone(), waited: time, found: false },
        What::Ended { contender: contender.clone(), held: time, how: End::SessionOver },
        What::LeftWaiting { contender: contender.clone(), waited: time, how: End::Unknown },
        What::Gap { root: root.clone(), since: at, cause: GapCause::Disconnected },
    ] {
        metrics.fact(&Fact { at, what, about: false });
    }
    metrics.tree(&root, Totals::default(), true);
    metrics.lock(&contender.lock, Since::default(), at);
    let text = metrics.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_rules_name_metrics_that_exist() {
    let samples = samples();
    for file in ["grafana/lockkeeper.json", "prometheus/lockkeeper.rules.yml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let names = named(&text);
        assert!(names.len() > 5, "{file}: {names:?}");
        for name in names {
            assert!(samples.contains(name), "{file} names {name}, which is none of {samples:?}");
        }
    }
}

#[test]
fn the_dashboard_is_json_and_its_panels_have_ids_of_their_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana/lockkeeper.json");
    let board: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    assert!(panels.iter().all(|panel| panel["targets"].as_array().is_some_and(|targets| !targets.is_empty())));
}
