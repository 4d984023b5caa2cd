"""The errors of this package. Each is a LockError."""

from __future__ import annotations

from typing import Optional


class LockError(Exception):
    """The base of all errors about locks. The text says what is wrong, who holds the lock if that is known, and the remedy."""

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message if hint is None else f"{message}\n  hint: {hint}")
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint)


class TimedOut(LockError, TimeoutError):
    """The lock was not granted in time."""


class Taken(TimedOut):
    """The lock is taken, and the caller did not want to wait."""


class Withdrawn(LockError):
    """The wait was ended from outside: an operator cancelled it, or the waiting node was deleted."""


class Lost(LockError):
    """The lock was lost: another contender may hold it now.

    `why` is a word of the hold protocol: `session_expired`, `unreachable`, `removed`, `auth_failed`, `lease_ended`, `preempted` or `other`.
    """

    def __init__(self, message: str, hint: Optional[str] = None, why: str = "other") -> None:
        super().__init__(message, hint)
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint, self.why)


class Refused(LockError):
    """The servers refused: a right is missing."""


class Mismatch(LockError):
    """The lock is in use in another way: another kind, another number of permits, another node format."""


class Unreachable(LockError):
    """No server was reachable, or none answered in time."""


class Usage(LockError):
    """An argument, an option or a setting is wrong. Nothing was done."""


class Internal(LockError):
    """The operating system, the program lockkeeper or the embedded server failed."""


class NotInstalled(LockError):
    """The program lockkeeper was not found."""


class Forked(LockError):
    """This process was forked from the one that holds the lock. It holds nothing."""


FAILURES: dict[str, type[LockError]] = {
    "taken": Taken,
    "timeout": TimedOut,
    "withdrawn": Withdrawn,
    "usage": Usage,
    "mismatch": Mismatch,
    "unreachable": Unreachable,
    "refused": Refused,
    "internal": Internal,
}
"""The errors by the protocol's words of the event `failed`."""
