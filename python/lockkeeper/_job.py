"""Functions that run once per slot on all machines together: docs/guide/jobs.md.

    @lockkeeper.job("nightly", once_per="day")
    def nightly(region):
        ...

    if __name__ == "__main__":
        print(nightly("eu").status)

The function runs in a process of its own, under `lockkeeper run`, which claims the slot, ends the process before another machine can hold
the lock, and records the run. So nothing of this process is there but its arguments: no global variable that was changed, no open
connection. The module is imported anew, by the same interpreter, in the same directory and with the same search path.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, Generic, Literal, NamedTuple, Optional

from . import _program
from ._lock import Duration, duration
from .errors import Internal, LockError, Lost, Refused, TimedOut, Unreachable, Usage

if TYPE_CHECKING or sys.version_info >= (3, 10):
    from typing import ParamSpec

    _P = ParamSpec("_P")
else:
    from typing import TypeVar

    _P = TypeVar("_P")

Status = Literal["done", "skipped", "failed", "stopped"]


class JobResult(NamedTuple):
    """How a call of a job ended."""

    status: Status
    """`done`: the function ran and returned. `failed`: it raised an exception, or ended its process. `stopped`: it did not run, because an
    earlier run has failed or crashed, and a person must decide (`lockkeeper jobs resolve`). `skipped`: it did not run, because its slot has
    run, here or on another machine."""
    exit_status: int
    """That of `lockkeeper run`: 0 for `done` and `skipped`, 82 for `stopped`, else that of the function's process."""
    slots: tuple[str, ...]
    """The slots that the function ran for: one, or more with `catch_up`."""


_ERRORS: dict[int, tuple[type[LockError], str]] = {
    64: (Usage, "an option, a setting or the use of the lock is wrong"),
    69: (Unreachable, "no server was reachable"),
    70: (Internal, "the operating system, lockkeeper or the embedded server failed"),
    75: (TimedOut, "the lock was not acquired"),
    76: (Lost, "the lock was lost while the function ran, or before its release"),
    77: (Refused, "the servers refused"),
}

_is_importing = False
"""Whether the module of a job is being imported to run it."""

SCRIPT = "__lockkeeper_job__"
"""What the script of a job is called where the job runs."""

_script: Optional[str] = None
"""Its path there."""


class Job(Generic[_P]):
    """A function that runs once per slot. Call it as the function; `function` is the function itself."""

    def __init__(self, function: Callable[_P, object], words: Sequence[str]) -> None:
        if function.__qualname__ != function.__name__ or "<" in function.__name__:
            raise Usage(f"{function.__qualname__} cannot be a job", "a job is a function of a module, which another process can import")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Usage(
                f"{function.__qualname__} cannot be a job: a call of it only returns a coroutine or a generator",
                "write a function that does the work, such as one that calls asyncio.run(…)",
            )
        functools.update_wrapper(self, function)
        self.function = function
        self._words = tuple(words)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> JobResult:
        """Runs the function if its slot has not run, and waits for its end. Raises an error of `lockkeeper` if nobody knows that.

        The arguments travel as JSON, on the command line, which every user of this machine can read.
        """
        if _is_importing:
            raise Usage(
                f"{self.function.__qualname__} was called while its module was imported to run it",
                'call it below: if __name__ == "__main__"',
            )
        call = json.dumps([args, kwargs])
        if json.loads(call) != [list(args), kwargs]:
            raise Usage("an argument of a job is changed by JSON", "use texts, numbers, lists, and dicts with texts as keys")
        with tempfile.TemporaryDirectory(prefix="lockkeeper-job-") as place:
            report = os.path.join(place, "report")
            what = json.dumps({"path": sys.path, "report": report, **_origin(self.function)})
            runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_run_job.py")
            command = [sys.executable, runner, self.function.__qualname__, call, what]
            program = subprocess.Popen([_program.find(), "run", *self._words, "--", *command])
            try:
                status = program.wait()
            except BaseException:
                # It ends the function's process first.
                program.terminate()
                program.wait()
                raise
            return self._result(status, report)

    def _result(self, status: int, report: str) -> JobResult:
        runs: list[tuple[str, str]] = []
        if os.path.exists(report):
            with open(report, encoding="utf-8") as lines:
                runs = [tuple(json.loads(line)) for line in lines]
        slots = tuple(slot for word, slot in runs if word == "begins")
        ended = [word for word, _ in runs if word != "begins"]
        if status == 0:
            return JobResult("done" if slots else "skipped", status, slots)
        if status == 82:
            return JobResult("stopped", status, slots)
        # The function's process may have ended with a status that lockkeeper has, too.
        if status in _ERRORS and f"ended {status}" not in ended[-1:]:
            error, what = _ERRORS[status]
            raise error(f"{self.function.__qualname__}: {what} (lockkeeper run ended with {status}, and has said more on standard error)")
        return JobResult("failed", status, slots)


def job(
    name: str,
    *,
    once_per: Optional[Literal["hour", "day", "week", "month"]] = None,
    every: Optional[Duration] = None,
    slot: Optional[str] = None,
    timeout: Optional[Duration] = None,
    max_run: Optional[Duration] = None,
    options: Sequence[str] = (),
) -> Callable[[Callable[_P, object]], Job[_P]]:
    """Makes a job of a function. One of `once_per`, `every` (in seconds) and `slot` says what a slot is.

    `timeout` is the longest wait for a machine that runs it, and `max_run` the longest run, in seconds. `options` takes further options of
    `lockkeeper run`, such as `["--on-failure", "retry", "--time-zone", "Europe/Berlin"]`.
    """
    if sum(each is not None for each in (once_per, every, slot)) != 1:
        raise Usage("a job needs one of once_per, every and slot", 'write, for example, once_per="day"')
    # With these, lockkeeper succeeds, and runs nothing.
    if name.startswith("-") or {"-h", "--help", "-V", "--version"} & set(options):
        raise Usage(f"a job cannot have the name {name!r} and the options {options!r}", "for help, call lockkeeper run --help")
    words = [name]
    if once_per is not None:
        words.append(f"--once-per={once_per}")
    if slot is not None:
        words.append(f"--slot={slot}")
    for flag, time in (("every", every), ("wait", timeout), ("max-run", max_run)):
        if time is not None:
            words.append(f"--{flag}={duration(flag, time)}")
    words += options

    def decorate(function: Callable[_P, object]) -> Job[_P]:
        return Job(function, words)

    return decorate


def _origin(function: Callable[..., object]) -> dict[str, str]:
    """Returns where another process finds a function."""
    module = function.__module__
    if module == SCRIPT and _script is not None:
        return {"file": _script}
    # The second is a process that multiprocessing has started.
    if module not in ("__main__", "__mp_main__"):
        return {"module": module}
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"module": spec.name}
    file = getattr(main, "__file__", None)
    if file is None:
        raise Usage(f"{function.__qualname__} is in no file", "write the job into a module, which another process can import")
    return {"file": os.path.abspath(file)}
