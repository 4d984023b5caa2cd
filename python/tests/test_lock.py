"""What a program sees of a lock: the hold, its token, and errors with the holder's name."""

from __future__ import annotations

import errno
import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

import pytest

import lockkeeper
from lockkeeper import LockError, Usage, _program
from tests.conftest import SESSION, SOON, Home, line, say, until


def test_a_with_statement_holds_the_lock_and_releases_it_at_its_end(home: Home) -> None:
    with lockkeeper.lock(home.name, timeout=60, session_timeout=SESSION, message="nightly index") as hold:
        assert home.count() == (1, 0)
        # Some servers grant no shorter session than 4 s.
        assert hold.is_held and 0 < hold.valid_for < SESSION + 1
        assert hold.path == f"/locks/{home.name}" and hold.node.startswith(hold.path + "/")
        first = hold.token
        assert first is not None and hold.tokens == {hold.path: first}
        hold.check()
        hold.raise_if_lost()
        assert "nightly index" in home.lockkeeper("why", home.name).stdout
    assert home.is_free()
    assert not hold.is_held and hold.valid_for == 0.0
    with pytest.raises(LockError, match="was released"):
        hold.raise_if_lost()
    with lockkeeper.lock(home.name) as later:
        assert later.token is not None and later.token > first


def test_an_exception_and_the_end_of_the_program_release_the_lock(home: Home) -> None:
    with pytest.raises(ZeroDivisionError):
        with lockkeeper.lock(home.name):
            raise ZeroDivisionError
    assert home.is_free()
    program = home.start(
        """
        with lockkeeper.lock(NAME):
            sys.exit(7)
        """
    )
    assert program.wait() == 7
    assert home.is_free()


def test_a_hold_without_a_with_statement_is_released_once(home: Home) -> None:
    hold = lockkeeper.lock(home.name).acquire()
    assert home.count() == (1, 0)
    hold.release()
    assert home.is_free() and not hold.is_held
    hold.release()
    with pytest.raises(LockError, match="was released"):
        with hold:
            raise AssertionError("it protects nothing")
    with lockkeeper.try_lock(home.name).acquire() as hold:
        assert hold.is_held
    assert home.is_free()


def held_by_a_generator(lock: lockkeeper.Lock) -> Iterator[lockkeeper.Hold]:
    with lock as hold:
        yield hold


def test_blocks_that_do_not_end_in_their_order_release_each_its_own_hold(home: Home) -> None:
    lock = lockkeeper.lock(home.name, permits=4, timeout=60)
    first, second = held_by_a_generator(lock), held_by_a_generator(lock)
    holds = next(first), next(second)
    assert next(first, None) is None
    assert not holds[0].is_held and holds[1].is_held
    # It is entered here, and left in another thread, which has one of its own.
    third = held_by_a_generator(lock)
    with lock as own:
        moved = next(third)
        thread = threading.Thread(target=next, args=(third, None))
        with lock as inner:
            thread.start()
            thread.join()
            assert not moved.is_held and own.is_held and inner.is_held and holds[1].is_held
        assert next(second, None) is None
        assert own.is_held
    assert not own.is_held and home.is_free()


def test_a_loss_is_told_to_the_block_that_has_lost_the_lock(home: Home) -> None:
    lock = lockkeeper.lock(home.name, timeout=60)
    first, second = held_by_a_generator(lock), held_by_a_generator(lock)
    next(first)
    assert home.lockkeeper("break", home.name, "--reason", "it hangs", "--yes").returncode == 0
    hold = next(second)
    with pytest.raises(lockkeeper.Lost):
        next(first)
    assert hold.is_held
    assert next(second, None) is None
    assert home.is_free()


def test_a_stack_of_one_thread_takes_no_hold_of_another_one(home: Home) -> None:
    lock = lockkeeper.lock(home.name, permits=2)
    stack = ExitStack()
    hold = stack.enter_context(lock)
    others: list[lockkeeper.Hold] = []
    thread = threading.Thread(target=lambda: others.append(ExitStack().enter_context(lock)))
    thread.start()
    thread.join()
    stack.close()
    assert not hold.is_held and others[0].is_held
    others[0].release()


