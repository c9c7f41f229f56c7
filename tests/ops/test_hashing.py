import math
from decimal import Decimal

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops import hashing

# select xxhash64('a'), ... in Spark 4.3
SPARK_VALUES = {
    "a": -8582455328737087284,
    "": -7444071767201028348,
    "abcdefghijklmnopqrstuvwxyz0123456789": 2724237963427677065,
    "你好世界": 8361266263911075207,
    "-7": -3744000183942445030,
    "1357017300123456": 3281571570804357463,
}
# select xxhash64(201, xxhash64('u1'), xxhash64('i1'), xxhash64('-3')) & 9223372036854775807, and
# the same of fewer
SPARK_SIGNS = {
    (101, "a"): 5781206648159657461,
    (201, "u1", "i1"): 6872452225939996345,
    (201, "u1", "i1", "-3"): 25389232219516599,
}


def xxh64(data: bytes) -> int:
    return int.from_bytes(xxhash.xxh64(data, 42).digest(), "big", signed=True)


def hashes(*values: object) -> list[pa.Array]:
    return [hashing.value_hash(pa.array([value])) for value in values]


def test_value_hash_is_that_of_spark_sql() -> None:
    assert hashing.value_hash(pa.array(SPARK_VALUES)).to_pylist() == list(SPARK_VALUES.values())


@pytest.mark.parametrize("members", SPARK_SIGNS)
def test_sign_is_that_of_spark_sql(members: tuple[int, str]) -> None:
    slot, *values = members
    assert hashing.sign(slot, *hashes(*values)).to_pylist() == [SPARK_SIGNS[members]]


@given(
    st.lists(st.none() | st.text() | st.text(min_size=30, max_size=140), max_size=20),
    st.integers(0, 20),
)
def test_strings_hash_as_the_reference_does_at_any_length_and_offset(
    values: list[str | None], start: int
) -> None:
    expected = [None if value is None else xxh64(value.encode()) for value in values]
    assert (
        hashing.value_hash(pa.array(values, pa.string()).slice(start)).to_pylist()
        == expected[start:]
    )


def test_every_length_up_to_300_bytes_hashes_as_the_reference_does() -> None:
    values = [("0123456789" * 30)[:length] for length in range(301)]
    assert hashing.value_hash(pa.array(values)).to_pylist() == [
        xxh64(value.encode()) for value in values
    ]


@pytest.mark.parametrize("num_distinct", [3, 5000])
def test_repeated_strings_hash_as_single_ones(num_distinct: int) -> None:
    values = [None if i % 7 == 0 else f"item_{i % num_distinct}" for i in range(5000)]
    assert hashing.value_hash(pa.array(values)).to_pylist() == [
        None if v is None else xxh64(v.encode()) for v in values
    ]


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))
    | st.lists(st.none() | st.integers(2**63 - 9, 2**63 - 1))
)
def test_integers_hash_as_their_decimal_text(values: list[int | None]) -> None:
    expected = [None if value is None else xxh64(str(value).encode()) for value in values]
    assert hashing.value_hash(pa.array(values, pa.int64())).to_pylist() == expected


@pytest.mark.parametrize(
    "width", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32()]
)
def test_an_integer_hashes_alike_at_any_width(width: pa.DataType) -> None:
    assert hashing.value_hash(pa.array([7, None], width)).to_pylist() == [xxh64(b"7"), None]


def test_dictionary_values_hash_as_plain_ones() -> None:
    values = pa.array(["a", None, "b", "a"])
    assert (
        hashing.value_hash(values.dictionary_encode()).to_pylist()
        == hashing.value_hash(values).to_pylist()
    )


def test_floats_are_never_hashed() -> None:
    with pytest.raises(
        TypeError, match="expected strings, integers, booleans or timestamps to hash, found double"
    ):
        hashing.value_hash(pa.array([1.5]))


def test_a_row_with_a_missing_member_has_sign_0() -> None:
    left, right = (
        hashing.value_hash(pa.array(["a", None, "a"])),
        hashing.value_hash(pa.array(["b", "b", None])),
    )
    signs = hashing.sign(5, left, right).to_pylist()
    assert signs[0] > 0
    assert signs[1:] == [0, 0]


def test_signs_of_more_rows_than_a_block_are_those_of_single_rows() -> None:
    member = hashing.value_hash(pa.array(range(40_000)))
    signs = hashing.sign(9, member, member)
    for row in (0, 16_383, 16_384, 39_999):
        assert signs[row] == hashing.sign(9, member.slice(row, 1), member.slice(row, 1))[0]


