"""A table with slot groups through the loader: staged or not, the batches of one table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from featstore import api
from featstore.base.errors import BudgetError, ConfigError, DataFileError, StaleGroupError
from featstore.explore.table import Table, open_table
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.stage import warm
from featstore.spec.parse import load_spec
from featstore.table.open import open_snapshot
from featstore.table.snapshot import FileList
from tests.parquet_files import put_parquet
from tests.stale_tables import DAYS, N, X, add, make, rewrite, write_raw
from tests.stale_tables import spec_of as stale_spec

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


def test_a_remote_table_with_groups(url: str, loopback: Any) -> None:
    local = open_snapshot(url)
    files = []
    for file in local.data_files:
        for part in file.parts:
            with open(part.url, "rb") as source:  # noqa: PTH123
                loopback.files[f"/{part.path}"] = source.read()
        groups = tuple(replace(group, url=f"{loopback.url}/{group.path}") for group in file.groups)
        files.append(replace(file, url=f"{loopback.url}/{file.path}", groups=groups))
    table = replace(local, url=loopback.url, data_files=FileList.of(files))
    with FeatureLoader(table, slots=["*"], labels=["click"]) as loader:
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


@pytest.mark.parametrize(("labels", "num_staged"), [("[click]", 9), ("[]", 6)])
@pytest.mark.parametrize("decoded", ["false", "true"])
def test_a_cache_is_filled_with_the_files_of_those_groups_that_a_loader_reads(
    url: str, tmp_path: Path, labels: str, num_staged: int, decoded: str
) -> None:
    config = tmp_path / "train.yaml"
    staging = f"{{directory: {tmp_path / 'cache'}, mode: whole, decoded: {decoded}}}"
    config.write_text(f'table: {url}\nslots: ["*"]\nlabels: {labels}\nstaging: {staging}\n')
    assert warm(str(config)).counts.num_staged == num_staged
    with FeatureLoader.from_config(str(config)) as loader:
        assert sum(batch.num_rows for batch in loader) == NUM_ROWS
        assert loader.stats()["staging_fetched_bytes"] == 0


def test_a_groups_file_that_is_cut_otherwise_is_refused(url: str, tmp_path: Path) -> None:
    snapshot = open_snapshot(url)
    file = snapshot.data_files[0]
    other = tmp_path / "other.parquet"
    group = next(group for group in file.groups if group.group == "added")
    pq.write_table(pq.read_table(group.url), other, row_group_size=50)
    groups = tuple(replace(g, url=str(other)) if g is group else g for g in file.groups)
    broken = replace(
        snapshot, data_files=FileList.of([replace(file, groups=groups), *snapshot.data_files[1:]])
    )
    with pytest.raises(
        DataFileError, match=r"expected the 4 row groups of .* \(100 rows\), found 2"
    ):
        Table(broken).to_arrow()
    with (
        FeatureLoader(broken, slots=["*"]) as loader,
        pytest.raises(DataFileError, match="write the slot group of this"),
    ):
        list(loader)


@pytest.fixture
def stale(tmp_path: Path) -> str:
    """100 rows of two days, with 19 rows of the first in a file that another engine rewrote, so
    that it lacks `x`.
    """
    stale = make(tmp_path)
    rewrite(stale, "delete")
    return stale


@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
def test_a_slot_of_a_stale_group_is_refused_before_any_batch(stale: str, order: str) -> None:
    with pytest.raises(
        StaleGroupError, match="'more' is stale beside 1 of the data files, with 19"
    ):
        FeatureLoader(stale, slots=["*"], order=order)
    with pytest.raises(StaleGroupError, match="so x would be missing there"):
        FeatureLoader(stale, slots=["n"], where="x > 3", order=order)
    for selection in ({"slots": ["n"]}, {"slots": ["x"], "where": "day = '2'"}):
        with FeatureLoader(stale, order=order, **selection) as loader:
            assert sum(batch.num_rows for batch in loader) in (99, 50)


@pytest.mark.parametrize("order", ["dynamic", "static", "rank"])
def test_a_stale_group_is_read_as_missing_if_the_config_says_so(stale: str, order: str) -> None:
    config = {"table": stale, "slots": ["n", "x"], "order": order, "stale_groups": "missing"}
    with FeatureLoader.from_config(config) as loader:
        batches = list(loader)
    x = np.concatenate([batch["x"].numpy() for batch in batches])
    n = np.concatenate([batch["n"].numpy() for batch in batches])
    assert (len(x), int(np.isnan(x).sum())) == (99, 19)
    assert (x[~np.isnan(x)] == n[~np.isnan(x)]).all()
    opened = open_table(stale, stale_groups="missing")
    with FeatureLoader(opened, slots=["x"]) as loader:
        assert sum(batch.num_rows for batch in loader) == 99


def test_an_unknown_value_of_stale_groups_is_refused(stale: str) -> None:
    with pytest.raises(ConfigError, match="stale_groups: expected error or missing, found 'skip'"):
        FeatureLoader(stale, slots=["n"], stale_groups="skip")


def write_day(root: Path, day: str) -> None:
    """Extracts a day into the base, and then its group."""
    raw = write_raw(root / "raw", 0) / f"day={day}"
    api.extract(stale_spec(N), raw, root / "table", partition={"day": day})
    add(root, N, X, day=day)


def test_a_loader_that_follows_is_told_of_stale_groups_in_new_partitions(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    for day in DAYS:
        write_day(tmp_path, day)
    DeltaTable(url).delete("n = 201")
    first = open_table(url, version=1)
    options: dict[str, Any] = {"slots": ["*"], "batch_size": 50, "follow": {"until": "day = '2'"}}
    with FeatureLoader(first, **options) as loader:
        batches = iter(loader)
        assert next(batches).num_rows == 50
        with pytest.raises(StaleGroupError, match=r"'more' is stale .* --partition day=2"):
            next(batches)
    with FeatureLoader(first, stale_groups="missing", **options) as loader:
        assert sum(batch.num_rows for batch in loader) == 99


def test_a_loader_that_follows_is_not_told_of_partitions_that_it_has_read(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    for day in DAYS:
        write_day(tmp_path, day)
    rewrite(url, "delete")
    options: dict[str, Any] = {"slots": ["*"], "batch_size": 50, "follow": {"until": "day = '2'"}}
    with FeatureLoader(open_table(url, version=1), **options) as loader:
        assert sum(batch.num_rows for batch in loader) == 100
