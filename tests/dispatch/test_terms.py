"""The terms on which a worker holds claims."""

import pytest

from featstore.dispatch.terms import Terms


@pytest.mark.parametrize(
    ("terms", "report_s"),
    [
        (Terms(reserve_s=2.0), 1.5),
        (Terms(reserve_s=1000.0, lease_s=60.0), 15.0),
        (Terms(reserve_s=1e-6), 0.05),
        (Terms(lease_s=1e-6), 0.05),
    ],
)
def test_it_is_acknowledged_well_within_a_reservation_and_a_lease_but_never_all_the_time(
    terms: Terms, report_s: float
) -> None:
    assert terms.report_s == report_s
