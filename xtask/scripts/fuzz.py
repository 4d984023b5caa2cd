#!/usr/bin/env python3
"""Changes input from clients and disks at random, for as long as wanted: `cargo xtask fuzz`.

The targets and their corpus are in the server's crate; `cargo test` runs each briefly. Here each target has a process of its own. So a
target that crashes, or gets no more memory, leaves its input. FUZZ_PROGRAM is the test program of the server's crate.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

PROGRAM = os.environ["FUZZ_PROGRAM"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "fuzz"

parser = argparse.ArgumentParser(prog="cargo xtask fuzz")
parser.add_argument("--seconds", metavar="N", type=int, default=60, help="seconds for each target")
parser.add_argument("--seed", metavar="SEED", type=int, default=os.getpid(), help="the seed of the changes; printed")
parser.add_argument("--target", metavar="NAME", default="", help="run only targets with this in their name")
parser.add_argument("--replay", metavar="FILE", type=pathlib.Path, help="run one failed input: a file that is named like its target")
parser.add_argument("--keep", action="store_true", help="add inputs with new outcomes to the corpus of the repository")
parser.add_argument("--at-once", metavar="N", type=int, default=os.cpu_count(), help="targets that run at a time [default: one per core]")
options = parser.parse_args()


def one(target):
    """Runs one target; returns whether it passed. A failure names the file of the input and the command that runs it again."""
    environment = os.environ | {
        # The store panics on some damaged pages, and the start handles that; thousands of traces would not help.
        "RUST_BACKTRACE": "0",
        # Otherwise each thread of the store would reserve address space.
        "MALLOC_ARENA_MAX": "1",
        "LOCKKEEPER_FUZZ_DIR": str(HOME), "LOCKKEEPER_FUZZ_SECONDS": str(options.seconds), "LOCKKEEPER_SEED": str(options.seed),
    }
    if options.replay:
        environment["LOCKKEEPER_FUZZ_REPLAY"] = str(options.replay.resolve(strict=True))
    if options.keep:
        environment["LOCKKEEPER_FUZZ_KEEP"] = "1"
    command = [PROGRAM, "--exact", f"fuzz::{target}", "--test-threads=1"]
    place = ROOT / "crates/lockkeeper-server"
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", cwd=place)
    print(*(line for line in ended.stderr.splitlines() if line.startswith(target) or ended.returncode), sep="\n", file=sys.stderr)
    if not ended.returncode:
        return True
    print(ended.stdout, file=sys.stderr)
    kept = HOME / "failed" / f"{target}.{os.getpid()}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    try:
        (HOME / target).rename(kept)
    except OSError:
        print(f"{target} ended with {ended.returncode} before its first input", file=sys.stderr)
        return False
    print(f"{target} ended with {ended.returncode}; the input is in {kept}\n  again:    cargo xtask fuzz --replay {kept}", file=sys.stderr)
    print(f"  for good: cp {kept} crates/lockkeeper-server/fuzz/corpus/{target}/", file=sys.stderr)
    return False


listed = subprocess.check_output([PROGRAM, "--list", "fuzz::"], text=True).splitlines()
# The names of the corpus's own tests begin with `the_`.
targets = [line[len("fuzz::"):-len(": test")] for line in listed if line.startswith("fuzz::") and line.endswith(": test")]
targets = [target for target in targets if not target.startswith("the_")]
if options.replay:
    chosen = [target for target in targets if target == options.replay.stem]
else:
    chosen = [target for target in targets if options.target in target]
if not chosen:
    sys.exit(f"no target has that name; there are {', '.join(targets)}")
with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
    failed = [target for target, passed in zip(chosen, pool.map(one, chosen)) if not passed]
if failed:
    sys.exit(f"inputs that the server does not handle: {', '.join(failed)}")
