//! The OCI image: one layer with the program, the licences and a directory for a server. umoci makes it, without a daemon and without root.

use std::fs;

use anyhow::{Context, Result};
use xshell::cmd;

use super::{Machine, Release};
use crate::tools;

/// The user of the program in the image. No other image has it for something else.
const USER: &str = "65532";

impl Release {
    pub(super) fn image(&self, machine: Machine) -> Result<()> {
        let (sh, out, version) = (&self.sh, self.out(), &self.version);
        tools::debian(sh, "umoci", "umoci")?;
        let program = self.program(machine)?;
        let work = out.join("image");
        sh.remove_path(&work)?;
        let (tree, layer, layout) = (work.join("tree"), work.join("layer.tar"), work.join("layout"));
        let licences = tree.join("usr/share/doc/lockkeeper");
        for directory in [&tree.join("usr/bin"), &licences, &tree.join("var/lib/lockkeeper"), &tree.join("tmp")] {
            sh.create_dir(directory)?;
        }
        sh.copy_file(program, tree.join("usr/bin/lockkeeper"))?;
        for file in sh.read_dir(self.stage()?.join("usr/share/doc/lockkeeper"))? {
            sh.copy_file(file, &licences)?;
        }
        sh.write_file(tree.join("etc/passwd"), format!("lockkeeper:x:{USER}:{USER}::/var/lib/lockkeeper:\n"))?;
        self.tar(&tree, ".", &layer)?;
        // As for a user of its own: the volume of a server, and the directory for temporary files.
        for (directory, flags) in [
            ("./var/lib/lockkeeper", ["--owner", USER, "--group", USER, "--mode=0755"]),
            ("./tmp", ["--owner", "0", "--group", "0", "--mode=1777"]),
        ] {
            cmd!(sh, "tar --delete --file {layer} {directory}").quiet().run()?;
            let time = format!("@{}", self.epoch);
            cmd!(sh, "tar --append --file {layer} --directory {tree} --format=ustar --numeric-owner --mtime {time} {flags...} {directory}").quiet().run()?;
        }
        let epoch = &self.epoch;
        let time = cmd!(sh, "date --utc --date @{epoch} +%Y-%m-%dT%H:%M:%SZ").quiet().read()?;
        let image = format!("{}:{version}", layout.display());
        cmd!(sh, "umoci init --layout {layout}").quiet().run()?;
        cmd!(sh, "umoci new --image {image}").quiet().run()?;
        let history = ["--history.created", &time, "--history.created_by", "cargo xtask dist image"];
        cmd!(sh, "umoci raw add-layer --image {image} {history...} {layer}").quiet().run()?;
        let architecture = machine.other_name();
        let labels = [
            format!("org.opencontainers.image.version={version}"),
            "org.opencontainers.image.licenses=MIT OR Apache-2.0".to_owned(),
            "org.opencontainers.image.source=https://github.com/lockkeeper/lockkeeper".to_owned(),
        ];
        let labels = labels.iter().flat_map(|label| ["--config.label", label]);
        cmd!(sh, "umoci config --image {image} --created {time} --architecture {architecture} --os linux --no-history")
            .args(["--config.entrypoint", "/usr/bin/lockkeeper", "--config.user", USER])
            .args(["--config.env", "HOME=/var/lib/lockkeeper"])
            .args(labels)
            .quiet()
            .run()?;
        // Earlier states of the image.
        cmd!(sh, "umoci gc --layout {layout}").quiet().run()?;
        let name = format!("lockkeeper-{version}-{}-oci.tar", machine.name());
        self.tar(&layout, ".", &out.join(name))?;
        fs::remove_dir_all(&work).context("removing what the image was made of")
    }
}
