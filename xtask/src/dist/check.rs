//! Installs, uses, upgrades and removes every artefact, each in a clean root.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use xshell::cmd;

use super::{Machine, Release, What};
use crate::tools;
use crate::untested::{Untested, fetched};

/// From a clean root to the use of an artefact, removal included.
const LIMIT: Duration = Duration::from_secs(60);

/// The Debian of the clean roots.
const SUITE: &str = "bookworm";
const ARCHIVE: &str = "http://deb.debian.org/debian";

impl Release {
    pub(super) fn check(&self, what: &[What]) -> Result<()> {
        if !rustix::process::getuid().is_root() {
            return Err(Untested::new("packages in clean roots", "only root can make one").into());
        }
        let all = if what.is_empty() { What::value_variants() } else { what };
        for &what in all {
            let check = Check { release: self, machine: Machine::this()? };
            // Not counted: making a root, and the downloads for it.
            let took = match what {
                What::Binary => check.binary(),
                What::Deb => check.package("deb", &[]),
                What::Rpm => check.package("rpm", &["rpm"]),
                What::Wheel => check.package("wheel", &["python3-venv"]),
                What::Image => check.image(),
                What::Units => check.units(),
            };
            let took = took.with_context(|| format!("{what:?}").to_lowercase())?;
            println!("{what:?}: {:.1} s in a clean root", took.as_secs_f64());
            if took > LIMIT {
                bail!("{what:?} took {took:.0?}, more than {LIMIT:.0?}");
            }
        }
        Ok(())
    }
}

struct Check<'a> {
    release: &'a Release,
    machine: Machine,
}

