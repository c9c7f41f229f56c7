"""An operator of a user that looks beyond its row is found by running it."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import OperatorError
from featstore.ops.registry import OPERATORS
from featstore.spec.user import check_rows

PRICES = pa.array([1.5, None, 2.0, float("nan"), -4.0])
calls: Counter[str] = Counter()


def declared(function: Any) -> Any:
    return featstore.operator(inputs=[pa.float64()], result=pa.float64())(function)


@featstore.operator(
    inputs=[pa.float64(), pa.list_(pa.string())],
    result=pa.float64(),
    params={"scale": 2.0, "unit": str},
)
def scaled(price: pa.Array, tags: pa.Array, *, scale: float, unit: str) -> pa.Array:
    return pc.multiply(price, scale)


@declared
def centred(price: pa.Array) -> pa.Array:
    return pc.subtract(price, pc.mean(price))


@declared
def previous(price: pa.Array) -> pa.Array:
    return pa.array([None, *price.to_pylist()[:-1]], pa.float64()) if len(price) else price


@declared
def counting(price: pa.Array) -> pa.Array:
    calls["counting"] += 1
    return pa.array([float(calls["counting"])] * len(price))


@declared
def deaf_to_slices(price: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(pa.float64(), len(price), [None, price.buffers()[1]])


@declared
def in_need_of_rows(price: pa.Array) -> pa.Array:
    return pc.multiply(price, float(bool(price.to_pylist()[0]) or 1))


def test_an_operator_that_treats_rows_alone_gives_its_result() -> None:
    tags = pa.array([["a"], [], None, ["b", None], ["c"]])
    assert featstore.check_operator(scaled, PRICES, tags, unit="euro").to_pylist() == [
        3.0,
        None,
        4.0,
        None,
        -8.0,
    ]
    assert (
        len(featstore.check_operator(scaled, PRICES.slice(0, 0), tags.slice(0, 0), unit="euro"))
        == 0
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            centred,
            r"^centred: row 0 is 1.0 in a batch of 5 rows, and 0.0 in a batch of 1 rows: expected "
            r"the same result, since each",
        ),
        (
            previous,
            "^previous: row 4 is 0.5 in a batch of 5 rows, and None in reverse order: expected the "
            "same",
        ),
        (
            counting,
            r"^counting: row 0 is 1.0 in a batch of 5 rows, and 2.0 when run again: expected the "
            r"same",
        ),
        (deaf_to_slices, r"^deaf_to_slices: row \d is .* in a batch of 5 rows, and "),
        (in_need_of_rows, r"^in_need_of_rows in a batch without rows: list index out of range$"),
    ],
)
def test_an_operator_that_looks_beyond_its_row_is_found(function: Any, message: str) -> None:
    calls.clear()
    with pytest.raises(OperatorError, match=message):
        featstore.check_operator(function, pa.array([1.5, 2.5, 2.0, 0.5, -4.0]))


@pytest.mark.parametrize(
    ("arguments", "params", "message"),
    [
        (
            [len, PRICES],
            {},
            "expected a function with the decorator featstore.operator, found <built-in function "
            "len>",
        ),
        ([centred, pa.array([1])], {}, "^centred: expected double, found int64$"),
        ([centred, PRICES], {"n": 1}, r"^centred: expected params \(none\), found 'n'$"),
        (
            [scaled, PRICES, pa.array([["a"]] * 5)],
            {},
            "^scaled: expected the param 'unit', found none$",
        ),
    ],
)
def test_what_does_not_fit_the_declaration_is_refused(
    arguments: list[Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        featstore.check_operator(*arguments, **params)


@given(st.lists(st.none() | st.text(max_size=4), max_size=40))
def test_a_built_in_operator_passes_the_same_check(texts: list[str | None]) -> None:
    check_rows(
        "tokenize",
        OPERATORS["tokenize"].function,
        [pa.array(texts, pa.string())],
        {"by": "character", "n": 2},
    )


@pytest.mark.parametrize(
    ("arrays", "params", "message"),
    [
        ((PRICES.to_pylist(),), {}, "centred: expected Arrow arrays, found list"),
        ((pa.chunked_array([PRICES]),), {}, "centred: expected Arrow arrays, found ChunkedArray"),
        ((PRICES, PRICES), {}, "centred: expected 1 arrays, found 2"),
    ],
)
def test_inputs_that_are_no_arrays_are_a_type_error(
    arrays: Any, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        featstore.check_operator(centred, *arrays, **params)


def test_a_param_of_another_type_is_a_type_error() -> None:
    tags = pa.array([["a"]] * len(PRICES))
    with pytest.raises(
        TypeError, match="scaled: expected a value of type float for 'scale', found 'x'"
    ):
        featstore.check_operator(scaled, PRICES, tags, scale="x", unit="m")
