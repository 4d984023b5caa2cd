"""Locks that hold across processes and machines.

    import lockkeeper

    with lockkeeper.lock("nightly", timeout=30) as hold:
        for step in steps:
            hold.raise_if_lost()
            step()

A program of its own, `lockkeeper hold`, holds each lock for this process: it keeps the session alive while the interpreter is busy, and
releases the lock when this process ends. https://github.com/lockkeeper/lockkeeper/blob/main/docs/guide/from-python.md
"""

from ._flag import Flag
from ._hold import Asked, Hold, Wanted
from ._job import Job, JobResult, job
from ._link import HeldLock
from ._lock import Duration, Lock, Options, lock, try_lock
from .errors import (
    Forked,
    Internal,
    LockError,
    Lost,
    Mismatch,
    NotInstalled,
    Refused,
    Taken,
    TimedOut,
    Unreachable,
    Usage,
    Withdrawn,
)

__all__ = [
    "Asked",
    "Duration",
    "Flag",
    "Forked",
    "HeldLock",
    "Hold",
    "Internal",
    "Job",
    "JobResult",
    "Lock",
    "LockError",
    "Lost",
    "Mismatch",
    "NotInstalled",
    "Options",
    "Refused",
    "Taken",
    "TimedOut",
    "Unreachable",
    "Usage",
    "Wanted",
    "Withdrawn",
    "job",
    "lock",
    "try_lock",
]