def test_a_lock_that_is_taken_names_its_holder(home: Home) -> None:
    with lockkeeper.lock(home.name, message="nightly index"):
        for taken, error in (
            (lockkeeper.try_lock(home.name), lockkeeper.Taken),
            (lockkeeper.lock(home.name, timeout=0), lockkeeper.TimedOut),
            (lockkeeper.lock(home.name, timeout=0.5), lockkeeper.TimedOut),
            (lockkeeper.lock(home.name, timeout=timedelta(milliseconds=500)), lockkeeper.TimedOut),
        ):
            with pytest.raises(error, match="nightly index"):
                with taken:
                    pass
        # The program is named, not only the process that holds the lock for it.
        with lockkeeper.try_lock(home.name + "b"):
            with pytest.raises(lockkeeper.Taken, match=f"process {os.getpid()}"):
                lockkeeper.try_lock(home.name + "b").acquire()
    assert issubclass(lockkeeper.TimedOut, TimeoutError)
    assert home.is_free()


def test_every_kind_of_hold_is_an_option(home: Home) -> None:
    kinds: list[tuple[dict[str, Any], int]] = [
        ({"shared": True}, 2),
        ({"exclusive": True}, 1),
        ({"permits": 3, "take": 1}, 3),
        ({"foreground": True, "timeout": 30}, 1),
        ({"klass": "C"}, 1),
        ({"lease": 10, "session_timeout": timedelta(seconds=3)}, 1),
        ({"history": False, "options": ["--lock-delay", "1s"]}, 1),
    ]
    for number, (options, count) in enumerate(kinds):
        locks = [lockkeeper.lock(f"{home.name}-{number}", **options).acquire() for _ in range(count)]
        assert home.count(f"{home.name}-{number}") == (count, 0)
        assert all((hold.token is None) == ("permits" in options) for hold in locks)
        for hold in locks:
            hold.release()
    assert home.lockkeeper("history", home.name + "-6").stdout.count("\n") <= 1


def test_several_locks_are_held_together_each_with_its_token(home: Home) -> None:
    names = [home.name + "-b", home.name + "-a"]
    with lockkeeper.lock(*names) as hold:
        assert [lock.path for lock in hold.locks] == sorted(f"/locks/{name}" for name in names)
        assert hold.token is None and set(hold.tokens) == {lock.path for lock in hold.locks}
        assert [home.count(name) for name in names] == [(1, 0), (1, 0)]
        with pytest.raises(lockkeeper.Taken, match=names[0]):
            lockkeeper.try_lock(names[0]).acquire()
    assert [home.count(name) for name in names] == [(0, 0), (0, 0)]


def test_an_error_says_what_is_wrong_and_the_remedy(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[dict[str, Any], type[LockError], str]] = [
        ({"options": ["--no-such"]}, lockkeeper.Usage, "--no-such"),
        ({"yields": True}, lockkeeper.Usage, "--background"),
        ({"servers": ["127.0.0.1:1", "127.0.0.1:2"], "timeout": 0.2}, lockkeeper.Unreachable, "127.0.0.1"),
        ({"servers": "127.0.0.1:99999"}, lockkeeper.Usage, "99999"),
        ({"config": "/no/such/file"}, lockkeeper.Usage, "/no/such/file"),
    ]
    for options, error, text in wrong:
        with pytest.raises(error, match=text):
            lockkeeper.lock(home.name, **options).acquire()
    with lockkeeper.lock(home.name, permits=2):
        with pytest.raises((lockkeeper.Mismatch, lockkeeper.Usage), match="2"):
            lockkeeper.lock(home.name, permits=3).acquire()
    mistakes: list[dict[str, Any]] = [{"timeout": -1}, {"lease": float("nan")}, {"sharde": True}]
    for mistake in mistakes:
        with pytest.raises(Usage, match=next(iter(mistake))):
            lockkeeper.lock("a", **mistake)
    with pytest.raises(Usage, match="name"):
        lockkeeper.lock()
    texts: list[Any] = ["a\0b", "a\ud800", 5, None]
    for text in texts:
        with pytest.raises(Usage, match="no text"):
            lockkeeper.lock(text)
        with pytest.raises(Usage, match="no text"):
            lockkeeper.lock("a", options=[text])
    with pytest.raises(Usage, match="extra '/'"):
        lockkeeper.lock("a//b").acquire()
    # A name is no option.
    with lockkeeper.lock(f"-{home.name}", message="--yes") as hold:
        assert hold.path == f"/locks/-{home.name}"


