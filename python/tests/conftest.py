"""A home for each test: the real program with an embedded server of its own, or with LOCKKEEPER_SERVERS that server.

LOCKKEEPER is the program under test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest

from lockkeeper import _program

SOON = 60.0
"""Seconds within which a condition holds. Only a test that fails reaches it."""

SESSION = 3
"""The session timeout of the tests that lose a lock, in seconds."""

ENOUGH = 5
"""That of the tests that keep it, also on a machine that is busy with other things."""


def until(what: str, condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.005)


def listeners() -> list[threading.Thread]:
    """The threads that listen to programs that hold locks."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("lockkeeper hold")]


class Home:
    """A place for locks, the commands that look at them, and programs that take them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.program = _program.find()
        # Each test has locks of its own, also on a server that all tests share.
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.programs: list[subprocess.Popen[str]] = []

    def lockkeeper(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *words], capture_output=True, text=True, timeout=SOON)

    def count(self, name: Optional[str] = None) -> tuple[int, int]:
        """Returns the numbers of holders and waiters."""
        shown = self.lockkeeper("show", name or self.name, "--json")
        if not shown.stdout:
            assert shown.returncode in (1, 69), shown
            return 0, 0
        lock = json.loads(shown.stdout)
        return len(lock["holders"]), len(lock["waiters"])

    def coprocess(self) -> int:
        """Returns the process that holds the lock."""
        lock = json.loads(self.lockkeeper("show", self.name, "--json").stdout)
        pid = lock["holders"][0]["pid"]
        assert isinstance(pid, int)
        return pid

    def is_free(self) -> bool:
        return self.count() == (0, 0)

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a Python program in a process group of its own; `NAME` in it is the name of the lock."""
        file = self.place / f"program{len(self.programs)}.py"
        head = "import os, signal, sys, threading, time\nimport lockkeeper\n"
        # The tests may run in the background, where an interrupt is ignored.
        head += f"signal.signal(signal.SIGINT, signal.default_int_handler)\nNAME = {self.name!r}\n"
        file.write_text(head + textwrap.dedent(script))
        program = subprocess.Popen(
            [sys.executable, str(file), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.programs.append(program)
        return program

    def end(self) -> None:
        for program in self.programs:
            try:
                os.killpg(program.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            program.communicate()
        until("the programs that hold locks for this process have ended", lambda: not listeners())
        # What is left of other programs' would start the server again.
        mark = f"LOCKKEEPER_STATE_DIR={self.place / 'state'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass
        if "LOCKKEEPER_SERVERS" not in os.environ:
            pid = self.server()
            if pid:
                os.kill(pid, signal.SIGKILL)

    def server(self) -> int:
        """Returns the process of this test's own server; 0 if none runs."""
        status = self.lockkeeper("server", "status", "--json").stdout
        pid = json.loads(status).get("pid") if status else None
        return pid if isinstance(pid, int) else 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("LOCKKEEPER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    home = Home(tmp_path)
    yield home
    home.end()


def line(program: subprocess.Popen[str]) -> str:
    """Returns the next line of a program."""
    assert program.stdout is not None
    text = program.stdout.readline()
    if not text:
        assert program.stderr is not None
        raise AssertionError(f"it has ended: {program.stderr.read()}")
    return text.strip()


def say(program: subprocess.Popen[str], text: str) -> None:
    """Writes a line to a program."""
    assert program.stdin is not None
    program.stdin.write(text + "\n")
    program.stdin.flush()


def finish(program: subprocess.Popen[str]) -> tuple[str, str]:
    """Waits for the end of a program that succeeds; returns what it has written."""
    out, remarks = program.communicate(timeout=SOON)
    assert program.returncode == 0, (program.returncode, out, remarks)
    return out, remarks
