"""What the manual says."""

from __future__ import annotations

import re
from pathlib import Path

import lockkeeper

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/guide/from-python.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_compile_and_its_locks_can_be_written() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    for block in blocks:
        compile(block, "from-python.md", "exec")
    locks = re.findall(r"`((?:try_)?lock\([^`…]*\))`", PAGE)
    assert len(locks) > 10
    for lock in locks:
        assert isinstance(eval(lock, vars(lockkeeper).copy()), lockkeeper.Lock)


def test_the_tests_that_the_page_names_exist() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    names = re.findall(r"`(test_\w+)`", PAGE)
    assert len(names) > 5
    assert [name for name in names if f"def {name}(" not in tests] == []


def test_the_page_names_every_error_and_every_option_of_the_package_exists() -> None:
    errors = [name for name in lockkeeper.__all__ if is_error(name)]
    assert [name for name in errors if f"`{name}`" not in PAGE] == []
    options = re.findall(r"`(\w+)=`", PAGE)
    assert options and set(options) <= set(lockkeeper.Options.__annotations__)


def is_error(name: str) -> bool:
    thing = getattr(lockkeeper, name)
    return isinstance(thing, type) and issubclass(thing, lockkeeper.LockError)
