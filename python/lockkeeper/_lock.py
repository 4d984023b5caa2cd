"""A lock that can be acquired."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
import types
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypedDict, Union

from . import _link, _program
from ._hold import Hold, OnAsked, OnLost, OnWanted
from ._link import log
from .errors import LockError, Usage

if TYPE_CHECKING:
    from typing_extensions import Unpack

Duration = Union[int, float, timedelta]
"""Seconds, or a timedelta."""

LATE = 15.0
"""Seconds that the program may be late with its answer. Without a wait, it looks for a server for 10 s."""


class Options(TypedDict, total=False):
    """How a lock is held, and where. `lockkeeper help hold` describes each option; durations are in seconds."""

    message: Optional[str]
    """For everyone who looks at the lock. Without it, this program's name and the id of its process."""
    shared: bool
    exclusive: bool
    permits: Optional[int]
    take: Optional[int]
    foreground: bool
    background: bool
    klass: Optional[str]
    yields: bool
    min_hold: Optional[Duration]
    lease: Optional[Duration]
    format: Optional[str]
    """How the nodes are named: `kazoo` queues with Kazoo's locks."""
    session_timeout: Optional[Duration]
    servers: Union[str, Sequence[str], None]
    config: Union[str, os.PathLike[str], None]
    machine: Union[bool, str, os.PathLike[str]]
    state_dir: Union[str, os.PathLike[str], None]
    history: bool
    options: Sequence[str]
    """Further options of the command: `["--lock-delay", "5s"]`."""
    on_lost: Optional[OnLost]
    on_asked: Optional[OnAsked]
    on_wanted: Optional[OnWanted]


def lock(*names: str, timeout: Optional[Duration] = None, **options: Unpack[Options]) -> Lock:
    """Describes a lock, or several that are held together. Nothing is sent before it is acquired.

    with lockkeeper.lock("nightly", timeout=30) as hold:
        ...

    `timeout` is the longest wait in seconds. None waits for as long as it takes; in the foreground and the background, for as long as the
    settings say. See `Options` for the others.
    """
    return Lock(names, [] if timeout is None else [f"--wait={duration('timeout', timeout)}"], timeout, options)


def try_lock(*names: str, **options: Unpack[Options]) -> Lock:
    """The same as `lock` without a wait: if the lock is taken, acquiring it raises Taken."""
    return Lock(names, ["--try"], None, options)


