"""A condition on a column of another writer is decided on the values of the files, whoever reads
them: doubles as doubles, where tensors have float32.
"""

import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore import FeatureLoader, SampleDataset
from featstore.base.errors import SelectionError
from featstore.explore.table import Table
from featstore.extraction.deletion import delete_rows
from tests.iceberg_tables import catalog_at

DOUBLES = [
    0.1, float(np.float32(0.1)), 2.0**24, 2.0**24 + 1, 2.0**53, 5e-324, -5e-324, 1e300, -1e300,
    math.nan, math.inf, -math.inf, 0.0, -0.0, None,
]  # fmt: skip
FLOATS = [0.1, 2.0**24, 1e-45, 3e38, math.nan, math.inf, 0.0, -0.0, None]
INTEGERS = [0, 1, -1, 2**24 + 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), None]
NUM_ROWS = 30


def written() -> pa.Table:
    """Each value at least once. Neighbours are alike in `d`: bounds leave out row groups."""
    draw = np.random.default_rng(7)

    def drawn(values: list[Any], type_: pa.DataType) -> pa.Array:
        more = [values[at] for at in draw.integers(len(values), size=NUM_ROWS - len(values))]
        return pa.array([*values, *more], type_)

    columns = {
        "d": drawn(DOUBLES, pa.float64()),
        "f": drawn(FLOATS, pa.float32()),
        "i": drawn(INTEGERS, pa.int64()),
    }
    return pa.table(columns).sort_by("d").append_column("row", pa.array(range(NUM_ROWS)))


ROWS = written()
NARROW = ROWS.set_column(0, "d", ROWS["d"].cast(pa.float32(), safe=False))


def directory(path: Path) -> tuple[str, pa.Table]:
    pq.write_table(ROWS, path / "a.parquet", row_group_size=3)
    return str(path), ROWS


def mixed(path: Path) -> tuple[str, pa.Table]:
    """A directory in whose first file the doubles are floats."""
    pq.write_table(NARROW, path / "a.parquet", row_group_size=3)
    pq.write_table(ROWS, path / "b.parquet", row_group_size=3)
    return str(path), pa.concat_tables([NARROW.cast(ROWS.schema), ROWS])


def delta(path: Path) -> tuple[str, pa.Table]:
    for first in range(0, NUM_ROWS, 10):
        write_deltalake(path, ROWS.slice(first, 10), mode="append")
    return str(path), ROWS


def iceberg(path: Path) -> tuple[str, pa.Table]:
    """One whose columns have been floats, with bounds of files."""
    pytest.importorskip("pyiceberg")
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DoubleType

    with pytest.MonkeyPatch.context() as patch, catalog_at(path, patch) as catalog:
        table = catalog.create_table("db.t", NARROW.schema)
        with table.update_sort_order() as order:
            for name in ("d", "f", "i"):
                order.asc(name, IdentityTransform())
        table.append(NARROW)
        with table.update_schema() as update:
            update.update_column("d", DoubleType())
        for first in range(0, NUM_ROWS, 10):
            table.append(ROWS.slice(first, 10))
        url = f"iceberg+{table.metadata_location}"
    return url, pa.concat_tables([NARROW.cast(ROWS.schema), ROWS])


