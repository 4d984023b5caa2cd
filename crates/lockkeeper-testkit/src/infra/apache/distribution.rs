//! Finds a Java and an Apache ZooKeeper to run, or names what is missing.
//!
//! Finding changes nothing on the machine. [`Distribution::install`] and [`Distribution::fetch`] do, and only chores
//! call them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::refused;

/// The jars of Debian's packages that a server needs. The manifest of zookeeper.jar does not name all of them: Netty's
/// codec and resolver and the logger are missing there.
const DEBIAN_JARS: &[&str] = &[
    "zookeeper",
    "zookeeper-jute",
    "commons-cli",
    "commons-io",
    "jackson-annotations",
    "jackson-core",
    "jackson-databind",
    "metrics-core",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
    "slf4j-api",
    "slf4j-simple",
    "snappy-java",
];

const DEBIAN_DIR: &str = "/usr/share/java";

/// The package with the jars. Debian's `zookeeper` would add only a system user and start scripts.
const DEBIAN_PACKAGE: &str = "libzookeeper-java";

/// A Java, and the jars of one ZooKeeper.
#[derive(Clone, Debug)]
pub struct Distribution {
    java: PathBuf,
    pub(super) classpath: OsString,
    origin: String,
}

impl Distribution {
    /// Looks in `ZOOKEEPER_HOME` if it is set, otherwise among Debian's packages. Changes nothing.
    pub fn find() -> Result<Self> {
        let java = find_java()?;
        match env::var_os("ZOOKEEPER_HOME") {
            Some(home) => Self::in_home(java, Path::new(&home)),
            None => Self::of_debian(java).with_context(|| {
                format!(
                    "no Apache ZooKeeper on this machine: as root run `cargo xtask zookeeper install` \
                     (Debian's {DEBIAN_PACKAGE}), or set ZOOKEEPER_HOME to an unpacked distribution"
                )
            }),
        }
    }

    /// Does the same as [`Distribution::find`]; as root with apt-get, installs what is missing from Debian.
    pub fn install() -> Result<Self> {
        let found = Self::find();
        let may_install = env::var_os("ZOOKEEPER_HOME").is_none() && find_java().is_ok();
        if found.is_err() && may_install && install_package(DEBIAN_PACKAGE)? { Self::find() } else { found }
    }

    /// Fetches a release from Maven's central repository, by `mvn`, into this user's cache directory.
    ///
    /// Returns the directory too: in `ZOOKEEPER_HOME` it makes other processes use the same release.
    pub fn fetch(version: &str) -> Result<(Self, PathBuf)> {
        let java = find_java()?;
        if version.is_empty() || !version.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c)) {
            bail!("{version:?} is not a version of ZooKeeper");
        }
        let cache = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")))
            .context("no cache directory: set XDG_CACHE_HOME or HOME")?
            .join("lockkeeper");
        let home = cache.join(format!("zookeeper-{version}"));
        if !home.exists() {
            if !runs("mvn", "--version") {
                bail!("no Maven on this machine to fetch ZooKeeper with: install the package maven");
            }
            fs::create_dir_all(&cache).map_err(refused("creating", &cache))?;
            // Fetched into another directory and renamed when complete: an interrupted download is never used as a
            // release.
            let aside = tempfile::tempdir_in(&cache).map_err(refused("creating a directory in", &cache))?;
            let pom = aside.path().join("pom.xml");
            fs::write(&pom, pom_for(version)).map_err(refused("writing", &pom))?;
            let lib = aside.path().join("lib");
            let mut mvn = Command::new("mvn");
            mvn.args(["--batch-mode", "--quiet", "--file"]).arg(&pom).arg("dependency:copy-dependencies");
            mvn.arg(format!("-DoutputDirectory={}", lib.display()));
            run(&mut mvn)?;
            // Another process may have fetched it first; its copy is as good.
            if let Err(error) = fs::rename(aside.path(), &home)
                && !home.exists()
            {
                return Err(refused("creating", &home)(error));
            }
        }
        Ok((Self::in_home(java, &home)?, home))
    }

    /// Returns the origin of the jars, for people.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the command that runs a server by the `zoo.cfg` in `dir`.
    pub(super) fn server(&self, flags: &[String], dir: &Path) -> Command {
        let mut java = Command::new(&self.java);
        java.args(flags).arg("-cp").arg(&self.classpath);
        java.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(dir.join("zoo.cfg"));
        java
    }

    /// Returns one whose Java is another program, to test its errors.
    #[cfg(test)]
    pub(super) fn pretend(java: PathBuf) -> Self {
        Self { java, classpath: OsString::new(), origin: "a pretender".into() }
    }

    pub(super) fn in_home(java: PathBuf, home: &Path) -> Result<Self> {
        let mut jars = Vec::new();
        for dir in [home.to_path_buf(), home.join("lib")] {
            let entries = fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
            jars.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "jar")));
        }
        jars.sort();
        let is_server = |jar: &PathBuf| {
            jar.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("zookeeper-"))
        };
        if !jars.iter().any(is_server) {
            bail!(
                "ZOOKEEPER_HOME={} holds no zookeeper-*.jar, neither directly nor under lib/: \
                 point it to an unpacked binary distribution",
                home.display()
            );
        }
        let origin = format!("ZooKeeper in {}", home.display());
        Ok(Self { java, classpath: join(&jars)?, origin })
    }

    fn of_debian(java: PathBuf) -> Option<Self> {
        let dir = Path::new(DEBIAN_DIR);
        // Debian's releases have different subsets of them; the server's own jar must exist.
        let jars: Vec<_> =
            DEBIAN_JARS.iter().map(|jar| dir.join(format!("{jar}.jar"))).filter(|jar| jar.exists()).collect();
        if !dir.join("zookeeper.jar").exists() {
            return None;
        }
        // The name of a link beside it contains the release.
        let release = fs::read_dir(dir).ok()?.flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
            version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_owned())
        });
        let origin = format!("Debian's ZooKeeper {}", release.unwrap_or_default()).trim_end().to_owned();
        Some(Self { java, classpath: join(&jars).ok()?, origin })
    }
}

