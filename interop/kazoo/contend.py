"""Kazoo's locks beside ours: adds to a node's number under the lock.

contend.py SERVERS lock|rw PATH COUNTER ROUNDS
"""

import sys
import time

from kazoo.client import KazooClient

servers, kind, path, counter, rounds = sys.argv[1:]
client = KazooClient(hosts=servers, timeout=20)
client.start()


def number():
    return int(client.get(counter)[0])


shared = kind == "rw"
write = client.WriteLock(path, "kazoo") if shared else client.Lock(path, "kazoo")
for _ in range(int(rounds)):
    if shared:
        with client.ReadLock(path, "kazoo"):
            first = number()
            time.sleep(0.001)
            if number() != first:
                print("a writer changed the number under a reader", flush=True)
    with write:
        client.set(counter, str(number() + 1).encode())
print("done", flush=True)
client.stop()
client.close()
