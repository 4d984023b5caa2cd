//! `cargo xtask contrib`: the files of contrib that other programs read, checked by those programs or by their schemas.

use anyhow::{Context, Result};
use xshell::cmd;

use crate::tools;
use crate::workspace::shell;

/// The package of PyPI that has the schemas of Kubernetes.
const SCHEMAS: &str = "kubernetes-validate";

/// Checks the rules for Prometheus by `promtool`, and the manifests against the schemas of Kubernetes.
pub(crate) fn run() -> Result<()> {
    let sh = &shell()?;
    tools::debian(sh, "promtool", "prometheus")?;
    let (rules, tests) = ("contrib/prometheus/lockkeeper.rules.yml", "contrib/prometheus/lockkeeper.rules.test.yml");
    cmd!(sh, "promtool check rules {rules}").run()?;
    cmd!(sh, "promtool test rules {tests}").run()?;

    let validate = tools::python(sh, &[SCHEMAS])?.join(SCHEMAS);
    let manifests = sh.read_dir("contrib/kubernetes").context("listing the manifests")?;
    cmd!(sh, "{validate} --strict {manifests...}").run()?;
    Ok(())
}
