"""The conversation with one `lockkeeper hold`: docs/hold-protocol.md.

A thread of its own starts the program and reads its lines, and nobody else does. A KeyboardInterrupt is raised in the main thread only, so
it cannot stop this one between two steps. The caller has the write end of the program's input, the grip. Whatever happens to the caller,
the lock is released when nothing refers to the grip any more: a file closes when it is freed, and the end of its input ends the program.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import IO, Any, Callable, NamedTuple, Optional

from ._flag import Flag
from .errors import FAILURES, Internal, LockError, Lost, Refused, Usage, Withdrawn

log = logging.getLogger("lockkeeper")

PROTOCOL = 1

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock of the protocol. It runs on while the machine sleeps."""

SLOW = 1.0
"""Seconds that the thread has to read what is there. It needs a moment."""


def now() -> int:
    """Returns the time of the protocol's clock, in nanoseconds."""
    return time.clock_gettime_ns(CLOCK)


class HeldLock(NamedTuple):
    """A lock that is held."""

    path: str
    node: str
    token: Optional[int]
    """The fencing token. None for permits."""


class Request(NamedTuple):
    """Somebody asks for a lock."""

    path: str
    by: Optional[str]
    why: Optional[str]


class Link:
    """What the program has said, and until when that may be trusted. The thread writes it; the other threads read it."""

    def __init__(self, command: list[str], grip: io.FileIO) -> None:
        self.command = command
        self.pid: int = os.getpid()
        self.grip: weakref.ref[io.FileIO] = weakref.ref(grip)
        self.locks: tuple[HeldLock, ...] = ()
        self.error: Optional[LockError] = None
        """Why the lock is not held any more, or was not granted."""
        self.trust: int = 0
        """Until when the lock may be trusted, in nanoseconds; 0 if it is not held."""
        self.asked: bool = False
        """Whether there are requests that are not refused."""
        self.unheard: deque[Request] = deque()
        """The requests that no callback was called for."""
        self.wanted: bool = False
        self.tell: Callable[[], object] = lambda: None
        """Called when there is a request, or a wish for the lock."""
        self.makes_way: bool = False
        self.granted: Flag = Flag()
        self.lost: Flag = Flag()
        self.closing: Flag = Flag()
        """This process has released the lock, or given up the wait."""
        self.done: Flag = Flag()
        """The program has said its last word, or has ended."""
        # The thread never takes it. Its owner may take it again, after a Ctrl-C in Python 3.9, which may forget to give it back.
        self._writing = threading.RLock()
        self._turn = Flag()
        self._checks: deque[Check] = deque()
        self._is_greeted = False
        self._is_distrusted = False
        self._rest = b""
        self._remarks = b""
        self._files: list[IO[bytes]] = []
        self._unlogged: deque[tuple[Any, ...]] = deque()
        self._logging = threading.Lock()

    def grasp(self, grip: io.FileIO) -> None:
        """Finds the grip again: Python clears weak references in a cycle of garbage before the generators and holds in it end."""
        self.grip = weakref.ref(grip)

    def forked(self) -> bool:
        """Whether this process is a fork of the one that the program serves."""
        return self.pid != os.getpid()

    def left(self) -> int:
        """Returns for how many nanoseconds the lock may be trusted."""
        while not (self.forked() or self.closing.is_set() or self.makes_way):
            # In this order: a turn that ends later has read all that was said by now.
            turn = self._turn
            trust = self.trust
            left = trust - now()
            if left > 0:
                return left
            # The interpreter may have stood still, so there may be a later time in the pipe. The thread sees that its time is up, reads
            # what is there, and either knows a later time or declares the lock lost.
            if trust == 0 or not turn.wait(SLOW):
                break
        return 0

    # What this process says.

    def say(self, word: dict[str, str]) -> None:
        """Says a word. If the program has ended, the thread finds out."""
        grip = self.grip()
        if grip is None or self.forked():
            return
        line = json.dumps(word, ensure_ascii=False).encode() + b"\n"
        # No thread closes it meanwhile: the number of a closed file may be another file's by the time of the write.
        with self._writing:
            if not grip.closed:
                try:
                    grip.write(line)
                except OSError:
                    pass

    def release(self) -> None:
        """Releases the lock, or ends the wait. From now on it is not held."""
        grip = self.grip()
        try:
            self.closing.set()
            self.say({"do": "release"})
        finally:
            # Also when a Ctrl-C comes before: the end of the input is a release.
            if grip is not None and not self.forked():
                with self._writing:
                    grip.close()

    def check(self) -> Check:
        """Asks whether the lock is held."""
        check = Check()
        try:
            self._checks.append(check)
            self.say({"do": "check"})
        except BaseException:
            # Nobody knows whether it was asked. One answer too many does no harm; with one too few, the next check would wait for ever.
            self.say({"do": "check"})
            raise
        if self.done.is_set():
            check.answered.set()
        return check

    def make_way(self) -> Flag:
        """Gives the lock to an earlier class, and returns what tells that it is held again, or never will be."""
        with self._writing:
            if not self.makes_way:
                self.granted = Flag()
                self.makes_way = True
                self.say({"do": "make_way"})
            granted = self.granted
        if self.done.is_set():
            granted.set()
        return granted

    def refuse(self, why: str) -> None:
        """Refuses the requests."""
        self.asked = False
        # The program keeps as much.
        self.say({"do": "refuse", "why": why.encode()[:4096].decode(errors="ignore")})

    def log(self, level: int, text: str, *values: object) -> None:
        """Logs something in another thread: this one must go on while a handler waits, perhaps for a lock."""
        if level < log.getEffectiveLevel():
            return
        self._unlogged.append((level, text, *values))
        with suppress(RuntimeError):
            # Not a daemon: the program does not end before it is logged.
            threading.Thread(target=self._log_all, name="lockkeeper log", daemon=False).start()

    def _log_all(self) -> None:
        with self._logging:
            while self._unlogged:
                log.log(*self._unlogged.popleft())

    # What the program says, on its thread.

    def run(self, words: io.FileIO) -> None:
        """Starts the program, and listens to it until it ends."""
        try:
            self._run(words)
        except OSError as error:
            self._fail(f"{self.command[0]} cannot be started: {error.strerror or error}")
        except Exception as error:
            self._fail(f"listening to lockkeeper hold failed: {error!r}")
            log.exception("listening to lockkeeper hold")
        finally:
            self._finish()

    def _run(self, words: io.FileIO) -> None:
        with words:
            # In a session of its own, where no key of the terminal reaches it.
            program = subprocess.Popen(
                self.command, stdin=words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        with program:
            try:
                self._listen(program)
            except BaseException:
                program.terminate()
                raise
            status = program.wait()
        self._ended(program.pid, status)

    def _listen(self, program: subprocess.Popen[bytes]) -> None:
        """Reads the program's lines until they end."""
        assert program.stdout is not None and program.stderr is not None
        self._files = [program.stdout, program.stderr]
        out, remarks = program.stdout.fileno(), program.stderr.fileno()
        poll = select.poll()
        for file in (out, remarks):
            os.set_blocking(file, False)
            poll.register(file, select.POLLIN)
        is_open = True
        while is_open:
            ready = poll.poll(self._patience())
            if any(file == remarks for file, _ in ready) and not self._read_remarks(remarks):
                poll.unregister(remarks)
            # The time before the reading: the interpreter may stand still after it.
            time = now()
            is_open = self._read_lines(out)
            self._end_turn(time)
            if self._is_distrusted:
                # It may hold the lock: it was only late, or speaks another language.
                self._is_distrusted = False
                program.terminate()
        self._read_remarks(remarks)
        self._files = []

    def _patience(self) -> Optional[int]:
        """Returns for how many milliseconds the thread may wait for a line."""
        if self.trust == 0 or self.makes_way:
            return None
        # A millisecond is at most what this is late.
        return min(max(0, self.trust - now()) // 1_000_000 + 1, 2**31 - 1)

    def _end_turn(self, time: int) -> None:
        """All that was said by this time is read."""
        if self.trust != 0 and not self.makes_way and time >= self.trust:
            self._end(Lost("lockkeeper hold could not confirm in time that the lock is held", why="unreachable"))
            self._is_distrusted = True
        if (self.unheard or self.wanted) and not self.closing.is_set():
            self.tell()
        turn, self._turn = self._turn, Flag()
        turn.set()

    def _ended(self, pid: int, status: int) -> None:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        if not self.done.is_set():
            text = self._remarks.decode(errors="replace").strip()
            if not self._is_greeted and text:
                self._end(Usage(text) if status == 64 else Internal(text))
            elif self.trust != 0 and not self.makes_way:
                text = "lockkeeper hold (pid %d) ended with %s; the lock may be trusted until its time has passed"
                self.log(logging.WARNING, text, pid, how)
                while now() < self.trust and not self.closing.is_set():
                    self.closing.wait((self.trust - now()) / 1e9)
                if not self.closing.is_set():
                    self._end(Lost(f"lockkeeper hold (pid {pid}) has ended with {how}, and the hold's time has passed"))
            else:
                self._end(Internal(f"lockkeeper hold (pid {pid}) has ended with {how} before the lock was held"))

    def _fail(self, what: str) -> None:
        self._end(Lost(what) if self.trust != 0 else Internal(what))

    def _end(self, error: LockError) -> None:
        """The lock is not held from now on, for this reason."""
        if self.error is None:
            self.error = error
        self.trust = 0
        self._finish()

    def _finish(self) -> None:
        """Wakes all who wait for a word that does not come any more."""
        self.trust = 0
        if isinstance(self.error, Lost) and not self.closing.is_set():
            self.lost.set()
        self.done.set()
        self.granted.set()
        while self._checks:
            self._checks.popleft().answered.set()
        self._turn.set()

    def _read_remarks(self, file: int) -> bool:
        """Reads what the program writes for people: before its first line a mistake, later notes. Returns False at its end."""
        data = _read(file)
        self._remarks += data or b""
        if self._is_greeted:
            *lines, self._remarks = self._remarks.split(b"\n")
            for line in lines:
                self.log(logging.WARNING, "%s", line.decode(errors="replace"))
        return data != b""

    def _read_lines(self, out: int) -> bool:
        """Reads all lines that are there. Returns False at their end."""
        while True:
            data = _read(out)
            if data is None:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._hear(line)
            if not data:
                return False

    def _hear(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError):
            self.log(logging.WARNING, "lockkeeper hold said %r, which is no event", line)
            return
        # After its last line, or a loss that this process has seen, nothing else counts.
        if not self.done.is_set():
            hear = getattr(self, f"_hear_{kind}", None)
            if hear is not None:
                hear(event)

    def _hear_hello(self, event: dict[str, Any]) -> None:
        self._is_greeted = True
        if event["protocol"] != PROTOCOL:
            self._end(
                Internal(
                    f"{event['program']} speaks version {event['protocol']} of the hold protocol, and this package version {PROTOCOL}",
                    "install the two from one wheel",
                )
            )
            self._is_distrusted = True

    def _hear_waiting(self, event: dict[str, Any]) -> None:
        self.log(logging.INFO, "waiting for %s: %d ahead, held by %s", event["path"], event["ahead"], event.get("holder", "somebody"))

    def _hear_acquired(self, event: dict[str, Any]) -> None:
        self.asked = self.wanted = False
        self.unheard.clear()
        self.locks = tuple(
            HeldLock(lock["path"], lock["node"], None if lock["token"] is None else int(lock["token"])) for lock in event["locks"]
        )
        self.trust = event["valid_until_ns"]
        self.makes_way = False
        self.granted.set()

    def _hear_valid(self, event: dict[str, Any]) -> None:
        if self.trust != 0 and not self.makes_way:
            self.trust = max(self.trust, event["valid_until_ns"])

    def _hear_suspected(self, event: dict[str, Any]) -> None:
        left = max(0, event["valid_until_ns"] - now()) / 1e9
        self.log(logging.WARNING, "the servers do not answer; the lock may be trusted for %.1f s", left)

    def _hear_checked(self, event: dict[str, Any]) -> None:
        self._hear_valid(event)
        if self._checks:
            self._checks.popleft().answered.set()

    def _hear_asked(self, event: dict[str, Any]) -> None:
        self.asked = True
        self.unheard.append(Request(event["path"], event.get("by"), event.get("why")))

    def _hear_wanted(self, _: dict[str, Any]) -> None:
        self.wanted = True

    def _hear_lost(self, event: dict[str, Any]) -> None:
        self._end(Lost(event["message"], why=event["why"]))

    def _hear_released(self, event: dict[str, Any]) -> None:
        if event.get("message"):
            self.log(logging.WARNING, "%s", event["message"])
        # Without our word, somebody has sent it a signal.
        if not self.closing.is_set() and self.trust != 0:
            self._end(Lost("lockkeeper hold was told by a signal to release the lock"))
        elif not self.closing.is_set():
            self._end(Withdrawn("lockkeeper hold was told by a signal to give up the wait"))
        self._finish()

    def _hear_failed(self, event: dict[str, Any]) -> None:
        self._end(FAILURES.get(event["why"], Internal)(event["message"], event.get("hint")))

    def _hear_error(self, event: dict[str, Any]) -> None:
        # The protocol does not say of which word it is. Only a check fails for reasons that this package does not see before.
        if self._checks:
            check = self._checks.popleft()
            check.problem = Refused(event["message"], event["hint"])
            check.answered.set()
        else:
            self.log(logging.WARNING, "%s", event["message"])

    # A fork.

    def forget(self) -> None:
        """Closes the files in a process that was forked: there, nobody holds the lock."""
        grip = self.grip()
        if grip is not None:
            grip.close()
        # By their objects, which close them once, and not by their numbers.
        for file in self._files:
            file.close()


class Check:
    """A question whether the lock is held."""

    def __init__(self) -> None:
        self.answered: Flag = Flag()
        self.problem: Optional[LockError] = None


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _forget_all() -> None:
    for link in list(_links):
        if link.forked():
            link.forget()


os.register_at_fork(after_in_child=_forget_all)


def start(command: list[str]) -> tuple[Link, io.FileIO]:
    """Starts a program that holds a lock; returns the grip on it, too. When nothing refers to that any more, the hold ends."""
    try:
        reads, writes = os.pipe()
    except OSError as error:
        raise Internal(f"no pipe for the lock: {error.strerror}") from None
    grip = io.FileIO(writes, "wb")
    words = io.FileIO(reads, "rb")
    link = Link(command, grip)
    _links.add(link)
    thread = threading.Thread(target=link.run, args=(words,), name=f"lockkeeper hold {link.pid}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        grip.close()
        words.close()
        raise Internal(f"no thread for the lock: {error}") from None
    return link, grip


def _read(file: int) -> Optional[bytes]:
    """Reads what is there: None if there is nothing yet, no bytes at the end."""
    try:
        return os.read(file, 65536)
    except BlockingIOError:
        return None
