"""Results that are Arrow tables, as text of a terminal's width."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from featstore.base.table_result import TableResult, number_text, share_text


@dataclass(frozen=True, repr=False)
class _Slots(TableResult):
    table: pa.Table
    _align = ("left", "right", "left")

    def _head(self) -> str:
        return "two slots"

    def _shown(self) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        return ("slot", "nulls dropped", "values"), [
            ("price", 0, "17, 18, and 19"),
            ("from_x_visibility", 0, "4"),
        ]

    def _foot(self) -> Sequence[str]:
        return ["of 7 rows"]


def test_a_wide_terminal_shows_every_column() -> None:
    assert _Slots(pa.table({})).text(80).splitlines()[1].split() == [
        "slot",
        "nulls",
        "dropped",
        "values",
    ]


def test_a_narrow_one_leaves_out_columns_of_zeros_and_says_so() -> None:
    assert _Slots(pa.table({})).text(30).splitlines() == [
        "two slots",
        "slot               values",
        "-----------------  -----------",
        "price              17, 18, and",
        "                   19",
        "from_x_visibility  4",
        "0, unknown or empty in every row: nulls dropped",
        "of 7 rows",
    ]


def test_text_without_a_width_has_every_column() -> None:
    assert "nulls dropped" in _Slots(pa.table({})).text()


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0.0, "0.0%"),
        (0.0004, "<0.1%"),
        (0.0005, "0.1%"),
        (0.25, "25.0%"),
        (0.9994, "99.9%"),
        (0.9998, ">99.9%"),
        (1.0, "100.0%"),
    ],
)
def test_a_share_that_is_not_none_or_all_is_not_told_as_that(
    share: float | None, text: str
) -> None:
    assert share_text(share) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 3, "-"),
        (0.0, 3, "0"),
        (1e-9, 3, "1e-09"),
        (0.25, 3, "0.25"),
        (0.9994, 3, "0.999"),
        (0.9997, 3, "0.9997"),
        (1 - 2**-53, 3, "0.9999999999999999"),
        (1.0, 3, "1"),
        (99.4, 2, "99"),
        (99.7, 2, "99.7"),
        (999.7, 3, "999.7"),
        (-999.7, 3, "-999.7"),
        (1234.5, 3, "1234"),
        (123456.0, 4, "1.235e+05"),
    ],
)
def test_a_number_is_rounded_neither_to_a_whole_nor_to_a_power_of_ten(
    value: float | None, digits: int, text: str
) -> None:
    assert number_text(value, digits) == text
