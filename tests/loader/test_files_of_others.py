"""Tables as Spark, polars and pandas write them: each value is delivered as the writer meant it."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import featstore
from featstore.base.errors import DataFileError
from featstore.extraction.deletion import delete_rows
from featstore.ops.hashing import sign, value_hash

UTC = datetime.UTC
FAR = [datetime.datetime(9999, 12, 31, tzinfo=UTC), datetime.datetime(1, 1, 1, tzinfo=UTC)]
NEAR = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


def delta_over(root: Path, files: list[pa.Table], **types: Any) -> str:
    """A Delta table of columns with these types of its protocol, over files as they are."""
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in types.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {"id": "x", "format": {"provider": "parquet", "options": {}}, "createdTime": 0}
    metadata |= {"schemaString": schema, "partitionColumns": [], "configuration": {}}
    log: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    (root / "_delta_log").mkdir(parents=True)
    for number, table in enumerate(files):
        path = root / f"{number}.parquet"
        pq.write_table(table, path, use_deprecated_int96_timestamps="int96" in root.name)
        add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size}
        log.append({"add": add | {"modificationTime": 0, "dataChange": True}})
    text = "\n".join(map(json.dumps, log))
    (root / "_delta_log" / f"{0:020}.json").write_text(text)
    return str(root)


def extras(url: str, *names: str, **options: Any) -> dict[str, list[Any]]:
    """These columns of all rows, as the loader delivers them, which is as `to_arrow` does."""
    with featstore.FeatureLoader(url, slots=["id"], extras=names, **options) as loader:
        found: dict[str, list[Any]] = pa.concat_tables(b.extras for b in loader).to_pydict()
    rows = featstore.open_table(url).to_arrow(slots=["id", *names_of_slots(url, names)])
    if not options:
        assert found == {name: rows[name].to_pylist() for name in names}
    return found


def names_of_slots(url: str, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in featstore.open_table(url).schema]


@pytest.mark.parametrize("unit", ["int96", "ms", "ns"])
def test_times_of_a_delta_table_are_microseconds_in_utc(tmp_path: Path, unit: str) -> None:
    times = [None, None, NEAR, None] if unit == "ns" else [*FAR, NEAR, None]
    type_ = pa.timestamp("us" if unit == "int96" else unit, "UTC")
    rows = pa.table({"id": [1, 2, 3, 4], "ts": pa.array(times, type_)})
    url = delta_over(tmp_path / unit, [rows], id="long", ts="timestamp")
    assert extras(url, "ts") == {"ts": times}
    early = [time for time in times if time is not None and time.year < 1970]
    assert extras(url, "ts", where="ts < '1970-01-01'") == {"ts": early}
    rows = featstore.open_table(url).to_arrow(where="ts < '1970-01-01'")
    assert rows["ts"].to_pylist() == early


def test_a_time_of_a_nanosecond_before_1970_is_before_1970_to_pruning_too(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "ts": pa.array([-1], pa.timestamp("ns", "UTC"))})
    url = delta_over(tmp_path / "t", [rows], id="long", ts="timestamp")
    last = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert extras(url, "ts") == {"ts": [last]}
    assert extras(url, "ts", where="ts < '1970-01-01'") == {"ts": [last]}


def test_a_deletion_keeps_times_and_texts_of_another_writer(tmp_path: Path) -> None:
    names = pa.array(["a", None, "c"], pa.large_string())
    ts = pa.array([*FAR, NEAR], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": [1, 2, 3], "ts": ts, "name": names})
    url = delta_over(tmp_path / "int96", [rows], id="long", ts="timestamp", name="string")
    delete_rows(url, "id = 2")
    expected = {"id": [1, 3], "ts": [FAR[0], NEAR], "name": ["a", "c"]}
    assert featstore.open_table(url).to_arrow().to_pydict() == expected


def test_texts_of_any_layout_are_texts_of_a_delta_table(tmp_path: Path) -> None:
    kinds = [pa.string(), pa.large_string(), pa.string_view()]
    files = [pa.table({"id": [1], "name": pa.array(["a"], kind)}) for kind in kinds]
    url = delta_over(tmp_path / "t", files, id="long", name="string")
    assert extras(url, "name") == {"name": ["a"] * 3}
    assert featstore.open_table(url).to_arrow(where="name = 'a'").num_rows == 3
    for kind in kinds:
        write_deltalake(tmp_path / str(kind), pa.table({"id": [1], "s": pa.array(["ü"], kind)}))
        assert extras(str(tmp_path / str(kind)), "s") == {"s": ["ü"]}


def test_inner_types_of_files_and_table_may_differ(tmp_path: Path) -> None:
    required = pa.list_(pa.field("element", pa.string(), nullable=False))
    point = pa.struct([pa.field("y", pa.int32(), nullable=False), pa.field("x", pa.int32())])
    columns = {
        "id": [1, 2],
        "names": pa.array([["a"], None], required),
        "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "at": pa.array([{"y": 1, "x": 2}, None], point),
        "small": pa.array([1, None], pa.int16()),
        "price": pa.array([1, None], pa.int32()),
        "note": pa.nulls(2),
    }
    element = {"type": "array", "elementType": "string", "containsNull": True}
    counts = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}
    member = {"type": "long", "metadata": {}}
    at = [member | {"name": "x", "nullable": False}, member | {"name": "y", "nullable": True}]
    types: dict[str, Any] = {"id": "long", "names": element, "counts": counts}
    types |= {"at": {"type": "struct", "fields": at}, "small": "long", "price": "double"}
    url = delta_over(tmp_path / "t", [pa.table(columns)], **types, note="string")
    assert extras(url, "names", "counts", "at", "note") == {
        "names": [["a"], None],
        "counts": [[("a", 1)], None],
        "at": [{"x": 2, "y": 1}, None],
        "note": [None, None],
    }
    with featstore.FeatureLoader(url, slots=["small", "price"]) as loader:
        (batch,) = loader
    assert batch["small"].tolist() == [1, 0]
    assert batch["price"].nan_to_num(-1).tolist() == [1.0, -1.0]
    assert featstore.open_table(url).to_arrow()["price"].to_pylist() == [1.0, None]


SEED = 7
ROWS: dict[str, list[Any]] = {
    "id": [1, 2, 3, 4],
    "request": ["a", "b", "c", "d"],
    "emb": [[1.0, 2.0], [], None, [0.5]],
    "ids": [[1], [2, 3], None, []],
    "at": [datetime.datetime(2026, 1, day) for day in (1, 2, 3, 4)],
    "click": [0, 0, 0, 1],
}


@pytest.fixture(params=["arrow", "pandas", "polars"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same rows by each writer: large text and lists, nanoseconds."""
    path = tmp_path / request.param / "0.parquet"
    path.parent.mkdir()
    if request.param == "arrow":
        pq.write_table(pa.table(ROWS), path)
    elif request.param == "pandas":
        times = pd.to_datetime(ROWS["at"]).astype("datetime64[ns]")
        pd.DataFrame(ROWS | {"at": times}).to_parquet(path)
    else:
        pl.DataFrame(ROWS).write_parquet(path)
    return str(path.parent)


