"""The state of a mixture: those of its tables' loaders, and whose turn it is.

The format is a contract (docs/contracts.md, tests/golden/mixed_state.json).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

from featstore.base.errors import StateError
from featstore.loader.iteration.state import MIXED_FORMAT, LoaderState, merge_states
from featstore.loader.request.train_config import ALL_EXHAUSTED, naming, num_passes

FORMAT = 1


@dataclass(frozen=True)
class Turns:
    """How many batches each table has given. Immutable, so threads may share it.

    Which table the next batch comes from is a pure function of this (docs/contracts.md, golden in
    tests). A table with a share `s` of the weights is to have given `s * n` of the first `n`
    batches, so its batch `j` is due at `n = j / s`. Batch `n` comes from the table whose next batch
    is due first, among those that have given less than `s * n`. Then no table is ever a whole batch
    ahead of its share or behind it: Balinski and Young, "The Quota Method of Apportionment",
    American Mathematical Monthly 82 (1975).

    Attributes:
        weights: The tables' weights. A table of weight 0 has no turn; one is above 0 at least.
        num_batches: How many batches each has given.
    """

    weights: tuple[float, ...]
    num_batches: tuple[int, ...]

    @classmethod
    def begin(cls, weights: Sequence[float]) -> "Turns":
        """Before the first batch."""
        return cls(tuple(weights), (0,) * len(weights))

    def next_table(self) -> int:
        """The table of the next batch."""
        weights, given = _whole(self.weights), self.num_batches
        total, n = sum(weights), sum(given) + 1
        may_give = [i for i, weight in enumerate(weights) if given[i] * total < weight * n]
        return min(may_give, key=lambda i: Fraction(given[i] + 1, weights[i]))

    def after(self, table: int) -> "Turns":
        """The turns once the table has given another batch."""
        counts = tuple(count + (i == table) for i, count in enumerate(self.num_batches))
        return Turns(self.weights, counts)

    def without(self, table: int) -> "Turns":
        """The turns of the other tables, counted from here."""
        return Turns.begin([0 if i == table else w for i, w in enumerate(self.weights)])


@lru_cache
def _whole(weights: tuple[float, ...]) -> tuple[int, ...]:
    """The weights, as they are written in decimals, times the number that makes them whole."""
    exact = [Fraction(str(weight)) for weight in weights]
    factor = lcm(*(each.denominator for each in exact))
    return tuple(int(each * factor) for each in exact)


@dataclass(frozen=True, kw_only=True)
class MixedState:
    """The state of some or all workers of one step.

    Attributes:
        stop: As of `MixedTables`.
        epoch: The epoch of the mixture.
        turns: The batches that a worker has delivered of it: of several workers the one that has
            delivered the most.
        ended: Whether these workers have ended the epoch.
        tables: The state of each table's loader.
    """

    stop: str
    epoch: int
    turns: Turns
    tables: tuple[dict[str, Any], ...]
    ended: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        turns = {key: list(values) for key, values in asdict(self.turns).items()}
        return {
            MIXED_FORMAT: FORMAT,
            "stop": self.stop,
            "epoch": self.epoch,
            **turns,
            "tables": list(self.tables),
            "ended": self.ended,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MixedState":
        """The state. StateError for data of another kind or format, or damaged data."""
        if not isinstance(data, Mapping) or data.get(MIXED_FORMAT) != FORMAT:
            is_plain = isinstance(data, Mapping) and "format" in data
            found = "the state of a loader of one table" if is_plain else f"{data!r:.200}"
            raise StateError(
                f"state of a mixture: expected {MIXED_FORMAT} {FORMAT}, found {found}: load it "
                "into a loader made of the config with which it was saved"
            )
        try:
            fields = {key: value for key, value in data.items() if key != MIXED_FORMAT}
            turns = Turns(
                weights=tuple(map(float, fields.pop("weights"))),
                num_batches=tuple(map(int, fields.pop("num_batches"))),
            )
            tables = tuple(map(dict, fields.pop("tables")))
            state = cls(**{**fields, "epoch": int(data["epoch"])}, turns=turns, tables=tables)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"state of a mixture: damaged, or edited by hand: {error}") from error
        if {len(turns.weights), len(turns.num_batches)} != {len(tables)}:
            raise StateError(
                f"state of a mixture: damaged: expected weights and num_batches of {len(tables)} "
                f"tables, found {len(turns.weights)} and {len(turns.num_batches)}"
            )
        return state

    def require_fit(self, stop: str, num_tables: int) -> None:
        """StateError if a mixture with this `stop` and number of tables cannot continue from it."""
        for what, saved, own in (
            ("stop", self.stop, stop),
            ("number of tables", len(self.tables), num_tables),
        ):
            if saved != own:
                raise StateError(
                    f"state of a mixture: saved with another {what}: expected {own}, as this "
                    f"loader has, found {saved}: load it into a loader with the `tables` and "
                    "`stop` of the saved one"
                )

    @property
    def to_continue(self) -> "MixedState":
        """The state itself; where the epoch has ended, the beginning of the next one."""
        if not self.ended:
            return self
        epoch = self.epoch + 1
        first = epoch * num_passes(self.stop)
        begun = {"epoch": first, "first_epoch": first, "complete": [], "partial": {}}
        left = ("ended", "ahead")
        tables = [{k: v for k, v in each.items() if k not in left} | begun for each in self.tables]
        turns = Turns.begin(self.turns.weights)
        return MixedState(stop=self.stop, epoch=epoch, turns=turns, tables=tuple(tables))


def merge_any_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states that all workers saved at one step into one state.

    Workers may be in two epochs that follow each other, and some may have ended their iteration.
    In a mixture they may be in different passes over a table: the merged state is in the earliest
    one.

    Args:
        states: The results of `state_dict` of all workers.

    Returns:
        A state for `load_state_dict`, with any number of workers.

    Raises:
        StateError: The states are not of one step of one run, or are further apart.
    """
    states = list(states)
    if not any(isinstance(state, Mapping) and MIXED_FORMAT in state for state in states):
        return merge_states(states)
    parsed = [MixedState.from_json(state) for state in states]
    first = parsed[0]
    for state in parsed:
        for key, own, other in (
            ("stop", state.stop, first.stop),
            ("epoch", state.epoch, first.epoch),
            ("number of tables", len(state.tables), len(first.tables)),
        ):
            if own != other:
                raise StateError(f"merge_states: the states differ in {key}: {own} and {other}")
    merged = [_merged(i, parsed) for i in range(len(first.tables))]
    return MixedState(
        stop=first.stop,
        epoch=first.epoch,
        turns=max((state.turns for state in parsed), key=lambda turns: sum(turns.num_batches)),
        ended=all(state.ended for state in parsed),
        tables=tuple(merged),
    ).to_json()


def _merged(i: int, states: Sequence[MixedState]) -> dict[str, Any]:
    """The state of one table's loader, in the earliest pass that a worker is in. What workers more
    than one pass further have delivered is left out, so it is read again.
    """
    with naming(f"tables[{i}]"):
        tables = [LoaderState.from_json(state.tables[i]) for state in states]
        earliest = min(table.epoch for table in tables)
        if states[0].stop == ALL_EXHAUSTED:
            tables = [
                table
                if table.in_epoch(earliest).epoch == earliest
                else replace(table, epoch=earliest, done={}, ended=None, ahead={})
                for table in tables
            ]
        return merge_states(table.to_json() for table in tables)
