import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.errors import BudgetError, ReplacedError, StagingError
from featstore.staging.retry import RetryPolicy, is_local, is_retryable


@given(num_failures=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_a_limit_with_jitter_over_their_second_half(
    num_failures: int, draw: float
) -> None:
    policy = RetryPolicy(first_pause_s=0.2, longest_pause_s=30.0)
    ceiling_s = min(30.0, 0.2 * 2.0 ** min(num_failures - 1, 100))
    assert ceiling_s / 2 <= policy.pause_s(num_failures, draw) <= ceiling_s
    assert policy.pause_s(num_failures, 0.0) <= policy.pause_s(num_failures, draw)


@given(num_failures=st.integers(0, 100), max_attempts=st.integers(1, 100))
def test_the_last_attempt_is_the_last(num_failures: int, max_attempts: int) -> None:
    assert RetryPolicy(max_attempts=max_attempts).gives_up(num_failures) == (
        num_failures >= max_attempts
    )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("x"),
        TimeoutError("x"),
        EOFError("x"),
        OSError(errno.EIO, "x"),
        OSError("x"),
        ConnectionResetError("x"),
    ],
)
def test_a_broken_transport_is_retried(error: Any) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("x"),
        PermissionError("x"),
        IsADirectoryError("x"),
        StagingError("x"),
        ReplacedError("x"),
        BudgetError("x"),
        ValueError("x"),
        KeyboardInterrupt(),
        OSError(errno.EINVAL, "refused"),
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EROFS, "read-only"),
        OSError(errno.EDQUOT, "quota"),
    ],
)
def test_an_error_that_will_repeat_is_not_retried(error: Any) -> None:
    assert not is_retryable(error)


def test_a_full_disk_is_a_local_failure() -> None:
    assert is_local(OSError(errno.ENOSPC, "full"))
    assert not is_local(OSError(errno.EIO, "broken"))


@pytest.mark.parametrize(
    ("num_bytes", "waited_s", "expected"),
    [(0, 59.9, False), (0, 60.0, True), (65_535, 60.0, True), (65_536, 600.0, False)],
)
def test_a_stream_with_too_few_bytes_for_too_long_is_stalled(
    num_bytes: int, waited_s: float, expected: bool
) -> None:
    assert RetryPolicy().is_stalled(num_bytes, waited_s) is expected