def test_a_directory_of_any_writer_has_the_same_extras(directory: str) -> None:
    found = extras(directory, "request", "emb", "ids", "at", "click")
    assert found == {name: ROWS[name] for name in ("request", "emb", "ids", "at", "click")}
    assert extras(directory, "click", where="click = 0") == {"click": [0] * 3}


@pytest.mark.parametrize("column", ["request", "at", "id"])
def test_a_sample_of_any_writers_column_has_the_same_rows(directory: str, column: str) -> None:
    times = [f"{int(at.replace(tzinfo=UTC).timestamp())}000000" for at in ROWS["at"]]
    texts = {"at": times, "request": ROWS["request"], "id": list(map(str, ROWS["id"]))}[column]
    hashes = sign(SEED, value_hash(pa.array(texts))).to_pylist()
    expected = [row for row, hash_ in zip(ROWS["id"], hashes, strict=True) if hash_ < 2**62]
    assert 0 < len(expected) < 4
    where = f"sample({column}, 0.5, {SEED})"
    with featstore.FeatureLoader(directory, slots=["id"], where=where) as loader:
        assert [x for batch in loader for x in batch["id"].tolist()] == expected
    assert featstore.open_table(directory).to_arrow(where=where)["id"].to_pylist() == expected
    negatives = {"label": "click", "rate": 0.5, "seed": SEED, "column": column}
    options: dict[str, Any] = {"labels": ["click"], "negatives": negatives}
    with featstore.FeatureLoader(directory, slots=["id"], **options) as loader:
        kept = [x for batch in loader for x in batch["id"].tolist()]
    assert kept == sorted({*expected, 4})


@pytest.mark.parametrize(
    ("where", "is_chosen"),
    [
        (None, lambda number: True),
        ("id % 2 = 0", lambda number: number % 2 == 0),
        ("name < '5'", lambda number: str(number - 1) < "5"),
    ],
)
def test_rows_of_views_are_filtered_and_shuffled(
    tmp_path: Path, where: str | None, is_chosen: Callable[[int], bool]
) -> None:
    """Arrow cannot take rows of them."""
    names = [str(row) for row in range(100)]
    columns = {"name": pa.array(names, pa.string_view())}
    columns["lists"] = pa.array([[name] for name in names], pa.list_view(pa.string_view()))
    pq.write_table(pa.table({"id": range(1, 101), **columns}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"extras": ["name", "lists"], "shuffle": True, "batch_size": 7}
    with featstore.FeatureLoader(str(tmp_path), slots=["id"], where=where, **options) as loader:
        found = {
            number: row
            for batch in loader
            for number, row in zip(batch["id"].tolist(), batch.extras.to_pylist(), strict=True)
        }
    chosen = filter(is_chosen, range(1, 101))
    assert found == {n: {"name": names[n - 1], "lists": [names[n - 1]]} for n in chosen}


def test_two_layouts_and_a_null_column_in_one_directory(tmp_path: Path) -> None:
    names = [pa.array(["a"], pa.large_string()), pa.array(["b"]), pa.nulls(1)]
    for number, array in enumerate(names):
        rows = pa.table({"id": [number + 1], "name": array, "x": [[0.5]] if number else [None]})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    assert extras(str(tmp_path), "name", "x") == {
        "name": ["a", "b", None],
        "x": [None, [0.5], [0.5]],
    }


def test_a_column_that_nobody_asked_for_refuses_nothing(tmp_path: Path) -> None:
    for number, note in enumerate(["a", 2]):
        rows = pa.table({"id": [number + 1], "note": [note], "x": [0.5]})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    url, table = str(tmp_path), featstore.open_table(str(tmp_path))
    with featstore.FeatureLoader(url, slots=["id"], where="x > 0") as loader:
        assert [x for batch in loader for x in batch["id"].tolist()] == [1, 2]
    assert table.profile(slots=["id"], where="x > 0").num_rows == 2
    assert table.to_arrow(slots=["x"]).to_pydict() == {"x": [0.5, 0.5]}
    assert table.head(1)["note"].to_pylist() == ["a"]
    with pytest.raises(
        DataFileError, match=r"1\.parquet: column 'note': expected string, found in"
    ):
        extras(url, "note")
