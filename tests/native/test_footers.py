"""Invalid footers: each is refused, with the column and the row group if there is one."""

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.native import file_schema
from featstore.native.footers import read_checked
from featstore.native.format import BINARY, I32, I64, LIST, STRUCT, FooterError
from featstore.reading.open_file import OpenFile

TABLE = pa.table({"id": [1, 2, 3], "tags": [[1.5], None, []], "text": ["a", "b", None]})
ID, TAGS = (4, 1, 1, 0, 3), (4, 1, 1, 1, 3)  # of row group 1: the metadata of two column chunks
MANY = 2**40
IN_CHUNKS = {
    "codec": ((*ID, 4), (I32, 9), "column 'id': row group 1: expected a codec of 0 to 7, found 9"),
    "negative codec": ((*ID, 4), (I32, -1), "expected a codec of 0 to 7, found -1"),
    "encoding": ((*ID, 2), (LIST, (I32, [0, 11])), "expected encodings of 0 to 9, found 2049"),
    "far encoding": ((*ID, 2), (LIST, (I32, [0, 99])), "expected encodings of 0 to 9, found -1"),
    "type": ((*ID, 1), (I32, 1), "expected the schema's physical type, found 1"),
    "fewer values": ((*ID, 5), (I64, 0), "a value for each row, and more only in lists, found 0"),
    "more values": ((*ID, 5), (I64, MANY), "a value for each row, and more only in lists"),
    "fewer values of lists": (
        (*TAGS, 5),
        (I64, 0),
        "column 'tags.list.element': row group 1: expected a v",
    ),
    "negative values": ((*TAGS, 5), (I64, -5), "expected 0 values or more, found -5"),
    "bytes": ((*ID, 7), (I64, MANY), "bytes before the footer, found 1099511627776"),
    "negative bytes": ((*ID, 7), (I64, -1), "expected 0 compressed bytes or more, found -1"),
    "raw bytes": ((*ID, 6), (I64, -7), "expected 0 uncompressed bytes or more, found -7"),
    "place": ((*ID, 9), (I64, MANY), "bytes before the footer"),
    "negative place": ((*ID, 9), (I64, -4), "pages that lie before the footer, found -4"),
    "dictionary": ((*ID, 11), (I64, MANY), "bytes before the footer"),
    "negative dictionary": ((*ID, 11), (I64, -1), "pages that lie before the footer, found -1"),
    "largest number": ((*ID, 9), (I64, 2**63 - 1), "bytes before the footer"),
    "bound": ((*ID, 12, 5), (BINARY, b"short"), "a bound as long as a value, found 5"),
    "nulls": ((*ID, 12, 3), (I64, 2), "no more nulls than values, found 2"),
    "counts": (
        (*TAGS, 16, 3),
        (LIST, (I64, [0, 1])),
        "'tags.*expected a count for each level, or none",
    ),
    "other file": ((4, 1, 1, 0, 1), (BINARY, b"x.parquet"), "expected no path of another file"),
    "no metadata": (
        ID,
        None,
        "'id': row group 1: expected metadata of the column chunk, found none",
    ),
    "encryption": ((4, 1, 1, 0, 8), (STRUCT, {}), "expected no encryption, which is not read here"),
    "encrypted": (
        (4, 1, 1, 0, 9),
        (BINARY, b"x"),
        "expected no encryption, which is not read here",
    ),
}
IN_FILE: dict[str, Any] = {
    "rows": ((3,), (I64, 4), "expected 4 rows in all row groups, found 3"),
    "rows of a group": (
        (4, 0, 3),
        (I64, 2**61),
        "expected 3 rows in all row groups, found 23058430",
    ),
    "negative rows": ((4, 0, 3), (I64, -1), "row group 0: expected 0 rows or more, found -1"),
    "no rows": ((3,), None, "every field that the format requires, found one missing"),
    "encryption": ((8,), (STRUCT, {}), "expected no encryption, found some"),
    "signature": ((9,), (BINARY, b"key"), "expected no encryption, found some"),
    "type of rows": ((3,), (I32, 3), "the field's type in the format, found another"),
    "items": ((5,), (LIST, (I32, [3])), "the field's type in the format, found another"),
}
IN_SCHEMA: dict[str, Any] = {
    "repetition": ((2, 1, 3), (I32, 3), "column 'id': expected a repetition of 0 to 2"),
    "no repetition": ((2, 1, 3), None, "column 'id': expected a repetition of 0 to 2"),
    "type": ((2, 1, 1), (I32, 8), "column 'id': expected a physical type of 0 to 7"),
    "no type": ((2, 1, 1), None, "column 'id': expected a physical type of 0 to 7"),
    "type of a group": (
        (2, 2, 1),
        (I32, 1),
        "column 'tags': expected no physical type beside columns",
    ),
    "converted": ((2, 1, 6), (I32, 26), "column 'id': expected a converted type of 0 to 25"),
    "name": ((2, 1, 4), (BINARY, b"\xf4\xec"), r"a column's name in UTF-8, found b'\\xf4\\xec'"),
    "children": ((2, 2, 5), (I32, 2), "expected the schema's elements to be one tree"),
    "fewer children": ((2, 0, 5), (I32, 2), "expected the schema's elements to be one tree"),
    "negative children": ((2, 2, 5), (I32, -1), "expected the schema's elements to be one tree"),
    "many children": ((2, 0, 5), (I32, 2**31 - 1), "expected the schema's elements to be one tree"),
    "no elements": ((2,), (LIST, (STRUCT, [])), "expected the schema's elements to be one tree"),
    "Arrow's": ((2, 1, 6), (I32, 5), "its schema cannot be read"),
}


