"""Which table the next batch comes from: shares, the frozen sequence, tables that are left out."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.mix.sequence import TableSequence

WEIGHTS = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8)
SEEDS = st.integers(0, 2**63)


@given(weights=WEIGHTS, seed=SEEDS, epoch=st.integers(0, 2**40), num_batches=st.integers(1, 2000))
def test_after_any_number_of_batches_each_table_has_its_share_but_for_a_few(
    weights: list[float], seed: int, epoch: int, num_batches: int
) -> None:
    sequence, counts = TableSequence(weights, seed, epoch), Counter[int]()
    for n in range(num_batches):
        counts[sequence.table(n)] += 1
        # Proven is growth with the logarithm; the worst that a search has found is a third of this.
        most = 2 + math.log(n + 1)
        for table, weight in enumerate(weights):
            assert abs(counts[table] - weight / sum(weights) * (n + 1)) < most


@given(weights=WEIGHTS, seed=SEEDS, position=st.integers(0, 2**40))
def test_a_position_is_looked_up_without_those_before_it(
    weights: list[float], seed: int, position: int
) -> None:
    asked_twice, asked_once = TableSequence(weights, seed, 3), TableSequence(weights, seed, 3)
    asked_twice.table(position + 7)
    assert asked_twice.table(position) == asked_once.table(position)


def test_the_sequence_is_frozen() -> None:
    sequence = TableSequence([3, 1, 2], seed=7, epoch=2)
    found = "".join(str(sequence.table(n)) for n in range(40))
    assert found == "2102002021020010200202102002021020010200"


def test_seeds_and_epochs_have_sequences_of_their_own() -> None:
    found = {
        tuple(TableSequence([1, 1, 1], seed, epoch).table(n) for n in range(300))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(found) == 9


def test_tables_that_are_left_out_leave_their_share_to_the_others() -> None:
    sequence = TableSequence([5, 1, 3], seed=0, epoch=0)
    counts = Counter(sequence.table(n, frozenset({0})) for n in range(400))
    assert counts.keys() == {1, 2}
    assert abs(counts[1] - 100) < 4
    assert {sequence.table(n) for n in range(100)} == {0, 1, 2}
