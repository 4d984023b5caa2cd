"""Functions that run once per slot."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import lockkeeper
from tests.conftest import SESSION, Home, finish, line, until

JOBS = """
import os, signal, sys, time
import lockkeeper

counted = []


@lockkeeper.job(os.environ["NAME"], slot="4711")
def works(place, *rest, word="none"):
    counted.append(1)
    with open(place, "a") as file:
        file.write(f"{rest} {word} {os.getcwd()} {sys.executable} {counted} {sys.argv[1:]} {os.environ['LOCKKEEPER_SLOT']}\\n")


@lockkeeper.job(os.environ["NAME"] + "-raises", once_per="day")
def raises():
    raise RuntimeError("the import is broken")


@lockkeeper.job(os.environ["NAME"] + "-exits", every=3600, timeout=30, options=["--on-failure", "keep"])
def exits():
    sys.exit(76)


@lockkeeper.job(os.environ["NAME"] + "-killed", slot="1")
def killed():
    os.kill(os.getpid(), signal.SIGKILL)


@lockkeeper.job(os.environ["NAME"] + "-long", slot="1", max_run=0.3, options=["--grace", "100ms"])
def takes_long():
    time.sleep(1000)


@lockkeeper.job(os.environ["NAME"] + "-hangs", slot="1")
def hangs(place):
    with open(place, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(1000)
"""


@pytest.fixture
def module(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with the module `jobs`, which only this process finds, and programs beside it."""
    (home.place / "jobs.py").write_text(JOBS)
    monkeypatch.setenv("NAME", home.name)
    monkeypatch.syspath_prepend(str(home.place))
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    (home.place / "elsewhere").mkdir()
    monkeypatch.chdir(home.place / "elsewhere")
    return home


def test_a_job_runs_once_per_slot_in_a_process_of_its_own(module: Home) -> None:
    import jobs  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    place = module.place / "ran"
    jobs.counted.append(2)
    done = jobs.works(str(place), 1, [None, "ä"], word="given")
    assert done == lockkeeper.JobResult("done", 0, ("4711",))
    assert place.read_text() == f"(1, [None, 'ä']) given {module.place / 'elsewhere'} {sys.executable} [1] [] 4711\n"
    assert jobs.works(str(place), 2) == lockkeeper.JobResult("skipped", 0, ())
    assert place.read_text().count("\n") == 1
    assert jobs.works.__name__ == "works" and jobs.works.function.__name__ == "works"
    assert '"state":"ok"' in module.lockkeeper("jobs", module.name, "--json").stdout


def test_a_job_that_fails_says_how_and_the_records_too(module: Home, capfd: pytest.CaptureFixture[str]) -> None:
    import jobs  # pyright: ignore[reportMissingImports]

    assert jobs.raises()[:2] == ("failed", 1)
    assert "RuntimeError: the import is broken" in capfd.readouterr().err
    assert jobs.raises().status == "skipped"
    # The status of a lost lock, but the function's own.
    assert jobs.exits()[:2] == ("failed", 76)
    assert jobs.exits()[:2] == ("stopped", 82)
    assert jobs.killed()[:2] == ("failed", 137)
    assert jobs.takes_long()[:2] == ("failed", 124)


def test_a_job_without_a_server_or_with_a_wrong_option_raises_an_error(home: Home) -> None:
    for options, error in (
        (["--servers", "127.0.0.1:1"], lockkeeper.Unreachable),
        (["--no-such-option"], lockkeeper.Usage),
    ):
        job = lockkeeper.job(home.name, slot="1", timeout=0.1, options=options)(at_module_level)
        with pytest.raises(error, match="at_module_level"):
            job()


def at_module_level() -> None:
    pass


def test_what_cannot_be_a_job_is_refused(home: Home) -> None:
    job = lockkeeper.job(home.name, slot="1")
    with pytest.raises(lockkeeper.Usage, match="cannot be a job"):
        job(lambda: None)
    with pytest.raises(lockkeeper.Usage, match="once_per"):
        lockkeeper.job(home.name)

    class Thing:
        def method(self) -> None:
            pass

    with pytest.raises(lockkeeper.Usage, match="cannot be a job"):
        job(Thing.method)
    async def works_in_a_loop() -> None:
        pass

    def generates() -> Iterator[None]:
        yield

    async def generates_in_a_loop() -> AsyncIterator[None]:
        yield

    for function in (works_in_a_loop, generates, generates_in_a_loop):
        function.__qualname__ = function.__name__
        with pytest.raises(lockkeeper.Usage, match="only returns"):
            job(function)
    for name, options in (("--version", []), (home.name, ["--help"])):
        with pytest.raises(lockkeeper.Usage, match="--help"):
            lockkeeper.job(name, slot="1", options=options)
    works = lockkeeper.job(home.name, slot="1")(takes_anything)
    with pytest.raises(lockkeeper.Usage, match="JSON"):
        works((1, 2))
    with pytest.raises(TypeError):
        works(Path("/"))


def takes_anything(value: object) -> None:
    pass


SCRIPT = """
@lockkeeper.job(NAME, slot="1")
def work():
    print("at work", flush=True)
    if sys.stdin.readline() == "hang\\n":
        time.sleep(1000)


@lockkeeper.job(NAME + "-guard", slot="1")
def unguarded():
    print("at work", flush=True)


if __name__ == "__main__":
    print(work(), flush=True)
else:
    if os.environ.get("UNGUARDED"):
        unguarded()
"""


def test_a_job_of_a_script_runs_and_its_main_part_does_not_run_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home.start(SCRIPT)
    assert line(program) == "at work"
    assert home.count() == (1, 0)
    out, _ = program.communicate("go\n")
    assert out == "JobResult(status='done', exit_status=0, slots=('1',))\n"
    monkeypatch.setenv("UNGUARDED", "1")
    home.name += "-again"
    program = home.start(SCRIPT)
    out, remarks = program.communicate("go\n")
    assert "status='failed'" in out and 'if __name__ == "__main__"' in remarks


MANY = """
import multiprocessing


@lockkeeper.job(NAME, slot="1")
def outer():
    print("outer", inner().status, flush=True)


@lockkeeper.job(NAME + "-inner", slot="1")
def inner():
    print("inner", flush=True)


def plain():
    print("plain", flush=True)


renamed = lockkeeper.job(NAME + "-plain", slot="1")(plain)


def child():
    print(outer().status, renamed().status, flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


def test_a_job_runs_from_another_job_from_a_spawned_process_and_by_another_name(home: Home) -> None:
    out, _ = finish(home.start(MANY))
    assert out.split() == ["inner", "outer", "done", "plain", "done", "done"]


def test_an_interrupt_of_a_job_ends_its_process_first(home: Home) -> None:
    program = home.start(SCRIPT)
    assert line(program) == "at work"
    program.send_signal(signal.SIGINT)
    program.wait()
    assert home.is_free()


def test_a_job_does_not_outlive_the_group_that_was_killed(module: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_SESSION_TIMEOUT", f"{SESSION}s")
    place = module.place / "pid"
    program = module.start(f"import jobs\njobs.hangs({str(place)!r})")
    until("it runs", lambda: place.exists() and place.read_text())
    os.killpg(program.pid, signal.SIGKILL)
    until("it is free", lambda: module.count(module.name + "-hangs") == (0, 0))
    with pytest.raises(ProcessLookupError):
        os.kill(int(place.read_text()), 0)


def test_two_at_a_time_run_a_slot_once(module: Home) -> None:
    place = module.place / "ran"
    programs = [module.start(f"import jobs\nprint(jobs.works({str(place)!r}).status)") for _ in range(3)]
    assert sorted(finish(program)[0].strip() for program in programs) == ["done", "skipped", "skipped"]
    assert place.read_text().count("\n") == 1
