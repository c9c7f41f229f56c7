"""Names of types: those of a spec and a few more."""

import pyarrow as pa
import pytest

from featstore.base.errors import InputError
from featstore.formats.parsed import name_of, type_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("binary", pa.binary()),
        ("list<float>", pa.list_(pa.float32())),
        ("list<list<long>>", pa.list_(pa.list_(pa.int64()))),
        ("map<string, double>", pa.map_(pa.string(), pa.float64())),
    ],
)
def test_a_name_and_its_type(name: str, kind: pa.DataType) -> None:
    assert type_of(name, "c") == kind
    assert name_of(kind) == name


def test_a_type_without_a_name_has_that_of_arrow() -> None:
    assert name_of(pa.struct([("k", pa.int64())])) == "struct<k: int64>"


def test_an_unknown_type_answers_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"column 'c': expected a type of .*did you mean 'double'"):
        type_of("doble", "c")
