"""Kazoo's locks on the same path."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lockkeeper
from lockkeeper._link import now
from tests.conftest import ENOUGH, SESSION, Home, line, say, until

kazoo = pytest.importorskip("kazoo.client", reason="kazoo is not installed")


@pytest.fixture
def client(home: Home) -> Iterator[Any]:
    servers = os.environ.get("LOCKKEEPER_SERVERS")
    serving = None
    if servers is None:
        # This user's own server has no port.
        command = [home.program, "serve", "--memory", "--listen", "127.0.0.1:0"]
        serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert serving.stdout is not None
        servers = serving.stdout.readline().strip()
    client = kazoo.KazooClient(hosts=servers, timeout=20)
    client.start()
    client.servers = servers
    yield client
    client.stop()
    client.close()
    if serving is not None:
        serving.kill()
        serving.communicate()


def test_kazoo_and_this_package_queue_together_and_lose_no_update(home: Home, client: Any) -> None:
    path, counter, errors = f"/{home.name}/lock", f"/{home.name}/counter", []
    client.create(counter, b"0", makepath=True)

    def add() -> None:
        client.set(counter, str(int(client.get(counter)[0]) + 1).encode())

    def theirs() -> None:
        for _ in range(10):
            with client.Lock(path, "kazoo"):
                add()

    def ours() -> None:
        lock = lockkeeper.lock(path, format="kazoo", servers=client.servers, session_timeout=SESSION, timeout=60)
        for _ in range(10):
            with lock:
                add()

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (theirs, ours, theirs, ours)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and client.get(counter)[0] == b"40"


def test_each_names_the_other_and_waits_for_it(home: Home, client: Any) -> None:
    path = f"/{home.name}/lock"
    theirs = client.Lock(path, "import of kazoo")
    with theirs:
        with pytest.raises(lockkeeper.Taken, match="import of kazoo"):
            lockkeeper.try_lock(path, format="kazoo", servers=client.servers).acquire()
        with pytest.raises((lockkeeper.Mismatch, lockkeeper.Usage), match="--format kazoo"):
            lockkeeper.try_lock(path, servers=client.servers).acquire()
    with lockkeeper.lock(path, format="kazoo", servers=client.servers):
        assert not client.Lock(path, "kazoo").acquire(blocking=False)
        waiting = threading.Thread(target=theirs.acquire)
        waiting.start()
        until("it waits", lambda: len(theirs.contenders()) == 2)
    waiting.join()
    theirs.release()


def test_an_interpreter_that_stands_still_costs_kazoo_its_lock_and_not_this_package(home: Home, client: Any) -> None:
    """What the page says about the two. Kazoo's session timeout is the same."""
    kazoos = kazoo.KazooClient(hosts=client.servers, timeout=ENOUGH)
    kazoos.start()
    try:
        path = f"/{home.name}/lock"
        theirs = kazoos.Lock(path, "kazoo")
        theirs.acquire()
        rivals = home.start(
            """
            with lockkeeper.lock(sys.argv[1], format="kazoo", servers=sys.argv[2]):
                print(time.clock_gettime_ns(lockkeeper._link.CLOCK), flush=True)
                sys.stdin.readline()
            """,
            path,
            client.servers,
        )
        until("it waits", lambda: len(theirs.contenders()) == 2)
        with lockkeeper.lock(home.name, session_timeout=ENOUGH, servers=client.servers) as ours:
            ctypes.PyDLL(None).usleep(int((ENOUGH + 3) * 1e6))
            ended, is_acquired, is_held = now(), theirs.is_acquired, ours.is_held
            # Two hold Kazoo's lock.
            assert int(line(rivals)) < ended and is_acquired
            assert is_held
            ours.check()
        say(rivals, "go")
    finally:
        kazoos.stop()
        kazoos.close()
