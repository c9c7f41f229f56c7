"""Files that cannot be read: an error by default, left out with a report where the loader is told
to.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import featstore
from featstore.dispatch.accounts.receipt import receipts
from featstore.errors import ConfigError, DataFileError, MissingValueError
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.snapshot import Snapshot
from tests.damaged_files import overwrite
from tests.loader.conftest import rows_of
from tests.parquet_files import put_parquet

ROWS = {"a": range(100), "b": range(100, 200), "c": range(200, 300)}


def write(directory: Path) -> Snapshot:
    for name, rows in ROWS.items():
        put_parquet(
            directory / f"{name}.parquet",
            {"row": pa.array(rows, pa.int64()), "tags": [[row] * 20 for row in rows]},
            row_group_size=25,
            compression="none",
        )
    return featstore.open_table(str(directory)).snapshot


def no_parquet(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def gone(path: Path) -> None:
    path.unlink()


def another_type(path: Path) -> None:
    pq.write_table(pa.table({"row": [str(row) for row in range(100)], "tags": [[1]] * 100}), path)


def fewer_rows(path: Path) -> None:
    pq.write_table(pa.table({"row": range(99), "tags": [[1]] * 99}), path)


def damaged_in_the_middle(path: Path) -> None:
    """The third row group cannot be read."""
    overwrite(path, pq.read_metadata(path).row_group(2).column(1).dictionary_page_offset)


def an_unknown_codec(path: Path) -> None:
    """A footer by which pyarrow ends the process."""
    in_footer(path, b"\x19\x18\x03row\x15\x00", b"\x19\x18\x03row\x15\x12")


def a_name_in_no_encoding(path: Path) -> None:
    in_footer(path, b"\x18\x04tags", b"\x18\x04t\xf4\xecs")


def in_footer(path: Path, known: bytes, other: bytes) -> None:
    data, num_bytes = path.read_bytes(), pq.read_metadata(path).serialized_size
    assert known in data[-num_bytes:]
    path.write_bytes(data[: -num_bytes - 8] + data[-num_bytes - 8 :].replace(known, other))


WAYS = [
    no_parquet,
    gone,
    another_type,
    fewer_rows,
    damaged_in_the_middle,
    an_unknown_codec,
    a_name_in_no_encoding,
]


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return write(tmp_path)


@pytest.mark.parametrize("damage", WAYS)
def test_a_bad_file_is_an_error_unless_told_otherwise(
    snapshot: Snapshot, tmp_path: Path, damage: Any
) -> None:
    damage(tmp_path / "b.parquet")
    with pytest.raises(DataFileError, match=r"b\.parquet: "):
        rows_of(FeatureLoader(snapshot, slots=["row", "tags"]))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"shuffle": {"window_rows": 25, "interleave": 2}},
        {"order": "static"},
        {"order": "rank"},
        {"dispatch": {"split_rows": 50}},
        {"batch_size": 7, "memory_budget": 1},
    ],
    ids=["dynamic", "interleaved", "static", "rank", "split", "small"],
)
@pytest.mark.parametrize("damage", WAYS)
def test_a_skipped_file_is_counted_and_named_and_all_else_comes_once(
    snapshot: Snapshot, tmp_path: Path, damage: Any, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is fewer_rows and "dispatch" in how:
        pytest.skip("a file that is cut at its row groups tells how many rows it has")
    damage(tmp_path / "b.parquet")
    loader = FeatureLoader(
        snapshot, slots=["row", "tags"], on_bad_file="skip", **{"batch_size": 30, **how}
    )
    rows = rows_of(loader)
    left = {row for row in rows if 100 <= row < 200}
    assert sorted(rows) == sorted({*ROWS["a"], *ROWS["c"], *left})
    assert len(left) == (50 if damage is damaged_in_the_middle else 0)
    stats = loader.stats()
    assert (stats["files_skipped"], stats["rows_skipped"], stats["rows"]) == (
        1,
        100 - len(left),
        len(rows),
    )
    warnings = [
        record.getMessage()
        for record in caplog.records
        if record.name == "featstore.loader.bad_files"
    ]
    assert len(warnings) == 1
    assert "b.parquet" in warnings[0].split(": rows of ")[1]


@pytest.mark.parametrize("mode", ["whole", "ranges"])
@pytest.mark.parametrize("damage", [no_parquet, damaged_in_the_middle])
def test_a_staged_file_is_skipped_too(
    snapshot: Snapshot, tmp_path: Path, damage: Any, mode: str
) -> None:
    damage(tmp_path / "b.parquet")
    with FeatureLoader(
        snapshot, slots=["row", "tags"], on_bad_file="skip", staging={"mode": mode}
    ) as loader:
        rows = rows_of(loader)
        assert {*ROWS["a"], *ROWS["c"]} <= set(rows)
        assert loader.stats()["rows_skipped"] == 300 - len(rows) > 0


def test_the_receipt_has_it_as_quarantined_and_a_second_epoch_tries_it_again(
    snapshot: Snapshot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged_in_the_middle(tmp_path / "b.parquet")
    store = f"sqlite://{tmp_path}/x.db"
    dispatch = {"store": store, "run_id": "r", "max_failures": 2}
    loader = FeatureLoader(
        snapshot, slots=["row", "tags"], on_bad_file="skip", dispatch=dispatch, num_epochs=2
    )
    assert len(rows_of(loader)) == 500
    assert (loader.stats()["files_skipped"], loader.stats()["rows_skipped"]) == (2, 100)
    found = list(receipts(store, "r").values())
    assert [[line.split for line in receipt.quarantined] for receipt in found] == [
        ["b.parquet#0-"]
    ] * 2
    assert [receipt.missing for receipt in found] == [50, 50]
    assert (
        "epoch 0: b.parquet#0- from row 50; epoch 1: b.parquet#0- from row 50"
        in caplog.records[-1].getMessage()
    )


@pytest.mark.slow
def test_workers_of_a_dataloader_skip_it(snapshot: Snapshot, tmp_path: Path) -> None:
    no_parquet(tmp_path / "b.parquet")
    loader = FeatureLoader(snapshot, slots=["row"], on_bad_file="skip", batch_size=30)
    rows = rows_of(
        DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    )
    assert sorted(rows) == [*ROWS["a"], *ROWS["c"]]


def test_a_state_goes_on_behind_a_skipped_file(snapshot: Snapshot, tmp_path: Path) -> None:
    no_parquet(tmp_path / "a.parquet")
    arguments: dict[str, Any] = {"slots": ["row"], "on_bad_file": "skip", "batch_size": 40}
    first = FeatureLoader(snapshot, **arguments)
    before = next(iter(first))["row"].tolist()
    first.ack()
    second = FeatureLoader(snapshot, **arguments)
    second.load_state_dict(first.state_dict())
    first.close()
    assert sorted(before + rows_of(second)) == [*ROWS["b"], *ROWS["c"]]


def test_a_null_label_is_no_bad_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1, 2], "click": [None, 1.0]}), tmp_path / "a.parquet")
    with pytest.raises(MissingValueError, match="label 'click' is null in 1 of 2 rows"):
        rows_of(FeatureLoader(tmp_path, slots=["row"], labels=["click"], on_bad_file="skip"))


def test_other_answers_are_refused(snapshot: Snapshot) -> None:
    with pytest.raises(ConfigError, match="on_bad_file: expected error or skip, found 'ignore'"):
        FeatureLoader(snapshot, slots=["row"], on_bad_file="ignore")
