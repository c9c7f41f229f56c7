"""The vectors of a version are those of its log, however that is written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.explore.table import open_table
from featstore.table.delta_vectors import latest_checkpoint, masks_at
from featstore.table.row_masks import num_deleted_in
from tests.masked_tables import FEATURE, add_file, commit, masked_table, write_vector

ROWS = pa.table({"x": range(1, 9)})


def rows_of(url: Any, version: int | None = None) -> list[int]:
    found: list[int] = open_table(str(url), version).to_arrow()["x"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("storage", ["u", "p", "i"])
@pytest.mark.parametrize("keys", [(), ("dt",)])
def test_vectors_are_read_from_wherever_they_are_stored(
    tmp_path: Path, storage: str, keys: tuple[str, ...]
) -> None:
    below = "dt=2026-11-01/" if keys else ""
    files = {f"{below}{n}.parquet": (ROWS, [n, 7] if n else []) for n in range(3)}
    url = masked_table(tmp_path / "a table", files, storage=storage, keys=keys)
    table = open_table(url)
    assert table.num_rows == 24 - 4
    assert [file.mask is not None for file in table.snapshot.data_files] == [False, True, True]
    expected = [x for n in range(3) for i, x in enumerate(range(1, 9)) if not n or i not in (n, 7)]
    assert table.to_arrow()["x"].to_pylist() == expected


def test_an_unknown_storage_is_refused(tmp_path: Path) -> None:
    url = masked_table(tmp_path / "table", {"f.parquet": (ROWS, [1])}, storage="i")
    path = tmp_path / f"table/_delta_log/{0:020d}.json"
    path.write_text(path.read_text().replace('"storageType": "i"', '"storageType": "z"'))
    with pytest.raises(DataFileError, match=r"/table: f\.parquet: .* found storage 'z'"):
        open_table(url)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizeInBytes": -20},
        {"offset": -5},
        {"cardinality": -1},
        {"pathOrInlineDv": "ab"},
        {"pathOrInlineDv": "\u00e9" * 20},
        {"pathOrInlineDv": "~" * 20},
        {"pathOrInlineDv": "#" * 20},  # more than four bytes
    ],
    ids=str,
)
def test_a_damaged_vector_in_the_log_is_told(tmp_path: Path, changes: dict[str, Any]) -> None:
    url = masked_table(tmp_path / "table", {"f.parquet": (ROWS, [1])})
    path = tmp_path / f"table/_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    actions[-1]["add"]["deletionVector"].update(changes)
    path.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(DataFileError, match=r"/table: f\.parquet: deletion vector in the log: exp"):
        open_table(url)


@pytest.mark.parametrize(
    "line", ["{", "5", '{"add": {"path": 5}}', '{"add": {"path": "f", "deletionVector": 1}}']
)
def test_a_commit_that_is_no_json_of_actions_is_told(tmp_path: Path, line: str) -> None:
    url = masked_table(tmp_path / "table", {"f.parquet": (ROWS, [1])})
    (tmp_path / f"table/_delta_log/{1:020d}.json").write_text(line)
    with pytest.raises(DataFileError, match=r"1\.json: expected an action in each line as JSON \("):
        masks_at(url, url, 1)


def test_an_action_without_a_part_of_a_vector_is_no_action_without_a_vector(tmp_path: Path) -> None:
    url = masked_table(tmp_path / "table", {"f.parquet": (ROWS, [1])})
    action = {"add": {**add_file(tmp_path / "table", "f.parquet", ROWS), "deletionVector": {}}}
    commit(tmp_path / "table", 1, [action])
    with pytest.raises(
        DataFileError, match=r"f\.parquet: deletion vector in the log: expected path"
    ):
        masks_at(url, url, 1)


def changed_table(table: Path) -> list[list[int]]:
    """A table of five versions, and the rows of each."""
    masked_table(table, {"f.parquet": (ROWS, [0]), "g.parquet": (ROWS, [])})
    lines = (table / f"_delta_log/{0:020d}.json").read_text().splitlines()
    first = json.loads(lines[2])["add"]
    add = add_file(table, "f.parquet", ROWS)
    second = {**add, "deletionVector": write_vector(table, [0, 3], "i")}

    def remove(of: Any) -> Any:
        kept = ("path", "deletionVector", "dataChange")
        return {"remove": {"deletionTimestamp": 1, **{k: of[k] for k in kept if k in of}}}

    commit(table, 1, [{"add": second}, remove(first)])
    commit(table, 2, [remove(second), {"add": add}])  # restored
    other = {**add_file(table, "g.parquet", ROWS), "deletionVector": write_vector(table, [5])}
    commit(table, 3, [remove(add_file(table, "g.parquet", ROWS)), {"add": other}])
    commit(table, 4, [remove(add)])
    every = list(range(1, 9))
    return [
        sorted(every[1:] + every),
        sorted([2, 3, 5, 6, 7, 8, *every]),
        sorted(every + every),
        sorted([*every, *(x for x in every if x != 6)]),
        [x for x in every if x != 6],
    ]


def test_each_version_has_the_vectors_of_its_last_actions(tmp_path: Path) -> None:
    expected = changed_table(tmp_path)
    assert [rows_of(tmp_path, version) for version in range(5)] == expected
    assert rows_of(tmp_path) == expected[-1]
    assert len({open_table(tmp_path, version).snapshot.digest for version in range(5)}) == 5


def test_a_file_whose_path_engines_encode_differently_has_its_last_vector(tmp_path: Path) -> None:
    add = add_file(tmp_path, "a b.parquet", ROWS)
    names = ("a%20b.parquet", "a b.parquet", "%61%20b.parquet", "a%20b.parquet")
    deleted: list[list[int]] = [[0, 3], [5], [], [1, 2]]
    masked_table(tmp_path, {"g.parquet": (ROWS, [])})
    before: list[Any] = []
    for version, (path, rows) in enumerate(zip(names, deleted, strict=True), 1):
        vector = {"deletionVector": write_vector(tmp_path, rows)} if rows else {}
        action = {**add, **vector, "path": path}
        commit(tmp_path, version, [*before, {"add": action}])
        before = [{"remove": {k: action[k] for k in ("path", "dataChange", *vector)}}]
    every = list(range(1, 9))
    for version, rows in enumerate(deleted, 1):
        left = [x for i, x in enumerate(every) if i not in rows]
        assert rows_of(tmp_path, version) == sorted(every + left)


@pytest.mark.parametrize("at", range(5))
def test_a_checkpoint_stands_for_the_commits_before_it(tmp_path: Path, at: int) -> None:
    expected = changed_table(tmp_path)
    DeltaTable(str(tmp_path), version=at).create_checkpoint()
    for version in range(at):
        (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    for version in range(at, 5):
        assert rows_of(tmp_path, version) == expected[version]


def checkpointed(table: Path) -> list[dict[str, Any]]:
    """Writes a table with a checkpoint at version 3, and gives that one's rows."""
    changed_table(table)
    DeltaTable(str(table), version=3).create_checkpoint()
    path = table / f"_delta_log/{3:020d}.checkpoint.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    path.unlink()
    for version in range(4):
        (table / f"_delta_log/{version:020d}.json").unlink()
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    names = {name for row in rows for name in row}
    pq.write_table(pa.table({n: [row.get(n) for row in rows] for n in sorted(names)}), path)


