"""Which files are looked at, and which types are given."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import InputError
from featstore.files.listings import FileEntry, list_files
from featstore.formats.parsed import is_inferred, is_undecided
from featstore.ingest.import_job import import_job
from featstore.ingest.import_run import SAMPLE_FILES, infer_schema, spread, with_types


@given(st.integers(1, 300))
def test_files_are_spread_from_the_first_to_the_last(num_files: int) -> None:
    files = [FileEntry(url=str(i), name=str(i), size_bytes=0) for i in range(num_files)]
    found = spread(files, SAMPLE_FILES)
    assert (found[0], found[-1]) == (files[0], files[-1])
    assert len({file.name for file in found}) == min(num_files, SAMPLE_FILES)


def test_a_type_of_an_unknown_column_is_refused() -> None:
    schema = pa.schema([("price", pa.int64())])
    assert with_types(schema, {"price": pa.float64()}).field("price").type == pa.float64()
    with pytest.raises(InputError, match=r"found one for 'prise' \(did you mean 'price'\?\)"):
        with_types(schema, {"prise": pa.float64()})


def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        InputError, match=r"expected rows of json to infer columns from, found none"
    ):
        featstore.import_raw("json", tmp_path / "x.csv", tmp_path / "raw")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8bno")
    with pytest.raises(InputError, match=r"x\.gz: cannot be read \("):
        featstore.import_raw("libsvm", tmp_path / "x.gz", tmp_path / "raw")


def test_the_reason_of_the_first_row_is_told_where_there_are_no_others(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"a": 1},\n{"a": 2}]\n')
    said = r"found none in 1 of 1 files, such as .*x\.json, line 1: expected an object; found \[\{"
    with pytest.raises(InputError, match=said):
        featstore.import_raw("json", tmp_path / "x.json", tmp_path / "raw")


def test_types_that_are_not_given_are_marked(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,c\n1,,2\n")
    job = import_job("csv", tmp_path / "x.csv", tmp_path / "raw", columns={"c": "double"})
    schema = infer_schema(job, list_files(str(tmp_path / "x.csv"), suffix=""))
    assert schema == pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    assert [is_inferred(field) for field in schema] == [True, True, False]
    assert [is_undecided(field) for field in schema] == [False, True, False]
