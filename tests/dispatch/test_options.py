from typing import Any

import pytest

from featstore.base.errors import ConfigError
from featstore.dispatch import Dispatch


def test_the_defaults_leave_the_store_to_the_loader() -> None:
    assert Dispatch() == Dispatch(store="auto", lease_s=60.0, run_id=None)


@pytest.mark.parametrize("lease_s", [0, -1, True, "60", 1e9, float("nan")])
def test_a_lease_time_must_be_a_number_of_seconds(lease_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"dispatch\.lease_s: expected seconds"):
        Dispatch(lease_s=lease_s)


@pytest.mark.parametrize("stall_s", [0, 59, True, "600", float("nan")])
def test_a_stall_time_below_the_lease_time_is_refused(stall_s: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"dispatch\.stall_s: expected seconds, lease_s \(60.0\) or more"
    ):
        Dispatch(stall_s=stall_s)


@pytest.mark.parametrize("max_failures", [0, 1.5, True, "3"])
def test_the_number_of_failures_must_be_positive(max_failures: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"dispatch\.max_failures: expected an integer of 1 or more"
    ):
        Dispatch(max_failures=max_failures)


def test_the_terms_of_leases_are_those_of_the_options() -> None:
    terms = Dispatch(lease_s=5, stall_s=50, max_failures=2).terms
    assert (terms.lease_s, terms.stall_s, terms.max_failures) == (5, 50, 2)


def test_the_store_and_the_run_id_are_checked_when_the_options_are_made() -> None:
    with pytest.raises(ConfigError, match="dispatch store 'tcp://x': expected tcp://host:port"):
        Dispatch(store="tcp://x")
    with pytest.raises(ConfigError, match=r"dispatch\.store: expected a text, found 5"):
        Dispatch(store=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="run_id 'a/b' may hold only"):
        Dispatch(run_id="a/b")


@pytest.mark.parametrize("store_wait_s", [0, -1, True, "60", 1e9, float("nan")])
def test_the_wait_for_a_store_must_be_a_number_of_seconds(store_wait_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"dispatch\.store_wait_s: expected seconds"):
        Dispatch(store_wait_s=store_wait_s)
