"""Forks, other processes, threads and sudden ends."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time

import pytest

import lockkeeper
from tests.conftest import SESSION, Home, finish, line, listeners, say, until

FORKED = """
with lockkeeper.lock(NAME) as hold:
    child = os.fork()
    if child == 0:
        errors = []
        for call in (hold.check, hold.raise_if_lost, hold.make_way, lambda: hold.refuse("x"), lambda: hold.lost):
            try:
                call()
            except lockkeeper.Forked:
                errors.append("forked")
        hold.release()
        print(hold.is_held, hold.valid_for, *errors, flush=True)
        # Its end goes through the end of the with statement.
        sys.exit(0)
    os.waitpid(child, 0)
    hold.check()
    print(hold.is_held, flush=True)
    with lockkeeper.lock(NAME + "-after"):
        print("after", flush=True)
"""


def test_a_forked_child_holds_nothing_and_takes_nothing_from_its_parent(home: Home) -> None:
    out, remarks = finish(home.start(FORKED))
    assert out.split() == ["False", "0.0", *["forked"] * 5, "True", "after"]
    assert remarks.replace("DeprecationWarning", "").count("Warning") == 0, remarks
    assert home.is_free()


@pytest.mark.parametrize("end", ["killed", "released"])
def test_the_hold_ends_with_the_parent_although_a_forked_child_lives_on(home: Home, end: str) -> None:
    program = home.start(
        """
        hold = lockkeeper.lock(NAME).acquire()
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            time.sleep(1000)
        sys.stdin.readline()
        hold.release()
        print("released", flush=True)
        os.waitpid(child, 0)
        """
    )
    child = int(line(program))
    assert home.count() == (1, 0)
    # The child has closed its copies of the pipes.
    files = {os.readlink(f"/proc/{child}/fd/{file}") for file in os.listdir(f"/proc/{child}/fd")}
    coprocess = home.coprocess()
    theirs = {os.readlink(f"/proc/{coprocess}/fd/{file}") for file in (0, 1, 2)}
    assert not files & theirs
    if end == "killed":
        program.kill()
    else:
        say(program, "release")
        assert line(program) == "released"
    until("it is free", home.is_free)
    os.kill(child, 0)
    os.kill(child, signal.SIGKILL)


MULTIPROCESSING = """
import multiprocessing

HOLD = None


def child(queue, parent=0):
    held = HOLD is not None and HOLD.is_held
    try:
        with lockkeeper.try_lock(NAME):
            queue.put([held, "held"])
    except lockkeeper.Taken as taken:
        queue.put([held, f"process {parent}" in str(taken)])
    with lockkeeper.lock(NAME + "-own") as own:
        queue.put(own.is_held)


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with lockkeeper.lock(NAME) as HOLD:
        queue = context.Queue()
        process = context.Process(target=child, args=(queue, os.getpid()))
        process.start()
        print(queue.get(), queue.get(), flush=True)
        process.join()
        HOLD.check()
        try:
            context.Process(target=child, args=(HOLD,)).start()
        except TypeError as error:
            print("a hold belongs to the process" in str(error))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_holds_nothing_of_its_parents(home: Home, method: str) -> None:
    out, _ = finish(home.start(MULTIPROCESSING, method))
    words = out.splitlines()
    assert words[0] == "[False, True] True"
    # A fork copies the hold, and it is of no use there.
    assert words[1:] == ([] if method == "fork" else ["True"])
    assert home.is_free() and home.count(home.name + "-own") == (0, 0)


def test_a_killed_interpreter_frees_its_locks_and_its_places_in_queues(home: Home) -> None:
    script = """
        hold = lockkeeper.lock(NAME).acquire()
        print("held", flush=True)
        time.sleep(1000)
        """
    first, second = home.start(script), home.start(script)
    until("one holds, one waits", lambda: home.count() == (1, 1))
    for program in (first, second):
        os.killpg(program.pid, signal.SIGKILL)
    until("it is free", home.is_free)


def test_a_program_that_ends_with_a_hold_does_not_hang_and_frees_it(home: Home) -> None:
    finish(home.start("hold = lockkeeper.lock(NAME).acquire()"))
    until("it is free", home.is_free)
    # Nobody has to wait until the lock's time has passed.
    unfinished = """
        sys.stderr.write("warnings\\n")
        warnings.simplefilter("error")

        def generate():
            with lockkeeper.lock(NAME, session_timeout=30):
                yield

        generator = generate()
        next(generator)
        """
    _, remarks = finish(home.start("import warnings\n" + textwrap.dedent(unfinished)))
    assert remarks == "warnings\n"
    until("it is free", home.is_free)
    # A thread that waits does not keep the interpreter.
    with lockkeeper.lock(home.name):
        finish(
            home.start(
                """
                threading.Thread(target=lockkeeper.lock(NAME).acquire, daemon=True).start()
                import subprocess
                while '"waiters":[{' not in subprocess.run(
                    [os.environ["LOCKKEEPER"], "show", NAME, "--json"], capture_output=True, text=True
                ).stdout:
                    pass
                """
            )
        )
        until("nobody waits", lambda: home.count() == (1, 0))


def test_threads_hold_one_after_the_other_and_lose_no_update(home: Home) -> None:
    lock = lockkeeper.lock(home.name, timeout=60)
    counter, tokens = [0], []

    def work() -> None:
        for _ in range(5):
            with lock as hold:
                number = counter[0]
                time.sleep(0.001)
                counter[0] = number + 1
                tokens.append(hold.token)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == [20] and len(set(tokens)) == 20
    assert home.is_free()


def test_threads_hold_different_locks_and_a_shared_one_at_the_same_time(home: Home) -> None:
    barrier, errors = threading.Barrier(5), []
    shared = lockkeeper.lock(home.name, shared=True, session_timeout=SESSION)

    def work(number: int) -> None:
        try:
            with lockkeeper.lock(f"{home.name}-{number}") as own, shared as together:
                barrier.wait(60)
                own.check()
                together.check()
                barrier.wait(60)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait(60)
    assert home.count() == (4, 0)
    barrier.wait(60)
    for thread in threads:
        thread.join()
    assert errors == [] and home.is_free()


def test_a_hold_leaves_no_process_no_thread_and_no_file(home: Home) -> None:
    with lockkeeper.lock(home.name):
        pass

    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(listeners())

    until("the first one is gone", lambda: used()[1] == 0)
    before = used()
    for _ in range(5):
        with lockkeeper.lock(home.name):
            with pytest.raises(lockkeeper.Taken):
                lockkeeper.try_lock(home.name).acquire()
    until("all is given back", lambda: used() == before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_word_to_a_hold_that_ends_goes_into_no_other_file(home: Home) -> None:
    """A file that one thread closes while another writes into it may have become a file of somebody else by then."""
    for _ in range(40):
        hold = lockkeeper.lock(home.name, session_timeout=SESSION).acquire()
        go = threading.Event()

        def ask() -> None:
            go.set()
            try:
                while True:
                    hold.check()
            except lockkeeper.LockError:
                pass

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        go.wait()
        hold.release()
        others = [os.pipe() for _ in range(4)]
        for thread in threads:
            thread.join()
        for reads, writes in others:
            os.close(writes)
            assert os.read(reads, 100) == b""
            os.close(reads)
