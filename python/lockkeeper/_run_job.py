"""Runs the function of a job, in the process that `lockkeeper run` starts: FUNCTION ARGUMENTS ORIGIN."""

import importlib
import json
import os
import runpy
import sys


def main() -> None:
    name, call, what = sys.argv[1:]
    origin = json.loads(what)
    # In place of this file's directory, which is no place for imports.
    sys.path[:] = origin["path"]
    from lockkeeper import _job

    def report(word: str) -> None:
        try:
            with open(origin["report"], "a", encoding="utf-8") as file:
                file.write(json.dumps([word, os.environ.get("LOCKKEEPER_SLOT", "")]) + "\n")
        except FileNotFoundError:
            pass  # The caller has ended, and removed its directory.

    report("begins")
    status = 1
    try:
        _job._is_importing = True
        if "file" in origin:
            _job._script = origin["file"]
            found = runpy.run_path(origin["file"], run_name=_job.SCRIPT)[name]
        else:
            found = getattr(importlib.import_module(origin["module"]), name)
        _job._is_importing = False
        sys.argv[1:] = []
        args, kwargs = json.loads(call)
        # With another name for the job, this one is the function's own.
        getattr(found, "function", found)(*args, **kwargs)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        raise
    finally:
        report(f"ended {status}")


if __name__ == "__main__":
    main()
