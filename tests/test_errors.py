"""Readers of options: what they take, and the errors that name the option."""

from typing import Any

import pytest

from featstore.base.errors import ConfigError, parse_bytes


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("2kB", 2000),
        ("1.5 MB", 1_500_000),
        ("200GB", 200 * 10**9),
        ("4 gib", 4 << 30),
        (" 1TiB ", 1 << 40),
    ],
)
def test_bytes_are_numbers_or_text_with_a_unit(value: Any, num_bytes: Any) -> None:
    assert parse_bytes(value) == num_bytes


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.5, None, "", "GB", "1 XB", "-1GB", "1GB2", "0.1B"]
)
def test_other_values_are_refused_with_the_options_name(value: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"staging\.budget_bytes: expected a number of bytes above 0, or text such as 200GB",
    ):
        parse_bytes(value, "staging.budget_bytes")
