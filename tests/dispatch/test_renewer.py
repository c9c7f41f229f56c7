"""How often leases are renewed."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.renewer import in_step_pause_s, renewal_pause_s

SECONDS = st.floats(0.01, 1e5)


def test_three_renewals_fit_into_a_lease() -> None:
    assert renewal_pause_s(60.0) == 20.0


@given(lease_s=SECONDS, taken=st.integers(0, 1000), left=st.integers(0, 1000), elapsed_s=SECONDS)
def test_a_rank_in_step_never_renews_less_often_than_others_nor_more_than_twice_a_second(
    lease_s: Any, taken: int, left: int, elapsed_s: Any
) -> None:
    pause_s = in_step_pause_s(lease_s, num_taken=taken, num_left=left, elapsed_s=elapsed_s)
    assert min(0.5, renewal_pause_s(lease_s)) <= pause_s <= renewal_pause_s(lease_s)


def test_at_the_end_of_the_plan_a_rank_in_step_renews_twice_a_second() -> None:
    assert in_step_pause_s(60.0, num_taken=10, num_left=0, elapsed_s=1e4) == 0.5


def test_before_the_end_of_the_plan_the_next_renewal_comes_when_half_of_the_rest_is_expected_to_be_handed_out() -> (
    None
):
    assert in_step_pause_s(60.0, num_taken=90, num_left=10, elapsed_s=90.0) == 5.0
    assert in_step_pause_s(60.0, num_taken=10, num_left=90, elapsed_s=90.0) == 20.0
