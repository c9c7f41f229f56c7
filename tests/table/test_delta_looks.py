"""What delta-rs takes for an absence, seen through a listing of the log."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.exceptions import TableNotFoundError as NoDeltaTableError

from featstore.base.errors import FeatstoreError, StoreError, TableNotFoundError
from featstore.table import delta


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for _ in range(4):
        write_deltalake(str(tmp_path / "t"), pa.table({"n": [1, 2]}), mode="append")
    return tmp_path / "t"


def test_an_older_version_than_the_log_lists_is_opened_again(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[int]()

    def opens(uri: str, version: int | None = None, **options: Any) -> DeltaTable:
        opened.append(1)
        return DeltaTable(uri, version=2 if len(opened) == 1 else version, **options)

    monkeypatch.setattr(delta, "DeltaTable", opens)
    assert delta.open_delta(str(table)).version == 3
    assert len(opened) == 2


def test_a_table_that_never_opens_at_its_newest_version_is_an_error(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "DeltaTable", lambda uri, **_: DeltaTable(uri, version=2))
    with pytest.raises(StoreError, match=r"expected version 3, which the log lists, found .* 2"):
        delta.open_delta(str(table))


@pytest.mark.parametrize("look", [delta.open_delta_or_none, delta.open_delta, delta.history])
def test_a_table_that_delta_rs_does_not_find_is_no_missing_table(
    table: Path, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finds_none(uri: str, **_: object) -> DeltaTable:
        raise NoDeltaTableError(f"Not a Delta table: {uri}")

    monkeypatch.setattr(delta, "DeltaTable", finds_none)
    with pytest.raises(StoreError, match=r"the Delta log cannot be read or written") as raised:
        look(str(table))
    assert not isinstance(raised.value, TableNotFoundError)
    assert "write the table again" not in str(raised.value)


def test_a_version_whose_log_is_there_is_not_called_gone(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(uri: str, version: int | None = None, **options: Any) -> DeltaTable:
        if version is not None:
            raise DeltaError("Generic LocalFileSystem error: Input/output error (os error 5)")
        return DeltaTable(uri, **options)

    monkeypatch.setattr(delta, "DeltaTable", fails)
    with pytest.raises(StoreError, match=r"\(os error 5\)"):
        delta.open_delta(str(table), 1)
    monkeypatch.undo()
    (table / f"_delta_log/{0:020d}.json").unlink()
    shutil.copy(table / f"_delta_log/{3:020d}.json", table / f"_delta_log/{0:020d}.json.old")
    with pytest.raises(FeatstoreError):
        delta.open_delta(str(table), 1)


@pytest.mark.parametrize("number", [13, 5])
@pytest.mark.parametrize("call", ["scandir", "stat"])
def test_a_log_that_cannot_be_looked_at_is_no_missing_table(
    table: Path, call: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)

    def fails(path: Any, **options: Any) -> Any:
        if str(path).endswith("_delta_log"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, **options)

    monkeypatch.setattr(os, call, fails)
    look = delta.open_delta_or_none if call == "scandir" else delta.is_delta
    with pytest.raises(
        StoreError, match=rf"_delta_log cannot be read, .*: {os.strerror(number)}; "
    ):
        look(str(table))


COUNT = "import sys; from featstore.table.delta import open_delta_or_none as o; t = o(sys.argv[1]); print(t and t.version)"


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("call", ["statx", "readlink", "openat", "getdents64", "newfstatat"])
@pytest.mark.parametrize("error", ["EIO", "EACCES", "ENOENT"])
def test_one_failing_call_of_an_opening_never_gives_another_version(
    table: Path, call: str, error: str
) -> None:
    newest = table / f"_delta_log/{3:020d}.json"
    for when in (1, 2):
        command = [
            *("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(table), "-P", str(newest)),
            *("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"),
            *(sys.executable, "-c", COUNT, str(table)),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if "ptrace" in ended.stderr and "not permitted" in ended.stderr:
            pytest.skip("this system forbids to trace")
        assert ended.stdout == "3\n" or (ended.returncode and "Error" in ended.stderr), ended
