"""An event that a Ctrl-C cannot break.

A KeyboardInterrupt may be raised between any two steps of the main thread, also inside of threading.Event, whose lock then stays locked.
A flag has no lock: each step that matters is one call that is not written in Python.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Callable, Optional


class Flag:
    """Something that happens once. It can be waited for."""

    def __init__(self) -> None:
        self._is_set = False
        self._told: dict[object, Callable[[], object]] = {}

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Says that it has happened. Each one who waits is told once."""
        self._is_set = True
        for key in list(self._told):
            told = self._told.pop(key, None)
            if told is not None:
                told()

    def tell(self, told: Callable[[], object]) -> object:
        """Calls this when it happens: in the thread that sets it, or here and now if it has happened. Returns what `forget` needs."""
        key = object()
        self._told[key] = told
        if self._is_set:
            self.set()
        return key

    def forget(self, key: object) -> None:
        """Calls it no more."""
        self._told.pop(key, None)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it has happened, at most for so many seconds. Returns whether it has happened."""
        if self._is_set:
            return True
        latch = threading.Lock()
        latch.acquire()
        key = self.tell(latch.release)
        try:
            latch.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX))
        finally:
            self.forget(key)
        return self._is_set

    async def wait_async(self, timeout: Optional[float] = None) -> bool:
        """The same for asyncio."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        happened = loop.create_future()

        def happen() -> None:
            if not happened.done():
                happened.set_result(None)

        def told() -> None:
            try:
                loop.call_soon_threadsafe(happen)
            except RuntimeError:
                pass  # The loop has ended.

        key = self.tell(told)
        try:
            # Before Python 3.12, wait_for loses a cancellation that comes at the same time.
            await asyncio.wait({happened}, timeout=timeout)
        finally:
            self.forget(key)
        return self._is_set
