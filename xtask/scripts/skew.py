#!/usr/bin/env python3
"""Commands of two versions share this user's own server, as on a machine during an upgrade: `cargo xtask skew`.

The newer version is LOCKKEEPER, of this tree, the older one the commit in `xtask/skew.commit`. Each of them once starts the server, and
then the other one works on it and takes its place.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "skew"
REVOKED = 128 + 15  # the exit status of a command that was ended by a revoke, with SIGTERM
TAKEN, CANNOT_SERVE = 75, 73  # those of `lockkeeper` if the lock is taken, and if the server cannot serve


def ensure(holds, message):
    if not holds:
        sys.exit(message)


def untested(why):
    print(f"NOT TESTED: two versions on one server: {why}", file=sys.stderr)
    sys.exit(7)


def older():
    """Builds the older version, unless it is there."""
    commit = next(line for line in (ROOT / "xtask/skew.commit").read_text().splitlines() if not line.startswith("#"))
    program, source, target = HOME / f"lockkeeper-{commit[:7]}", HOME / "source", HOME / "target"
    if program.exists():
        return program
    if subprocess.run(["git", "-C", ROOT, "cat-file", "-e", commit]).returncode:
        untested(f"git has no commit {commit} here, as in a shallow clone or an archive")
    shutil.rmtree(HOME, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "--extract", "--directory", source], input=archive, check=True)
    if subprocess.run(["cargo", "fetch", "--quiet", "--locked", "--target", "host-tuple"], cwd=source).returncode:
        untested("the dependencies of the older one cannot be fetched")
    # In a directory of its own: cargo would take its packages for those of this tree. Other steps may measure times meanwhile.
    build = ["nice", "-n", "19", "cargo", "build", "--quiet", "--locked", "--profile=mutant", "-p=lockkeeper-cli", f"--target-dir={target}"]
    subprocess.run(build, cwd=source, check=True, env=os.environ | {"CARGO_INCREMENTAL": "0"})
    (target / "mutant/lockkeeper").rename(program)
    shutil.rmtree(source)
    shutil.rmtree(target)
    return program


class Holder:
    """A command that prints its token when it holds the lock, and holds it until its input ends."""

    def __init__(self, machine, program, lock, **options):
        command = [program, "run", lock, "--json", "--wait", "1m", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN; exec cat"]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, env=machine.environment, stdin=pipe, stdout=pipe, text=True, **options)
        # It must not outlive this program's checks: a holder would start a stopped server again.
        machine.children.append(self.child)

    def granted(self):
        line = self.child.stdout.readline()
        ensure(line.strip().isdigit(), f"no lock was granted: {line!r}")
        self.token = int(line)
        return self

    def ends(self, status):
        """Ends the command's input, and checks the status of the command."""
        self.child.stdin.close()
        ended = self.child.wait()
        ensure(ended == status, f"a holder ended with {ended}, not {status}")


class Machine:
    """A machine with one user, as far as the commands see."""

    def __init__(self, state):
        others = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
        self.environment = others | {"LOCKKEEPER_CONFIG": "/dev/null", "LOCKKEEPER_STATE_DIR": state}
        self.children = []

    def call(self, program, *arguments):
        return subprocess.run(
            [program, *arguments], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    def ends(self, status, program, *arguments):
        """Runs a command that must end with this status; returns what it printed."""
        ended = self.call(program, *arguments)
        ensure(ended.returncode == status, f"{program} {arguments} must end with {status}: {ended}")
        return ended.stdout

    def shows(self, program, token, *arguments):
        """Checks that an answer has this token."""
        said = self.ends(0, program, *arguments, "--json")
        ensure(f'"token":{token}' in said, f"{arguments} without the token {token}: {said}")

    def is_served_by(self, program):
        """Checks that the server runs this program."""
        status = json.loads(self.ends(0, program, "server", "status", "--json"))
        serving = pathlib.Path(f"/proc/{status['pid']}/exe").readlink()
        ensure(serving == program.resolve(), f"{serving} serves, not {program}")

    def holds(self, program, lock):
        return Holder(self, program, lock).granted()

    def waits(self, program, lock, token):
        """Starts a command that waits for a lock, and returns when it has said that it waits for the holder with this token."""
        waiter = Holder(self, program, lock, stderr=subprocess.PIPE)
        said = (line for line in waiter.child.stderr if '"waiting"' in line and f'"token":{token}' in line)
        ensure(next(said, None), f"the command of {program} does not wait for the holder")
        return waiter


def share(machine, first, second, is_older):
    """One version works on the server of the other, and then takes its place."""
    # A hold through everything: a newer command takes the place of an idle server of an older release by itself.
    kept = machine.holds(first, "kept")
    held = machine.holds(first, "a")
    machine.ends(0, first, "run", "job", "--slot", "one", "--", "true")
    machine.is_served_by(first)

    for asks in (["list"], ["show", "a"], ["why", "a"]):
        machine.shows(second, held.token, *asks)
    machine.ends(TAKEN, second, "run", "a", "--try", "--", "true")
    # The slot has run.
    machine.ends(0, second, "run", "job", "--slot", "one", "--", "false")
    waiter = machine.waits(second, "a", held.token)
    machine.ends(0, second, "revoke", "a", "--wait", "1m")
    held.ends(REVOKED)
    held = waiter.granted()
    ensure(held.token > kept.token, f"the token {held.token} is not above {kept.token}")
    machine.shows(first, held.token, "show", "a")
    machine.is_served_by(first)

    restarted = machine.call(second, "server", "restart")
    if is_older and restarted.returncode == CANNOT_SERVE:
        # It may not know the format of the data, which then stays as it is.
        ensure("format" in restarted.stderr, f"no word about the format of the data: {restarted.stderr}")
        print(f"the older version refuses the data: {restarted.stderr}")
        machine.ends(0, first, "run", "b", "--", "true")
        return machine.shows(first, kept.token, "show", "kept")
    ensure(restarted.returncode == 0, f"{restarted}")
    machine.is_served_by(second)
    for program in (first, second):
        machine.shows(program, kept.token, "show", "kept")
        machine.shows(program, held.token, "show", "a")
        machine.ends(0, program, "run", "job", "--slot", "one", "--", "false")
        after = machine.holds(program, "b")
        ensure(after.token > held.token, f"the token {after.token} is not above {held.token}")
        after.ends(0)
    machine.is_served_by(second)
    held.ends(0)
    kept.ends(0)


versions = {"older": older(), "newer": pathlib.Path(os.environ["LOCKKEEPER"])}
for who, other in (("older", "newer"), ("newer", "older")):
    print(f"== the {who} version starts the server", flush=True)
    with tempfile.TemporaryDirectory(prefix="lockkeeper-skew-") as directory:
        machine = Machine(f"{directory}/state")
        try:
            share(machine, versions[who], versions[other], other == "older")
        finally:
            for child in machine.children:
                child.kill()
            machine.call(versions[who], "server", "stop", "--force")
