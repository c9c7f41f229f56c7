"""Decoded columns for a reader that can do without: found, made, or left, with one warning."""

import logging
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from featstore.base.errors import StateError
from featstore.decoded.decoding import DecodedFiles, DecodeTerms, entry_of
from featstore.decoded.file_sources import SourcesAhead, files_in_place
from featstore.staging.cache import Download, Pin
from featstore.staging.options import Staging
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile
from tests.decoded.conftest import BUDGET_BYTES, selection_of
from tests.loader.conftest import data_file, rows_table

ALL = selection_of(rows_table(0, 100))
TERMS = DecodeTerms(num_threads=1)


@pytest.fixture
def files(stager: Stager) -> DecodedFiles:
    return DecodedFiles(stager, ALL, BUDGET_BYTES)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_columns_are_made_once_and_then_found(files: DecodedFiles, file: DataFile) -> None:
    sources = partial(files_in_place, file)
    assert not files.has(file)
    with files.open(file, sources, TERMS) or pytest.fail("not made"):
        assert files.has(file)
    Path(file.url).unlink()
    with files.open(file, sources, TERMS) or pytest.fail("not found") as found:
        assert sum(found.row_group_rows) == 100
        assert found.name == file.path


def test_remote_files_are_left_only_once_they_are_decoded(tmp_path: Path, file: DataFile) -> None:
    with Stager(Staging(directory=str(tmp_path / "cache"), mode="whole")) as stager:
        files = DecodedFiles(stager, ALL, BUDGET_BYTES)
        assert not files.leaves(file)
        (files.open(file, partial(files_in_place, file), TERMS) or pytest.fail("no")).close()
        assert files.leaves(file)


def test_local_files_are_left(files: DecodedFiles, file: DataFile) -> None:
    assert files.leaves(file)


def test_what_another_process_makes_is_not_waited_for(
    files: DecodedFiles, stager: Stager, file: DataFile, caplog: pytest.LogCaptureFixture
) -> None:
    name = entry_of(file, ALL, SourcesAhead(stager), 1).name
    download = stager.cache.request(name, None, 10)
    assert isinstance(download, Download)
    assert files.open(file, partial(files_in_place, file), TERMS) is None
    download.abandon()
    (files.open(file, partial(files_in_place, file), TERMS) or pytest.fail("no")).close()
    assert warnings_of(caplog) == []


def test_a_file_that_cannot_be_decoded_is_left_to_its_reader(
    files: DecodedFiles, stager: Stager, file: DataFile, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = replace(file, num_rows=99)
    assert files.open(wrong, partial(files_in_place, wrong), TERMS) is None
    assert warnings_of(caplog) == []
    assert [path.name for path in stager.cache.root.iterdir()] == []


def test_an_entry_that_does_not_fit_beside_open_ones_ends_it_with_one_warning(
    tmp_path: Path, stager: Stager, file: DataFile, caplog: pytest.LogCaptureFixture
) -> None:
    other = data_file(tmp_path / "other.parquet", rows_table(100, 100))
    with DecodedFiles(stager, ALL, BUDGET_BYTES).open(
        file, partial(files_in_place, file), TERMS
    ) or pytest.fail("no") as made:
        del made
    size_bytes = max(path.stat().st_size for path in stager.cache.root.glob("*.staged"))
    files = DecodedFiles(stager, ALL, int(size_bytes * 1.5))
    first = files.open(file, partial(files_in_place, file), TERMS)
    assert first is not None
    for _ in range(2):
        assert files.open(other, partial(files_in_place, other), TERMS) is None
    first.close()
    assert not files.has(file)
    [warning] = warnings_of(caplog)
    assert "staging.budget_bytes leaves decoded columns that are open at once" in warning


def test_an_entry_of_others_that_is_too_large_ends_it_too(
    stager: Stager, file: DataFile, caplog: pytest.LogCaptureFixture
) -> None:
    made = DecodedFiles(stager, ALL, BUDGET_BYTES).open(file, partial(files_in_place, file), TERMS)
    assert made is not None
    made.close()
    files = DecodedFiles(stager, ALL, 1000)
    assert files.open(file, partial(files_in_place, file), TERMS) is None
    [warning] = warnings_of(caplog)
    assert "expected room for rows.parquet" in warning


def test_room_that_others_pin_ends_it_with_one_warning(
    stager: Stager, files: DecodedFiles, file: DataFile, caplog: pytest.LogCaptureFixture
) -> None:
    taken = stager.cache.request("0" * 40, None, BUDGET_BYTES)
    assert not isinstance(taken, Pin)
    assert files.open(file, partial(files_in_place, file), TERMS) is None
    [warning] = warnings_of(caplog)
    assert "staging.budget_bytes: no room for" in warning


def test_an_entry_that_was_read_and_is_gone_ends_it_with_one_warning(
    files: DecodedFiles, stager: Stager, file: DataFile, caplog: pytest.LogCaptureFixture
) -> None:
    (files.open(file, partial(files_in_place, file), TERMS) or pytest.fail("no")).close()
    stager.cache.clear()
    assert files.open(file, partial(files_in_place, file), TERMS) is None
    [warning] = warnings_of(caplog)
    assert "are gone from" in warning


def test_decoding_that_is_cancelled_leaves_nothing(
    files: DecodedFiles, stager: Stager, file: DataFile
) -> None:
    with pytest.raises(StateError, match="cancelled"):
        files.open(file, partial(files_in_place, file), replace(TERMS, cancelled=bytearray(b"\1")))
    assert [path.name for path in stager.cache.root.iterdir()] == []


def test_the_memory_of_a_piece_is_held_while_it_is_decoded(
    files: DecodedFiles, file: DataFile
) -> None:
    held, lock = list[int](), threading.Lock()

    def holding(num_bytes: int) -> threading.Lock:
        held.append(num_bytes)
        return lock

    made = files.open(file, partial(files_in_place, file), replace(TERMS, holding=holding))
    assert made is not None
    assert held[0] >= sum(made.row_group_bytes)
    assert not lock.locked()
    made.close()


def test_a_piece_takes_no_more_than_the_working_memory_but_for_one_row_group(
    files: DecodedFiles, file: DataFile
) -> None:
    made = files.open(file, partial(files_in_place, file), replace(TERMS, most_room_bytes=1))
    assert made is not None
    assert made.reader(ALL).read(range(7)).table.column(0).num_chunks == 7
    made.close()
