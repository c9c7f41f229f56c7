import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.files.retry import BRIEF, RetryPolicy, current_policy, retrying, thread_pool


@given(num_failures=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_a_limit_with_jitter_over_their_second_half(
    num_failures: int, draw: float
) -> None:
    policy = RetryPolicy(first_pause_s=0.2, longest_pause_s=30.0)
    ceiling_s = min(30.0, 0.2 * 2.0 ** min(num_failures - 1, 100))
    least_s, pause_s = policy.pause_s(num_failures, 0.0), policy.pause_s(num_failures, draw)
    assert least_s is not None
    assert pause_s is not None
    assert ceiling_s / 2 <= least_s <= pause_s <= ceiling_s


def attempts_at(policy: RetryPolicy, *, draw: float, attempt_s: float) -> list[float]:
    """When the attempts after the first failure begin, if each of them fails after so long."""
    now_s, begun = 0.0, list[float]()
    while (pause_s := policy.pause_s(len(begun) + 1, draw, tried_s=now_s)) is not None:
        begun.append(now_s + pause_s)
        now_s += pause_s + attempt_s
    return begun


@given(
    retry_s=st.floats(0.1, 1000),
    draw=st.floats(0, 1, exclude_max=True),
    attempt_s=st.floats(0, 60),
)
def test_attempts_go_on_until_the_time_is_over_and_the_last_is_not_begun_later(
    retry_s: float, draw: float, attempt_s: float
) -> None:
    begun = attempts_at(RetryPolicy(retry_s=retry_s), draw=draw, attempt_s=attempt_s)
    assert begun[-1] <= retry_s * (1 + 1e-9)
    assert begun[-1] + attempt_s >= retry_s * (1 - 1e-9)


def test_a_store_that_fails_over_in_a_minute_is_met_within_seconds_and_not_flooded() -> None:
    begun = attempts_at(RetryPolicy(), draw=0.5, attempt_s=0.01)
    assert 60 < next(at_s for at_s in begun if at_s > 60) < 71
    assert len(begun) < 25


def test_a_store_that_asks_for_a_longer_pause_gets_it_within_the_time() -> None:
    policy = RetryPolicy(retry_s=120)
    assert policy.pause_s(1, 0.5, asked_s=30) == 30
    assert policy.pause_s(9, 0.99, asked_s=0.1) == pytest.approx(9.95)
    assert policy.pause_s(2, 0.5, tried_s=100, asked_s=600) == 20
    assert policy.pause_s(2, 0.5, tried_s=120, asked_s=1) is None


@given(num_failures=st.integers(1, 100), max_attempts=st.integers(1, 100))
def test_the_last_attempt_is_the_last(num_failures: int, max_attempts: int) -> None:
    policy = RetryPolicy(max_attempts=max_attempts)
    assert num_failures > max_attempts or (policy.pause_s(num_failures, 0.5) is None) == (
        num_failures == max_attempts
    )


@pytest.mark.parametrize(
    ("num_bytes", "waited_s", "expected"),
    [(0, 59.9, False), (0, 60.0, True), (65_535, 60.0, True), (65_536, 600.0, False)],
)
def test_a_stream_with_too_few_bytes_for_too_long_is_stalled(
    num_bytes: int, waited_s: float, expected: bool
) -> None:
    assert RetryPolicy().is_stalled(num_bytes, waited_s) is expected


def test_a_pool_of_threads_has_the_policy_of_the_block_in_which_it_was_made() -> None:
    policy = RetryPolicy(retry_s=7)
    with retrying(policy), thread_pool(1) as threads:
        assert threads.submit(current_policy).result() == policy
    assert current_policy() == BRIEF
    with thread_pool(1) as threads:
        assert threads.submit(current_policy).result() == BRIEF
