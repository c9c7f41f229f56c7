"""Temporary directories go with their owner, or with the next one."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.private import PrivateDirectory

LOADER = """
import os, signal, sys
from featstore.loader.loader import FeatureLoader
loader = FeatureLoader(sys.argv[1], slots=["user"], batch_size=4, staging={"mode": "whole"})
next(iter(loader))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of temporary directories, for this test only."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr("tempfile.tempdir", place)
        yield Path(place)


def test_it_is_its_owners_alone_and_goes_when_it_is_removed(temporary: Path) -> None:
    private = PrivateDirectory()
    assert private.path.stat().st_mode & 0o777 == 0o700
    private.remove()
    private.remove()
    assert list(temporary.iterdir()) == []


def test_one_whose_owner_lives_is_left_alone(temporary: Path) -> None:
    first, second = PrivateDirectory(), PrivateDirectory()
    assert {first.path, second.path} == set(temporary.iterdir())
    first.remove()
    second.remove()


def test_a_forked_copy_removes_nothing(temporary: Path) -> None:
    private = PrivateDirectory()
    child = os.fork()
    if child == 0:
        private.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert private.path.exists()
    private.remove()


def test_what_a_killed_loader_left_goes_with_the_next_one(tmp_path: Path, temporary: Path) -> None:
    pq.write_table(pa.table({"user": pa.array(range(100), pa.int64())}), tmp_path / "a.parquet")
    command = [sys.executable, "-c", LOADER, str(tmp_path / "a.parquet")]
    run = subprocess.run(command, env=os.environ | {"TMPDIR": str(temporary)}, timeout=120, check=False)
    assert run.returncode == -signal.SIGKILL
    assert len(list(temporary.glob("featstore-private-*"))) == 2  # of its workers' store, and of its staged files
    PrivateDirectory().remove()
    assert list(temporary.glob("featstore-*")) == []