@pytest.fixture(scope="module")
def file(written: Callable[..., bytes]) -> bytes:
    found: bytes = written(TABLE, row_group_size=2)
    return found


def read(file: bytes) -> Any:
    footer = read_checked(io.BytesIO(file))
    assert footer.schema is not None
    return footer


CASES = IN_CHUNKS | {f"file: {name}": case for name, case in IN_FILE.items()}
CASES |= {f"schema: {name}": case for name, case in IN_SCHEMA.items()}


@pytest.mark.parametrize(("path", "field", "message"), CASES.values(), ids=CASES)
def test_an_impossible_footer_is_refused(
    file: bytes, edited: Callable[..., bytes], path: Any, field: Any, message: Any
) -> None:
    assert read(edited(file)).num_rows == 3
    with pytest.raises(FooterError, match=message):
        read(edited(file, (path, field)))


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ((*ID, 14), (I32, 3)),
        ((*ID, 15), (LIST, (STRUCT, [{}]))),  # as Dremio writes it
        ((*ID, 12), (I64, 3)),
        ((4, 1, 1, 0, 4), (BINARY, b"x")),
        ((5, 0, 2), (I32, 3)),  # as fastparquet 0.8.2 writes it
        ((6,), (I64, 3)),
        ((2, 1, 6), (BINARY, b"x")),
    ],
)
def test_an_optional_field_of_another_type_is_as_good_as_absent(
    file: bytes, edited: Callable[..., bytes], path: Any, field: Any
) -> None:
    """As readers that Thrift generates take it."""
    if path == (5, 0, 2):
        file = edited(file, ((5,), (LIST, (STRUCT, [{1: (BINARY, b"key")}]))))
    data = edited(file, (path, field))
    assert pq.read_table(io.BytesIO(data)).to_pydict() == TABLE.to_pydict()
    assert read(data).num_rows == 3
    with OpenFile(io.BytesIO(data), "a.parquet") as opened:
        assert opened.arrow_file(None).read().to_pydict() == TABLE.to_pydict()


def test_fields_out_of_order_or_twice_are_refused(
    file: bytes, edited: Callable[..., bytes]
) -> None:
    """Arrow would take the last one, and the slices cut from a footer rely on the order."""
    num_bytes = int.from_bytes(file[-8:-4], "little")
    footer = file[-8 - num_bytes : -9] + bytes((I64,)) + b"\x06\x06\0"  # rows, once more
    with pytest.raises(FooterError, match="in the order of their numbers"):
        read(file[: -8 - num_bytes] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def test_a_row_group_that_lacks_a_column_is_refused(
    file: bytes, edited: Callable[..., bytes]
) -> None:
    chunk: Any = (LIST, (STRUCT, []))
    with pytest.raises(FooterError, match="row group 0: expected 3 column chunks, found 0"):
        read(edited(file, ((4, 0, 1), chunk)))


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b"", "at least 8 bytes, found 0"),
        (b"PAR1", "at least 8 bytes, found 4"),
        (b"\0\0\0\0PAR2", "expected b'PAR1' at its end, found b'PAR2'"),
        (b"\0\0\0\0PARE", "expected no encryption, found some"),
        (b"\xff\xff\xff\x7fPAR1", "expected a footer of 2147483647 bytes, found 0 before its end"),
        (b"PAR1\0\0\0\0PAR1", "byte 0 of the footer: expected a value"),
    ],
)
def test_an_invalid_end_of_a_file_is_refused(end: bytes, message: str) -> None:
    with pytest.raises(FooterError, match=message):
        read(end)


