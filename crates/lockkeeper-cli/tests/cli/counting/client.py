"""Counts under a lock, again and again: client.py SOCKET OPTION..."""
import socket, sys, threading

from hold import Hold

counter = socket.socket(socket.AF_UNIX)
counter.connect(sys.argv[1])
lines = counter.makefile("rw")


def ask(words):
    print(words, file=lines, flush=True)
    return lines.readline().strip()


def count():
    told, over, token = threading.Event(), threading.Event(), []

    def tell(kind, event):
        if kind == "acquired":
            token.append(event["token"])
        if kind in ("acquired", "ended", "failed", "lost", "released"):
            told.set()
        if kind in ("ended", "failed", "lost", "released"):
            over.set()

    hold = Hold(sys.argv[2:], tell)
    told.wait()
    if token and hold.held():
        ask(f"set {int(ask('get')) + 1} {token[0]} python")
    hold.say("release")
    over.wait()
    hold.child.stdin.close()


while True:
    count()
