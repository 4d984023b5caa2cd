//! The static program, its manual pages and its completions.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use xshell::cmd;

use super::{Machine, Release};
use crate::tools;

/// The most bytes of the program.
const LIMIT: u64 = 12_500_000;

/// Zig has a linker, and for ring a C compiler and musl's headers, for every machine, in one package of PyPI.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.23.0", "ziglang==0.17.1"];

impl Release {
    /// Builds the program; returns its path.
    pub(super) fn program(&self, machine: Machine) -> Result<PathBuf> {
        let (sh, target) = (&self.sh, machine.target());
        let built = self.root.join("target/dist").join(&target).join("dist/lockkeeper");
        if self.built.borrow().contains(&machine) {
            return Ok(built);
        }
        tools::target(sh, &target)?;
        let zig = tools::python(sh, &ZIG)?;
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([zig].into_iter().chain(env::split_paths(&path))).context("setting PATH")?;
        // A directory of its own: cargo would take turns with other builds, and the variables below build everything again.
        let build =
            cmd!(sh, "cargo zigbuild --quiet --locked --profile dist --package lockkeeper-cli --bin lockkeeper");
        build
            .args(["--target", &target, "--target-dir", "target/dist"])
            .env("PATH", path)
            .env("CARGO_ENCODED_RUSTFLAGS", self.paths()?.join("\u{1f}"))
            .env("CARGO_INCREMENTAL", "0")
            .run()
            .with_context(|| format!("building for {target}"))?;
        let size = fs::metadata(&built).with_context(|| format!("finding {}", built.display()))?.len();
        if size > LIMIT {
            bail!("the program for {target} has {size} bytes, more than {LIMIT}: see [profile.dist] in Cargo.toml");
        }
        self.built.borrow_mut().push(machine);
        Ok(built)
    }

    /// What replaces this machine's paths in messages of panics, so that every clone gives the same bytes.
    fn paths(&self) -> Result<Vec<String>> {
        let sh = &self.sh;
        let sysroot = cmd!(sh, "rustc --print sysroot").quiet().read()?;
        let home = env::var_os("HOME").unwrap_or_default();
        let cargo = env::var_os("CARGO_HOME").map_or_else(|| PathBuf::from(home).join(".cargo"), PathBuf::from);
        let places = [(self.root.clone(), "/lockkeeper"), (cargo, "/cargo"), (sysroot.into(), "/rust")];
        let flag = |(place, name): (PathBuf, &str)| format!("--remap-path-prefix={}={name}", place.display());
        Ok(places.map(flag).into())
    }

    /// Collects everything that packages hold beside the program, as it is installed below `/`; returns the directory.
    pub(super) fn stage(&self) -> Result<PathBuf> {
        let (sh, stage) = (&self.sh, self.out().join("stage"));
        if self.staged.replace(true) {
            return Ok(stage);
        }
        let program = self.program(Machine::this()?)?;
        sh.remove_path(&stage)?;
        let share = stage.join("usr/share");
        let manual = share.join("man/man1");
        cmd!(sh, "{program} man --directory {manual}").quiet().run().context("writing the manual pages")?;
        let pages = sh.read_dir(&manual)?;
        cmd!(sh, "gzip --best --no-name {pages...}").quiet().run()?;
        for (shell, file) in [
            ("bash", "bash-completion/completions/lockkeeper"),
            ("zsh", "zsh/site-functions/_lockkeeper"),
            ("fish", "fish/vendor_completions.d/lockkeeper.fish"),
        ] {
            let script = cmd!(sh, "{program} completions {shell}").quiet().read()?;
            sh.write_file(share.join(file), script + "\n")?;
        }
        for (from, to) in [
            ("contrib/packages/config.toml", "etc/lockkeeper/config.toml"),
            ("contrib/packages/sysusers.conf", "usr/lib/sysusers.d/lockkeeper.conf"),
            ("LICENSE-APACHE", "usr/share/doc/lockkeeper/LICENSE-APACHE"),
            ("LICENSE-MIT", "usr/share/doc/lockkeeper/LICENSE-MIT"),
            ("CHANGELOG.md", "usr/share/doc/lockkeeper/CHANGELOG.md"),
        ] {
            sh.write_file(stage.join(to), sh.read_file(from)?)?;
        }
        // The same packages are linked into the programs of all machines.
        sh.write_file(stage.join("usr/share/doc/lockkeeper/LICENSES-LINKED"), self.notices(Machine::this()?)?)?;
        for unit in sh.read_dir("contrib")? {
            let unit = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if unit.ends_with(".service") || unit.ends_with(".timer") {
                // Packages may not install below /usr/local.
                let text = sh
                    .read_file(format!("contrib/{unit}"))?
                    .replace("/usr/local/bin/lockkeeper", "/usr/bin/lockkeeper");
                sh.write_file(stage.join("usr/lib/systemd/system").join(unit), text)?;
            }
        }
        Ok(stage)
    }

    /// Makes the archive for every Linux: the program with its pages, completions, units and licences.
    pub(super) fn archive(&self, machine: Machine) -> Result<()> {
        let (sh, program, stage) = (&self.sh, self.program(machine)?, self.stage()?);
        let name = format!("lockkeeper-{}-{}-linux", self.version, machine.name());
        let tree = self.out().join("archive").join(&name);
        sh.remove_path(self.out().join("archive"))?;
        sh.create_dir(tree.parent().context("a parent")?)?;
        cmd!(sh, "cp --recursive {stage} {tree}").quiet().run()?;
        sh.create_dir(tree.join("usr/bin"))?;
        sh.copy_file(&program, tree.join("usr/bin/lockkeeper"))?;
        self.tar(&self.out().join("archive"), &name, &self.out().join(format!("{name}.tar")))?;
        let tar = self.out().join(format!("{name}.tar"));
        cmd!(sh, "gzip --best --no-name --force {tar}").quiet().run()?;
        sh.remove_path(self.out().join("archive"))?;
        Ok(())
    }

    /// Packs a file of a directory, and what is in it, without what differs between machines.
    pub(super) fn tar(&self, directory: &std::path::Path, what: &str, to: &std::path::Path) -> Result<()> {
        let (sh, time) = (&self.sh, format!("@{}", self.epoch));
        let modes = "--mode=u=rwX,go=rX";
        let plain = ["--format=ustar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", modes];
        cmd!(sh, "tar --create --file {to} --directory {directory} --mtime {time} {plain...} {what}").quiet().run()?;
        Ok(())
    }
}
