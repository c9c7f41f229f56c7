import pytest

from featstore.dispatch import Dispatch
from featstore.errors import ConfigError


def test_the_defaults_leave_the_store_to_the_loader():
    assert Dispatch() == Dispatch(store="auto", lease_s=60.0, run_id=None)


@pytest.mark.parametrize("lease_s", [0, -1, True, "60", 1e9, float("nan")])
def test_a_lease_is_a_number_of_seconds(lease_s):
    with pytest.raises(ConfigError, match=r"dispatch\.lease_s: expected seconds"):
        Dispatch(lease_s=lease_s)


def test_the_store_and_the_run_id_are_checked_when_the_options_are_made():
    with pytest.raises(ConfigError, match="dispatch store 'tcp://x': expected tcp://host:port"):
        Dispatch(store="tcp://x")
    with pytest.raises(ConfigError, match="run_id 'a/b' may hold only"):
        Dispatch(run_id="a/b")
