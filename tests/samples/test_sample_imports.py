import gzip
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError, SampleError, SampleStoreError, StoreError
from featstore.reading.kept import KeptSpans
from featstore.samples.sample_fields import checksum
from featstore.samples.sample_store import SampleStore
from tests.programs import Program, run_python
from tests.python_memory import threads_of_bytes
from tests.short_reads import FailingFile

IMPORT = """
import sys, featstore
store = featstore.SampleStore(sys.argv[1])
kind = sys.argv[2].rpartition(".")[2]
read = store.import_parquet if kind == "parquet" else store.import_json_lines
print(read(sys.argv[2], id_from="id"), flush=True)
"""
FIELDS = {"text": "text", "label": "integer"}


def rows(num_rows: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"r{i}", "text": f"text {i}", "label": i} for i in range(first, num_rows)]


def write_json(path: Path, given: list[dict[str, Any]]) -> Path:
    text = "".join(f"{json.dumps(row)}\n" for row in given)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_parquet(path: Path, given: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(given), path, row_group_size=700)
    return path


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore.create(tmp_path / "samples.sqlite", FIELDS)


def texts(store: SampleStore) -> list[str]:
    return [one["text"] for one in store]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_file_becomes_samples_and_is_not_imported_twice(
    tmp_path: Path, store: SampleStore, name: str
) -> None:
    if name.endswith("parquet"):
        path, read = write_parquet(tmp_path / name, rows(2_500)), store.import_parquet
    else:
        path, read = write_json(tmp_path / name, rows(2_500)), store.import_json_lines
    assert read(path, id_from="id") == 2_500
    assert store.by_id(["r7"]) == [{"text": "text 7", "label": 7}]
    assert texts(store) == [f"text {i}" for i in range(2_500)]
    assert read(path, id_from="id") == 0
    assert len(store) == 2_500


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_import_that_was_interrupted_goes_on_where_it_stopped(
    tmp_path: Path, store: SampleStore, kind: str
) -> None:
    """The 24,000th row is refused: two transactions of 10,000 are stored. Then the kinds of fields
    are as if the row were fine.
    """
    given = rows(30_000)
    write = write_json if kind == "jsonl" else write_parquet
    path = write(tmp_path / f"a.{kind}", given)
    other = SampleStore.create(tmp_path / "other.sqlite", FIELDS)
    other.append([{"text": "in the way"}], ids=["r24000"])
    read = other.import_json_lines if kind == "jsonl" else other.import_parquet
    with pytest.raises(
        SampleError, match=r"id 'r24000' is taken: .*the first 20000 of those given"
    ):
        read(path, id_from="id")
    assert len(other) == 20_001
    other.delete([0])  # The last sample moves to the front.
    assert read(path, id_from="id") == 10_000
    assert sorted(one["label"] for one in other) == list(range(30_000))
    assert read(path, id_from="id") == 0
    other.check()


