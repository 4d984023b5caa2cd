//! Builds the projects in Java of `interop/`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use crate::untested::fetched;
use crate::workspace::target_dir;

/// Builds a Maven project of `interop/`; returns its class path, dependencies included.
pub(crate) fn build(sh: &Shell, project: &str) -> Result<String> {
    let pom = Path::new("interop").join(project).join("pom.xml");
    let target = target_dir(sh).join(format!("interop-{project}"));
    fs::create_dir_all(&target).with_context(|| format!("making {}", target.display()))?;
    // Maven takes relative paths from the project.
    let target = fs::canonicalize(&target).with_context(|| format!("finding {}", target.display()))?;
    let (classes, dependencies) = (target.join("classes"), target.join("classpath"));
    let properties = [("interop.target", &target), ("mdep.outputFile", &dependencies)];
    let properties = properties.map(|(name, path)| format!("-D{name}={}", path.display()));
    let (pom, properties) = (&pom, &properties);
    let maven = |goals: &[&str]| cmd!(sh, "mvn --batch-mode --quiet --file {pom} {properties...} {goals...}").run();
    if maven(&["compile", "dependency:build-classpath"]).is_err() {
        // It fails if a dependency cannot be fetched, or if our side of it cannot be compiled.
        fetched(
            &format!("{project}, whose jars come from Maven Central, which must be reachable once"),
            maven(&["dependency:resolve-plugins", "dependency:build-classpath"]),
        )?;
        bail!("building {project} with Maven (Debian: apt-get install maven)");
    }
    let dependencies =
        fs::read_to_string(&dependencies).with_context(|| format!("reading {}", dependencies.display()))?;
    Ok(format!("{}:{}", classes.display(), dependencies.trim()))
}
