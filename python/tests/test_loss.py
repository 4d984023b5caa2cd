"""What a lock survives, and how a program learns of its loss."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from typing import Callable, Optional

import pytest

import lockkeeper
from lockkeeper import Lost, _link
from lockkeeper._link import now
from tests.conftest import ENOUGH, SESSION, SOON, Home, until


def c_call() -> None:
    """A call into C that keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int((ENOUGH + 0.5) * 1e6))


def expression() -> None:
    """A regular expression that runs for long. No other thread runs meanwhile."""
    length, took = 18, 0.0
    while took < ENOUGH:
        start = time.monotonic()
        re.match(r"(a+)+$", "a" * length + "b")
        took = time.monotonic() - start
        length += 1 if took > 0.7 else 2


@pytest.mark.parametrize("stall", [c_call, expression])
def test_a_hold_survives_an_interpreter_that_stands_still(home: Home, stall: Callable[[], None]) -> None:
    lost: list[Lost] = []
    with lockkeeper.lock(home.name, session_timeout=ENOUGH, on_lost=lost.append) as hold:
        rival = home.start("lockkeeper.lock(NAME).acquire()")
        until("another one waits", lambda: home.count() == (1, 1))
        # No thread runs before this one waits: the one that reads has not read anything when the question comes.
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        try:
            stall()
            passed = hold._link.trust < now()
            is_held, left = hold.is_held, hold.valid_for
        finally:
            sys.setswitchinterval(usual)
        assert passed
        assert is_held and left > 0
        hold.check()
        assert home.count() == (1, 1) and rival.poll() is None
    assert lost == []


