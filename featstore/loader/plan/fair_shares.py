"""How workers that read at one pace share an epoch of order `dynamic`. Pure functions."""

from collections.abc import Iterable, Iterator

from featstore.dispatch.terms import Claim

# Shares of so many splits differ by a tenth at most.
EVEN_SPLITS = 10


def claims_of_share(claims: Iterable[Claim], share_rows: int, split_rows: int) -> Iterator[Claim]:
    """The first claims, until another split would exceed the share; at least one if there is any.
    No further one is asked for then.

    Args:
        claims: What the worker can claim.
        share_rows: Rows of the share.
        split_rows: Rows of a split, on average.
    """
    num_rows = 0
    for claim in claims:
        yield claim
        num_rows += claim.end_row - claim.start_row
        if num_rows + split_rows > share_rows:
            return


def splits_of_shares(num_splits: int, num_workers: int) -> tuple[int, int]:
    """How many splits the smallest and the largest share of an epoch have."""
    return num_splits // num_workers, -(-num_splits // num_workers)


def uneven_shares(num_splits: int, num_workers: int) -> str:
    """What to say of shares that differ by more than a tenth; empty if they do not."""
    least, most = splits_of_shares(num_splits, num_workers)
    if (most - least) * EVEN_SPLITS <= most:
        return ""
    return (
        f"{num_splits} splits for {num_workers} workers that train in step: shares of {least} to "
        f"{most} splits, so up to {(most - least) / most:.0%} of a worker's steps have no rows of "
        f"its own; {EVEN_SPLITS * num_workers} splits or more are even enough: set "
        "dispatch.split_rows, which cuts files at their row groups, or choose order static"
    )
