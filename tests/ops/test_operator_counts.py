"""What operators count, and where they give null: the edges that row-by-row agreement does not
show.
"""

import datetime
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from featstore.ops.registry import OPERATORS

INF = float("inf")
LARGEST = pa.array([2**63 - 1], pa.int64()).view(pa.timestamp("us", tz="UTC"))
EARLIEST = pa.array([-(2**63 - 1)], pa.int64()).view(pa.timestamp("us", tz="UTC"))


def run(op: str, *arrays: Any, **params: Any) -> tuple[list[Any], dict[str, int]]:
    counts: Counter[str] = Counter()
    operator = OPERATORS[op]
    given = {name: params.get(name, param.default) for name, param in operator.params.items()}
    inputs = [array if isinstance(array, pa.Array) else pa.array(array) for array in arrays]
    result = operator.function(*inputs, **given, counts=counts)
    result.validate(full=True)
    return result.to_pylist(), dict(counts)


@pytest.mark.parametrize(
    ("ran", "expected", "counted"),
    [
        (
            run("ratio", [1.0, 0.0, None, INF, 6], [0.0, 0.0, 0.0, 2.0, 3]),
            [None, None, None, None, 2],
            (2, 1),
        ),
        (run("power", [0.0, -1.0, 4.0, None], exponent=-0.5), [None, None, 0.5, None], (0, 2)),
        (run("combine", [[1e308, 1e308], [INF, -INF], []], by="sum"), [None, None, None], (0, 2)),
    ],
)
def test_division_by_zero_and_results_that_are_not_finite_are_null_and_counted(
    ran: tuple[list[Any], dict[str, int]], expected: list[Any], counted: tuple[int, int]
) -> None:
    assert ran[0] == expected
    assert (ran[1].get("division by zero", 0), ran[1].get("not finite", 0)) == counted


def test_an_overlap_with_nothing_has_no_ratio() -> None:
    empty = pa.array([[]], pa.list_(pa.string()))
    assert run("overlap", empty, empty, measure="ratio") == ([None], {"division by zero": 1})
    assert run("overlap", empty, empty, measure="count") == ([0], {})


def test_times_too_far_apart_are_null_and_counted() -> None:
    assert run("time_since", LARGEST, EARLIEST, unit="day") == ([None], {"overflow": 1})
    lists = pa.ListArray.from_arrays([0, 1], EARLIEST)
    assert run("time_since", LARGEST, lists, unit="day") == ([[]], {"overflow": 1})


def test_weights_that_are_no_number_drop_value_and_weight_alike() -> None:
    texts = [["a:1", "b:x", "c:1e999", "d", "http://e:.5", "f:nan", "g:"]]
    assert run("weighted", texts, part="value") == (
        [["a", "d", "http://e"]],
        {"malformed weights": 4},
    )
    assert run("weighted", texts, part="weight") == ([[1.0, 1.0, 0.5]], {"malformed weights": 4})


def test_a_text_is_split_into_its_pieces() -> None:
    assert run("split", ["a,,b", "", None, ","], separator=",") == (
        [["a", "", "b"], [], None, ["", ""]],
        {},
    )


def test_runs_of_characters_and_words_are_tokens() -> None:
    assert run("tokenize", ["añb", "", None], by="character", n=2)[0] == [["añ", "ñb"], [], None]
    assert run("tokenize", pa.array(["zz", "añb", None]).slice(1), by="character", n=1)[0] == [
        ["a", "ñ", "b"],
        None,
    ]
    assert run("tokenize", ["  to be  or ", None, " "], by="word", n=2)[0] == [
        ["to be", "be or"],
        None,
        [],
    ]


def test_a_condition_that_is_missing_chooses_nothing() -> None:
    assert run("where", [True, False, None], [1, 2, 3], [4, 5, 6])[0] == [1, 5, None]
    assert run("where", [True, False, None], [1, 2, 3], otherwise=0)[0] == [1, 0, None]
    assert run("where", pa.array([], pa.bool_()), pa.array([], pa.int64()), then=1)[0] == []


def test_an_instant_is_compared_with_a_constant() -> None:
    noon = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)
    at = pa.array([noon, None], pa.timestamp("us", tz="UTC"))
    assert run("compare", at, relation=">", value=datetime.datetime(2013, 1, 1))[0] == [True, None]


def test_lower_case_is_that_of_each_code_point_alone() -> None:
    assert run("lower", ["ÀΣ", "İ", None])[0] == ["àσ", "i", None]


def test_words_do_not_depend_on_what_follows_them_in_memory() -> None:
    for texts in ([" é a é ", None], ["Aé 9\u2003Z", " é a é "], ["  to be\tor  not", " é a é "]):
        expected = [text and text.split() for text in texts]
        assert all(run("tokenize", texts, by="word", n=1)[0] == expected for _ in range(200))


def test_words_are_those_of_python_for_every_white_space() -> None:
    texts = [f"a{chr(code)}b" for code in range(0x11000) if not 0xD800 <= code < 0xE000]
    assert run("tokenize", texts, by="word", n=1)[0] == [text.split() for text in texts]
