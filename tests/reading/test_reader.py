import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.reading.buffers import Ragged
from featstore.reading.file_columns import Selection
from featstore.reading.kept import KeptSpans
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows
from tests.parquet_files import put_parquet
from tests.python_memory import threads_of_bytes

USER = Slot(name="user", kind=SlotKind.ID, number=1)
NEW = Slot(name="new", kind=SlotKind.ID, number=2, shape=(None,))
LABEL = pa.field("click", pa.float32())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return put_parquet(
        tmp_path / "a",
        {"user": [1, 2, 3, 4, 5], "unused": list("abcde"), "click": [0, 1, None, 1, 0]},
        row_group_size=2,
    )


def ids_of(rows: Rows) -> list[int]:
    values = rows.slot(USER)
    assert isinstance(values, np.ndarray)
    ids: list[int] = values.tolist()
    return ids


def test_row_groups_come_one_by_one_with_the_selected_columns_only(path: Path) -> None:
    with OpenFile(path) as footer:
        reader = RowGroupReader(footer, Selection(slots=(USER,), others=(LABEL,)))
        rows = [reader.read([index]) for index in range(3)]
    assert [ids_of(found) for found in rows] == [[1, 2], [3, 4], [5]]
    assert rows[1].other(LABEL).to_pylist() == [None, 1.0]
    assert rows[0].table.column_names == ["user", "click"]


def test_several_row_groups_are_read_as_one(path: Path) -> None:
    with OpenFile(path) as footer:
        rows = RowGroupReader(footer, Selection(slots=(USER,))).read(range(1, 3))
    assert (rows.num_rows, ids_of(rows)) == (3, [3, 4, 5])
    assert ids_of(rows.take(np.array([2, 0]))) == [5, 3]


def test_columns_that_the_file_lacks_are_missing(path: Path) -> None:
    with OpenFile(path) as footer:
        rows = RowGroupReader(
            footer, Selection(slots=(NEW,), others=(pa.field("kept", pa.string()),))
        ).read([0])
    new = rows.slot(NEW)
    assert isinstance(new, Ragged)
    assert new.values.tolist() == [0, 0]
    assert rows.other(pa.field("kept", pa.string())).to_pylist() == [None, None]
    assert rows.slot_column(NEW).to_pylist() == [None, None]


def test_values_that_do_not_fit_name_file_and_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": pa.array([2**63], pa.uint64())}), tmp_path / "a")
    with OpenFile(tmp_path / "a", "day/a") as footer:
        rows = RowGroupReader(footer, Selection(slots=(USER,))).read([0])
        with pytest.raises(DataFileError, match="day/a: column 'user': expected int64"):
            rows.slot(USER)


def test_labels_that_do_not_fit_name_file_and_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"click": pa.array([1.5])}), tmp_path / "a")
    with OpenFile(tmp_path / "a", "day/a") as footer:
        rows = RowGroupReader(footer, Selection(others=(pa.field("click", pa.int64()),))).read([0])
        with pytest.raises(DataFileError, match="day/a: column 'click': expected int64"):
            rows.other(pa.field("click", pa.int64()))


def test_a_damaged_row_group_is_told_of(path: Path) -> None:
    with OpenFile(path, "day/a") as footer:
        with path.open("r+b") as file:
            file.seek(4)
            file.write(b"\xff" * 60)
        with pytest.raises(DataFileError, match="day/a: column 'user': row group 0 cannot be read"):
            RowGroupReader(footer, Selection(slots=(USER,))).read([0])


def test_no_thread_of_arrow_holds_bytes_of_a_file_that_is_read_in_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that frees memory of Python while the interpreter ends aborts the process."""
    threads = threads_of_bytes(monkeypatch, KeptSpans)
    selection = Selection(slots=(USER,), others=(LABEL, pa.field("unused", pa.string())))
    with path.open("rb") as source, OpenFile(source) as file:
        reader = RowGroupReader(file, selection, num_threads=4)
        assert reader.read(range(3)).num_rows == 5
        slices = reader.slices(0, 1)
        assert slices is not None
        assert [rows.num_rows for rows in slices] == [1, 1]
    assert set(threads) == {(threading.get_ident(),) * 2}


def test_positions_follow_rows_that_are_taken_and_pieces(path: Path) -> None:
    with OpenFile(path) as file:
        read = RowGroupReader(file, Selection(slots=(USER,), others=(LABEL,))).read([0, 1, 2])
    rows = replace(read, positions=np.arange(10, 15))

    def positions_of(found: Rows) -> list[int]:
        assert found.positions is not None
        positions: list[int] = found.positions.tolist()
        assert [position - 9 for position in positions] == ids_of(found)
        return positions

    assert [positions_of(piece) for piece in rows.pieces()] == [[10, 11], [12, 13], [14]]
    assert positions_of(rows.take(np.array([3, 0]))) == [13, 10]
    is_taken = np.array([False, True, True, False, True])
    assert [positions_of(piece) for piece in rows.take(is_taken).pieces()] == [[11, 12, 14]]