def test_no_rows_give_no_signs() -> None:
    assert hashing.sign(1, hashing.value_hash(pa.array([], pa.string()))).to_pylist() == []


VALUES = st.lists(
    st.none() | st.text(max_size=40) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12
)


@given(VALUES, st.integers(1, 2**31 - 1))
def test_few_rows_have_the_hashes_and_signs_of_many(
    values: list[str | int | None], slot: int
) -> None:
    for kind, arrow_type in ((str, pa.string()), (int, pa.int64())):
        column = pa.array(
            [value if isinstance(value, kind) else None for value in values], arrow_type
        )
        few, many = hashing.value_hash(column), hashing.value_hash(pa.concat_arrays([column] * 20))
        assert few.to_pylist() * 20 == many.to_pylist()
        signs = hashing.sign(slot, few, few).to_pylist()
        assert signs * 20 == hashing.sign(slot, many, many).to_pylist()


def test_keys_have_the_signs_of_slot_0() -> None:
    keys = pa.array(["u1", None, ""])
    assert hashing.key_signs(keys).equals(hashing.sign(0, hashing.value_hash(keys)))
    assert hashing.key_signs(keys)[1].as_py() == 0


# `select xxhash64(map_entries(m), ...)`, of Spark: checked in tests/ingest/test_join_local.py.
COLUMNS = {
    "tiny": pa.array([1, None, -128], pa.int8()),
    "small": pa.array([1, None, -32768], pa.int16()),
    "number": pa.array([1, None, -(2**31)], pa.int32()),
    "big": pa.array([1, None, -(2**63)], pa.int64()),
    "u8": pa.array([1, None, 255], pa.uint8()),
    "u16": pa.array([1, None, 65535], pa.uint16()),
    "u32": pa.array([1, None, 2**32 - 1], pa.uint32()),
    "u64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "flag": pa.array([True, None, False]),
    "single": pa.array([1.5, math.nan, -0.0], pa.float32()),
    "double": pa.array([1.5, -math.nan, -0.0]),
    "text": pa.array(["a", None, "ß" * 20]),
    "long_text": pa.array(["a", None, ""], pa.large_string()),
    "bytes": pa.array([b"a", None, b"\x00\xff"]),
    "fixed": pa.array([b"ab", None, b"\x00\xff"], pa.binary(2)),
    "coded": pa.array(["x", None, "y"]).dictionary_encode(),
    "day": pa.array([0, None, -1], pa.date32()),
    "time": pa.array([0, None, -1], pa.timestamp("us", "UTC")),
    "naive": pa.array([0, None, -1], pa.timestamp("ms")),
    "price": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(18, 2)),
    "sum": pa.array([Decimal("1.5"), None, Decimal("-170141183460469231731.6")], pa.decimal128(38, 1)),
    "tags": pa.array([["a", None, "b"], None, []]),
    "sizes": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)),
    "deep": pa.array([[[1], None, [2, 3]], None, [[]]], pa.large_list(pa.list_(pa.int32()))),
    "pair": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": "x"}]),
    "map": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32())),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_part_of_a_column_hashes_as_in_the_whole_and_null_is_the_seed(name: str) -> None:
    column = COLUMNS[name]
    whole = hashing.row_hash([column]).to_pylist()
    assert hashing.row_hash([column.slice(1)]).to_pylist() == whole[1:]
    assert hashing.row_hash([column.take(pa.array([2, 0]))]).to_pylist() == [whole[2], whole[0]]
    if name not in ("single", "double"):
        assert whole[1] == 42


def test_hashes_of_texts_and_of_chained_columns_are_those_of_spark_sql() -> None:
    texts = pa.array(SPARK_VALUES)
    assert hashing.row_hash([texts]).to_pylist() == list(SPARK_VALUES.values())
    members = [hashing.value_hash(pa.array([value])) for value in ("u1", "i1")]
    found = hashing.row_hash([pa.array([201], pa.int32()), *members]).to_pylist()
    assert found[0] & (2**63 - 1) == SPARK_SIGNS[201, "u1", "i1"]


def test_a_type_that_spark_lacks_has_no_hash() -> None:
    with pytest.raises(TypeError, match="expected a type that Spark hashes, found time64"):
        hashing.row_hash([pa.array([1], pa.time64("us"))])