def vectors_of(table: Path) -> dict[str, int | None]:
    paths, masks = (each.to_pylist() for each in masks_at(str(table), str(table), 3))
    return {path.decode(): num_deleted_in(mask) for path, mask in zip(paths, masks, strict=True)}


def test_a_checkpoint_may_be_of_several_parts(tmp_path: Path) -> None:
    rows, log = checkpointed(tmp_path), tmp_path / "_delta_log"
    for part in range(2):
        write_rows(log / f"{3:020d}.checkpoint.{part + 1:010d}.{2:010d}.parquet", rows[part::2])
    assert vectors_of(tmp_path) == {"g.parquet": 1}


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_a_checkpoint_may_name_sidecars(tmp_path: Path, suffix: str) -> None:
    rows, log = checkpointed(tmp_path), tmp_path / "_delta_log"
    files = [{"add": row["add"]} for row in rows if row["add"]]
    write_rows(log / "_sidecars/a b.parquet", files[:1])
    write_rows(log / "_sidecars/c.parquet", files[1:])
    names = ["a%20b.parquet", "c.parquet"]
    top: list[dict[str, Any]] = [{"checkpointMetadata": {"version": 3}}]
    top += [{"sidecar": {"path": name, "sizeInBytes": 1}} for name in names]
    path = log / f"{3:020d}.checkpoint.80a083e8-7026.{suffix}"
    if suffix == "json":
        path.write_text("\n".join(map(json.dumps, top)))
    else:
        write_rows(path, top)
    assert vectors_of(tmp_path) == {"g.parquet": 1}


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    checkpointed(tmp_path)
    (tmp_path / f"_delta_log/{3:020d}.checkpoint.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataFileError, match=r"checkpoint\.parquet: expected a checkpoint, found"):
        masks_at(str(tmp_path), str(tmp_path), 3)


VERSIONS = st.integers(0, 9)
KINDS = st.sampled_from(["parquet", "abc-def.parquet", "abc-def.json", "parts", "torn"])


def names_of(version: int, kind: str) -> list[str]:
    head = f"{version:020d}.checkpoint."
    parts = [f"{head}{part:010d}.{3:010d}.parquet" for part in (1, 2, 3)]
    return {"parts": parts, "torn": parts[1:]}.get(kind, [head + kind])


@given(st.lists(st.tuples(VERSIONS, KINDS), unique=True), VERSIONS)
def test_the_newest_whole_checkpoint_counts(written: list[tuple[int, str]], version: int) -> None:
    names = {name for item in written for name in names_of(*item)}
    names |= {f"{version:020d}.json", "_last_checkpoint", f"{version:020d}.crc"}
    whole = {n for n, kind in written if kind != "torn" or (n, "parts") in written}
    usable = {n for n in whole if n <= version}
    number, files = latest_checkpoint(sorted(names), version)
    assert number == max(usable, default=-1)
    assert (number, files) == (-1, []) or any(
        set(files) == set(names_of(number, kind)) for n, kind in written if n == number
    )


def test_a_table_that_may_have_vectors_and_has_none_has_no_masks(tmp_path: Path) -> None:
    url = masked_table(tmp_path, {"f.parquet": (ROWS, [])})
    assert not open_table(url).snapshot.data_files.has_masks


def test_the_log_of_a_table_without_the_feature_is_not_read_for_vectors(tmp_path: Path) -> None:
    masked_table(tmp_path, {"f.parquet": (ROWS, [])})
    path = tmp_path / f"_delta_log/{0:020d}.json"
    plain = {"minReaderVersion": 1, "minWriterVersion": 2}
    path.write_text(path.read_text().replace(json.dumps(FEATURE), json.dumps(plain)))
    shutil.copy(path, tmp_path / "_delta_log/00000000000000000000.checkpoint.x.json")
    assert not open_table(tmp_path).snapshot.data_files.has_masks