fn join(jars: &[PathBuf]) -> Result<OsString> {
    env::join_paths(jars).context("jars that Java cannot be given")
}

fn find_java() -> Result<PathBuf> {
    let java = match env::var_os("JAVA_HOME") {
        Some(home) => Path::new(&home).join("bin/java"),
        None => PathBuf::from("java"),
    };
    if runs(&java, "-version") {
        return Ok(java);
    }
    bail!(
        "no Java runs on this machine (tried {}): install a JRE of version 8 or later, or set JAVA_HOME",
        java.display()
    )
}

/// Whether a program exists and starts.
pub(crate) fn runs(program: impl AsRef<Path>, flag: &str) -> bool {
    let mut command = Command::new(program.as_ref());
    command.arg(flag).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Installs a package of Debian; `false` without root or apt-get.
pub(crate) fn install_package(package: &str) -> Result<bool> {
    if !rustix::process::geteuid().is_root() || !runs("apt-get", "--version") {
        return Ok(false);
    }
    // Updates the package lists only if the first attempt fails: they may be old or missing.
    if apt_get(&["install", package]).is_err() {
        apt_get(&["update"])?;
        apt_get(&["install", package])?;
    }
    Ok(true)
}

fn apt_get(what: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    // Waits for another installation to end.
    command.args(["-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]).args(what);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    run(&mut command)
}

/// Runs a command to its end without output; reports its output only if it failed.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(refused("running", Path::new(&program)))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // Maven prints the cause first and a hint about options last; other programs print the cause last.
    let is_cause = |text: &str| text.contains("Could not find") || text.contains("Non-resolvable");
    let wrong = said.lines().filter_map(|line| line.split_once("[ERROR] ")).find(|(_, text)| is_cause(text));
    let said = wrong.map_or_else(|| super::tail(&said, 10), |(_, text)| text.to_owned());
    bail!("{program} failed ({}):\n{said}", output.status)
}

/// Returns a pom with the server and the jars that its own distribution adds; the parent has the versions of the
/// release.
fn pom_for(version: &str) -> String {
    let dependency = |group: &str, artifact: &str| {
        format!("    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId></dependency>\n")
    };
    let dependencies = [
        dependency("org.apache.zookeeper", "zookeeper").replace("</dep", &format!("<version>{version}</version></dep")),
        dependency("io.dropwizard.metrics", "metrics-core"),
        dependency("org.xerial.snappy", "snappy-java"),
        dependency("ch.qos.logback", "logback-classic"),
    ]
    .concat();
    format!(
        "<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.lockkeeper</groupId><artifactId>zookeeper-jars</artifactId><version>1</version>
  <dependencyManagement><dependencies><dependency>
    <groupId>org.apache.zookeeper</groupId><artifactId>parent</artifactId><version>{version}</version>
    <type>pom</type><scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies>
{dependencies}  </dependencies>
</project>
"
    )
}
