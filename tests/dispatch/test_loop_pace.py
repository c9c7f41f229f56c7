"""How fast a worker's loop is, from what it reports."""

from featstore.dispatch.relieving import LoopPace


def test_a_step_that_takes_longer_than_it_is_between_two_reports_does_not_stop_the_pace() -> None:
    pace = LoopPace()
    pace.begin(0.0)
    for second in range(1, 13):  # A batch of 90 rows is delivered every third second.
        pace.deliver(90 if second % 3 == 0 else 0, float(second))
        assert pace.rows_per_s in ([0] if second < 3 else [30])


def test_the_end_of_a_claim_is_no_burst() -> None:
    """Before the rest of a claim is reported, nothing is, of any other claim."""
    pace = LoopPace()
    pace.begin(0.0)
    pace.deliver(1000, 1.0)
    pace.deliver(0, 1.5)
    pace.deliver(500, 1.5)
    pace.deliver(500, 2.0)
    assert pace.rows_per_s == 1000
