import errno
import io
import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError, StateError, StoreError
from featstore.base.schema import Slot, SlotKind
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from tests.parquet_files import put_parquet
from tests.short_reads import ShortFile, unreadable_descriptors

LIST = pa.list_(pa.field("element", pa.int64()))


def write(path: Path, schema: pa.Schema) -> OpenFile:
    return OpenFile(put_parquet(path, schema.empty_table()), "day/part.parquet")


def slot(
    name: str,
    number: int | None = None,
    shape: tuple[int | None, ...] = (),
    kind: SlotKind = SlotKind.ID,
) -> Slot:
    return Slot(name=name, kind=kind, shape=shape, number=number)


def test_a_slot_is_found_by_its_number_before_its_name(tmp_path: Path) -> None:
    schema = pa.schema([slot("old", 101).to_field(), slot("new", 102).to_field()])
    with write(tmp_path / "a.parquet", schema) as footer:
        columns = footer.resolve(Selection(slots=(slot("new", 101), slot("other", 103))))
    assert columns.slots == {"new": "old", "other": None}
    assert tuple(leaf.path for leaf in columns.leaves) == ("old",)


def test_a_column_of_another_number_is_not_the_slot_though_named_alike(tmp_path: Path) -> None:
    with write(tmp_path / "a.parquet", pa.schema([slot("user", 101).to_field()])) as footer:
        assert footer.resolve(Selection(slots=(slot("user", 205),))).slots == {"user": None}


def test_a_foreign_file_is_read_by_name(tmp_path: Path) -> None:
    with write(tmp_path / "a.parquet", pa.schema([("user", pa.int32()), ("tags", LIST)])) as footer:
        columns = footer.resolve(Selection(slots=(slot("tags", 7, (None,)), slot("user", 8))))
    assert columns.slots == {"tags": "tags", "user": "user"}
    assert tuple(leaf.path for leaf in columns.leaves) == ("user", "tags.list.element")


def test_names_with_dots_and_nested_neighbours_select_only_themselves(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("a", pa.struct([("b", pa.int64()), ("c", LIST)])),
            ("a.b", pa.int64()),
            ("m", pa.map_("str", "int64")),
        ]
    )
    with write(tmp_path / "a.parquet", schema.append(pa.field("z", LIST))) as footer:
        columns = footer.resolve(Selection(slots=(slot("a.b"), slot("z", shape=(None,)))))
    assert tuple(leaf.path for leaf in columns.leaves) == ("a.b", "z.list.element")


def test_a_column_without_values_is_missing(tmp_path: Path) -> None:
    with write(tmp_path / "a.parquet", pa.schema([("user", pa.null())])) as footer:
        columns = footer.resolve(
            Selection(slots=(slot("user"),), others=(pa.field("user", pa.string()),))
        )
    assert (columns.slots, columns.others) == ({"user": None}, {"user": None})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.string(), slot("x")),
        (pa.float32(), slot("x")),
        (pa.int64(), slot("x", kind=SlotKind.FLOAT)),
        (pa.int64(), slot("x", shape=(None,))),
        (LIST, slot("x")),
        (pa.list_(pa.int64(), 3), slot("x", shape=(2,))),
        (pa.struct([("a", pa.int64())]), slot("x")),
    ],
)
def test_another_type_is_refused_with_file_column_expected_and_found(
    tmp_path: Path, found: Any, expected: Any
) -> None:
    with (
        write(tmp_path / "a.parquet", pa.schema([("x", found)])) as footer,
        pytest.raises(DataFileError, match=r"day/part.parquet: column 'x': expected .*, found "),
    ):
        footer.resolve(Selection(slots=(expected,)))


def test_a_label_of_another_type_is_refused_but_other_numbers_are_not(tmp_path: Path) -> None:
    with write(
        tmp_path / "a.parquet", pa.schema([("click", pa.int8()), ("note", pa.string())])
    ) as footer:
        assert footer.resolve(Selection(others=(pa.field("click", pa.float32()),))).others == {
            "click": "click"
        }
        with pytest.raises(DataFileError, match="column 'note': expected float, found string"):
            footer.resolve(Selection(others=(pa.field("note", pa.float32()),)))


