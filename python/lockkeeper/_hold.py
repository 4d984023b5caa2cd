"""A lock that is held."""

from __future__ import annotations

import asyncio
import copy
import inspect
import io
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from typing import Callable, NamedTuple, Optional, TypeVar

from ._flag import Flag
from ._link import HeldLock, Link, log
from .errors import Forked, LockError, Lost, TimedOut, Usage

LATE = 5.0
"""Seconds that the program may be late with the end of a release."""


class Asked(NamedTuple):
    """Somebody asks for the lock: release it when you can, or refuse."""

    hold: Hold
    path: str
    by: Optional[str]
    why: Optional[str]

    def refuse(self, why: str) -> None:
        """Refuses all requests. Who asked reads the text."""
        self.hold.refuse(why)


class Wanted(NamedTuple):
    """A contender of an earlier class waits: make way when you can."""

    hold: Hold


_Event = TypeVar("_Event")
_Thing = TypeVar("_Thing")

OnLost = Callable[[Lost], object]
OnAsked = Callable[[Asked], object]
OnWanted = Callable[[Wanted], object]


class Hold:
    """A lock that is held, or several. Get one from `lock`.

    Before each step that only a holder may take, look at `is_held`, or call `raise_if_lost()`. That costs a look at the clock.
    """

    def __init__(self, link: Link, grip: io.FileIO, loop: Optional[asyncio.AbstractEventLoop] = None) -> None:
        self._link = link
        self._grip: Optional[io.FileIO] = grip
        self._loop = loop
        self._on_lost: deque[OnLost] = deque()
        self._on_asked: list[OnAsked] = []
        self._on_wanted: list[OnWanted] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # The thread must not keep what nobody else uses.
        this = weakref.ref(self)

        def tell() -> None:
            hold = this()
            try:
                if hold is not None:
                    hold._tell()
            except Exception:
                # The thread must go on: it keeps the hold.
                log.exception("the callbacks could not be called")

        link.tell = tell
        link.lost.tell(tell)

    # What is held.

    @property
    def locks(self) -> tuple[HeldLock, ...]:
        """The locks, each with its path, its node and its token, in the order of their paths."""
        return self._link.locks

    @property
    def path(self) -> str:
        """The lock's path; of several locks, the first one's."""
        return self._link.locks[0].path

    @property
    def node(self) -> str:
        """The node of this hold; of several locks, the first one's."""
        return self._link.locks[0].node

    @property
    def token(self) -> Optional[int]:
        """The fencing token: each later hold of the lock has a larger one. None for permits; for several locks, see `tokens`."""
        locks = self._link.locks
        return locks[0].token if len(locks) == 1 else None

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing tokens by the paths of the locks. Permits have none."""
        return {lock.path: lock.token for lock in self._link.locks if lock.token is not None}

    # Whether it is held.

    @property
    def is_held(self) -> bool:
        """Whether the lock is held. It is true for no longer than another contender is sure not to hold it."""
        return self._link.left() > 0

    @property
    def valid_for(self) -> float:
        """For how many seconds the lock may be trusted, if no server answers from now on. 0.0 if it is not held."""
        return self._link.left() / 1e9

    @property
    def lost(self) -> Flag:
        """The loss, as an event: `hold.lost.wait(timeout)`, `hold.lost.is_set()`, `await hold.lost.wait_async()`."""
        self._own()
        return self._link.lost

    def raise_if_lost(self) -> None:
        """Raises an error if the lock is not held: Lost, with the reason, if it was lost."""
        self._own()
        link = self._link
        if link.left() > 0:
            return
        if link.error is not None:
            # A copy: its traceback would keep the frames of each caller.
            raise copy.copy(link.error)
        if link.closing.is_set():
            raise LockError("the lock is not held: it was released")
        if link.makes_way:
            raise LockError("the lock is not held: it makes way for an earlier class")
        raise Lost("the lock may not be trusted any more")

    def check(self) -> None:
        """Asks the servers whether the lock is held: one round trip. Raises Lost if it is not.

        While the servers do not answer, it waits; it ends when the lock's time has passed.
        """
        self.raise_if_lost()
        check = self._link.check()
        check.answered.wait()
        self.raise_if_lost()
        if check.problem is not None:
            raise check.problem

    async def acheck(self) -> None:
        """The same as `check` for asyncio. A cancellation leaves nothing behind."""
        self.raise_if_lost()
        check = self._link.check()
        await check.answered.wait_async()
        self.raise_if_lost()
        if check.problem is not None:
            raise check.problem

    # What is told.

    def on_lost(self, callback: OnLost) -> None:
        """Calls this once when the lock is lost, also if that has happened. It is not called after a release.

        A callback runs in a thread of its own; if the lock was acquired by `async with`, in the event loop, where it may be a coroutine
        function. An exception in it is logged and changes nothing.
        """
        self._own()
        self._on_lost.append(callback)
        self._tell()

    def on_asked(self, callback: OnAsked) -> None:
        """Calls this when somebody asks for the lock, as `lockkeeper revoke` does. It runs as the callbacks of `on_lost` do."""
        self._own()
        self._on_asked.append(callback)
        self._tell()

    def on_wanted(self, callback: OnWanted) -> None:
        """Calls this when a contender of an earlier class waits: with `yields`. It runs as the callbacks of `on_lost` do."""
        self._own()
        self._on_wanted.append(callback)
        self._tell()

    # What is done.

    def refuse(self, why: str) -> None:
        """Refuses the requests to release the lock. Who asked reads the text, at most 4096 bytes of it."""
        self.raise_if_lost()
        if not self._link.asked:
            raise Usage("nobody asks for the lock", "refuse in the callback of on_asked, once")
        self._link.refuse(why)

    def make_way(self) -> None:
        """Gives the lock to an earlier class, and returns when it is held again, with a new token."""
        self.raise_if_lost()
        self._link.make_way().wait()
        self.raise_if_lost()

    async def amake_way(self) -> None:
        """The same as `make_way` for asyncio. After a cancellation, the lock is waited for until it is released."""
        self.raise_if_lost()
        await self._link.make_way().wait_async()
        self.raise_if_lost()

    def release(self) -> None:
        """Releases the lock, and returns when that is confirmed. Again, it does nothing.

        Raises Lost if the lock was lost before. In a process that was forked, it does nothing.
        """
        limit = self._begin_release()
        if limit is not None:
            self._end_release(self._link.done.wait(limit))

    async def arelease(self) -> None:
        """The same as `release` for asyncio. A cancellation does not stop the release."""
        limit = self._begin_release()
        if limit is not None:
            self._end_release(await self._link.done.wait_async(limit))

    def __enter__(self) -> Hold:
        self.raise_if_lost()
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[types.TracebackType]
    ) -> None:
        try:
            self.release()
        except LockError:
            if error is None:
                raise

    async def __aenter__(self) -> Hold:
        return self.__enter__()

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[types.TracebackType]
    ) -> None:
        try:
            await self.arelease()
        except LockError:
            if error is None:
                raise

    def __repr__(self) -> str:
        paths = ", ".join(lock.path for lock in self._link.locks)
        return f"<lockkeeper.Hold of {paths or 'nothing'}, valid for {self.valid_for:.1f} s>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a hold belongs to the process that acquired it: give another process the token, or a lock of its own")

    def __del__(self) -> None:
        # Its attributes are missing if its creation was interrupted.
        grip = getattr(self, "_grip", None)
        if grip is not None and not grip.closed and not self._link.forked():
            is_held = self._link.left() > 0
            self._close()
            if is_held:
                text = f"the hold of {self._link.locks[0].path} was forgotten, and is released: use the with statement, or call release()"
                warnings.warn(text, ResourceWarning, source=self)

    # For the lock.

    def _disown(self) -> io.FileIO:
        """Gives the grip to the caller: who has it ends the hold by forgetting it."""
        grip, self._grip = self._grip, None
        assert grip is not None
        return grip

    def _wait(self, limit: Optional[float]) -> None:
        """Waits for the grant."""
        self._granted(self._link.granted.wait(limit))

    async def _wait_async(self, limit: Optional[float]) -> None:
        self._granted(await self._link.granted.wait_async(limit))

    def _granted(self, in_time: bool) -> None:
        if not in_time:
            raise TimedOut("lockkeeper hold did not answer in time")
        if self._link.error is not None:
            raise copy.copy(self._link.error)

    def _abandon(self) -> None:
        self._link.release()

    # Parts.

    def _own(self) -> None:
        if self._link.forked():
            raise Forked("this process was forked from the one that holds the lock, and holds nothing: acquire a lock of its own here")

    def _begin_release(self) -> Optional[float]:
        """Releases the lock; returns how long that may take, and None if there is nothing to wait for."""
        link = self._link
        if link.forked():
            return None
        # This sees a loss that the thread has not seen yet. The release is confirmed, or the lock's time is over.
        left = link.left() / 1e9
        self._close()
        # When the interpreter ends, the thread that would hear of it does not run any more.
        return None if sys.is_finalizing() else left + LATE

    def _end_release(self, is_done: bool) -> None:
        link = self._link
        if isinstance(link.error, Lost):
            raise copy.copy(link.error)
        if not is_done:
            log.warning("lockkeeper hold did not confirm the release of the lock")

    def _close(self) -> None:
        if self._grip is not None:
            self._link.grasp(self._grip)
        self._link.release()

    def _tell(self) -> None:
        """Calls the callbacks for what they were not called for. It may run in two threads at a time: a pop gives each thing to one."""
        link = self._link
        if link.lost.is_set() and isinstance(link.error, Lost):
            for lost in _taken(self._on_lost):
                self._call(lost, copy.copy(link.error))
        if self._on_asked:
            for request in _taken(link.unheard):
                for asked in self._on_asked:
                    self._call(asked, Asked(self, *request))
        if self._on_wanted and link.wanted:
            link.wanted = False
            for wanted in self._on_wanted:
                self._call(wanted, Wanted(self))

    def _call(self, callback: Callable[[_Event], object], event: _Event) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._call_here, callback, event)
            else:
                threading.Thread(target=self._call_here, args=(callback, event), name="lockkeeper callback", daemon=True).start()
        except RuntimeError:
            log.warning("a callback was not called for %r, because the program ends", event)

    def _call_here(self, callback: Callable[[_Event], object], event: _Event) -> None:
        try:
            result = callback(event)
        except (Exception, SystemExit):
            log.exception("the callback for %r failed", event)
            return
        if not inspect.isawaitable(result):
            return
        if self._loop is not None:
            task = asyncio.create_task(self._call_on(result, event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            log.error("the callback for %r did not run: only with asyncio may it be a coroutine function", event)
            if inspect.iscoroutine(result):
                result.close()

    async def _call_on(self, result: Awaitable[object], event: object) -> None:
        try:
            await result
        except (Exception, SystemExit):
            log.exception("the callback for %r failed", event)


def _taken(things: deque[_Thing]) -> Iterator[_Thing]:
    """Takes all things, also while another thread takes them."""
    with suppress(IndexError):
        while True:
            yield things.popleft()
