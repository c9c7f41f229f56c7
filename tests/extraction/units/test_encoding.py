from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.encoding import (
    DICTIONARY_LIMIT_BYTES,
    MIN_VALUES,
    SHARED_LIMIT_BYTES,
    Encodings,
    choose_encodings,
    count_distinct,
    num_in_dictionary,
    parquet_options,
    pays_to_compress,
)
from featstore.extraction.units.writer import open_data_file
from featstore.table.metadata import FileMetadata

NUM_ROWS, ROWS_PER_ROW_GROUP = 6_000, 5_000


def table(columns: dict[str, pa.Array], required: frozenset[str] = frozenset()) -> pa.Table:
    fields = [
        pa.field(name, array.type, nullable=name not in required) for name, array in columns.items()
    ]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def test_columns_that_repeat_get_a_dictionary_by_their_leaf_path() -> None:
    columns = {
        "few": pa.array([1, 2] * 50),
        "many": pa.array(range(100)),
        "list_few": pa.array([[1, 2]] * 100),
        "list_many": pa.array([[2 * i, 2 * i + 1] for i in range(100)]),
        "flag": pa.array([True, False] * 50),
    }
    chosen = choose_encodings(table(columns, frozenset(columns)))
    assert chosen == Encodings(dictionary=("few", "list_few.list.element"), others={})


def test_labels_and_kept_columns_that_do_not_repeat_get_the_delta_of_their_type() -> None:
    columns = {
        "number": pa.array(range(100)),
        "time": pa.array(range(100), pa.timestamp("us")),
        "text": pa.array([str(i) for i in range(100)]),
        "double": pa.array(np.arange(100.0)),
        "lists": pa.array([[i] for i in range(100)]),
        "nothing": pa.nulls(100),
        "country": pa.array(["a", "b"] * 50),
    }
    delta, texts = "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"
    chosen = choose_encodings(table(columns))
    assert chosen.others == {"number": delta, "time": delta, "text": texts}
    assert chosen.dictionary == ("country",)


@pytest.mark.parametrize(
    ("distinct_share", "id_pays", "float_pays"),
    [(0.1, True, True), (0.3, True, False), (0.5, True, False), (0.7, False, False)],
)
def test_a_dictionary_pays_off_by_the_bytes_it_saves(
    distinct_share: float, id_pays: bool, float_pays: bool
) -> None:
    values = np.resize(np.arange(int(65_536 * distinct_share)), 65_536)
    for array, pays in ((values, id_pays), (values.astype(np.float32), float_pays)):
        assert (num_in_dictionary(pa.chunked_array([array])) > 0) == pays


def test_a_dictionary_that_would_overflow_does_not_pay_off() -> None:
    texts = pa.chunked_array([pa.array([f"{i % 5_000:01000d}" for i in range(10_000)])])
    assert num_in_dictionary(texts) == 0


def test_a_larger_dictionary_pays_off_for_the_lists_that_rows_of_a_history_share() -> None:
    ids = pa.array(np.resize(np.arange(140_000), 500_000))
    offsets = pa.array(np.array([0, len(ids)], np.int32))
    lists = pa.ListArray.from_arrays(offsets, ids)
    rows = pa.table({"own": lists, "shared": lists})
    found = parquet_options(rows, shared=["shared.list.element"])
    assert found["use_dictionary"] == ["shared.list.element"]
    assert found["dictionary_pagesize_limit"] == SHARED_LIMIT_BYTES
    assert parquet_options(rows)["dictionary_pagesize_limit"] == DICTIONARY_LIMIT_BYTES


def test_slots_that_hardly_shrink_are_not_compressed() -> None:
    signs = np.random.default_rng(1).integers(1, 2**63, 8_192)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 8_193, 2, dtype=np.int32)), pa.array(signs)
    )
    columns = {
        "sign": pa.array(signs[:4_096]),
        "runs": pa.array(np.repeat(signs[:64], 64)),
        "signs": lists.cast(pa.list_(pa.field("element", pa.int64(), nullable=False))),
        "label": pa.array(signs[:4_096]),
    }
    rows = table(columns, frozenset(columns) - {"label"})
    assert choose_encodings(rows).uncompressed == ("sign", "signs.list.element")
    assert parquet_options(rows, "zstd")["compression"] == {
        "sign": "NONE",
        "runs": "zstd",
        "signs.list.element": "NONE",
        "label": "zstd",
    }
    assert choose_encodings(rows.slice(0, 2_000)).uncompressed == ()