def test_a_slot_is_no_label_though_named_alike(tmp_path: Path) -> None:
    with write(tmp_path / "a.parquet", pa.schema([slot("user", 101).to_field()])) as footer:
        assert footer.resolve(Selection(others=(pa.field("user", pa.int64()),))).others == {
            "user": None
        }
        assert footer.resolve(Selection(slots=(slot("visitor", 101),))).slots == {"visitor": "user"}


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not a Parquet file, though long enough to be one")
    with pytest.raises(DataFileError, match="expected a Parquet file"):
        OpenFile(tmp_path / "a.parquet")


def test_a_file_that_is_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="found none; was it vacuumed"):
        OpenFile(tmp_path / "a.parquet")


def two_columns(
    path: Path, names: tuple[str, str], fields: tuple[pa.Field, pa.Field] | None = None
) -> OpenFile:
    found = fields or tuple(pa.field(name, pa.int64()) for name in names)
    arrays = [pa.array([1, 2], field.type) for field in found]
    schema = pa.schema([field.with_name(name) for field, name in zip(found, names, strict=True)])
    return OpenFile(
        put_parquet(path, pa.Table.from_arrays(arrays, schema=schema)), "day/part.parquet"
    )


@pytest.mark.parametrize("as_slot", [True, False], ids=["slot", "label"])
def test_two_columns_of_the_selected_name_are_refused_and_of_another_name_are_not(
    tmp_path: Path, as_slot: bool
) -> None:
    selected = (
        Selection(slots=(slot("x"),)) if as_slot else Selection(others=(pa.field("x", pa.int64()),))
    )
    with (
        two_columns(tmp_path / "a.parquet", ("x", "x")) as footer,
        pytest.raises(
            DataFileError, match=r"day/part\.parquet: column 'x': expected once, found 2 times"
        ),
    ):
        footer.resolve(selected)
    with two_columns(tmp_path / "b.parquet", ("y", "y")) as footer:
        assert set(footer.resolve(selected).slots.values()) <= {None}


def test_two_columns_of_the_selected_slot_number_are_refused_with_both_names(
    tmp_path: Path,
) -> None:
    field = slot("user", 101).to_field(nullable=True)
    with (
        two_columns(tmp_path / "a.parquet", ("user", "copy"), (field, field)) as footer,
        pytest.raises(
            DataFileError, match=r"expected one column of slot number 101, found 'user' and 'copy'"
        ),
    ):
        footer.resolve(Selection(slots=(slot("user", 101),)))


def test_a_slot_whose_column_has_the_name_of_another_column_is_refused(tmp_path: Path) -> None:
    fields = (slot("user", 101).to_field(nullable=True), pa.field("user", pa.int64()))
    with (
        two_columns(tmp_path / "a.parquet", ("old", "old"), fields) as footer,
        pytest.raises(DataFileError, match="column 'old': expected once"),
    ):
        footer.resolve(Selection(slots=(slot("user", 101),)))


def test_a_row_group_is_read_no_further_once_another_thread_says_so(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "a.parquet")
    closed = bytearray(1)
    with OpenFile(tmp_path / "a.parquet", cancelled=closed) as file:
        reader = RowGroupReader(file, Selection(slots=(slot("a"),)), as_values=True, num_threads=1)
        ids: Any = reader.read([0]).slot(slot("a"))
        assert ids.tolist() == [1, 2, 3]
        closed[0] = 1
        with pytest.raises(StateError):
            reader.read([0])


FAULTS = [errno.EMFILE, errno.EACCES, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EIO]


def failing(number: int) -> Any:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return fail


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("call", ["open", "seek"])
def test_a_file_that_the_system_cannot_open_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    with monkeypatch.context() as patched:
        if call == "open":
            patched.setattr(Path, "open", failing(number))
        else:
            patched.setattr("featstore.reading.open_file.read_checked", failing(number))
        with pytest.raises(
            StoreError, match=rf"day/a .*: cannot be read: {os.strerror(number)}; "
        ) as f:
            OpenFile(path, "day/a")
    assert f.value.errno == number
    assert not open_of(path)
    with OpenFile(path, "day/a") as file:
        assert file.num_rows == 3


@pytest.mark.parametrize("number", FAULTS)
def test_a_file_that_arrow_cannot_open_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    with OpenFile(path, "day/a") as file:
        with monkeypatch.context() as patched:
            patched.setattr(pa, "OSFile", failing(number))
            with pytest.raises(
                StoreError, match=rf"day/a .*: cannot be read: {os.strerror(number)}; "
            ) as f:
                file.arrow_file(None)
        assert f.value.errno == number
        assert file.arrow_file(None).read().num_rows == 3
    assert not open_of(path)


