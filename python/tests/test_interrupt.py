"""Ctrl-C at any point: no hold stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

import pytest

import lockkeeper
from tests.conftest import SOON, Home, finish, line, until

RANDOM = """
import random

seed = int(sys.argv[1])
random.seed(seed)
rounds, hold = int(sys.argv[2]), None
caught = {"waiting": 0, "holding": 0}


def send(after):
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGINT)


def with_statement():
    global hold
    with lockkeeper.lock(NAME, timeout=60) as hold:
        if random.random() < 0.5:
            hold.check()


def by_hand():
    hold = None
    try:
        hold = lockkeeper.lock(NAME, timeout=60).acquire()
        hold.check()
    finally:
        if hold is not None:
            hold.release()


lockkeeper.lock(NAME).acquire().release()
start = time.monotonic()
for _ in range(5):
    with_statement()
usual = (time.monotonic() - start) / 5
for number in range(rounds):
    sender = threading.Thread(target=send, args=(random.random() * usual * 1.3,))
    try:
        sender.start()
        (with_statement if number % 2 else by_hand)()
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    sender.join()
# A hold that stays would be in the way.
lockkeeper.lock(NAME, timeout=60).acquire().release()
print("free")
"""


def test_200_interrupts_at_random_times_leave_no_hold(home: Home) -> None:
    out, remarks = finish(home.start(RANDOM, "7", "200"))
    assert out.split() == ["free"]
    assert "Exception in thread" not in remarks
    until("nobody holds it, or waits", home.is_free)


STEPS = """
place = os.path.dirname(lockkeeper.__file__)
main = threading.main_thread()
hold = None


def interrupt_at(step, attempt):
    # Raises KeyboardInterrupt at a step of the package in this thread. Returns whether there is such a step.
    left = step
    reached = False

    def trace(frame, event, argument):
        nonlocal left, reached
        # What is raised in __del__ is printed, and is none of a caller's.
        if not frame.f_code.co_filename.startswith(place) or frame.f_code.co_name == "__del__":
            return None
        if event not in ("line", "call"):
            return trace
        left -= 1
        if left < 0 and not reached:
            reached = True
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        attempt()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return reached


def with_statement():
    global hold
    # A hold that stays would be in the way of the next one.
    with lockkeeper.lock(NAME, timeout=20) as hold:
        hold.check()


def by_hand():
    lockkeeper.lock(NAME, timeout=20).acquire().release()


NAME += sys.argv[1]
step = 0
while interrupt_at(step, globals()[sys.argv[1]]):
    step += 1
lockkeeper.lock(NAME, timeout=20).acquire().release()
print(step)
"""


def test_an_interrupt_at_each_step_leaves_no_hold(home: Home) -> None:
    """A tracing function raises it at each call and before each line of this package in the main thread."""
    attempts = "with_statement", "by_hand"
    for attempt, program in [(attempt, home.start(STEPS, attempt)) for attempt in attempts]:
        out, remarks = finish(program)
        assert int(out) > 100, (out, remarks)
        until("nobody holds it, or waits", lambda: home.count(home.name + attempt) == (0, 0))


def test_an_interrupt_of_a_check_leaves_the_next_one_its_answer(home: Home) -> None:
    with lockkeeper.lock(home.name) as hold:
        for event in ("call", "return"):

            def interrupt(frame: FrameType, what: str, _: object) -> Any:
                if frame.f_code.co_name == "say" and what == event:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return interrupt

            usual = sys.gettrace()
            sys.settrace(interrupt)
            try:
                with pytest.raises(KeyboardInterrupt):
                    hold.check()
            finally:
                sys.settrace(usual)
            for _ in range(2):
                check = hold._link.check()
                assert check.answered.wait(SOON)


def test_an_interrupt_ends_a_wait_and_the_program_goes_on(home: Home) -> None:
    holder = home.start("with lockkeeper.lock(NAME):\n    print('held', flush=True)\n    sys.stdin.readline()")
    assert line(holder) == "held"
    waiting = home.start(
        """
        try:
            with lockkeeper.lock(NAME):
                pass
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        with lockkeeper.lock(NAME + "-other") as hold:
            print(hold.is_held, flush=True)
            sys.stdin.readline()
        """
    )
    until("it waits", lambda: home.count() == (1, 1))
    waiting.send_signal(signal.SIGINT)
    assert [line(waiting), line(waiting)] == ["interrupted", "True"]
    until("nobody waits", lambda: home.count() == (1, 0))


def test_the_terminals_interrupt_reaches_the_program_and_not_its_hold(home: Home) -> None:
    """The terminal sends it to the whole foreground group."""
    program = home.start(
        """
        with lockkeeper.lock(NAME) as hold:
            try:
                print("held", flush=True)
                time.sleep(1000)
            except KeyboardInterrupt:
                hold.check()
                print("tidied up under the lock", flush=True)
        """
    )
    assert line(program) == "held"
    os.killpg(program.pid, signal.SIGINT)
    assert line(program) == "tidied up under the lock"
    finish(program)
    assert home.is_free()


def test_a_terminals_end_does_not_reach_the_hold_before_the_program(home: Home) -> None:
    program = home.start(
        """
        signal.signal(signal.SIGHUP, lambda *_: None)
        with lockkeeper.lock(NAME) as hold:
            print("held", flush=True)
            sys.stdin.readline()
            hold.check()
        """
    )
    assert line(program) == "held"
    os.killpg(program.pid, signal.SIGHUP)
    finish_line(program)
    assert home.is_free()


def finish_line(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("go\n")
    finish(program)
