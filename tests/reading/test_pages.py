"""The kernels decode column chunks to the values that Arrow's columns give, or leave them to
Arrow.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.reading.buffers import slot_values
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import PageReader
from featstore.reading.reader import RowGroupReader
from tests.parquet_files import put_parquet
from tests.slot_values import assert_equal

ID_LIST = Slot(name="x", kind=SlotKind.ID, shape=(None,))


@st.composite
def columns(draw: Any) -> Any:
    """A slot, a column of it, and how it is written."""
    kind, is_list = draw(st.sampled_from(SlotKind)), draw(st.booleans())
    rng, num_rows = (
        np.random.default_rng(draw(st.integers(0, 2**32))),
        draw(st.sampled_from([1, 7, 1_000, 2_600])),
    )
    value_nulls, list_nulls, longest = (
        draw(st.sampled_from(of)) for of in ([0, 0, 0.1, 1], [0, 0.2, 1], [0, 1, 9])
    )
    lengths = rng.integers(0, longest + 1, num_rows) if is_list else np.ones(num_rows, np.int64)
    is_null = rng.random(num_rows) < list_nulls
    elements = draw(st.booleans()) or value_nulls > 0
    values = _values(rng, kind, int(lengths.sum()), draw(st.sampled_from([1, 2, 100, 10**6])))
    dropped = rng.random(len(values)) < value_nulls
    array = pa.array(values, mask=dropped if (elements and is_list) or not is_list else None)
    type_ = array.type
    if is_list:
        type_ = pa.list_(pa.field("element", array.type, nullable=elements))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        array = pa.ListArray.from_arrays(
            offsets, array, type=type_, mask=pa.array(is_null) if is_null.any() else None
        )
    is_nullable = array.null_count > 0 or draw(st.booleans())
    table = pa.table([array], schema=pa.schema([pa.field("x", type_, nullable=is_nullable)]))
    how = {
        "compression": draw(st.sampled_from(["snappy", "zstd", "none"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([64, 5_000, 2**20])),
        "use_dictionary": draw(st.booleans()),
        "dictionary_pagesize_limit": draw(st.sampled_from([400, 2**20])),
        "write_batch_size": draw(st.sampled_from([10, 1024])),
        "row_group_size": draw(st.sampled_from([num_rows, 700])),
    }
    return Slot(name="x", kind=kind, shape=(None,) if is_list else ()), table, how


def _values(rng: Any, kind: Any, count: Any, vocabulary: Any) -> Any:
    if kind is SlotKind.ID:
        return rng.integers(-(2**63), 2**63 - 1, vocabulary)[rng.integers(0, vocabulary, count)]
    return rng.normal(size=vocabulary).astype(np.float32)[rng.integers(0, vocabulary, count)]


@settings(deadline=None)
@given(columns())
def test_what_the_kernels_decode_is_what_arrow_gives(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any
) -> None:
    slot, table, how = drawn
    path = put_parquet(tmp_path_factory.mktemp("pages") / "file.parquet", table, **how)
    for is_portable in (False, True):
        for of_ours, of_arrows in _row_groups(path, slot, is_portable=is_portable):
            assert of_ours is not None
            of_ours.validate(full=True)
            assert_equal(
                slot_values(pa.chunked_array([of_ours]), slot), slot_values(of_arrows, slot)
            )
    ours, arrows = _together(path, slot)
    ours.validate(full=True)
    assert_equal(slot_values(pa.chunked_array([ours]), slot), slot_values(arrows, slot))


@given(columns(), st.randoms(), st.sampled_from([1, 50, 96, 99, 100]))
def test_rows_are_left_out_as_they_are_decoded(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, random: Any, percent: int
) -> None:
    slot, table, how = drawn
    path = put_parquet(tmp_path_factory.mktemp("pages") / "file.parquet", table, **how)
    mask = np.array([random.random() * 100 < percent for _ in range(table.num_rows)], bool)
    mask[random.randrange(table.num_rows + 1) :] &= random.random() < 0.5  # or none of the last
    rows = np.flatnonzero(mask)
    with OpenFile(path) as footer:
        row_groups = range(len(footer.row_group_rows))
        reader = RowGroupReader(footer, Selection(slots=(slot,)), as_values=True)
        ours, expected = reader.read(row_groups, mask), reader.read(row_groups)
        assert ours.num_rows == len(rows)
        assert_equal(ours.slot(slot), expected.take(rows).slot(slot))
        arrows = RowGroupReader(footer, Selection(slots=(slot,))).read(row_groups, mask)
        assert_equal(arrows.slot(slot), ours.slot(slot))


@given(columns(), st.randoms())
def test_rows_are_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, random: Any
) -> None:
    slot, table, how = drawn
    path = put_parquet(tmp_path_factory.mktemp("pages") / "file.parquet", table, **how)
    order = np.array(random.sample(range(table.num_rows), table.num_rows), np.int64)
    with OpenFile(path) as footer:
        row_groups = range(len(footer.row_group_rows))
        reader = RowGroupReader(footer, Selection(slots=(slot,)), as_values=True)
        ours, expected = reader.read(row_groups, order), reader.read(row_groups)
        assert_equal(ours.slot(slot), expected.take(order).slot(slot))
        arrows = RowGroupReader(footer, Selection(slots=(slot,))).read(row_groups, order)
        assert_equal(arrows.slot(slot), ours.slot(slot))


@pytest.mark.parametrize("is_portable", [False, True], ids=["wide", "portable"])
@pytest.mark.parametrize("width", range(21))
def test_indices_of_any_width_are_those_of_the_dictionary(
    tmp_path: Path, width: int, is_portable: bool
) -> None:
    """The number of values makes the last group of packed indices end with the page."""
    rng, vocabulary = np.random.default_rng(width), 1 << width
    ids = rng.permutation(np.concatenate([np.arange(vocabulary), rng.integers(0, vocabulary, 999)]))
    path = put_parquet(
        tmp_path / "file.parquet",
        {"x": ids},
        dictionary_pagesize_limit=1 << 24,
        data_page_size=1 << 12,
        row_group_size=1 << 21,
        compression="none",
    )
    [(ours, arrows)] = _row_groups(path, Slot(name="x", kind=SlotKind.ID), is_portable=is_portable)
    assert ours.equals(arrows.combine_chunks())


def _together(path: Any, slot: Any) -> Any:
    """All row groups at once, the last one first."""
    with OpenFile(path) as footer:
        row_groups = [*range(len(footer.row_group_rows))]
        row_groups = [row_groups[-1], *row_groups[:-1]]
        found = PageReader(footer, [slot], footer.resolve(Selection(slots=(slot,)))).read(
            row_groups
        )
        return found[slot.name].array, footer.arrow_file(None).read_row_groups(row_groups).column(
            slot.name
        )


def _row_groups(path: Any, slot: Any, *, is_portable: bool = False) -> Iterator[Any]:
    """Each row group's column as the kernels decode it, None where they do not, and as Arrow
    does.
    """
    with OpenFile(path) as footer:
        columns = footer.resolve(Selection(slots=(slot,)))
        reader = PageReader(footer, [slot], columns, is_portable=is_portable)
        for index in range(len(footer.row_group_rows)):
            found = reader.read([index]).get(slot.name)
            if found is not None:
                assert_equal(found.values, slot_values(pa.chunked_array([found.array]), slot))
            yield (
                None if found is None else found.array,
                footer.arrow_file(None).read_row_group(index).column(slot.name),
            )


@pytest.mark.parametrize(
    ("values", "how"),
    [
        ([[1, 2], [3]], {"compression": "gzip"}),
        (
            [[1, 2], [3]],
            {"use_dictionary": False, "column_encoding": {"x.list.element": "BYTE_STREAM_SPLIT"}},
        ),
        (pa.array([[1, 2], [3]], pa.list_(pa.int32())), {}),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), {}),
    ],
    ids=["another codec", "another encoding", "another width", "a fixed width"],
)
def test_what_the_kernels_do_not_know_is_left_to_arrow(
    tmp_path: Path, values: Any, how: Any
) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "file.parquet", **how)
    ((ours, arrows),) = _row_groups(tmp_path / "file.parquet", ID_LIST)
    assert ours is None
    assert len(arrows) == 2


def test_lists_with_wide_offsets_are_stored_as_others_are(tmp_path: Path) -> None:
    values = pa.array([[1, 2], [3]], pa.large_list(pa.int64()))
    pq.write_table(pa.table({"x": values}), tmp_path / "file.parquet")
    ((ours, arrows),) = _row_groups(tmp_path / "file.parquet", ID_LIST)
    assert ours is not None
    assert len(arrows) == 2


@settings(deadline=None)
@given(
    st.sampled_from([pa.int16(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")]),
    st.integers(0, 700),
    st.integers(0, 64),
    st.integers(0, 99),
    st.booleans(),
)
def test_differences_are_what_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    type_: pa.DataType,
    num_rows: int,
    num_bits: int,
    seed: int,
    is_portable: bool,
) -> None:
    """Of any width, in pages that end within blocks and miniblocks, and sums that wrap."""
    path, num_bits = tmp_path_factory.getbasetemp() / "deltas", min(num_bits, type_.bit_width)
    words = np.random.default_rng(seed).integers(0, 2**64, num_rows, np.uint64)
    values = (words >> np.uint64(64 - num_bits) if num_bits else words * 0).view(np.int64)
    kept = pa.array(values.astype(f"i{type_.bit_width // 8}")).cast(type_)
    lists = pa.array(
        [[], *([value] * (row % 3) for row, value in enumerate(values.tolist()))][:num_rows],
        pa.list_(pa.int64()),
    )
    pq.write_table(
        pa.table({"kept": kept, "x": lists}),
        path,
        use_dictionary=False,
        data_page_size=1_000,
        write_batch_size=100,
        column_encoding=dict.fromkeys(("kept", "x.list.element"), "DELTA_BINARY_PACKED"),
    )
    with OpenFile(path) as file:
        field = pa.field("kept", type_)
        columns = file.resolve(Selection(slots=(ID_LIST,), others=(field,)))
        reader = PageReader(file, [ID_LIST], columns, others=[field], is_portable=is_portable)
        found = reader.read([0])
    if num_rows:
        assert found["kept"].array.equals(kept)
        assert found["x"].array.equals(lists)


def test_nulls_of_what_is_no_slot_stay_where_rows_are_left_out(tmp_path: Path) -> None:
    """Long runs of rows are kept while they are decoded; the kernels leave such nulls out."""
    kept = pa.array([None if row % 3 == 0 else row for row in range(4_000)], pa.int64())
    path = put_parquet(tmp_path / "file.parquet", pa.table({"kept": kept}))
    field, mask = pa.field("kept", pa.int64()), np.arange(4_000) % 100 != 0
    with OpenFile(path) as file:
        reader = RowGroupReader(file, Selection(slots=(), others=(field,)), as_values=True)
        found = reader.read([0], mask).other(field)
    assert found.combine_chunks().equals(kept.filter(pa.array(mask)))


def test_another_encoding_is_left_to_arrow_without_reading_its_pages(tmp_path: Path) -> None:
    path, ids = tmp_path / "file.parquet", np.random.default_rng(1).integers(0, 2**62, 50_000)
    pq.write_table(
        pa.table({"x": ids}),
        path,
        use_dictionary=False,
        column_encoding={"x": "BYTE_STREAM_SPLIT"},
    )
    slot = Slot(name="x", kind=SlotKind.ID)
    with OpenFile(path) as footer:
        reader = PageReader(footer, [slot], footer.resolve(Selection(slots=(slot,))))
        before = _num_bytes_read()
        assert reader.read([0]) == {}
        assert _num_bytes_read() - before < 10_000 < path.stat().st_size


def _num_bytes_read() -> int:
    """By this process, so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_several_threads_decode_all_columns(tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(20)]
    pq.write_table(
        pa.table({name: [[number, None], None, []] for number, name in enumerate(names)}),
        tmp_path / "file.parquet",
    )
    slots = [Slot(name=name, kind=SlotKind.ID, shape=(None,)) for name in names]
    with OpenFile(tmp_path / "file.parquet") as footer:
        reader = PageReader(footer, slots, footer.resolve(Selection(slots=tuple(slots))))
        found = reader.read([0], num_threads=3)
    assert {name: column.array.to_pylist() for name, column in found.items()} == {
        name: [[number], [0], []] for number, name in enumerate(names)
    }