def test_arrow_reads_a_file_that_was_removed_after_it_was_opened(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    with OpenFile(path, "day/a") as file:
        path.unlink()
        assert file.arrow_file(None).read().num_rows == 3


def open_of(path: Path) -> list[str]:
    """The descriptors of a file that this process has."""
    return [
        fd.name for fd in Path("/proc/self/fd").iterdir() if fd.exists() and fd.resolve() == path
    ]


def test_the_limit_of_open_files_is_told_of(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
    with ExitStack() as holes:
        for _ in range(num_open + 1):
            if holes.enter_context(path.open("rb")).fileno() >= num_open:
                break
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 1, before[1]))
        try:
            with pytest.raises(
                StoreError,
                match=rf"^day/a \(staged as {path}\): cannot be read: .*Too many open files; raise "
                r".*ulimit -n",
            ) as found:
                OpenFile(path, "day/a")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found.value.errno == errno.EMFILE


def test_a_file_that_opens_itself_is_gone_or_closed_like_another(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    opened = list[BinaryIO]()

    def remote() -> BinaryIO:
        opened.append(path.open("rb"))
        return opened[-1]

    with OpenFile(remote, "day/a") as file:
        assert file.num_rows == 3
    assert opened[0].closed
    path.unlink()
    with pytest.raises(DataFileError, match="day/a: expected a data file, found none"):
        OpenFile(remote, "day/a")


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_remote_file_that_fails_while_it_is_read(tmp_path: Path, is_gone: bool) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": list(range(9))})
    error: OSError = (
        FileNotFoundError(errno.ENOENT, "No such file") if is_gone else StoreError("503")
    )

    class Remote(io.FileIO):
        fails = False

        def read(self, size: int | None = -1, /) -> bytes:
            if self.fails:
                raise error
            return super().read(size)

    with Remote(path) as remote, OpenFile(cast(BinaryIO, remote), "day/a") as file:
        reader = RowGroupReader(file, Selection(slots=(slot("x"),)), as_values=True)
        remote.fails = True
        if is_gone:
            with pytest.raises(DataFileError, match=r"day/a: cannot be read: .*No such file"):
                reader.read([0])
        else:
            with pytest.raises(StoreError) as found:
                reader.read([0])
            assert found.value is error
        remote.fails = False
        assert reader.read([0]).num_rows == 9


def test_reads_of_a_remote_file_that_give_less_are_read_on(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": list(range(900))}, row_group_size=300)
    with ShortFile(path) as remote, OpenFile(cast(BinaryIO, remote)) as file:
        reader = RowGroupReader(file, Selection(slots=(slot("x"),)), as_values=True)
        assert reader.read(range(3)).table["x"].to_pylist() == list(range(900))
        assert remote.num_short >= 3


@pytest.mark.parametrize("as_values", [True, False])
@pytest.mark.parametrize("is_sliced", [True, False])
def test_a_fault_while_rows_are_read_is_told_as_what_it_is(
    tmp_path: Path, as_values: bool, is_sliced: bool
) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": list(range(5000)), "t": ["a", "b"] * 2500})
    selection = Selection(slots=(slot("x"),), others=(pa.field("t", pa.string()),))
    with OpenFile(path, "day/a") as file:
        reader = RowGroupReader(file, selection, as_values=as_values)
        file.arrow_file(None)
        assert unreadable_descriptors(path) >= 2
        with pytest.raises(
            StoreError, match=r"day/a .*: cannot be read: .*Bad file descriptor"
        ) as found:
            list(reader.slices(0, 1000) or ()) if is_sliced else reader.read([0])
    assert found.value.errno == errno.EBADF


def test_a_chunk_that_declares_far_more_than_it_stores_is_found(tmp_path: Path) -> None:
    columns = {"x": np.zeros(1_000_000, np.int64), "y": np.arange(1_000_000) * 7919 % 1_000_003}
    path = put_parquet(tmp_path / "a.parquet", columns, row_group_size=600_000)
    with OpenFile(path, "day/a") as file:
        of_zeros = file.resolve(Selection(slots=(slot("x"),)))
        assert file.inflated(of_zeros, 1_000_000) == "day/a: column 'x': row group 0"
        assert file.inflated(of_zeros, 100_000_000) is None
        assert file.inflated(file.resolve(Selection(slots=(slot("y"),))), 1_000_000) is None
