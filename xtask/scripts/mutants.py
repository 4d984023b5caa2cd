#!/usr/bin/env python3
"""Changes the product in one place after the other, and checks that a test fails each time: `cargo xtask mutants`.

cargo-mutants makes the changes, in a copy of the repository, and runs the tests. `.cargo/mutants.toml` lists the mutants that may
survive. A mutant on which the tests hang is caught.
"""

import os
import pathlib
import re
import subprocess
import sys
import tomllib

VERSION = "27.1.0"  # the release whose mutants .cargo/mutants.toml names
SERVER = "crates/lockkeeper-server/src/machine"
# The arguments for each area; on an idle machine, its tests end in a third of the timeout.
AREAS = {
    "core": ["--package=lockkeeper-core", "--timeout=120"],
    "machine": ["--package=lockkeeper-server", f"--file={SERVER}.rs", f"--file={SERVER}/**/*.rs", "--timeout=120"],
    "library": ["--package=lockkeeper", "--test-package=lockkeeper", "--test-package=lockkeeper-tests", "--timeout=360"],
}
ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "mutants"


def tool():
    """Returns the program, which is installed below HOME if this release of it is not on the path."""
    here = HOME / "tool/bin/cargo-mutants"
    for program in ("cargo-mutants", here):
        try:
            if subprocess.check_output([program, "mutants", "--version"], text=True).split()[-1] == VERSION:
                return program
        except (OSError, subprocess.CalledProcessError):
            pass
    # Not optimised: that is most of its installation time, and it mostly waits for cargo.
    install = ["cargo", "install", "--quiet", "--locked", "--debug", f"--version={VERSION}", f"--root={HOME}/tool", "cargo-mutants"]
    if subprocess.run(install).returncode:
        print("NOT TESTED: mutants, because cargo-mutants cannot be installed", file=sys.stderr)
        sys.exit(7)
    return here


def accepted(program, package):
    """Returns the accepted mutants. Ends the program if one of them has no reason, or is no more."""
    path = ROOT / ".cargo/mutants.toml"
    text = path.read_text()
    for block in text.partition("exclude_re = [\n")[2].split("\n\n"):
        if not block.lstrip().startswith("#"):
            sys.exit(f"{path} gives no reason for {block.strip()}")
    listed = subprocess.check_output([program, "mutants", f"--dir={ROOT}", "--no-config", "--list", package], text=True).splitlines()
    accepted = tomllib.loads(text)["exclude_re"]
    ours = [name for name in accepted if name.startswith(f"^crates/{package.removeprefix('--package=')}/")]
    gone = [name for name in ours if not any(re.search(name, mutant) for mutant in listed)]
    if gone:
        sys.exit(f"{path} names mutants that are no more:\n  " + "\n  ".join(gone))
    return accepted


def main(area, arguments):
    program = tool()
    names = accepted(program, AREAS[area][0])
    HOME.mkdir(parents=True, exist_ok=True)
    # What cargo builds stays for the next run. Each mutant is a small change to it. Most tests of the library wait.
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(HOME / "target"), "CARGO_INCREMENTAL": "1", "RUST_TEST_THREADS": "16"
    }
    # CI has run the tests without a change.
    command = [program, "mutants", f"--dir={ROOT}", f"--output={HOME}", "--baseline=skip", "--colors=never", *AREAS[area], *arguments]
    status = subprocess.run(command, env=environment).returncode
    if status == 2:
        # cargo-mutants 27.1 excludes no deletion of a field by its name.
        missed = (HOME / "mutants.out/missed.txt").read_text().splitlines()
        missed = [mutant for mutant in missed if not any(re.search(name, mutant) for name in names)]
        if missed:
            missed.append("write a test that fails with the mutant, or add it to .cargo/mutants.toml with the reason")
            sys.exit("\n".join(missed))
    # 2: all that were missed are accepted; 3: tests hung on a mutant.
    sys.exit(0 if status in (2, 3) else status)


if len(sys.argv) < 2 or sys.argv[1] not in AREAS:
    sys.exit(f"usage: cargo xtask mutants {'|'.join(AREAS)} [ARGUMENTS OF cargo-mutants]")
main(sys.argv[1], sys.argv[2:])