class Lock:
    """A lock that can be acquired, again and again, from several threads and tasks. Each time, a program of its own holds it.

    Write `with lock("nightly"):` rather than `with` and a variable where a program survives a Ctrl-C: if it comes in the moment between
    the block and its `__exit__`, Python does not call `__exit__`, and the lock is released only when nothing refers to it.
    """

    def __init__(self, names: Sequence[str], words: Sequence[str], timeout: Optional[Duration], options: Options) -> None:
        if not names:
            raise Usage("no name of a lock", 'write the name of the lock, such as lock("nightly")')
        self._names = tuple(names)
        # With retries, the program waits for as long as that several times.
        has_retries = options.get("foreground") or options.get("background") or options.get("options")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self._limit = None if seconds is None or has_retries else seconds + LATE
        self._words = [*words, *arguments(options)]
        self._message = options.get("message")
        for word in (*self._names, *self._words, self._message or ""):
            if not _is_text(word):
                raise Usage(f"{word!r} is no text that a program can be given", "write a text without NUL and half characters")
        self._callbacks = options.get("on_lost"), options.get("on_asked"), options.get("on_wanted")
        # What the with statements hold. The grip is here and not in the hold: when a Ctrl-C comes just before __exit__ does anything, this
        # lock is all that can be freed, because the caller's variable keeps the hold.
        self._entered: list[_Entered] = []

    def acquire(self) -> Hold:
        """Acquires the lock, and returns the hold, which has to be released."""
        hold = self._start(None)
        try:
            hold._wait(self._limit)
            return hold
        except BaseException:
            hold._abandon()
            raise

    async def aacquire(self) -> Hold:
        """The same as `acquire` for asyncio. A cancellation ends the wait."""
        hold = self._start(asyncio.get_running_loop())
        try:
            await hold._wait_async(self._limit)
            return hold
        except BaseException:
            hold._abandon()
            raise

    def __enter__(self) -> Hold:
        hold = self._start(None)
        try:
            hold._wait(self._limit)
            self._entered.append(_Entered(_place(sys._getframe(1)), threading.get_ident(), hold, hold._disown()))
            return hold
        except BaseException:
            hold._abandon()
            raise

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[types.TracebackType]
    ) -> None:
        left = self._leave(_place(sys._getframe(1)), threading.get_ident())
        try:
            left.hold.release()
        except LockError as problem:
            # The error of the block is the reason, or has the better one.
            if error is None:
                raise
            log.warning("%s", problem)

    def __aenter__(self) -> Coroutine[Any, Any, Hold]:
        return self._enter_async(_place(sys._getframe(1)))

    def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[types.TracebackType]
    ) -> Coroutine[Any, Any, None]:
        return self._exit_async(_place(sys._getframe(1)), error)

    async def _enter_async(self, place: tuple[object, ...]) -> Hold:
        hold = self._start(asyncio.get_running_loop())
        try:
            await hold._wait_async(self._limit)
            self._entered.append(_Entered(place, asyncio.current_task(), hold, hold._disown()))
            return hold
        except BaseException:
            hold._abandon()
            raise

    async def _exit_async(self, place: tuple[object, ...], error: Optional[BaseException]) -> None:
        left = self._leave(place, asyncio.current_task())
        try:
            await left.hold.arelease()
        except LockError as problem:
            if error is None:
                raise
            log.warning("%s", problem)

    def __repr__(self) -> str:
        return f"<lockkeeper.Lock {' '.join([*self._names, *self._words])}>"

    def _start(self, loop: Optional[asyncio.AbstractEventLoop]) -> Hold:
        message = self._message
        if message is None:
            name = os.path.basename(sys.argv[0]) if sys.argv else ""
            name = name.encode(errors="replace").decode()
            message = f"{'python' if name in ('', '-c', '-m') else name}, process {os.getpid()}"
        words = [_program.find(), "hold", *self._words, f"--message={message}", "--", *self._names]
        hold = Hold(*_link.start(words), loop)
        on_lost, on_asked, on_wanted = self._callbacks
        if on_lost is not None:
            hold.on_lost(on_lost)
        if on_asked is not None:
            hold.on_asked(on_asked)
        if on_wanted is not None:
            hold.on_wanted(on_wanted)
        return hold

    def _leave(self, place: tuple[object, ...], who: object) -> _Entered:
        # The with statement's own, also in a generator that was entered in another thread or task. Without a statement, as in an ExitStack,
        # it is the last one of this thread or task.
        last = max(reversed(self._entered.copy()), key=lambda entered: (entered.place == place, entered.who == who))
        self._entered.remove(last)
        last.hold._link.grasp(last.grip)
        return last


class _Entered(NamedTuple):
    """What a with statement holds."""

    place: tuple[object, ...]
    """The frame of the statement, by its number: a frame that is kept keeps all that is in it. A later one may have the same number."""
    who: object
    """The thread or task that entered it."""
    hold: Hold
    grip: io.FileIO


def _place(frame: types.FrameType) -> tuple[object, ...]:
    return id(frame), frame.f_code


def arguments(options: Options) -> list[str]:
    """Returns the options of the command."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise Usage(f"unknown option {', '.join(sorted(unknown))}", "see lockkeeper.Options; options=[…] takes those of the command")
    flags = {
        "--shared": options.get("shared"),
        "--exclusive": options.get("exclusive"),
        "--foreground": options.get("foreground"),
        "--background": options.get("background"),
        "--yield": options.get("yields"),
        "--no-history": not options.get("history", True),
        "--machine": options.get("machine") is True,
    }
    words = [flag for flag, is_set in flags.items() if is_set]
    times = {"min_hold": options.get("min_hold"), "lease": options.get("lease"), "session_timeout": options.get("session_timeout")}
    words += [f"--{name.replace('_', '-')}={duration(name, time)}" for name, time in times.items() if time is not None]
    servers, machine = options.get("servers"), options.get("machine")
    values: dict[str, object] = {
        "permits": options.get("permits"),
        "take": options.get("take"),
        "class": options.get("klass"),
        "format": options.get("format"),
        "servers": servers if servers is None or isinstance(servers, str) else ",".join(servers),
        "config": _path(options.get("config")),
        "machine": None if isinstance(machine, bool) else _path(machine),
        "state-dir": _path(options.get("state_dir")),
    }
    words += [f"--{flag}={value}" for flag, value in values.items() if value is not None]
    return [*words, *options.get("options", ())]


def duration(name: str, value: Duration) -> str:
    """Returns a duration as the command reads it."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds < 1e9:
        raise Usage(f"{name}={value!r} is no duration", "write seconds, such as 30 or 0.5, or a timedelta")
    # Rounded up: a short wait is no attempt without a wait.
    return f"{-int(-seconds * 1000 // 1)}ms"


def _is_text(word: object) -> bool:
    try:
        return isinstance(word, str) and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _path(path: Union[str, os.PathLike[str], None]) -> Optional[str]:
    return None if path is None else os.fspath(path)
