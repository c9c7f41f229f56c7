"""Columns read through a footer with some columns equal those that Arrow reads through the file's
own.
"""

import io
import itertools
import string
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from featstore.native.footers import read_checked

FLAT = [
    pa.bool_(),
    pa.int8(),
    pa.uint16(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.binary(3),
    pa.date32(),
    pa.timestamp("ns"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.time64("ns"),
    pa.duration("ms"),
    pa.decimal128(20, 3),
    pa.null(),
    pa.uuid(),
]
NESTED = st.recursive(
    st.sampled_from(FLAT),
    lambda of: st.one_of(
        of.map(pa.list_),
        of.map(lambda type_: pa.list_(type_, 2)),
        of.map(lambda type_: pa.map_(pa.string(), type_)),
        st.lists(of, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f.{place}", type_) for place, type_ in enumerate(types)])
        ),
    ),
    max_leaves=4,
)
NAMES = st.lists(
    st.text(string.ascii_letters + ". é", min_size=1, max_size=8),
    min_size=1,
    max_size=6,
    unique=True,
)
HOW = st.fixed_dictionaries(
    {
        "version": st.sampled_from(["1.0", "2.4", "2.6"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        "use_dictionary": st.booleans(),
        "write_statistics": st.booleans(),
        "store_schema": st.booleans(),
        "write_page_index": st.booleans(),
        "write_page_checksum": st.booleans(),
        "use_deprecated_int96_timestamps": st.booleans(),
        "row_group_size": st.integers(1, 5),
    }
)


@st.composite
def tables(draw: Any) -> pa.Table:
    """A few rows of nulls and values. Some columns have a field id, some are not nullable."""
    names, num_rows = draw(NAMES), draw(st.integers(0, 7))
    fields, columns = [], []
    for number, name in enumerate(names):
        type_ = draw(NESTED)
        column = _values(type_, num_rows, draw(st.booleans()))
        metadata = {"PARQUET:field_id": str(number + 5)} if draw(st.booleans()) else None
        fields.append(pa.field(name, type_, nullable=True, metadata=metadata))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields, metadata={"who": "a test"}))


def _values(type_: pa.DataType, num_rows: int, are_there: bool) -> pa.Array:
    if are_there and type_ in (pa.int64(), pa.string(), pa.float64()):
        return pa.array(range(num_rows), pa.int64()).cast(type_)
    if are_there and pa.types.is_list(type_) and type_.value_type == pa.int64():
        return pa.array([list(range(row)) for row in range(num_rows)], type_)
    return pa.nulls(num_rows, type_)


def opened(
    file: bytes,
    places: list[int] | None,
    *,
    with_statistics: bool = False,
) -> pq.ParquetFile:
    footer = read_checked(io.BytesIO(file))
    metadata = footer.arrow_metadata(places, with_statistics=with_statistics)
    return pq.ParquetFile(io.BytesIO(file), metadata=metadata)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), HOW, st.data())
def test_any_columns_read_as_arrow_reads_them(table: Any, how: Any, data: st.DataObject) -> None:
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink, **how)
    except (pa.ArrowException, ValueError):
        assume(False)
    file = sink.getvalue()
    places = data.draw(st.lists(st.sampled_from(range(table.num_columns)), unique=True).map(sorted))
    try:
        expected = pq.ParquetFile(io.BytesIO(file)).read()
    except (pa.ArrowException, OSError):
        assume(False)
    found = opened(file, places)
    assert found.metadata.num_rows == table.num_rows
    selected = expected.select(places).replace_schema_metadata(None)
    assert found.schema_arrow.remove_metadata().equals(selected.schema, check_metadata=True)
    assert found.read().replace_schema_metadata(None).equals(selected)


@pytest.mark.parametrize("how", [{}, {"write_page_index": True}, {"version": "1.0"}])
def test_statistics_are_kept_where_they_are_asked_for(
    written: Callable[..., bytes], how: Any
) -> None:
    table = pa.table({"a": [3, None, 1], "b": [[1.5], [], None], "c": ["x", "z", "y"]})
    file = written(table, row_group_size=2, **how)
    known, found = pq.ParquetFile(io.BytesIO(file)), opened(file, [0, 2], with_statistics=True)
    bare = opened(file, [0, 2])
    for group, (place, of) in itertools.product(range(2), ((0, 0), (1, 2))):
        expected = known.metadata.row_group(group).column(of).statistics
        chunk = found.metadata.row_group(group).column(place)
        assert expected.has_min_max
        assert chunk.statistics.equals(expected)
        assert not bare.metadata.row_group(group).column(place).is_stats_set


def test_the_footer_handed_to_arrow_is_small(written: Callable[..., bytes]) -> None:
    file = written(pa.table({f"column_{place}": [place] for place in range(500)}))
    whole = int.from_bytes(file[-8:-4], "little")
    assert opened(file, [7, 9]).metadata.serialized_size < whole / 50


def test_the_key_values_of_the_writer_are_kept(written: Callable[..., bytes]) -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({"who": "a test"})
    assert read_checked(io.BytesIO(written(table))).key_values == {b"who": b"a test"}