impl Check<'_> {
    /// Returns a new, empty directory for a root.
    fn empty(&self, name: &str) -> Result<PathBuf> {
        let root = self.release.root.join("target/roots").join(name);
        self.release.sh.remove_path(&root)?;
        self.release.sh.create_dir(&root)?;
        Ok(root)
    }

    /// Returns a new root of a minimal Debian with these packages; the first one is kept to copy from.
    fn debian(&self, packages: &[&str]) -> Result<PathBuf> {
        let sh = &self.release.sh;
        tools::debian(sh, "debootstrap", "debootstrap")?;
        let kept = self.release.root.join("target/roots").join([&["debian"], packages].concat().join("+"));
        if !kept.exists() {
            let (new, include) = (self.empty("new")?, format!("--include={}", packages.join(",")));
            let include = if packages.is_empty() { vec![] } else { vec![include] };
            let made =
                cmd!(sh, "debootstrap --variant=minbase {include...} {SUITE} {new} {ARCHIVE}").ignore_stdout().run();
            fetched("a clean root, because debootstrap cannot make one", made)?;
            fs::rename(&new, &kept).context("keeping the root")?;
        }
        let root = self.empty("used")?;
        fs::remove_dir(&root)?;
        cmd!(sh, "cp --archive --reflink=auto {kept} {root}").quiet().run()?;
        Ok(root)
    }

    /// Runs a command in a root, which sees no process outside; all that it leaves ends with it.
    fn within(&self, root: &Path, command: &[&str]) -> Result<String> {
        let sh = &self.release.sh;
        sh.create_dir(root.join("proc"))?;
        sh.create_dir(root.join("dev"))?;
        // The program needs no other device.
        let null = root.join("dev/null");
        if !null.exists() {
            cmd!(sh, "mknod --mode=666 {null} c 1 3").quiet().run()?;
        }
        let (proc, apart) = (root.join("proc"), ["--mount", "--pid", "--net", "--fork", "--kill-child"]);
        let script = "mount -t proc proc \"$1\" && root=$2 && shift 2 && exec chroot \"$root\" \"$@\"";
        // A root that hangs would keep the chore. unshare ignores SIGTERM; with it, everything in the root is killed.
        let run = cmd!(sh, "timeout --signal=KILL 300 unshare {apart...} sh -c {script} sh {proc} {root}");
        let run = run.env_clear().env("HOME", "/root").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        Ok(run.args(command).quiet().read()?)
    }

    /// The programs of all machines start on an empty root: without a shell, a library, `/proc`, `/dev` or `/tmp`.
    fn binary(&self) -> Result<Duration> {
        let sh = &self.release.sh;
        let mut took = Duration::ZERO;
        for machine in [Machine::X86, Machine::Arm] {
            let program = self.release.program(machine)?;
            let start = Instant::now();
            let root = self.empty("empty")?;
            sh.copy_file(&program, root.join("lockkeeper"))?;
            let mut command = vec!["/lockkeeper", "--version"];
            if machine != self.machine {
                // An emulator is in the root too. Debian's is static.
                let emulator = format!("qemu-{}-static", machine.name());
                tools::debian(sh, &emulator, "qemu-user-static")?;
                let found = cmd!(sh, "which {emulator}").quiet().read()?;
                sh.copy_file(found, root.join("emulator"))?;
                command.insert(0, "/emulator");
            }
            let version =
                cmd!(sh, "unshare --mount --pid --fork --kill-child chroot {root} {command...}").quiet().read()?;
            if !version.contains(&self.release.version) {
                bail!("the program for {} prints {version:?}, not its version", machine.name());
            }
            if machine == self.machine {
                // It says what it lacks.
                let lacks = cmd!(sh, "chroot {root} /lockkeeper run demo -- /lockkeeper --version").ignore_status();
                let lacks = lacks.quiet().read_stderr()?;
                if !lacks.contains("there is no /proc/self/exe") {
                    bail!("without /proc and /dev/null, `run` says {lacks:?}");
                }
                let shown = self.within(&root, &["/lockkeeper", "run", "demo", "--", "/lockkeeper", "--version"])?;
                if shown != version {
                    bail!("under a lock on an empty root, the command prints {shown:?}");
                }
            }
            took += start.elapsed();
        }
        Ok(took)
    }

    /// Runs xtask/scripts/installed.sh, with a package and one that upgrades it.
    fn package(&self, kind: &str, packages: &[&str]) -> Result<Duration> {
        let Check { release, machine } = self;
        let sh = &release.sh;
        release.stage()?;
        let mut files = Vec::new();
        if kind == "wheel" {
            release.wheel(*machine)?;
            let end = format!("_{}.whl", machine.name());
            let names = release.artefacts()?;
            let name = names.iter().find(|name| name.ends_with(&end)).context("the wheel was not packed")?;
            let file = release.out().join(name);
            files.extend([file.clone(), file]);
        } else {
            release.program(*machine)?;
            for revision in ["1", "2"] {
                if kind == "deb" {
                    release.deb(*machine, revision)?
                } else {
                    release.rpm(*machine, revision)?
                }
                files.push(release.file(*machine, revision, kind));
            }
        }
        let root = self.debian(packages)?;
        let start = Instant::now();
        let mut command = vec!["/bin/sh".to_owned(), "/tmp/installed.sh".to_owned(), kind.to_owned()];
        sh.copy_file(tools::file("xtask/scripts/installed.sh"), root.join("tmp/installed.sh"))?;
        for file in &files {
            sh.copy_file(file, root.join("tmp"))?;
            command.push(format!("/tmp/{}", file.file_name().context("a name")?.to_string_lossy()));
        }
        if kind != "wheel" {
            // Made for this check only.
            sh.remove_path(&files[1])?;
        }
        let output = self.within(&root, &command.iter().map(String::as_str).collect::<Vec<_>>())?;
        println!("{}", output.lines().last().unwrap_or_default());
        Ok(start.elapsed())
    }

    /// Unpacks the image, which checks every digest, and runs it.
    fn image(&self) -> Result<Duration> {
        let Check { release, machine } = self;
        let sh = &release.sh;
        release.image(*machine)?;
        let start = Instant::now();
        let work = self.empty("image")?;
        let (layout, bundle, version) = (work.join("layout"), work.join("bundle"), &release.version);
        sh.create_dir(&layout)?;
        let archive = release.out().join(format!("lockkeeper-{version}-{}-oci.tar", machine.name()));
        cmd!(sh, "tar --extract --file {archive} --directory {layout}").quiet().run()?;
        if sh.read_file(layout.join("oci-layout"))?.trim() != r#"{"imageLayoutVersion":"1.0.0"}"# {
            bail!("the archive is no OCI layout");
        }
        let image = format!("{}:{version}", layout.display());
        cmd!(sh, "umoci unpack --image {image} {bundle}").quiet().run()?;
        let root = bundle.join("rootfs");
        let config: serde_json::Value = serde_json::from_str(&sh.read_file(bundle.join("config.json"))?)?;
        let user = config["process"]["user"]["uid"].as_u64().context("the image names no user")?.to_string();
        if config["process"]["args"][0] != "/usr/bin/lockkeeper" {
            bail!("the image starts {}", config["process"]["args"]);
        }
        // As an engine starts it.
        let home = "HOME=/var/lib/lockkeeper PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        let script = format!(
            "mount -t proc proc {0}/proc && exec env -i {home} chroot --userspec={user}:{user} {0} /usr/bin/lockkeeper run demo -- /usr/bin/lockkeeper --version",
            root.display()
        );
        self.within(&root, &["/usr/bin/lockkeeper", "--version"])?;
        let shown = cmd!(sh, "timeout --signal=KILL 60 unshare --mount --pid --net --fork --kill-child sh -c {script}")
            .quiet()
            .read()?;
        if !shown.contains(version.as_str()) {
            bail!("under a lock in the image, the command prints {shown:?}");
        }
        let took = start.elapsed();
        let python = tools::python(sh, &["pyyaml==6.0.3"])?.join("python");
        let compose = tools::file("xtask/scripts/compose.py");
        cmd!(sh, "{python} {compose}").quiet().run()?;
        Ok(took)
    }

    /// Lets systemd read the units, beside the program that they start.
    fn units(&self) -> Result<Duration> {
        let sh = &self.release.sh;
        let stage = self.release.stage()?;
        let program = self.release.program(self.machine)?.display().to_string();
        tools::debian(sh, "systemd-analyze", "systemd")?;
        let start = Instant::now();
        let units = self.empty("units")?;
        let mut names = Vec::new();
        for unit in sh.read_dir(stage.join("usr/lib/systemd/system"))? {
            let name = unit.file_name().context("a name")?.to_string_lossy().into_owned();
            sh.write_file(units.join(&name), sh.read_file(&unit)?.replace("/usr/bin/lockkeeper", &program))?;
            names.push(name.replace('@', "@nightly"));
        }
        let verified = cmd!(sh, "systemd-analyze verify --man=no --recursive-errors=no {names...}");
        verified.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display())).quiet().run()?;
        Ok(start.elapsed())
    }
}