def test_of_two_imports_at_once_one_is_refused_and_every_sample_is_stored_once(
    tmp_path: Path, store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins between two transactions of the first one."""
    path = write_json(tmp_path / "a.jsonl", rows(25_000))
    append = store._writer.append
    others: list[int] = []

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for done in append(*arguments):
            yield done
            if not others:
                others.append(SampleStore(store.path).import_json_lines(path))

    monkeypatch.setattr(store._writer, "append", interrupted)
    with pytest.raises(
        SampleStoreError,
        match=r"a\.jsonl is imported by another process, too: expected 10000 .*, found 25000",
    ):
        store.import_json_lines(path)
    assert others == [15_000]
    store.refresh()
    assert [one["label"] for one in store] == list(range(25_000))
    assert store.import_json_lines(path) == 0


def test_two_processes_that_import_a_file_store_every_sample_once(
    tmp_path: Path, store: SampleStore
) -> None:
    path = write_json(tmp_path / "a.jsonl", rows(10))
    programs = [Program(IMPORT, store.path, path) for _ in range(2)]
    for program in programs:
        program.communicate(timeout=120)
    store.refresh()
    assert [one["label"] for one in store] == list(range(10))


def test_a_key_that_the_first_samples_lack_is_imported_if_it_is_optional(
    tmp_path: Path, store: SampleStore
) -> None:
    given = [{"text": row["text"]} if row["label"] < 2_000 else row for row in rows(3_000)]
    path = write_json(tmp_path / "a.jsonl", given)
    with pytest.raises(
        SampleError, match=r"no sample has 'id'.*'label'.* name keys .* in `optional`"
    ):
        store.import_json_lines(path, id_from="id")
    assert len(store) == 0
    assert store.import_json_lines(path, id_from="id", optional=["id", "label"]) == 3_000
    assert [one["label"] for one in store] == [None] * 2_000 + list(range(2_000, 3_000))
    assert list(store.ids)[1_998:2_002] == [None, None, "r2000", "r2001"]


def test_a_column_that_some_files_lack_is_imported_if_it_is_optional(
    tmp_path: Path, store: SampleStore
) -> None:
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "a.parquet", [{"text": "a"}])
    write_parquet(tmp_path / "in" / "b.parquet", [{"text": "b", "label": 1}])
    with pytest.raises(SampleError, match=r"a\.parquet: no column 'label'"):
        store.import_parquet(tmp_path / "in")
    assert store.import_parquet(tmp_path / "in", optional=["label"]) == 2
    assert store[:] == [{"text": "a", "label": None}, {"text": "b", "label": 1}]


def test_rows_of_a_file_without_any_of_the_columns_are_imported(
    tmp_path: Path, store: SampleStore
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"other": 1}] * 3)
    assert store.import_parquet(path, optional=["text", "label"]) == 3
    assert store[:] == [{"text": None, "label": None}] * 3


def test_optional_keys_that_are_not_read_are_named(tmp_path: Path, store: SampleStore) -> None:
    path = write_json(tmp_path / "a.jsonl", rows(3))
    with pytest.raises(SampleError, match=r"optional: no field comes from 'lable' \(did you mean"):
        store.import_json_lines(path, optional=["lable"])


def test_a_later_file_and_the_rest_of_an_interrupted_one_may_lack_keys(
    tmp_path: Path, store: SampleStore
) -> None:
    """`label` is in the first 100 samples only; the 24,000th one stops the import."""
    given = [row if row["label"] < 100 else {"text": row["text"]} for row in rows(25_000)]
    write_json(tmp_path / "a.jsonl", [*given[:24_000], {"text": 50000}, *given[24_001:]])
    with pytest.raises(SampleError, match="sample 24000 of those given"):
        store.import_json_lines(tmp_path)
    store.refresh()
    assert len(store) == 20_000
    size = (tmp_path / "a.jsonl").stat().st_size
    times = (tmp_path / "a.jsonl").stat()
    write_json(tmp_path / "a.jsonl", [*given[:24_000], {"text": ""}, *given[24_001:]])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n" * (size - (tmp_path / "a.jsonl").stat().st_size))
    os.utime(tmp_path / "a.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    write_json(tmp_path / "b.jsonl", [{"text": "without"}])
    assert store.import_json_lines(tmp_path) == 5_001
    assert [one["label"] for one in store] == [*range(100), *([None] * 24_901)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_killed_imports_end_with_every_sample_once(tmp_path: Path, kind: str) -> None:
    write = write_json if kind == "jsonl" else write_parquet
    path = write(tmp_path / f"a.{kind}", rows(80_000))
    store = SampleStore.create(tmp_path / "samples.sqlite", FIELDS)
    num_kills = 0
    for _ in range(3):
        before = len(store)
        with Program(IMPORT, store.path, path) as program:
            while program.poll() is None:
                store.refresh()
                if len(store) > before:
                    program.send_signal(signal.SIGKILL)
                    num_kills += program.wait() == -signal.SIGKILL
    assert num_kills >= 2
    run_python(IMPORT, store.path, path)
    store.refresh()
    assert [one["label"] for one in store] == list(range(80_000))


def test_directories_and_globs_are_imported_file_by_file(
    tmp_path: Path, store: SampleStore
) -> None:
    (tmp_path / "in").mkdir()
    write_json(tmp_path / "in" / "b.jsonl", rows(20, first=10))
    write_json(tmp_path / "in" / "a.jsonl", rows(10))
    (tmp_path / "in" / "notes.txt").write_text("no JSON")
    assert store.import_json_lines(tmp_path / "in", id_from="id") == 20
    assert texts(store) == [f"text {i}" for i in range(20)]
    write_json(tmp_path / "in" / "c.jsonl", rows(25, first=20))
    assert store.import_json_lines(f"{tmp_path}/in/*.jsonl", id_from="id") == 5
    assert len(store) == 25


def test_fields_come_from_other_keys_nested_ones_and_whole_lines(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"url": "u1", "image": {"size": 3, "kind": {"a.b": "png"}}},
        {"url": "u2"},
    ]
    path = write_json(tmp_path / "a.jsonl", lines)
    kinds = {"url": "text", "size": "integer", "kind": "json", "line": "json"}
    store = SampleStore.create(tmp_path / "s", kinds)
    places = {"size": "image.size", "kind": "image.kind", "line": "*"}
    store.import_json_lines(path, columns=places, id_from="url")
    assert store[:] == [
        {"url": "u1", "size": 3, "kind": {"a.b": "png"}, "line": lines[0]},
        {"url": "u2", "size": None, "kind": None, "line": lines[1]},
    ]
    assert list(store.ids) == ["u1", "u2"]


def test_images_of_structs_in_parquet_are_bytes(tmp_path: Path) -> None:
    given = [{"image": {"bytes": bytes([i]) * 9, "path": f"{i}.png"}, "label": i} for i in range(5)]
    path = write_parquet(tmp_path / "a.parquet", given)
    store = SampleStore.create(tmp_path / "s", {"image": "bytes", "label": "integer"})
    store.import_parquet(path, columns={"image": "image.bytes"}, id_from="image.path")
    assert store.by_id(["3.png"]) == [{"image": b"\x03" * 9, "label": 3}]


def test_no_thread_of_arrow_holds_bytes_of_the_file(
    tmp_path: Path, store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that frees memory of Python while the interpreter ends aborts the process."""
    path = write_parquet(tmp_path / "a.parquet", rows(2_500))
    threads = threads_of_bytes(monkeypatch, KeptSpans)
    assert store.import_parquet(path) == 2_500
    assert set(threads) == {(threading.get_ident(),) * 2}


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path, store: SampleStore) -> None:
    """A column that cannot be read does no harm."""
    path = write_parquet(tmp_path / "a.parquet", [row | {"wide": "x" * 50} for row in rows(50)])
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 50) - 10 : data.index(b"x" * 50) + 40] = bytes(50)
    path.write_bytes(data)
    assert store.import_parquet(path) == 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b'{"text": "a", "label": 1}\n\n{"text": \n',
            r"a\.jsonl line 3: expected a JSON object \(",
        ),
        (b"[1]\n", r"line 1: expected a JSON object, found \[1\]"),
        (b"[" * 100_000, "line 1: expected a JSON object"),
        (b'{"text": "\xff", "label": 1}\n', "line 1: expected a JSON object .*utf-8"),
        (b'{"text": 1, "label": 1}\n', "sample 0 of those given: field 'text': expected text"),
        (
            b'{"txt": "a", "label": 1}\n' * 3,
            r"no sample has 'text' \(did you mean 'txt'\?\); one of them has \['label', 'txt'\]",
        ),
    ],
)
def test_lines_that_are_no_samples_are_named(
    tmp_path: Path, store: SampleStore, text: bytes, message: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(text)
    with pytest.raises(SampleError, match=message):
        store.import_json_lines(tmp_path / "a.jsonl")
    assert len(store) == 0


def test_a_column_that_is_missing_is_named_before_anything_is_stored(
    tmp_path: Path, store: SampleStore
) -> None:
    given = [{"text": row["text"], "labels": 1} for row in rows(3_000)]
    path = write_parquet(tmp_path / "a.parquet", given)
    with pytest.raises(SampleError, match=r"no column 'label' \(did you mean 'labels'\?\); there"):
        store.import_parquet(path)
    with pytest.raises(SampleError, match="no column 'key'"):
        store.import_parquet(path, columns={"label": "labels"}, id_from="key")
    assert len(store) == 0


def test_a_field_of_columns_that_there_is_not_is_named(tmp_path: Path, store: SampleStore) -> None:
    path = write_json(tmp_path / "a.jsonl", rows(3))
    with pytest.raises(SampleError, match=r"columns: unknown field 'lable' \(did you mean 'label'"):
        store.import_json_lines(path, columns={"lable": "label"})


def test_no_files_are_an_error(tmp_path: Path, store: SampleStore) -> None:
    with pytest.raises(SampleError, match="expected files to import, found none"):
        store.import_parquet(tmp_path / "*.parquet")


def test_a_compressed_file_that_is_cut_short_is_damaged(tmp_path: Path, store: SampleStore) -> None:
    path = write_json(tmp_path / "a.jsonl.gz", rows(100))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SampleError, match="expected a whole gzip file, found a damaged one"):
        store.import_json_lines(path)