def test_columns_nested_too_deeply_are_refused(written: Callable[..., bytes]) -> None:
    type_ = pa.int64()
    for _ in range(101):
        type_ = pa.struct([("a", type_)])
    with pytest.raises(FooterError, match="expected at most 100 levels, found more"):
        read(written(pa.table({"a": pa.nulls(1, type_)})))


def test_a_footer_longer_than_the_first_read_is_read_completely(
    written: Callable[..., bytes],
) -> None:
    table = pa.table({f"column_{place}": [place] for place in range(2_000)})
    file = written(table)
    assert int.from_bytes(file[-8:-4], "little") > 64 << 10
    assert read(file).schema.equals(table.schema)


def test_a_column_of_a_plain_footer_that_is_encrypted_is_refused(tmp_path: Path) -> None:
    """Arrow aborts the process when such a column is read."""
    with pytest.raises(FooterError, match="expected no encryption"):
        read(_encrypted(tmp_path))


def _encrypted(directory: Any) -> bytes:
    pe = pytest.importorskip("pyarrow.parquet.encryption")

    class Client(pe.KmsClient):  # type: ignore[name-defined, misc]
        def __init__(self, _config: Any) -> None:
            pe.KmsClient.__init__(self)

        def wrap_key(self, key: Any, _name: Any) -> Any:
            return key.hex()

        def unwrap_key(self, key: Any, _name: Any) -> Any:
            return bytes.fromhex(key)

    keys = {"footer_key": "f", "column_keys": {"c": ["id"]}}
    how = pe.EncryptionConfiguration(**keys, plaintext_footer=True)
    factory = pe.CryptoFactory(Client)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    pq.write_table(TABLE, directory / "x", encryption_properties=properties)
    found: bytes = (directory / "x").read_bytes()
    return found


def test_files_of_one_schema_share_its_description_and_others_do_not(
    written: Callable[..., bytes],
) -> None:
    columns = {"a name of this test": pa.array([1])}
    first = read(written(pa.table(columns)))
    alike = read(written(pa.table({"a name of this test": pa.array([2])})))
    other = read(written(pa.table(columns | {"b": ["x"]})))
    assert first.file_schema is alike.file_schema
    assert first.file_schema is not other.file_schema
    assert first.schema is alike.schema


def test_metadata_of_the_whole_schema_does_not_make_another_description(
    written: Callable[..., bytes],
) -> None:
    """pandas and slot groups store there what differs in each file."""
    table = pa.table({"another name of this test": pa.array([1])})
    first, other = (
        read(written(table.replace_schema_metadata({"featstore": text}))) for text in ("1", "2")
    )
    assert first.file_schema is other.file_schema
    assert [read.key_values[b"featstore"] for read in (first, other)] == [b"1", b"2"]


def test_a_child_forked_while_a_schema_is_looked_up_opens_files(file: bytes) -> None:
    with file_schema.SCHEMAS._lock:
        child = os.fork()
        if not child:
            signal.alarm(120)  # ends a child that waits for the lock
            os._exit(read(file).num_rows)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_the_description_of_the_same_elements_with_another_schema_of_arrows_is_another(
    written: Callable[..., bytes],
) -> None:
    types = [pa.timestamp("us", zone) for zone in ("UTC", "Europe/Berlin")]
    files = [written(pa.table({"a": pa.array([1, 2], type_)})) for type_ in types]
    assert [read(file).schema.field("a").type for file in files] == types


def test_layouts_in_memory_that_a_writer_prefers_are_not_described(
    written: Callable[..., bytes],
) -> None:
    texts = pa.array(["x", "y"])
    lists = pa.array([["x"], []], pa.large_list(pa.string_view()))
    kinds = [texts, texts.dictionary_encode(), texts.cast(pa.large_string())]
    footers = [read(written(pa.table({"a": array, "b": lists}))) for array in kinds]
    assert {footer.schema.field("a").type for footer in footers} == {pa.string()}
    assert footers[0].schema.field("b").type == pa.list_(pa.field("element", pa.string()))
    assert len({id(footer.file_schema) for footer in footers}) == 1
