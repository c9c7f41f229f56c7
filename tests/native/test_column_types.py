import pyarrow as pa
import pytest

from featstore.native.column_types import is_of_kind, plain_type

POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.list_(pa.large_string(), 2), pa.list_(pa.string(), 2)),
        (pa.map_(pa.large_string(), pa.string_view()), pa.map_(pa.string(), pa.string())),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
        (pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
    ],
)
def test_layouts_in_memory_are_left_out(type_: pa.DataType, expected: pa.DataType) -> None:
    assert plain_type(type_) == expected


@pytest.mark.parametrize(
    ("found", "expected", "is_alike"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int32(), pa.decimal128(12, 2), True),
        (pa.timestamp("ns"), pa.timestamp("us", "UTC"), True),
        (pa.date32(), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.date32(), False),
        (pa.string(), pa.int64(), False),
        (pa.null(), pa.string(), True),
        (pa.string(), pa.null(), False),
        (pa.list_(pa.float64(), 2), pa.list_(pa.float32()), True),
        (pa.list_(pa.null()), pa.list_(pa.string()), True),
        (pa.list_(pa.string()), pa.string(), False),
        (pa.list_(pa.string()), pa.list_(pa.int64()), False),
        (pa.struct([("y", pa.int32()), ("x", pa.int64())]), POINT, True),
        (pa.struct([("x", pa.int64())]), POINT, True),
        (pa.struct([("x", pa.string())]), POINT, False),
        (pa.struct([("z", pa.int64())]), POINT, False),
        (pa.map_("string", "int32"), pa.map_("string", "int64"), True),
        (pa.map_("string", "string"), pa.map_("string", "int64"), False),
    ],
)
def test_values_of_one_kind_may_be_read_as_each_other(
    found: pa.DataType, expected: pa.DataType, is_alike: bool
) -> None:
    assert is_of_kind(found, expected) is is_alike
