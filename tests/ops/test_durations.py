import re
from typing import Any

import pytest

from featstore.ops.timestamps import duration_text, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds", "text"),
    [
        ("1s", 1, "1s"),
        ("90 s", 90, "90s"),
        ("120s", 120, "2m"),
        ("15m", 900, "15m"),
        ("12h", 43_200, "12h"),
        ("90d", 7_776_000, "90d"),
        ("2w", 1_209_600, "14d"),
        ("48h", 172_800, "2d"),
    ],
)
def test_a_duration_is_a_number_with_a_unit(value: str, seconds: int, text: str) -> None:
    assert parse_duration(value) == seconds * 1_000_000
    assert duration_text(seconds * 1_000_000) == text


@pytest.mark.parametrize(
    "value", [90, None, "", "d", "90", "0d", "-1d", "1.5h", "1y", "1D", "01d", "1d\n", "16000000w"]
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(str(value))}$"):
        parse_duration(value)
