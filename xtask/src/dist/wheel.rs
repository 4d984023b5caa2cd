//! The wheel, which installs the program and the Python package with pip. maturin would build the program once more, with other bytes.

use anyhow::{Context, Result};
use xshell::cmd;

use super::{Machine, Release};
use crate::tools;

const WHEEL: &str = "wheel==0.48.0";

/// The Python package, which starts the program.
const PACKAGE: &str = "python/lockkeeper";

impl Release {
    pub(super) fn wheel(&self, machine: Machine) -> Result<()> {
        let (sh, version, name) = (&self.sh, &self.version, machine.name());
        let wheel = tools::python(sh, &[WHEEL])?.join("wheel");
        let program = self.program(machine)?;
        let tree = self.out().join("wheel");
        sh.remove_path(&tree)?;
        let about = tree.join(format!("lockkeeper-{version}.dist-info"));
        let scripts = tree.join(format!("lockkeeper-{version}.data/scripts"));
        sh.create_dir(&scripts)?;
        sh.copy_file(program, scripts.join("lockkeeper"))?;
        let package = tree.join("lockkeeper");
        sh.create_dir(&package)?;
        for file in sh.read_dir(PACKAGE)?.iter().filter(|file| file.is_file()) {
            sh.copy_file(file, &package)?;
        }
        sh.create_dir(about.join("licenses"))?;
        for licence in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES-LINKED"] {
            sh.copy_file(self.stage()?.join("usr/share/doc/lockkeeper").join(licence), about.join("licenses"))?;
        }
        // The program is static, so it runs with every C library. pip chooses a file by its own Python's.
        let tags = [format!("manylinux_2_17_{name}"), format!("manylinux2014_{name}"), format!("musllinux_1_1_{name}")];
        let tags: String = tags.map(|tag| format!("Tag: py3-none-{tag}\n")).concat();
        sh.write_file(
            about.join("WHEEL"),
            format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist wheel\nRoot-Is-Purelib: false\n{tags}"),
        )?;
        let metadata = sh.read_file("contrib/packages/METADATA")?.replace("@VERSION@", version);
        sh.write_file(about.join("METADATA"), metadata)?;
        let out = self.out();
        cmd!(sh, "{wheel} pack --dest-dir {out} {tree}").quiet().ignore_stdout().run().context("packing the wheel")?;
        sh.remove_path(&tree)?;
        Ok(())
    }
}
