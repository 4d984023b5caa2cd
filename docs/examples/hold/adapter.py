"""What the Python example believes, for the conformance program: adapter.py NAME"""
import json, sys, threading

from hold import Hold


class Adapter:
    def __init__(self, arguments):
        self.answered, self.printing = threading.Event(), threading.Lock()
        self.hold = Hold(arguments, self.told)

    def print(self, word, value=None):
        with self.printing:
            print(word if value is None else f"{word} {json.dumps(value)}", flush=True)

    def told(self, kind, event):
        if kind == "acquired":
            self.print(kind, [lock["token"] for lock in event["locks"]])
        elif kind in ("asked", "lost"):
            self.print(f"{kind} {json.dumps(event.get('why'))}")
        elif kind in ("error", "released"):
            self.print(kind, event.get("message"))
        elif kind == "failed":
            self.print(kind, event)
        elif kind in ("wanted", "checked", "ended", "waiting"):
            self.print(kind)
        if kind in ("checked", "error", "lost", "released", "ended"):
            self.answered.set()

    def check(self):
        self.answered.clear()
        self.hold.say("check")
        while not self.answered.wait(0.01):
            if not self.hold.held():
                return self.print("lost", "time")

    def obey(self, order):
        if order == "held?":
            self.print("held" if self.hold.held() else "not held")
        elif order == "check":
            self.check()
        elif order.startswith("refuse "):
            self.hold.say("refuse", why=order.removeprefix("refuse "))
        else:
            self.hold.say(order)


adapter = Adapter(sys.argv[1:])
for line in sys.stdin.buffer:
    adapter.obey(line.decode().rstrip("\n"))
adapter.hold.child.stdin.close()