def test_a_damaged_chunk_is_left_to_arrow_or_decoded_to_something_of_the_same_shape(
    tmp_path: Path,
) -> None:
    """Arrow finds no more of the damage than the kernels: without checksums a value that changed is
    a value.
    """
    rng, path = np.random.default_rng(1), tmp_path / "file.parquet"
    lists = [None if n % 7 == 0 else list(range(n % 5)) for n in range(400)]
    pq.write_table(pa.table({"x": pa.array(lists, pa.list_(pa.int64()))}), path, compression="none")
    whole, (first, end) = path.read_bytes(), _chunk(path)
    num_left = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for place in rng.integers(first, end, rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        found = _decoded(path)
        num_left += found is None
        if found is not None:
            found.validate(full=True)
            assert len(found) == len(lists)
    assert num_left > 100


def _chunk(path: Path) -> tuple[int, int]:
    chunk = pq.read_metadata(path).row_group(0).column(0)
    first = chunk.dictionary_page_offset or chunk.data_page_offset
    return first, first + chunk.total_compressed_size


def _decoded(path: Path) -> pa.Array | None:
    """The column as the kernels decode it, None where they do not, or say that nobody may."""
    with OpenFile(path) as footer, contextlib.suppress(DataFileError):
        reader = PageReader(footer, [ID_LIST], footer.resolve(Selection(slots=(ID_LIST,))))
        found = reader.read([0]).get("x")
        return None if found is None else found.array
    return None


def test_a_shortened_file_is_left_to_arrow(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "file.parquet", {"x": [[1, 2, 3]] * 50})
    with OpenFile(path) as footer:
        reader = PageReader(footer, [ID_LIST], footer.resolve(Selection(slots=(ID_LIST,))))
        assert reader.read([0])["x"].array.to_pylist() == [[1, 2, 3]] * 50
        path.write_bytes(b"")
        assert reader.read([0]) == {}


def test_a_column_that_is_also_asked_for_as_it_is_keeps_its_nulls(tmp_path: Path) -> None:
    slot, field = Slot(name="x", kind=SlotKind.ID), pa.field("x", pa.int64())
    pq.write_table(pa.table({"x": [1, None, 3]}), tmp_path / "file.parquet")
    with OpenFile(tmp_path / "file.parquet") as footer:
        reader = RowGroupReader(
            footer, Selection(slots=(slot,), others=(field,)), as_values=True, num_threads=1
        )
        rows = reader.read([0])
    assert rows.other(field).to_pylist() == [1, None, 3]
    ids: Any = rows.slot(slot)
    assert ids.tolist() == [1, 0, 3]


def test_a_column_behind_an_extension_of_several_leaves_is_found(tmp_path: Path) -> None:
    storage = pa.array([{"p": n, "q": n} for n in range(3)])
    opaque = pa.ExtensionArray.from_storage(pa.opaque(storage.type, "shape", "vendor"), storage)
    pq.write_table(
        pa.table({"e": opaque, "x": [1, 2, 3], "y": [4, 5, 6]}), tmp_path / "file.parquet"
    )
    slot = Slot(name="y", kind=SlotKind.ID)
    ((ours, arrows),) = _row_groups(tmp_path / "file.parquet", slot)
    assert ours.to_pylist() == arrows.to_pylist() == [4, 5, 6]


OTHER_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]