@pytest.fixture(scope="module", params=[directory, mixed, delta, iceberg])
def table(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table, the same rows in duckdb, and a directory for staged files."""
    url, rows = request.param(tmp_path_factory.mktemp("table"))
    rows = rows.set_column(1, "f", rows["f"].cast(pa.float64()))  # duckdb rounds literals to FLOAT
    with duckdb.connect() as connection:
        # NaN is null to featstore, and the greatest number to duckdb.
        connection.register("rows", rows)
        connection.execute(
            "CREATE TABLE t AS SELECT if(isnan(d), NULL, d) AS d, if(isnan(f), NULL, f) AS f, i, "
            "row FROM rows"
        )
        yield featstore.open_table(url), connection, tmp_path_factory.mktemp("staged")


# With an exponent, which makes a literal a DOUBLE of duckdb.
NUMBERS = st.sampled_from(
    ["0e0", "-0e0", "1e-1", "0.1e0", "0.10000000149011612e0", "16777216e0", "16777217e0", "5e-324",
     "1e-45", "1e39", "-1e300", "1e300", "9007199254740992e0", "3.5e0"]
)  # fmt: skip
WHOLE = st.sampled_from(["0", "-1", "16777217", "9007199254740992", "9007199254740993"])
COMPARISONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
NAMES = st.sampled_from(["d", "d", "f"])
TERMS = st.one_of(
    st.builds("{} {} {}".format, NAMES, COMPARISONS, NUMBERS),
    st.builds("{} between {} and {}".format, NAMES, NUMBERS, NUMBERS),
    st.builds("{} {} ({}, {})".format, NAMES, st.sampled_from(["in", "not in"]), NUMBERS, NUMBERS),
    st.builds("i {} {}".format, COMPARISONS, WHOLE),
    st.builds("i in ({}, {})".format, WHOLE, WHOLE),
    st.builds("d {} {}".format, COMPARISONS, st.sampled_from(["f", "i"])),
    st.builds("{} is null".format, NAMES),
)
CONDITIONS = TERMS | st.builds(
    "{} {} not ({})".format, TERMS, st.sampled_from(["and", "or"]), TERMS
)


@settings(max_examples=settings().max_examples // 10)
@given(where=CONDITIONS)
def test_every_reader_finds_the_rows_that_duckdb_finds(table: Any, where: str) -> None:
    opened, connection, staged = table
    asked = f"SELECT row FROM t WHERE {where} ORDER BY row"
    expected = [row for (row,) in connection.sql(asked).fetchall()]
    options: dict[str, Any] = {"slots": ["d"], "extras": ["row"], "where": where}
    found = {
        "to_arrow": opened.to_arrow(where=where)["row"].to_pylist(),
        "head": opened.head(2 * NUM_ROWS, where=where)["row"].to_pylist(),
        "loader": loaded(opened, options),
    }
    if expected:
        staging = {"directory": str(staged)}
        with SampleDataset(opened, **options, staging=staging) as samples:
            found["samples"] = samples[[*range(len(samples))]].extras["row"].to_pylist()
    if not opened.url.startswith("iceberg"):
        found["duckdb"] = opened.duckdb().filter(where).to_arrow_table()["row"].to_pylist()
    if not opened.url.startswith("iceberg") and "f" not in where:  # polars rounds literals
        chosen = opened.polars().filter(polars.sql_expr(where)).collect()
        found["polars"] = chosen["row"].to_list()
    assert {name: sorted(rows) for name, rows in found.items()} == dict.fromkeys(found, expected)
    if (Path(opened.url) / "_delta_log").exists():
        assert delete_rows(opened.url, where, dry_run=True).num_rows == len(expected)


def loaded(table: Table, options: dict[str, Any]) -> list[int]:
    """The rows that a loader delivers. It refuses a condition that excludes every file."""
    try:
        with FeatureLoader(table, **options) as loader:
            return [row for batch in loader for row in batch.extras["row"].to_pylist()]
    except SelectionError as error:
        if "the bounds of its files exclude all rows" not in str(error):
            raise
        return []


def test_what_is_deleted_is_what_was_seen(tmp_path: Path) -> None:
    url, _ = delta(tmp_path)
    where = "d = 0.1 or d > 16777216"
    seen = featstore.open_table(url).to_arrow(where=where)
    assert {*seen["d"].to_pylist()} == {0.1, 2.0**24 + 1, 2.0**53, 1e300, math.inf}
    assert delete_rows(url, where).num_rows == seen.num_rows
    left = {*DeltaTable(url).to_pyarrow_table()["row"].to_pylist()}
    assert left == {*range(NUM_ROWS)} - {*seen["row"].to_pylist()}


@pytest.mark.parametrize("write", [directory, mixed])
def test_doubles_are_shown_as_they_are_and_tensors_have_float32(write: Any, tmp_path: Path) -> None:
    url, rows = write(tmp_path)
    where = "d is not null and d >= 0"
    opened = featstore.open_table(url)
    expected = [d for d in rows["d"].to_pylist() if d is not None and d >= 0]
    assert opened.to_arrow(where=where)["d"].to_pylist() == expected
    assert opened.to_arrow().schema.field("d").type == pa.float64()
    with FeatureLoader(
        url, slots=["d"], extras=["d"], labels=["d"], where=f"{where} and d < 1e39"
    ) as loader:
        batches = [*loader]
    assert [d for batch in batches for d in batch.extras["d"].to_pylist()] == [
        d for d in expected if d < 1e39
    ]
    tensors = np.concatenate([batch["d"].numpy() for batch in batches])
    assert tensors.dtype == np.float32
    assert tensors.tolist() == np.array([d for d in expected if d < 1e39], np.float32).tolist()
    labels = np.concatenate([batch.labels["d"].numpy() for batch in batches])
    assert labels.tolist() == tensors.tolist()


def test_a_number_beyond_float32_is_a_value_of_a_condition_and_missing_in_tensors(
    tmp_path: Path,
) -> None:
    directory(tmp_path)
    with FeatureLoader(tmp_path, slots=["d"], extras=["d"], where="d = 1e300") as loader:
        [batch] = [*loader]
        assert loader.stats()["row_groups_pruned"] == 8
    assert set(batch.extras["d"].to_pylist()) == {1e300}
    assert np.isnan(batch["d"].numpy()).all()
