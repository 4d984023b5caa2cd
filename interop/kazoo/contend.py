"""Kazoo's locks beside ours: adds to a node's number under the lock, stands for election, or takes one inside another.

contend.py SERVERS lock|rw PATH COUNTER ROUNDS
contend.py SERVERS election PATH ID
contend.py SERVERS nest [ID]
contend.py SERVERS short PATH ROUNDS

A leader reads lines: "contenders", and "resign", after which it stands again. With "nest", each line is the path of a lock that
it takes while it keeps the others; it releases all at the end of its input. With "short", it holds the lock for 20 ms again and
again, and prints the path of each node with the times of the request, the grant, and before and after the release.
"""

import contextlib
import sys
import time

from kazoo.client import KazooClient

servers, kind, *rest = sys.argv[1:]
path = rest.pop(0) if rest else None
client = KazooClient(hosts=servers, timeout=20)
client.start()


def say(line):
    print(line, flush=True)


def number(counter):
    return int(client.get(counter)[0])


def count(shared, counter, rounds):
    write = client.WriteLock(path, "kazoo") if shared else client.Lock(path, "kazoo")
    for _ in range(int(rounds)):
        if shared:
            with client.ReadLock(path, "kazoo"):
                first = number(counter)
                time.sleep(0.001)
                if number(counter) != first:
                    say("a writer changed the number under a reader")
        with write:
            client.set(counter, str(number(counter) + 1).encode())
    say("done")


def elect(candidate):
    """Leads once; returns whether it stands again."""
    election, again = client.Election(path, candidate), []

    def lead():
        say("leads")
        for line in sys.stdin:
            if line.strip() == "resign":
                again.append(True)
                return
            say(" ".join(election.contenders()))

    election.run(lead)
    if again:
        say("resigned")
    return bool(again)


def nest():
    say("connected")
    with contextlib.ExitStack() as locks:
        for line in sys.stdin:
            locks.enter_context(client.Lock(line.strip(), path or "kazoo"))


def short(rounds):
    now = lambda: int(time.time() * 1000)
    for _ in range(int(rounds)):
        lock, asked = client.Lock(path, "kazoo"), now()
        lock.acquire()
        granted, node = now(), lock.node
        time.sleep(0.02)
        before = now()
        lock.release()
        say(f"cycle {path}/{node} {asked} {granted} {before} {now()}")


if kind == "election":
    while elect(*rest):
        pass
elif kind == "nest":
    nest()
elif kind == "short":
    short(*rest)
else:
    count(kind == "rw", *rest)
client.stop()
client.close()
