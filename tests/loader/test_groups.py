"""A table with slot groups through the loader: staged or not, the batches of one table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import api
from featstore.errors import BudgetError, DataFileError
from featstore.explore.table import Table, open_table
from featstore.extraction.groups.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.stage import warm
from featstore.spec.parse import load_spec
from featstore.table.open import open_snapshot
from tests.parquet_files import put_parquet

NUM_ROWS = 300
SLOTS = [{"slot": 1, "name": "row", "op": "identity", "of": "row"}]
ADDED = [
    {"slot": 2, "name": "double", "op": "identity", "of": "double"},
    {"slot": 3, "name": "many", "op": "identity", "of": "many"},
]
INPUTS = {
    "row": "double",
    "double": "double",
    "many": "list<double>",
    "clicked": "double",
    "request": "string",
}


def spec_of(slots: Any) -> Any:
    document = {
        "spec": 1,
        "inputs": INPUTS,
        "labels": {"click": "clicked"},
        "keep": ["request"],
        "slots": slots,
    }
    return load_spec(document | {"output": {"rows_per_row_group": 32, "rows_per_file": 100}})


def raw_rows(clicked: Any) -> pa.Table:
    rows = np.arange(NUM_ROWS, dtype=np.float64)
    many = [[float(row)] * (row % 4) for row in range(NUM_ROWS)]
    columns = {"row": rows, "double": rows * 2, "many": many, "clicked": np.full(NUM_ROWS, clicked)}
    return pa.table(columns | {"request": [f"r{row}" for row in range(NUM_ROWS)]})


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 rows in three files, two slots of a group, and labels anew: 1 where they were 0."""
    root = tmp_path_factory.mktemp("grouped")
    for name, clicked in (("raw", 0.0), ("ripe", 1.0)):
        put_parquet(root / name / "a.parquet", raw_rows(clicked), row_group_size=50)
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(root / "raw"),
        table_url=str(root / "table"),
        partition={"dt": "1"},
    )
    extract_files(job)
    extract_group(
        GroupJob(job=replace(job, spec=spec_of([*SLOTS, *ADDED]), run_id="g"), name="added")
    )
    api.relabel(spec_of(SLOTS), root / "ripe", job.table_url, key="request", partition={"dt": "1"})
    return job.table_url


def assert_whole(loader: Any, *, num_rows: Any = NUM_ROWS) -> None:
    seen = []
    for batch in loader:
        rows = batch["row"].numpy()
        assert (batch["double"].numpy() == rows * 2).all()
        assert (batch["many"].lengths().numpy() == rows % 4).all()
        assert (batch.labels["click"].numpy() == 1).all()
        seen += rows.tolist()
    assert sorted(seen) == [float(row) for row in range(num_rows)]


@pytest.mark.parametrize(
    "staging", [None, {"mode": "whole"}, {"mode": "whole", "ahead_files": 1}, {"mode": "ranges"}]
)
def test_columns_of_groups_come_with_their_rows(url: str, staging: Any) -> None:
    shuffle = {"window_rows": 64, "interleave": 2}
    with FeatureLoader(
        url, slots=["*"], labels=["click"], batch_size=7, staging=staging, shuffle=shuffle, seed=3
    ) as loader:
        assert_whole(loader)
        assert loader.stats().get("staging_num_staged", 0) == (9 if staging else 0)


@pytest.mark.parametrize("staging", [None, {"mode": "direct"}], ids=["staged", "direct"])
def test_a_remote_table_with_groups(url: str, loopback: Any, staging: Any) -> None:
    local = open_snapshot(url)
    files = []
    for file in local.data_files:
        for part in file.parts:
            with open(part.url, "rb") as source:  # noqa: PTH123
                loopback.files[f"/{part.path}"] = source.read()
        groups = tuple(replace(group, url=f"{loopback.url}/{group.path}") for group in file.groups)
        files.append(replace(file, url=f"{loopback.url}/{file.path}", groups=groups))
    table = replace(local, url=loopback.url, data_files=tuple(files))
    with FeatureLoader(table, slots=["*"], labels=["click"], staging=staging) as loader:
        assert_whole(loader)
    assert Table(table).to_arrow().equals(open_table(url).to_arrow())


def test_a_filter_reads_columns_of_groups(url: str) -> None:
    with FeatureLoader(url, slots=["row"], where="double < 100 and click = 1") as loader:
        assert sorted(float(row) for batch in loader for row in batch["row"]) == [
            float(row) for row in range(50)
        ]


def test_only_groups_that_are_read_are_staged(url: str) -> None:
    with FeatureLoader(url, slots=["row"], staging={"mode": "whole"}) as loader:
        assert sum(batch.num_rows for batch in loader) == NUM_ROWS
        assert loader.stats()["staging_num_staged"] == 3


def test_the_budget_must_hold_a_split_with_its_groups(url: str) -> None:
    largest = max(file.size_bytes for file in open_snapshot(url).data_files)
    with pytest.raises(BudgetError, match="3 files that are open at once"):
        FeatureLoader(
            url,
            slots=["*"],
            labels=["click"],
            staging={"mode": "whole", "budget_bytes": largest + 1},
        )


def test_a_state_is_of_one_version_of_the_groups(url: str) -> None:
    digests = {open_snapshot(url, version=version).digest for version in (0, 1, 2)}
    assert len(digests) == 3


def test_a_cache_is_filled_with_the_files_of_groups_too(url: str, tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(
        f'table: {url}\nslots: ["*"]\nstaging: {{directory: {tmp_path / "cache"}, mode: whole}}\n'
    )
    assert warm(str(config)).counts.num_staged == 9


def test_a_groups_file_that_is_cut_otherwise_is_refused(url: str, tmp_path: Path) -> None:
    snapshot = open_snapshot(url)
    file = snapshot.data_files[0]
    other = tmp_path / "other.parquet"
    group = next(group for group in file.groups if group.group == "added")
    pq.write_table(pq.read_table(group.url), other, row_group_size=50)
    groups = tuple(replace(g, url=str(other)) if g is group else g for g in file.groups)
    broken = replace(snapshot, data_files=(replace(file, groups=groups), *snapshot.data_files[1:]))
    with pytest.raises(
        DataFileError, match=r"expected the 4 row groups of .* \(100 rows\), found 2"
    ):
        Table(broken).to_arrow()
    with (
        FeatureLoader(broken, slots=["*"]) as loader,
        pytest.raises(DataFileError, match="write the slot group of this"),
    ):
        list(loader)