@pytest.mark.parametrize("content", [b"no parquet", b"PAR1" * 100])
def test_what_is_no_parquet_file_is_named(
    tmp_path: Path, store: SampleStore, content: bytes
) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DataFileError, match=r"a\.parquet is no Parquet file"):
        store.import_parquet(tmp_path / "a.parquet")


def test_a_damaged_page_is_named(tmp_path: Path, store: SampleStore) -> None:
    path = tmp_path / "a.parquet"
    table = pa.Table.from_pylist(rows(500))
    pq.write_table(table, path, compression="none", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[data.index(b"text 400")] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataFileError, match=r"a\.parquet cannot be read: .*"):
        store.import_parquet(path)


def test_a_file_that_the_system_cannot_read_is_not_taken_for_damaged(
    tmp_path: Path, store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.Table.from_pylist(rows(5)), tmp_path / "a.parquet")
    with monkeypatch.context() as patched:
        patched.setattr(
            "featstore.samples.sample_imports.open_read", lambda url, size: FailingFile(url)
        )
        with pytest.raises(StoreError, match=r"a\.parquet: cannot be read: Input/output error"):
            store.import_parquet(tmp_path / "a.parquet")
    store.import_parquet(tmp_path / "a.parquet")
    assert len(store) == 5


def test_a_file_that_changed_since_its_import_began_is_refused(
    tmp_path: Path, store: SampleStore
) -> None:
    path = write_json(tmp_path / "a.jsonl", rows(10))
    store.import_json_lines(path)
    write_json(path, rows(11))
    with pytest.raises(SampleStoreError, match=r"changed since its import began: expected \d+ by"):
        store.import_json_lines(path)
    assert len(store) == 10


