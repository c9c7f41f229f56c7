"""The cores and the memory that a process may use."""

import os
from pathlib import Path

import pytest

from featstore import host
from featstore.host import memory_bytes, num_cores
from tests.programs import run_python


def test_a_process_that_may_run_on_one_core_has_one() -> None:
    code = """
import os
from featstore.host import num_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(num_cores())
"""
    assert run_python(code).stdout == "1\n"
    assert num_cores() >= 1


def test_a_container_that_may_use_less_than_the_machine_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host, "_LIMITS", (limit,))
    whole = memory_bytes()
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit.write_text("max\n")
    assert memory_bytes() == whole
    limit.write_text("1000000000\n")
    assert memory_bytes() == 1_000_000_000
