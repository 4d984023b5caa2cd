"""Works in steps while it holds a lock: work.py NAME [OPTION...], with the options of `lockkeeper hold`."""
import queue, sys, time

from hold import Hold


def step(number, token):
    print(f"step {number} with token {token}", flush=True)  # who stores it refuses a smaller token
    time.sleep(0.1)


events = queue.Queue()
hold = Hold(sys.argv[1:], lambda kind, event: events.put((kind, event)))
try:
    kind = None
    while kind not in ("acquired", "failed", "released"):
        kind, event = events.get()
    if kind == "failed":
        print(event["message"], event.get("hint", ""), sep="\n", file=sys.stderr)
        sys.exit(event["exit_code"])
    for number in range(1, 6 if kind == "acquired" else 0):
        if not hold.held():
            print("the lock is lost", file=sys.stderr)
            sys.exit(76)
        step(number, event["locks"][0]["token"])
    hold.say("release")
    while kind not in ("released", "lost", "ended"):
        kind, event = events.get()
    sys.exit(76 if kind == "lost" else 0)
finally:
    hold.child.stdin.close()  # releases the lock too