@st.composite
def other_columns(draw: Any) -> Any:
    """A column that is no slot, and how it is written."""
    type_, num_rows = draw(st.sampled_from(OTHER_TYPES)), draw(st.sampled_from([1, 70, 2_600]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.integers(-100, 100, num_rows).astype(type_.to_pandas_dtype())
    is_null = rng.random(num_rows) < draw(st.sampled_from([0, 0, 0.1]))
    is_nullable = bool(is_null.any()) or draw(st.booleans())
    field = pa.field("x", type_, nullable=is_nullable)
    table = pa.table([pa.array(values, mask=is_null)], schema=pa.schema([field]))
    how = {
        "compression": draw(st.sampled_from(["snappy", "zstd", "none"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([64, 2**20])),
        "use_dictionary": draw(st.booleans()),
        "row_group_size": draw(st.sampled_from([num_rows, 700])),
    }
    return table, how


@settings(deadline=None)
@given(other_columns())
def test_columns_that_are_no_slots_are_as_arrow_reads_them(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any
) -> None:
    table, how = drawn
    path, field = tmp_path_factory.mktemp("pages") / "file.parquet", table.field("x")
    pq.write_table(table, path, **how)
    selection = Selection(others=(field,))
    with OpenFile(path) as footer:
        pages = PageReader(footer, (), footer.resolve(selection), others=selection.others)
        reader = RowGroupReader(footer, selection, num_threads=1)
        for index in range(len(footer.row_group_rows)):
            expected = pq.ParquetFile(path).read_row_group(index)
            assert reader.read([index]).table.equals(expected)
            assert ("x" in pages.read([index])) is (expected.column("x").null_count == 0)


@pytest.mark.parametrize(
    "type_",
    [pa.uint8(), pa.bool_(), pa.string(), pa.date32(), pa.decimal128(5, 2), pa.list_(pa.int64())],
    ids=str,
)
def test_other_types_of_columns_that_are_no_slots_are_left_to_arrow(
    tmp_path: Path, type_: pa.DataType
) -> None:
    table = pa.table({"x": pa.nulls(0, type_)}).cast(
        pa.schema([pa.field("x", type_, nullable=False)])
    )
    pq.write_table(table, tmp_path / "file.parquet")
    selection = Selection(others=(table.field("x"),))
    with OpenFile(tmp_path / "file.parquet") as footer:
        columns = footer.resolve(selection)
        assert PageReader(footer, (), columns, others=selection.others).read([0]) == {}
        assert RowGroupReader(footer, selection).read([0]).table.equals(table)


def test_a_number_that_its_type_does_not_hold_is_arrow_s_to_read(tmp_path: Path) -> None:
    """Pages hold int8 as int32."""
    path, selection = tmp_path / "file.parquet", Selection(others=(pa.field("x", pa.int8()),))
    table = pa.table({"x": pa.array([1, 2, 77, 4], pa.int8())})
    pq.write_table(table, path, use_dictionary=False, compression="none", write_statistics=False)
    written = path.read_bytes()
    [place] = [at for at in range(len(written)) if written[at : at + 4] == b"\x4d\0\0\0"]
    path.write_bytes(written[:place] + b"\x4d\1\0\0" + written[place + 4 :])
    with OpenFile(path) as footer:
        columns = footer.resolve(selection)
        assert PageReader(footer, (), columns, others=selection.others).read([0]) == {}
        found = RowGroupReader(footer, selection).read([0]).table
    assert found.equals(pq.read_table(path))
