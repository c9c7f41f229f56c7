import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.base.intervals import Span, united
from featstore.base.schema import Slot, SlotKind
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from featstore.reading.spans import are_held, plan_spans, require_held

NAMES = [f"s{i}" for i in range(8)]


@pytest.fixture(scope="module")
def data() -> bytes:
    columns = {name: pa.array(range(i, 4000 + i), pa.int64()) for i, name in enumerate(NAMES)}
    columns["tags"] = pa.array([[i, i + 1] for i in range(4000)], pa.list_(pa.int64()))
    columns["odd.name"] = pa.array([float(i) for i in range(4000)], pa.float32())
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=1000, compression="snappy")
    return sink.getvalue()


def _selection(data: Any, names: Any) -> Selection:
    schema = pq.read_schema(io.BytesIO(data))
    return Selection(others=tuple(schema.field(name) for name in names))


def _plan(data: Any, selection: Any) -> Any:
    tail_bytes = 0
    while isinstance(
        found := plan_spans(data[len(data) - tail_bytes :], len(data), selection, "t/a.parquet"),
        int,
    ):
        assert found > tail_bytes
        tail_bytes = found
    return [*found, (len(data) - tail_bytes, len(data))]


def _sparse(data: Any, spans: Any, path: Any) -> Any:
    """A file that holds only the spans."""
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), len(data))
        for first, end in spans:
            file.seek(first)
            file.write(data[first:end])
    return path


@given(names=st.sets(st.sampled_from([*NAMES, "tags", "odd.name"])))
def test_the_planned_spans_are_a_file_for_the_selection(
    data: bytes, tmp_path_factory: pytest.TempPathFactory, names: Any
) -> None:
    names = sorted(names)
    selection = _selection(data, names)
    spans = _plan(data, selection)
    path = _sparse(data, spans, tmp_path_factory.mktemp("sparse") / "a.parquet")
    with OpenFile(path, "t/a.parquet") as footer:
        reader = RowGroupReader(footer, selection)
        require_held(footer, reader.columns, tuple(sorted(spans)))
        table = pa.concat_tables([reader.read([i]).table for i in range(4)]) if names else None
    assert table is None or table.equals(
        pq.read_table(io.BytesIO(data), columns=table.column_names)
    )


@pytest.mark.parametrize("name", ["s3", "tags", "odd.name"])
def test_a_column_that_was_not_staged_raises_with_slot_and_file_and_is_never_read_as_zeros(
    data: bytes, tmp_path: Path, name: str
) -> None:
    spans = tuple(sorted(_plan(data, _selection(data, ["s0", "s1"]))))
    with OpenFile(_sparse(data, spans, tmp_path / "a.parquet"), "t/a.parquet") as footer:
        columns = footer.resolve(_selection(data, ["s0", name]))
        slot = name.partition(".")[0]
        with pytest.raises(
            DataFileError,
            match=rf"t/a\.parquet: slot '{slot}': expected its bytes .* found only "
            rf"other columns; stage",
        ):
            require_held(footer, columns, spans)
        require_held(footer, columns, None)


def test_a_small_part_of_the_file_is_planned(data: bytes) -> None:
    assert sum(end - first for first, end in _plan(data, _selection(data, ["s0"]))) < len(data) / 3


def test_a_slot_is_found_by_its_name_where_the_file_has_no_numbers(data: bytes) -> None:
    selection = Selection(
        slots=(Slot(name="s2", kind=SlotKind.ID), Slot(name="nowhere", kind=SlotKind.ID))
    )
    assert len(_plan(data, selection)) == 4 + 1


@pytest.mark.parametrize(
    "garbage", [b"", b"short", b"x" * 100, b"x" * 96 + b"PAR1", b"x" * 92 + b"\xff\xff\xff\x7fPAR1"]
)
def test_what_is_no_parquet_is_an_error_with_the_files_name(data: bytes, garbage: Any) -> None:
    with pytest.raises(DataFileError, match=r"t/a\.parquet: expected a Parquet file"):
        _plan(garbage, _selection(data, ["s0"]))


SPANS: st.SearchStrategy[list[Span]] = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))
)


@given(spans=SPANS, held=SPANS.map(lambda spans: united(spans)))
def test_a_span_is_held_if_one_of_those_present_has_all_of_it(
    spans: list[Span], held: tuple[Span, ...]
) -> None:
    found = are_held(np.array(spans, np.int64).reshape(-1, 2), held)
    assert found.tolist() == [
        any(there <= first and end <= until for there, until in held) for first, end in spans
    ]
