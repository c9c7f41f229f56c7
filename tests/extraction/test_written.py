"""What a failed run wrote is removed, as far as the store lets; what may be committed is kept."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from featstore.base.errors import CommitConflictError, InputError, StoreError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.units.unit import run_unit
from featstore.files.listings import list_own
from featstore.files.storage import delete
from featstore.spec.model import Spec
from featstore.table import delta, running
from featstore.table.vacuum import vacuum


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path, write_raw: Any) -> ExtractJob:
    """A day in three data files."""
    write_raw("a.parquet", 500)
    return ExtractJob(
        spec=spec,
        input_url=str(raw),
        table_url=str(tmp_path / "table"),
        partition={"dt": "1"},
        run_id="run",
    )


def failing_runner(task: Any, units: Any, progress: Any) -> NoReturn:
    """Writes all files, and fails then."""
    for unit in units:
        run_unit(task, unit)
    raise InputError("the last row cannot be read")


def data_files(job: ExtractJob) -> list[Path]:
    return sorted(Path(job.table_url).glob("dt=1/*.parquet"))


def test_what_cannot_be_removed_is_told_and_the_rest_is_removed(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []

    def refusing(url: str) -> None:
        if url.endswith(".parquet") and not refused:
            refused.append(url)
            raise StoreError(f"{url}: the store refuses")
        delete(url)

    monkeypatch.setattr(running, "delete", refusing)
    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match="the last row"):
        extract_files(job, runner=failing_runner)
    assert [str(path) for path in data_files(job)] == refused
    [record] = caplog.records
    assert refused[0] in record.getMessage()
    assert "left to a vacuum, since it cannot be removed: " in record.getMessage()
    assert extract_files(job).committed
    removed = vacuum(job.table_url, retain_s=0, now_s=2e10).removed
    assert Path(refused[0]).name in {left.path.rpartition("/")[2] for left in removed}


def test_a_listing_that_fails_is_told_and_hides_no_error(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def blind(url: str, **_: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied", url)

    monkeypatch.setattr(running, "list_own", blind)
    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match="the last row"):
        extract_files(job, runner=failing_runner)
    assert [f"{job.table_url}/dt=1:" in caplog.text, "_stats" in caplog.text] == [True, True]
    assert len(data_files(job)) == 3


def test_a_bug_in_the_clean_up_is_a_note_of_the_first_error(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(url: str, **options: Any) -> Any:
        assert list_own(url, **options)
        raise TypeError("a bug")

    monkeypatch.setattr(running, "list_own", broken)
    with pytest.raises(InputError, match="the last row") as raised:
        extract_files(job, runner=failing_runner)
    assert raised.value.__notes__ == ["The clean-up after it failed too: TypeError('a bug')"]


@pytest.mark.parametrize("error", [CommitConflictError("overtaken"), InputError("another schema")])
def test_an_error_that_rules_a_commit_out_leaves_no_file(job: ExtractJob, error: Any) -> None:
    def refuse(url: str, change: delta.Change) -> NoReturn:
        raise error

    with pytest.raises(type(error), match=str(error)) as raised:
        extract_files(job, commit=refuse)
    assert not hasattr(raised.value, "__notes__")
    assert data_files(job) == []


def test_files_and_mark_of_a_commit_that_may_have_landed_are_kept(job: ExtractJob) -> None:
    def lose_the_reply(url: str, change: delta.Change) -> NoReturn:
        raise StoreError("no answer")

    with pytest.raises(StoreError) as raised:
        extract_files(job, commit=lose_the_reply)
    assert "It is not known whether run 'run' was committed, so its 3 data files" in str(
        raised.value.__notes__
    )
    assert len(data_files(job)) == 3
    assert len(list(Path(job.table_url, "_runs").iterdir())) == 1
    assert extract_files(replace(job, run_id="again")).committed
