"""A deleted row is as one that `where` leaves out: it is never delivered, and the others come in
the same batches and order, whatever reads them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from featstore.base.errors import DataFileError, MissingValueError
from featstore.dispatch.receipt import receipts
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.train_check import TrainCheck, check
from featstore.samples.sample_dataset import SampleDataset
from featstore.table.snapshot import Snapshot
from tests.loader.conftest import NUM_ROWS, ROWS_PER_FILE, rows_of, rows_table
from tests.loader.test_decoded_epochs import MIXED, OPTIONS, content
from tests.masked_tables import masked_table, with_deleted

# By file: some rows, none, a whole row group and a half, all rows; one file has no mask.
DELETED = {
    "dt=2026-11-01/part.parquet": [0, 1, 15, 16, 33, 69],
    "dt=2026-11-03/part.parquet": [],
    "dt=2026-11-04/part.parquet": [*range(16, 40), 100],
    "dt=2026-11-05/part.parquet": list(range(64)),
}
FIRSTS = {
    f"dt=2026-11-0{day + 1}/part.parquet": sum(ROWS_PER_FILE[:day])
    for day in range(len(ROWS_PER_FILE))
}
GONE = sorted(FIRSTS[path] + row for path, rows in DELETED.items() for row in rows)
LEFT = [row for row in range(NUM_ROWS) if row not in set(GONE)]
NOT_GONE = f"row not in ({', '.join(map(str, GONE))})"


@pytest.fixture(scope="module")
def masked(snapshot: Snapshot) -> Snapshot:
    return with_deleted(snapshot, DELETED)


def make(table: str | Snapshot, **options: Any) -> FeatureLoader:
    known: dict[str, Any] = {"slots": ["*"], "batch_size": 23, "seed": 9}
    return FeatureLoader(table, **known | options)


def without_gone(options: dict[str, Any]) -> dict[str, Any]:
    where = options.get("where")
    return {**options, "where": NOT_GONE if where is None else f"({where}) and {NOT_GONE}"}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("staging", [None, "whole", "ranges", "decoded"])
def test_batches_are_those_of_a_condition_that_leaves_the_rows_out(
    tmp_path: Path, masked: Snapshot, snapshot: Snapshot, options: dict[str, Any], staging: Any
) -> None:
    if staging is not None:
        how = {"decoded": True} if staging == "decoded" else {"mode": staging}
        options = options | {"staging": {"directory": str(tmp_path), **how}}
    with make(snapshot, **without_gone(options)) as plain, make(masked, **options) as loader:
        for _ in range(2):
            expected = content(plain)
            assert content(loader) == expected
            assert len(expected) > 1
        assert loader.stats()["rows_masked"] >= len(GONE)


def test_the_counts_tell_which_rows_were_deleted(masked: Snapshot) -> None:
    with make(masked, where="row < 40 and dt < '2026-11-05'") as loader:
        assert sorted(rows_of(loader)) == [row for row in LEFT if row < 40]
        stats = loader.stats()
    num_deleted = sum(row < FIRSTS["dt=2026-11-05/part.parquet"] for row in GONE)
    num_read = sum(ROWS_PER_FILE[:4])
    assert stats["rows_masked"] == num_deleted
    assert stats["rows_filtered"] == num_read - num_deleted - stats["rows"]


@pytest.mark.parametrize("order", [{}, MIXED, {"where": "row % 3 != 1", **MIXED}], ids=str)
def test_a_state_at_every_batch_goes_on_with_the_next_row(
    masked: Snapshot, order: dict[str, Any]
) -> None:
    with make(masked, **order) as loader:
        expected = content(loader)
    for number in range(len(expected)):
        with make(masked, **order) as stopped:
            batches = iter(stopped)
            before = content(next(batches) for _ in range(number + 1))
            stopped.ack()
            state = json.loads(json.dumps(stopped.state_dict()))
        with make(masked, **order) as resumed:
            resumed.load_state_dict(state)
            assert before + content(resumed) == expected


def test_workers_share_an_epoch_whose_receipt_counts_all_positions(
    tmp_path: Path, masked: Snapshot
) -> None:
    store = f"sqlite:///{tmp_path / 'store'}"
    loader = make(masked, slots=["row"], dispatch={"store": store, "run_id": "r"})
    with loader:
        found = rows_of(DataLoader(loader, batch_size=None, num_workers=2))
    assert sorted(found) == LEFT
    (receipt,) = receipts(store, "r").values()
    assert (receipt.size.num_rows, receipt.missing) == (NUM_ROWS, 0)


def test_a_loader_in_static_order_has_no_length(masked: Snapshot, snapshot: Snapshot) -> None:
    with make(snapshot, order="static") as plain:
        assert len(plain) == -(-NUM_ROWS // 23)
    with make(masked, order="static") as loader, pytest.raises(TypeError, match="a row mask"):
        len(loader)
    # Files without a mask, alone.
    with make(masked, order="static", where="dt = '2026-11-02'") as loader:
        assert len(loader) == 0


def test_ranks_of_files_that_are_listed_again_have_masks_too(tmp_path: Path) -> None:
    files = {f"{n}.parquet": (rows_table(50 * n, 50), [n, 20 + n]) for n in range(4)}
    url = masked_table(tmp_path / "table", files, row_group_size=16)
    with make(url, slots=["row"], order={"kind": "rank", "mini_epochs": 2}) as loader:
        expected = {50 * n + i for n in range(4) for i in range(50) if i not in (n, 20 + n)}
        assert sorted(rows_of(loader)) == sorted(expected)


def test_a_null_label_of_a_deleted_row_is_no_error(snapshot: Snapshot) -> None:
    with make(snapshot, labels=["ripe"]) as loader, pytest.raises(MissingValueError):
        list(loader)
    nulls = {
        path: [row for row in range(num_rows) if (FIRSTS[path] + row) % 10 == 0]
        for path, num_rows in zip(FIRSTS, ROWS_PER_FILE, strict=True)
    }
    with make(with_deleted(snapshot, nulls), labels=["ripe"]) as loader:
        assert rows_of(loader) == [row for row in range(NUM_ROWS) if row % 10]


def test_a_check_before_a_run_knows_that_null_labels_may_be_deleted(tmp_path: Path) -> None:
    rows = pa.table({"x": range(4), "y": pa.array([0.0, None, 1.0, None])})
    config = tmp_path / "train.yaml"
    for deleted in ([], [1, 3]):
        url = masked_table(tmp_path / "table", {"f.parquet": (rows, deleted)})
        config.write_text(f"table: {url}\nslots: [x]\nlabels: [y]\nbatch_size: 2\n")
        if not deleted:
            with pytest.raises(MissingValueError):
                check(str(config))
            continue
        found = check(str(config))
        assert isinstance(found, TrainCheck)
        assert found.num_rows == 2
        assert "is null in 2 of 4" in found.null_labels[0]


@pytest.mark.parametrize("read", ["loader", "samples", "decoded"])
def test_a_vector_that_is_gone_is_an_error_of_its_file(tmp_path: Path, read: str) -> None:
    files = {f"{n}.parquet": (rows_table(50 * n, 50), [n]) for n in range(2)}
    url = masked_table(tmp_path / "table", files)
    for path in (tmp_path / "table/ab").iterdir():
        path.unlink()
    staging = {"directory": str(tmp_path / "cache")}
    reads: dict[str, Callable[[], object]] = {
        "loader": lambda: list(make(url)),
        "samples": lambda: SampleDataset(url, slots=["row"], staging=staging),
        "decoded": lambda: list(make(url, staging={**staging, "decoded": True})),
    }
    with pytest.raises(DataFileError, match=r"0\.parquet: deleted rows: .* found no such file"):
        reads[read]()


def test_a_file_whose_vector_is_gone_can_be_left_out(tmp_path: Path) -> None:
    files = {f"{n}.parquet": (rows_table(50 * n, 50), [3] if n else []) for n in range(2)}
    url = masked_table(tmp_path / "table", files)
    (vector,) = (tmp_path / "table/ab").iterdir()
    vector.unlink()
    with make(url, on_bad_file="skip") as loader:
        assert rows_of(loader) == list(range(50))
        assert loader.stats()["rows_skipped"] == 50


def test_rows_that_are_deleted_later_are_not_in_the_cache_of_decoded_columns(
    tmp_path: Path, snapshot: Snapshot, masked: Snapshot
) -> None:
    staging = {"directory": str(tmp_path), "decoded": True}
    for table, expected in ((snapshot, list(range(NUM_ROWS))), (masked, LEFT)):
        with make(table, staging=staging) as loader:
            assert rows_of(loader) == expected
        with SampleDataset(table, slots=["row"], staging={"directory": str(tmp_path)}) as samples:
            assert samples[:]["row"].tolist() == expected


def test_row_groups_of_which_no_row_is_left_are_not_read(tmp_path: Path) -> None:
    url = masked_table(
        tmp_path / "table",
        {"f.parquet": (pa.table({"row": range(64)}), range(16, 32))},
        row_group_size=16,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    path = tmp_path / "table/f.parquet"
    data = path.read_bytes()
    path.write_bytes(data.replace((20).to_bytes(8, "little"), (21).to_bytes(8, "little")))
    assert path.read_bytes() != data
    with make(url) as loader:
        assert rows_of(loader) == [*range(16), *range(32, 64)]
