"""Finds the program lockkeeper."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

from .errors import NotInstalled

VARIABLE = "LOCKKEEPER"


def find() -> str:
    """Returns the path of the program: the variable LOCKKEEPER, the one installed beside this Python, or the first one in PATH."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise NotInstalled(f"{VARIABLE}={chosen} is no program", f"set {VARIABLE} to the path of the program lockkeeper, or unset it")
        return found
    # The wheel installs it with this package. A virtual environment that is not activated is not in PATH.
    for place in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable or "")):
        path = os.path.join(place, "lockkeeper")
        if place and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    found = shutil.which("lockkeeper")
    if found is None:
        raise NotInstalled(
            "the program lockkeeper was not found beside this Python, nor in PATH",
            f"install the wheel of lockkeeper, which has it, with pip; or set the variable {VARIABLE} to its path",
        )
    return found
