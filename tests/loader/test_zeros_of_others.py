"""In columns that featstore did not extract 0 is a value and null is missing: to predicates, in what
is shown, and in statistics.
"""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore import FeatureLoader, SampleDataset, Staging
from featstore.explore.table import Table
from featstore.extraction.deletion import delete_rows
from featstore.extraction.units.unit_statistics import gather_rows
from featstore.statistics.summary import summarize

ROWS = pa.table(
    {
        "id": ["a", "b", "c", "d"],
        "hour": pa.array([0, None, 5, 0], pa.int64()),
        "small": pa.array([1, 2, None, 0], pa.int8()),
        "flag": pa.array([False, None, True, False]),
        "many": pa.array([[0], None, [0, None], []], pa.list_(pa.int32())),
        "ratio": pa.array([0.0, None, 1.5, math.nan], pa.float32()),
        "price": pa.array([0.1, 0.0, None, 1.0], pa.float64()),
        "note": ["", None, "x", "y"],
    }
)
SHOWN = ROWS.set_column(5, "ratio", pa.array([0.0, None, 1.5, None], pa.float32()))


@pytest.fixture(params=["directory", "delta", "import"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The rows in row groups of one row in a plain directory; in a Delta table; or imported."""
    table = str(tmp_path / "table")
    if request.param == "directory":
        (tmp_path / "table").mkdir()
        pq.write_table(ROWS, f"{table}/a.parquet", 1)
    elif request.param == "delta":
        write_deltalake(table, ROWS)
    else:
        lines = [
            {name: value for name, value in row.items() if value == value}
            for row in ROWS.to_pylist()
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
        featstore.import_raw("json", tmp_path / "rows.jsonl", f"delta+{table}")
    return table


def loaded(url: str, where: str, **options: Any) -> str:
    """The ids of the rows that match, as the loader delivers them."""
    with FeatureLoader(url, slots=["hour"], extras=["id"], where=where, **options) as loader:
        return "".join(name for batch in loader for name in batch.extras["id"].to_pylist())


CONDITIONS = {
    "hour = 0": "ad",
    "hour is null": "b",
    "hour is not null": "acd",
    "hour < 1": "ad",
    "hour != 5": "ad",
    "hour in (0, 7)": "ad",
    "hour = small": "d",
    "small = 0 or hour is null": "bd",
    "flag = 0": "ad",
    "flag is null": "b",
    "flag = 1": "c",
    "many is null": "b",
    "ratio = 0": "a",
    "ratio is null": "bd",
    "price = 0.1": "a",
    "price = 0": "b",
    "note = ''": "a",
    "note is null": "b",
    "sample(hour, 1.0, 1)": "acd",
}


def test_zeros_and_nulls_are_found_as_they_are(url: str, tmp_path: Path) -> None:
    table = featstore.open_table(url)
    for where, ids in CONDITIONS.items():
        assert "".join(table.to_arrow(where=where)["id"].to_pylist()) == ids, where
        assert "".join(table.head(9, where=where)["id"].to_pylist()) == ids, where
        assert loaded(url, where) == ids, where
    for where in ("hour = 0", "hour is null", "price = 0.1"):
        staging = Staging(directory=str(tmp_path / "staged"))
        with SampleDataset(
            url, slots=["hour"], extras=["id", "hour"], where=where, staging=staging
        ) as samples:
            batch = samples[[*range(len(samples))]]
        assert "".join(batch.extras["id"].to_pylist()) == CONDITIONS[where]
        assert batch["hour"].tolist() == [0] * len(batch)
        assert set(batch.extras["hour"].to_pylist()) == {None if "null" in where else 0}


def test_zeros_are_shown_and_tensors_are_the_same_as_of_null(url: str, tmp_path: Path) -> None:
    table = featstore.open_table(url)
    for found in (table.to_arrow(), table.head(), table.sample(), table.duckdb().to_arrow_table()):
        rows = found.select(SHOWN.column_names).to_pylist()
        assert rows == [
            {**row, "flag": None if row["flag"] is None else int(row["flag"])}
            for row in SHOWN.to_pylist()
        ]
    names = ["hour", "flag", "price"]
    for decoded in (None, {"directory": str(tmp_path / "staged"), "decoded": True}):
        with FeatureLoader(
            url, slots=["hour", "many"], extras=names, where="hour = 0 or hour is null",
            staging=decoded,
        ) as loader:  # fmt: skip
            [batch] = [*loader]
        assert batch["hour"].tolist() == [0, 0, 0]
        assert batch["many"].values.tolist() == [0, 0]
        assert batch.extras.to_pydict() == {
            "hour": [0, None, 0], "flag": [0, None, 0], "price": [0.1, 0.0, 1.0]
        }  # fmt: skip


def figures(summary: Any) -> dict[str, tuple[int, int, list[int], list[float]]]:
    return {
        name: (of.num_present, of.num_values, of.values.tolist(), of.counts.tolist())
        for name, of in summary.items()
        if name != "id"
    }


def test_profiles_count_zeros_as_values(url: str) -> None:
    table = featstore.open_table(url)
    expected = {
        "hour": (3, 3, [0, 5], [2, 1]),
        "small": (3, 3, [0, 1, 2], [1, 1, 1]),
        "flag": (3, 3, [0, 1], [2, 1]),
        "many": (3, 2, [0], [2]),
        "ratio": (2, 2, [], []),
        "price": (3, 3, [], []),
    }
    assert figures(table.profile().summaries) == expected
    rows = gather_rows(table.schema, table.to_batches())
    assert figures(summarize(rows, table.slots)) == expected


def test_polars_and_statistics_see_lists_of_zeros_as_lists(tmp_path: Path) -> None:
    pq.write_table(ROWS.select(["hour", "many", "ratio"]), tmp_path / "a.parquet")
    table = featstore.open_table(tmp_path)
    found = table.polars().collect().to_dict(as_series=False)
    assert found == SHOWN.select([*found]).to_pydict()
    rows = gather_rows(table.schema, table.to_batches())
    assert (rows.columns["many"].length_sum, rows.columns["many"].length_max) == (3, 2)


def test_row_groups_are_pruned_by_zeros_and_by_counts_of_nulls(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet", 1)
    pruned = {"hour = 0": 2, "hour is null": 3, "hour is not null": 1, "price = 0.1": 3}
    for where, expected in pruned.items():
        with FeatureLoader(tmp_path, slots=["small"], where=where) as loader:
            assert sum(len(batch) for batch in loader) == 4 - expected
            assert loader.stats()["row_groups_pruned"] == expected, where


def test_declared_slots_beside_columns_of_others_keep_their_marks(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spec = "spec: 1\ninputs: {u: string}\nslots:\n  - {slot: 1, name: user, op: hash, of: u}\n"
    (tmp_path / "spec.yaml").write_text(spec)
    pq.write_table(pa.table({"u": ["a", None]}), tmp_path / "raw.parquet")
    featstore.extract(tmp_path / "spec.yaml", tmp_path / "raw.parquet", table)
    more = pa.table({"user": [0, 6], "score": [0, 1]})
    write_deltalake(table, more, mode="append", schema_mode="merge")
    counts = {"user = 0": 0, "user is null": 2, "score = 0": 1, "score is null": 2}
    opened = featstore.open_table(table)
    for where, expected in counts.items():
        assert opened.to_arrow(where=where).num_rows == expected
        assert delete_rows(table, where, dry_run=True).num_rows == expected
        with FeatureLoader(table, slots=["user", "score"], where=where) as loader:
            assert sum(map(len, loader)) == expected
    values = opened.to_arrow().sort_by("score")
    assert values["score"].to_pylist() == [0, 1, None, None]
    assert values["user"].to_pylist()[:2] == [None, 6]
    assert [slot.comment for slot in opened.slots] == [
        "slot 1, id, scalar; missing is 0",
        "slot, id, scalar; missing is null",
    ]


NUMBERS = st.sampled_from([None, 0, 1, -1, 2])
TERMS = st.sampled_from(
    [
        f"{name} {condition}"
        for name, condition in itertools.product(
            ("x", "y"),
            ("= 0", "!= 0", "< 1", ">= 0", "is null", "is not null", "in (0, 2)", "not in (0, 1)",
             "between -1 and 0"),
        )
    ]
    + ["x = y", "x < y", "not (x = 0)"]
)  # fmt: skip
WHERES = st.builds(
    lambda first, word, then: f"{first} {word} not ({then})",
    TERMS,
    st.sampled_from(["and", "or"]),
    TERMS,
)


@settings(max_examples=20)
@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), where=TERMS | WHERES)
def test_a_predicate_finds_the_rows_that_duckdb_finds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any]], where: str
) -> None:
    path = tmp_path_factory.mktemp("rows")
    x, y = zip(*rows, strict=True)
    columns = {
        "row": range(len(rows)),
        "x": pa.array(x, pa.int32()),
        "y": pa.array(y, pa.float64()),
    }
    pq.write_table(pa.table(columns), path / "a.parquet", 3)
    asked = f"SELECT row FROM '{path}/a.parquet' WHERE {where} ORDER BY row"
    with duckdb.connect() as connection:
        expected = [row for (row,) in connection.sql(asked).fetchall()]
    table: Table = featstore.open_table(path)
    assert table.to_arrow(where=where)["row"].to_pylist() == expected
    with FeatureLoader(path, slots=["x"], extras=["row"], where=where) as loader:
        assert [row for batch in loader for row in batch.extras["row"].to_pylist()] == expected