def test_a_stall_of_the_thread_that_reads_is_no_loss(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still after it has read all that was there, and goes on when that has passed."""
    stood = threading.Event()
    read = _link._read
    with lockkeeper.lock(home.name, session_timeout=ENOUGH) as hold:

        def stands_still(file: int) -> Optional[bytes]:
            data = read(file)
            if data is None and not stood.is_set():
                until("what is known has passed", lambda: now() > hold._link.trust)
                stood.set()
            return data

        monkeypatch.setattr(_link, "_read", stands_still)
        assert stood.wait(SOON)
        hold.check()
        assert hold.is_held


def test_a_loss_during_a_stall_is_seen_at_once_after_it(home: Home) -> None:
    with pytest.raises(Lost):
        with lockkeeper.lock(home.name, session_timeout=SESSION) as hold:
            coprocess = home.coprocess()
            os.kill(coprocess, signal.SIGSTOP)
            try:
                c_call()
                assert not hold.is_held and hold.valid_for == 0.0
                with pytest.raises(Lost):
                    hold.raise_if_lost()
            finally:
                os.kill(coprocess, signal.SIGCONT)
            # Its later lines change nothing, and it gives up.
            assert hold.lost.wait(SOON)
            until("it is free", home.is_free)
            assert not hold.is_held
    with lockkeeper.try_lock(home.name):
        pass


def test_no_other_holder_comes_before_the_hold_is_over_here(home: Home) -> None:
    hold = lockkeeper.lock(home.name, session_timeout=SESSION).acquire()
    coprocess = home.coprocess()
    os.kill(coprocess, signal.SIGSTOP)
    try:
        with lockkeeper.lock(home.name, session_timeout=SESSION, timeout=SOON):
            granted = now()
            assert not hold.is_held and hold._link.trust < granted
    finally:
        os.kill(coprocess, signal.SIGCONT)
    with pytest.raises(Lost):
        hold.release()


def test_a_broken_lock_is_lost_at_once_and_everything_says_why(home: Home) -> None:
    told: list[Lost] = []
    later: list[Lost] = []
    threads: list[str] = []

    def fails(error: Lost) -> None:
        threads.append(threading.current_thread().name)
        raise RuntimeError("a mistake in a callback")

    with pytest.raises(Lost) as raised:
        with lockkeeper.lock(home.name, on_lost=fails) as hold:
            hold.on_lost(told.append)
            assert not hold.lost.is_set() and not hold.lost.wait(0)
            assert home.lockkeeper("break", home.name, "--reason", "it hangs", "--yes").returncode == 0
            assert hold.lost.wait(SOON)
            assert not hold.is_held
            for question in (hold.check, hold.raise_if_lost, hold.make_way, lambda: hold.refuse("busy")):
                with pytest.raises(Lost) as error:
                    question()
                assert error.value.why == "removed"
            until("the callbacks were called", lambda: told and threads)
            hold.on_lost(later.append)
            until("a later one is called, too", lambda: later)
    assert raised.value.why == "removed"
    assert [error.why for error in told + later] == ["removed", "removed"]
    assert threads == ["lockkeeper callback"]


def test_a_callback_that_exits_or_cannot_run_is_logged(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async def coroutine(_: Lost) -> None:
        raise AssertionError("it ran")

    hold = lockkeeper.lock(home.name, on_lost=lambda _: sys.exit(3)).acquire()
    hold.on_lost(coroutine)
    assert home.lockkeeper("break", home.name, "--reason", "it hangs", "--yes").returncode == 0
    until("both are logged", lambda: "SystemExit: 3" in caplog.text and "only with asyncio" in caplog.text)
    with pytest.raises(Lost):
        hold.release()


def test_the_error_of_the_block_is_not_replaced_by_the_loss(home: Home) -> None:
    with pytest.raises(ZeroDivisionError):
        with lockkeeper.lock(home.name) as hold:
            assert home.lockkeeper("break", home.name, "--reason", "it hangs", "--yes").returncode == 0
            assert hold.lost.wait(SOON)
            raise ZeroDivisionError


def test_a_killed_coprocess_is_a_loss_when_the_last_known_time_has_passed(home: Home) -> None:
    told: list[int] = []
    hold = lockkeeper.lock(home.name, session_timeout=SESSION, on_lost=lambda _: told.append(now())).acquire()
    os.kill(home.coprocess(), signal.SIGKILL)
    until("its end is seen", lambda: hold._link._files == [])
    until_ns = hold._link.trust
    # It cannot be confirmed any more, and it is good for a while.
    assert hold.is_held and told == []
    with pytest.raises(Lost, match="SIGKILL"):
        hold.check()
    assert now() >= until_ns and not hold.is_held
    until("the callback was called", lambda: told)
    assert told[0] >= until_ns
    with pytest.raises(Lost):
        hold.release()


def test_a_release_after_the_coprocess_was_killed_is_no_loss_while_the_time_lasts(home: Home) -> None:
    told: list[Lost] = []
    with lockkeeper.lock(home.name, session_timeout=30, on_lost=told.append) as hold:
        os.kill(home.coprocess(), signal.SIGKILL)
        until("its end is seen", lambda: hold._link._files == [])
        assert hold.is_held
    assert not hold.is_held and told == []


def test_a_coprocess_that_is_killed_during_the_wait_is_an_error(home: Home) -> None:
    with lockkeeper.lock(home.name):
        waiting = lockkeeper.lock(home.name, session_timeout=SESSION)
        killed = threading.Event()

        def kill() -> None:
            until("it waits", lambda: home.count() == (1, 1))
            shown = home.lockkeeper("show", home.name, "--json").stdout
            pid = int(shown.split('"waiters":[', 1)[1].split('"pid":', 1)[1].split(",", 1)[0])
            os.kill(pid, signal.SIGTERM if killed.is_set() else signal.SIGKILL)

        for error in (lockkeeper.Internal, lockkeeper.Withdrawn):
            thread = threading.Thread(target=kill)
            thread.start()
            with pytest.raises(error):
                waiting.acquire()
            thread.join()
            killed.set()
            until("its place is free", lambda: home.count() == (1, 0))


@pytest.mark.skipif("LOCKKEEPER_SERVERS" in os.environ, reason="the server is not this test's own")
def test_servers_that_are_silent_cost_the_hold_when_its_time_has_passed(home: Home) -> None:
    told: list[Lost] = []
    hold = lockkeeper.lock(home.name, session_timeout=SESSION, on_lost=told.append).acquire()
    server = home.server()
    os.kill(server, signal.SIGSTOP)
    try:
        assert hold.is_held
        with pytest.raises(Lost) as error:
            hold.check()
        assert error.value.why == "unreachable"
        until("the callback was called", lambda: told)
    finally:
        os.kill(server, signal.SIGCONT)
    with pytest.raises(Lost):
        hold.release()


def test_several_threads_ask_at_the_same_time_and_none_is_answered_after_a_loss(home: Home) -> None:
    with pytest.raises(Lost), lockkeeper.lock(home.name, session_timeout=SESSION) as hold:
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                for _ in range(20):
                    hold.check()
                    assert hold.is_held
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert home.lockkeeper("break", home.name, "--reason", "it hangs", "--yes").returncode == 0
        with pytest.raises(Lost):
            hold.check()
