from typing import Any

import pytest

from featstore.base.errors import ConfigError
from featstore.staging import Staging


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mode": "hole"},
            r"staging\.mode: expected one of auto, whole, ranges, found 'hole'; did you "
            r"mean 'whole'",
        ),
        ({"ahead_files": 0}, r"staging\.ahead_files: expected an integer of 1 or more, found 0"),
        ({"ahead_files": True}, r"staging\.ahead_files"),
        ({"ahead_bytes": "many"}, r"staging\.ahead_bytes: expected a number of bytes"),
        ({"budget_bytes": 0}, r"staging\.budget_bytes: expected a number of bytes"),
        (
            {"max_connections": 0},
            r"staging\.max_connections: expected an integer of 1 or more, found 0",
        ),
        ({"max_bytes_per_s": "fast"}, r"staging\.max_bytes_per_s: expected a number of bytes"),
        ({"min_free_bytes": 0}, r"staging\.min_free_bytes: expected a number of bytes"),
        ({"retry_s": -1}, r"staging\.retry_s: expected seconds, 0 or more, found -1"),
        ({"retry_s": float("inf")}, r"staging\.retry_s: expected seconds, 0 or more, found inf"),
        ({"retry_s": "2min"}, r"staging\.retry_s: expected seconds, 0 or more, found '2min'"),
        ({"retry_s": True}, r"staging\.retry_s: expected seconds"),
        ({"directory": 5}, r"staging\.directory: expected a text, found 5"),
        ({"directory": "s3://b/cache"}, r"staging\.directory: expected a local directory"),
    ],
)
def test_wrong_options_are_refused_when_made(fields: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Staging(**fields)


def test_limits_are_numbers_and_none_by_default() -> None:
    options = Staging(max_bytes_per_s="10MB", min_free_bytes="1GiB", max_connections=3)
    assert (options.num_bytes_per_s, options.num_min_free_bytes, options.max_connections) == (
        10_000_000,
        1 << 30,
        3,
    )
    assert (Staging().num_bytes_per_s, Staging().num_min_free_bytes, Staging().max_connections) == (
        None,
        0,
        None,
    )


def test_auto_stages_remote_files_only() -> None:
    assert [
        Staging(mode=mode).stages(url)
        for mode in ("auto", "whole", "ranges")
        for url in ("/a", "s3://b/a")
    ] == [
        *(False, True),
        *(True, True),
        *(True, True),
    ]


def test_a_mode_of_before_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"mode: direct is no longer a mode; write auto"):
        Staging(mode="direct")
