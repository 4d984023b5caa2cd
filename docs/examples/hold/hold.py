"""A client of the hold protocol: a lock that `lockkeeper hold` holds for this program."""
import json, os, threading, time
from subprocess import PIPE, Popen


class Hold:
    def __init__(self, arguments, tell):
        """Starts `lockkeeper hold ARGUMENTS`. A thread reads its events, and calls tell(kind, event) for each."""
        self.lock, self.until, self.tell = threading.Lock(), 0, tell  # until: 0 while it waits, -1 when it is over
        self.child = Popen([os.environ.get("LOCKKEEPER", "lockkeeper"), "hold", *arguments], stdin=PIPE, stdout=PIPE)
        threading.Thread(target=self._read).start()

    def held(self):
        return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) < self.until

    def say(self, do, **fields):
        with self.lock:  # before the word: lines about the hold that it ends may be under way
            self.until = {"release": -1, "make_way": min(self.until, 0)}.get(do, self.until)
        try: os.write(self.child.stdin.fileno(), json.dumps({"do": do, **fields}).encode() + b"\n")
        except (OSError, ValueError): pass  # lockkeeper has ended, or its input is closed

    def _read(self):
        for number, line in enumerate(self.child.stdout):
            try: event = dict(json.loads(line))
            except (TypeError, ValueError): event = {}
            if number == 0 and event.get("protocol") != 1:
                self._take("failed", {"exit_code": 70, "message": f"not version 1 of the hold protocol: {line}"})
                self.child.stdin.close()
            self._take(event.get("event"), event)
        code = self.child.wait()
        end = {"exit_code": max(code, 0) or 70, "message": f"lockkeeper ended without a last line: {code}"}
        self._take("ended" if self.until else "failed", end)

    def _take(self, kind, event):
        is_last = kind in ("lost", "released", "failed")
        with self.lock:
            if self.until == -1 and not is_last and kind != "ended":
                return  # after the end, nothing counts
            if kind == "acquired" and self.until == 0 or kind in ("valid", "checked") and self.held():
                self.until = max(self.until, event["valid_until_ns"])  # once its time has passed, a hold stays lost
            elif is_last:
                self.until = -1
        self.tell(kind, event)