def test_a_file_that_changes_while_it_is_imported_is_refused(
    tmp_path: Path, store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_json(tmp_path / "a.jsonl", rows(10))
    add, is_done = store._writer._add, False

    def changing(*arguments: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            with path.open("a") as file:
                file.write("\n")
            os.utime(path, ns=(0, 0))
        return add(*arguments)

    monkeypatch.setattr(store._writer, "_add", changing)
    with pytest.raises(
        SampleStoreError, match=r"changed while it was imported: expected .*, found"
    ):
        store.import_json_lines(path)
    assert is_done


def test_progress_is_noted_with_the_samples(tmp_path: Path, store: SampleStore) -> None:
    path = write_json(tmp_path / "a.jsonl", rows(10))
    store.import_json_lines(path)
    with closing(sqlite3.connect(store.path)) as connection:
        ((source, progress, checked),) = connection.execute("SELECT * FROM imports").fetchall()
    noted = json.loads(progress)
    assert source == str(path)
    assert checked == checksum((source, progress))
    assert (noted["num_samples"], noted["is_complete"]) == (10, True)
    assert noted["size_bytes"] == path.stat().st_size


def test_an_empty_file_is_imported(tmp_path: Path, store: SampleStore) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n\n")
    assert store.import_json_lines(tmp_path / "a.jsonl") == 0
    assert store.import_parquet(write_parquet(tmp_path / "a.parquet", rows(1)[:1])) == 1


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_each_line_of_text_becomes_a_sample_and_is_not_imported_twice(
    tmp_path: Path, store: SampleStore, name: str
) -> None:
    lines = "one\r\n\n" + "\u00e4 \x85 three\nlast"
    data = lines.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert store.import_lines(tmp_path / name) == 4
    assert store.import_lines(tmp_path / name) == 0
    expected = [{"text": text, "label": None} for text in ("one", "", "\u00e4 \x85 three", "last")]
    assert list(store) == expected
    assert store.ids[0] is None


def test_lines_are_bytes_where_the_field_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\xff\nb\n")
    with SampleStore.create(tmp_path / "raw.sqlite", {"line": "bytes"}) as raw:
        assert raw.import_lines(tmp_path, field="line") == 2
        assert [one["line"] for one in raw] == [b"a\xff", b"b"]


def test_lines_that_are_no_text_or_have_no_field_are_refused(
    tmp_path: Path, store: SampleStore
) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(SampleError, match=r"a\.txt line 2: expected UTF-8, .* bytes takes them"):
        store.import_lines(tmp_path / "a.txt")
    assert len(store) == 0
    for field in ("label", "note"):
        with pytest.raises(SampleError, match=rf"field: expected .* found '{field}'; the fields"):
            store.import_lines(tmp_path / "a.txt", field=field)


def test_an_interrupted_import_of_lines_goes_on_where_it_stopped(
    tmp_path: Path, store: SampleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {number}" for number in range(25_000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    append = store._writer.append

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for done in append(*arguments):
            yield done
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store._writer, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.import_lines(tmp_path / "a.txt")
    num_before = len(SampleStore(store.path))
    assert 0 < num_before < 25_000
    assert store.import_lines(tmp_path / "a.txt") == 25_000 - num_before
    store.refresh()
    assert texts(store) == lines