def test_all_leaves_of_nested_columns_are_compressed_and_only_flat_columns_have_statistics(
    tmp_path: Path,
) -> None:
    pair = pa.struct({"x.y": pa.int64(), "z": pa.list_(pa.string())})
    types = {
        "a.b": pa.int64(),
        "pair": pair,
        "pairs": pa.list_(pair),
        "map": pa.map_(pa.string(), pa.list_(pa.int64())),
        "large": pa.large_list(pa.int64()),
    }
    rows = pa.Table.from_pylist(
        [{"a.b": 1, "pair": {"x.y": 1, "z": ["a"]}, "pairs": [{"x.y": 2, "z": []}], "large": [1]}],
        pa.schema(types),
    )
    pq.write_table(rows, tmp_path / "a.parquet", **parquet_options(rows))
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    assert {chunk.compression for chunk in chunks} == {"SNAPPY"}
    assert [chunk.path_in_schema for chunk in chunks if chunk.is_stats_set] == ["a.b"]


def test_no_rows_make_no_dictionary() -> None:
    assert choose_encodings(table({"a": pa.array([], pa.int64())}, frozenset("a"))) == Encodings(
        dictionary=(), others={}
    )


SCHEMA = SlotSchema(
    slots=(
        Slot(name="user", kind=SlotKind.ID, number=1),
        Slot(name="few", kind=SlotKind.ID, number=2),
        Slot(name="tags", kind=SlotKind.ID, number=3, shape=(None,)),
        Slot(name="price", kind=SlotKind.FLOAT, number=4),
        Slot(name="prices", kind=SlotKind.FLOAT, number=5, shape=(None,)),
    ),
    labels=(pa.field("click", pa.int64()), pa.field("bought", pa.bool_())),
    kept=(
        pa.field("request", pa.string()),
        pa.field("country", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ),
)


@pytest.fixture(scope="module", params=["snappy", "zstd"])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, list[Any]]]:
    """A file with each encoding that the writer uses, and its rows."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {
        "user": rng.integers(1, 2**63 - 1, NUM_ROWS).tolist(),
        "few": (rng.integers(0, 5, NUM_ROWS) + 2**62).tolist(),
        "tags": [[i, 2**62 + i % 3] if i % 3 else [] for i in range(NUM_ROWS)],
        "price": rng.random(NUM_ROWS).astype(np.float32).tolist(),
        "prices": [[0.5 * i] * (i % 4) for i in range(NUM_ROWS)],
        "click": [None if i % 7 == 0 else i % 2 for i in range(NUM_ROWS)],
        "bought": [None if i % 5 == 0 else i % 2 == 0 for i in range(NUM_ROWS)],
        "request": [None if i % 11 == 0 else f"r-{i * 7919}" for i in range(NUM_ROWS)],
        "country": [f"c{i % 3}" for i in range(NUM_ROWS)],
        "number": [None if i % 13 == 0 else i * i - 5_000 for i in range(NUM_ROWS)],
        "at": [
            None if i % 17 == 0 else 1_700_000_000_000_003 + i * 1_000_003 for i in range(NUM_ROWS)
        ],
    }
    path = tmp_path_factory.mktemp("readers") / "a.parquet"
    arrow = pa.RecordBatch.from_arrays(
        [pa.array(rows[f.name], f.type) for f in SCHEMA.to_arrow()], schema=SCHEMA.to_arrow()
    )
    with open_data_file(
        str(path),
        SCHEMA,
        FileMetadata(spec_hash="s", spec_version=1),
        ROWS_PER_ROW_GROUP,
        request.param,
    ) as writer:
        writer.write(arrow)
    return path, rows


def plain(table: pa.Table) -> dict[str, list[Any]]:
    at = table.schema.get_field_index("at")
    found: dict[str, list[Any]] = table.set_column(
        at, "at", table["at"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    ).to_pydict()
    return found


def test_every_kind_of_column_is_written_as_chosen(
    written: tuple[Path, dict[str, list[Any]]],
) -> None:
    group = pq.read_metadata(written[0]).row_group(0)
    found = {
        group.column(i).path_in_schema: set(group.column(i).encodings) - {"RLE", "PLAIN"}
        for i in range(11)
    }
    dictionary, delta = {"RLE_DICTIONARY"}, {"DELTA_BINARY_PACKED"}
    assert found == {
        "user": set(),
        "few": dictionary,
        "tags.list.element": dictionary,
        "price": set(),
        "prices.list.element": set(),
        "click": dictionary,
        "bought": set(),
        "request": {"DELTA_LENGTH_BYTE_ARRAY"},
        "country": dictionary,
        "number": delta,
        "at": delta,
    }


def test_both_kinds_of_chunks_are_in_the_file_of_either_codec(
    written: tuple[Path, dict[str, list[Any]]],
) -> None:
    footer = pq.read_metadata(written[0])
    for group in range(footer.num_row_groups):
        chunks = [footer.row_group(group).column(i) for i in range(11)]
        uncompressed = {c.path_in_schema for c in chunks if c.compression == "UNCOMPRESSED"}
        assert uncompressed >= {"user", "few"}
        assert uncompressed.isdisjoint({"click", "request", "country", "number", "at"})


def test_arrow_polars_and_duckdb_read_every_value(
    written: tuple[Path, dict[str, list[Any]]],
) -> None:
    path, rows = written
    assert plain(pq.read_table(path)) == rows
    assert plain(polars.read_parquet(path).to_arrow()) == rows
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        assert (
            plain(
                connection.sql("SELECT * FROM read_parquet(?)", params=[str(path)]).to_arrow_table()
            )
            == rows
        )


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_reads_every_value(
    written: tuple[Path, dict[str, list[Any]]], vectorized: str, spark: Any
) -> None:
    path, rows = written
    option = "spark.sql.parquet.enableVectorizedReader"
    before = spark.conf.get(option)
    spark.conf.set(option, vectorized)
    try:
        assert plain(spark.read.parquet(str(path)).toArrow()) == rows
    finally:
        spark.conf.set(option, before)


@pytest.mark.parametrize("num_distinct", [1, 50, 3_000, 40_000, 131_072, 500_000])
@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.float32()])
def test_numbers_are_counted_to_within_one_percent(
    num_distinct: int, arrow_type: pa.DataType
) -> None:
    values = pa.array(np.resize(np.arange(num_distinct), 600_000)).cast(arrow_type)
    assert count_distinct(pa.chunked_array([values])) == pytest.approx(
        num_distinct, rel=0.01, abs=1
    )


def test_distinct_signs_are_never_counted_as_more_than_there_are() -> None:
    signs = np.random.default_rng(1).integers(0, 2**63, 60_000)
    assert 59_400 <= count_distinct(pa.chunked_array([signs])) <= 60_000


def test_chunking_does_not_change_counts() -> None:
    whole = pa.array(np.arange(10_000) % 777)
    assert count_distinct(
        pa.chunked_array([whole[:1], whole[1:3_000], whole[3_000:]])
    ) == count_distinct(pa.chunked_array([whole]))


def test_texts_and_nulls_are_counted_exactly() -> None:
    assert count_distinct(pa.chunked_array([["a", "b", None, "a"]])) == 3
    assert count_distinct(pa.chunked_array([pa.array([1, None, 1])])) == 2
    assert count_distinct(pa.chunked_array([], pa.int64())) == 0


NUM_VALUES = 65_536
RNG = np.random.default_rng(5)
SIGNS = RNG.integers(1, 2**63, 1 << 18)


def pays(values: object, codec: str = "snappy") -> bool:
    column = pa.chunked_array([values])
    return pays_to_compress(column, num_in_dictionary(column), pa.Codec(codec))


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
@pytest.mark.parametrize(
    "values",
    [
        SIGNS[:NUM_VALUES],
        SIGNS[RNG.integers(0, 20_000, NUM_VALUES)],
        RNG.integers(0, 1_000, NUM_VALUES).astype(np.float32),
    ],
    ids=["unique signs", "signs that repeat", "floats that repeat"],
)
def test_what_was_drawn_at_random_is_not_compressed(values: object, codec: str) -> None:
    assert not pays(values, codec)


def test_the_codec_that_the_file_has_decides() -> None:
    floats = RNG.random(NUM_VALUES).astype(np.float32)  # zstd packs their exponents
    assert not pays(floats, "snappy")
    assert pays(floats, "zstd")


@pytest.mark.parametrize(
    "values",
    [
        np.repeat(SIGNS[: NUM_VALUES // 64], 64),
        np.where(RNG.random(NUM_VALUES) < 0.01, SIGNS[1], SIGNS[0]),
    ],
    ids=["signs in runs", "nearly always one sign"],
)
def test_runs_and_skew_are_compressed(values: object) -> None:
    assert pays(values)


def test_a_column_of_few_values_is_compressed_without_a_trial() -> None:
    assert pays(SIGNS[: MIN_VALUES - 1])
    assert not pays(SIGNS[:MIN_VALUES])
    assert pays(SIGNS[:0])


def test_a_dictionary_that_outweighs_its_indices_does_not_pay_however_these_shrink() -> None:
    # Indices of 18 bits are 147 kB, their dictionary is 2 MB.
    column, codec = pa.chunked_array([np.zeros(NUM_VALUES, np.int64)]), pa.Codec("snappy")
    assert pays_to_compress(column, 2, codec)
    assert not pays_to_compress(column, 1 << 18, codec)


def test_slices_and_chunks_do_not_change_the_choice() -> None:
    ids = pa.array(np.concatenate([SIGNS[:10], np.repeat(SIGNS[:1_024], 64)]))
    whole = pa.chunked_array([ids.slice(10)])
    cut = pa.chunked_array([ids.slice(10, 1), ids.slice(11, 0), ids.slice(11)])
    found = [pays_to_compress(column, 1_024, pa.Codec("snappy")) for column in (whole, cut)]
    assert found == [True, True]