def test_the_program_is_found_by_the_variable_beside_python_or_in_the_path(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = _program.find()
    scripts, empty = tmp_path / "scripts", tmp_path / "empty"
    for place in (scripts, empty):
        place.mkdir()
    (scripts / "lockkeeper").symlink_to(program)
    monkeypatch.delenv("LOCKKEEPER", raising=False)
    monkeypatch.setattr(sys, "executable", str(empty / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(empty))
    monkeypatch.setenv("PATH", str(scripts))
    assert _program.find() == str(scripts / "lockkeeper")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(lockkeeper.NotInstalled, match="pip"):
        lockkeeper.lock(home.name).acquire()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(scripts))
    assert _program.find() == str(scripts / "lockkeeper")
    monkeypatch.setenv("LOCKKEEPER", "/no/such/program")
    with pytest.raises(lockkeeper.NotInstalled, match="/no/such/program"):
        lockkeeper.lock(home.name).acquire()
    monkeypatch.setenv("LOCKKEEPER", program)
    assert _program.find() == program


def test_a_program_that_is_no_lockkeeper_is_an_error_with_its_words(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "fake"
    hello = '{"event":"hello","protocol":2,"program":"lockkeeper 9"}'
    for script, text in (
        ("echo it is broken >&2; exit 3", "it is broken"),
        ("exit 0", "status 0"),
        ("kill -9 $$", "SIGKILL"),
        (f"echo '{hello}'; cat", "lockkeeper 9 speaks version 2"),
        ("echo no event; echo '[]'; echo '{\"event\":\"later\"}'; exit 1", "status 1"),
    ):
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o700)
        monkeypatch.setenv("LOCKKEEPER", str(fake))
        with pytest.raises(lockkeeper.Internal, match=text):
            lockkeeper.lock(home.name).acquire()
    fake.write_text("#!/no/such/shell\n")
    with pytest.raises(lockkeeper.Internal, match="cannot be started"):
        lockkeeper.lock(home.name).acquire()


def test_a_limit_of_open_files_is_an_error_of_the_package(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, pytest.raises(lockkeeper.Internal, match="Too many open files"):
        patched.setattr("os.pipe", no_pipe)
        lockkeeper.lock(home.name).acquire()


def test_a_script_whose_name_is_no_text_takes_locks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/srv/\udcff.py"])
    with lockkeeper.lock(home.name):
        assert "?.py, process" in home.lockkeeper("why", home.name).stdout


def test_a_wait_with_retries_lasts_for_all_of_them(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockkeeper._lock.LATE", 0.0)
    with lockkeeper.lock(home.name, message="nightly index"):
        with pytest.raises(lockkeeper.TimedOut, match="nightly index"):
            lockkeeper.lock(home.name, timeout=0.2, options=["--retries", "1", "--retry-delay", "200ms"]).acquire()


def test_a_request_reaches_the_callback_and_its_refusal_who_asked(home: Home) -> None:
    asked: list[lockkeeper.Asked] = []
    with lockkeeper.lock(home.name, on_asked=asked.append) as hold:
        with pytest.raises(Usage, match="nobody asks"):
            hold.refuse("busy")
        revoke = subprocess.Popen(
            [_program.find(), "revoke", home.name, "--reason", "deploy", "--wait", "1m"], stderr=subprocess.PIPE, text=True
        )
        until("the request is there", lambda: asked)
        assert asked[0].path == hold.path and asked[0].why == "deploy" and asked[0].hold is hold
        assert asked[0].by is not None and f"(pid {revoke.pid})" in asked[0].by
        asked[0].refuse("until five, „später“" + "x" * 5000)
        _, remarks = revoke.communicate()
        assert revoke.returncode == 2 and "until five, „später“" in remarks
        # A callback that comes later hears of the requests after it only.
        late: list[lockkeeper.Asked] = []
        hold.on_asked(late.append)
        assert hold.is_held and late == []


def test_a_hold_of_the_background_makes_way_and_is_held_again(home: Home) -> None:
    wanted: list[lockkeeper.Wanted] = []
    urgent = home.start(
        """
        sys.stdin.readline()
        with lockkeeper.lock(NAME, foreground=True, timeout=60) as hold:
            print(hold.token, flush=True)
        """
    )
    bulk = lockkeeper.lock(home.name, background=True, timeout=60, yields=True, min_hold=0.05, on_wanted=wanted.append)
    with bulk as hold:
        first = hold.token
        say(urgent, "go")
        until("somebody waits", lambda: wanted)
        assert wanted[0].hold is hold
        hold.make_way()
        between = int(line(urgent))
        assert hold.is_held and first is not None and hold.token is not None
        assert first < between < hold.token
        hold.check()
        # Two callbacks at the same time.
        granted = hold._link.make_way(), hold._link.make_way()
        assert [flag.wait(SOON) for flag in granted] == [True, True]
        hold.check()


def test_a_forgotten_hold_is_released_with_a_warning(home: Home) -> None:
    hold = lockkeeper.lock(home.name, on_lost=lambda _: None).acquire()
    with pytest.warns(ResourceWarning, match="was forgotten"):
        del hold
    until("it is free", home.is_free)


def test_a_generator_in_a_cycle_of_garbage_releases_its_hold(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    lock = lockkeeper.lock(home.name)

    def by_hand() -> Iterator[lockkeeper.Hold]:
        hold = lock.acquire()
        try:
            yield hold
        finally:
            hold.release()

    starts: list[Callable[[], Iterator[lockkeeper.Hold]]] = [lambda: held_by_a_generator(lock), by_hand]
    for start in starts:
        generator = start()
        next(generator)
        cycle: list[object] = [generator]
        cycle.append(cycle)
        del generator, cycle
        gc.collect()
        assert home.is_free()
    assert caplog.text == ""


def test_a_hold_cannot_be_sent_to_another_process(home: Home) -> None:
    with lockkeeper.lock(home.name) as hold:
        with pytest.raises(TypeError, match="belongs to the process"):
            pickle.dumps(hold)
    error = pickle.loads(pickle.dumps(lockkeeper.Lost("gone", why="removed")))
    assert isinstance(error, lockkeeper.Lost) and (error.message, error.why) == ("gone", "removed")


def test_a_wait_is_logged_with_the_holder(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockkeeper")
    with lockkeeper.lock(home.name, message="nightly index"):
        with pytest.raises(lockkeeper.TimedOut):
            lockkeeper.lock(home.name, timeout=0.2).acquire()
    until("it is logged", lambda: f"waiting for /locks/{home.name}: 1 ahead" in caplog.text)
    assert "nightly index" in caplog.text


def test_a_handler_of_the_log_may_wait_for_a_lock(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if threading.current_thread() is threading.main_thread():
                with lockkeeper.lock(home.name, timeout=SOON):
                    records.append(record)

    records: list[logging.LogRecord] = []
    handler, log = Handler(), logging.getLogger("lockkeeper")
    caplog.set_level(logging.INFO, "lockkeeper")
    log.addHandler(handler)
    try:
        other = lockkeeper.lock(home.name).acquire()

        def release() -> None:
            until("the handler waits", lambda: home.count() == (1, 1))
            other.release()

        thread = threading.Thread(target=release)
        thread.start()
        log.info("a line")
        thread.join()
    finally:
        log.removeHandler(handler)
    assert len(records) == 1


def test_an_error_while_callbacks_are_called_ends_no_hold(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: lockkeeper.Hold) -> None:
        failed.set()
        raise RuntimeError("a mistake")

    failed = threading.Event()
    with lockkeeper.lock(home.name) as hold:
        monkeypatch.setattr(lockkeeper.Hold, "_tell", fails)
        revoke = subprocess.Popen([_program.find(), "revoke", home.name, "--wait", "1m"], stderr=subprocess.DEVNULL)
        assert failed.wait(SOON)
        hold.check()
        hold.refuse("busy")
        assert revoke.wait() == 2 and hold.is_held
        monkeypatch.undo()
