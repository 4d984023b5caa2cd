"""Kazoo's locks beside ours: adds to a node's number under the lock, or stands for election.

contend.py SERVERS lock|rw PATH COUNTER ROUNDS
contend.py SERVERS election PATH ID

A leader reads lines: "contenders", and "resign", after which it stands again.
"""

import sys
import time

from kazoo.client import KazooClient

servers, kind, path, *rest = sys.argv[1:]
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


if kind == "election":
    while elect(*rest):
        pass
else:
    count(kind == "rw", *rest)
client.stop()
client.close()
