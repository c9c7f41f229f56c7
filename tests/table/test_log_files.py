import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError, StoreError
from featstore.table.log_files import LogFiles, commit_infos, list_log, log_of, read_actions


def write(table: Path, version: int, *actions: object) -> Path:
    path = table / "_delta_log" / f"{version:020d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, actions)))
    return path


def test_names_of_commits_and_checkpoints_are_told_from_others() -> None:
    log = log_of(
        [
            *(f"{version:020d}.json" for version in (11, 2, 10)),
            f"{10:020d}.checkpoint.parquet",
            f"{20:020d}.checkpoint.{1:010d}.{2:010d}.parquet",
            f"{30:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
            f"{2:020d}.{9:020d}.compacted.json",
            f"{12:020d}.json#1",
            "_last_checkpoint",
        ]
    )
    assert log == LogFiles(versions=(2, 10, 11), checkpoints=(10, 20, 30))
    assert log.newest == 30


@given(versions=st.frozensets(st.integers(0, 9)), checkpoints=st.frozensets(st.integers(0, 9)))
def test_a_version_is_held_if_it_can_be_made_of_what_is_there(
    versions: frozenset[int], checkpoints: frozenset[int]
) -> None:
    log = LogFiles(versions=tuple(sorted(versions)), checkpoints=tuple(sorted(checkpoints)))
    for version in range(10):
        made = True  # before the first commit there is an empty table
        for step in range(version + 1):
            made = step in checkpoints or (made and step in versions)
        assert log.holds(version) == made


def test_commits_that_came_after_the_listing_are_known_by_their_names() -> None:
    log = LogFiles(versions=(3, 4), checkpoints=(3,))
    assert (log.through(6), log.through(3)) == ((3, 4, 5, 6), (3,))


def test_a_commit_says_what_it_is_or_is_dated_by_its_file(tmp_path: Path) -> None:
    write(tmp_path, 0, {"add": {}}, {"commitInfo": {"timestamp": 7, "operation": "WRITE", "x": 1}})
    silent = write(tmp_path, 1, {"add": {}})
    os.utime(silent, (1_700_000_000,) * 2)
    write(tmp_path, 2, {"commitInfo": {"readVersion": -1, "timestamp": 9}})
    assert list_log(str(tmp_path)).versions == (0, 1, 2)
    assert list(commit_infos(str(tmp_path), (2, 1, 0))) == [
        (2, {"operation": "unknown", "timestamp": 9, "readVersion": -1}),
        (1, {"operation": "unknown", "timestamp": 1_700_000_000_000}),
        (0, {"operation": "WRITE", "timestamp": 7, "x": 1}),
    ]


def test_a_commit_that_is_gone_or_no_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"0005\.json: expected the file that the log lists"):
        read_actions(str(tmp_path), 5)
    write(tmp_path, 0).write_text('{"add": {}}\n{"add"')
    with pytest.raises(DataFileError, match=r"0000\.json: expected a JSON object in each line"):
        read_actions(str(tmp_path), 0)
    assert list_log(str(tmp_path / "none")) == LogFiles()
