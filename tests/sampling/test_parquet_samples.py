from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.errors import DataFileError, SampleError
from featstore.sampling.sample_store import SampleStore
from tests.sampling.test_sample_imports import rows, write_parquet


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore.create(tmp_path / "samples.sqlite", {"text": "text", "label": "integer"})


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


def test_images_of_structs_in_parquet_are_bytes(tmp_path: Path) -> None:
    given = [{"image": {"bytes": bytes([i]) * 9, "path": f"{i}.png"}, "label": i} for i in range(5)]
    path = write_parquet(tmp_path / "a.parquet", given)
    store = SampleStore.create(tmp_path / "s", {"image": "bytes", "label": "integer"})
    store.import_parquet(path, columns={"image": "image.bytes"}, id_from="image.path")
    assert store.by_id(["3.png"]) == [{"image": b"\x03" * 9, "label": 3}]


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path, store: SampleStore) -> None:
    """A column that cannot be read does no harm."""
    path = write_parquet(tmp_path / "a.parquet", [row | {"wide": "x" * 50} for row in rows(50)])
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 50) - 10 : data.index(b"x" * 50) + 40] = bytes(50)
    path.write_bytes(data)
    assert store.import_parquet(path) == 50


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
