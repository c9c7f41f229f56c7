"""The state of a mixture: those of its tables' loaders, and the position in the sequence of tables.

The format is a contract (docs/contracts.md, tests/golden/mixed_state.json).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from featstore.errors import FeatstoreError, StateError
from featstore.loader.run.state import MIXED_FORMAT, merge_states
from featstore.request.mixed_tables import ALL_EXHAUSTED, FIRST_EXHAUSTED

FORMAT = 1
# The loader of a table that may be read several times in an epoch has this many epochs for each:
# the epochs of the loader are `epoch * MOST_PASSES + pass`.
MOST_PASSES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MixedState:
    """The state of some or all workers of one step.

    Attributes:
        stop: As of `MixedTables`.
        epoch: The epoch of the mixture.
        position: How many batches a worker has delivered of it: of several workers the one that
            has delivered the most.
        ended: Whether these workers have ended the epoch.
        tables: The state of each table's loader.
    """

    stop: str
    epoch: int
    position: int
    tables: tuple[dict[str, Any], ...]
    ended: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        return {MIXED_FORMAT: FORMAT, **asdict(self), "tables": list(self.tables)}

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
            state = cls(**{**fields, "tables": tuple(map(dict, data["tables"]))})
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"state of a mixture: damaged, or edited by hand: {error}") from error
        if not isinstance(state.epoch, int) or not isinstance(state.position, int):
            raise StateError("state of a mixture: damaged: epoch and position are no integers")
        return state

    def require_fit(self, stop: str, num_tables: int) -> None:
        """StateError if a mixture with this `stop` and so many tables cannot continue from it."""
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
        tables = [{k: v for k, v in each.items() if k != "ended"} | begun for each in self.tables]
        return MixedState(stop=self.stop, epoch=epoch, position=0, tables=tuple(tables))


def num_passes(stop: str) -> int:
    """How many passes over a table an epoch may have."""
    return MOST_PASSES if stop == ALL_EXHAUSTED else 1


@contextmanager
def naming(table: str) -> Iterator[None]:
    """Puts the table's name before the message of an error."""
    try:
        yield
    except FeatstoreError as error:
        raise type(error)(f"{table}: {error}") from error


def merge_any_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states that all workers saved at one step into one state.

    A worker that has ended its iteration may be merged with others that have not. Between two
    epochs of one iteration workers may be in different epochs; save one step later then. The same
    holds for two passes over a table of a mixture with `stop: all_exhausted`.

    Args:
        states: The results of `state_dict` of all workers.

    Returns:
        A state for `load_state_dict`, with any number of workers.

    Raises:
        StateError: The states are not of one step of one run, or are in different epochs or passes.
    """
    states = list(states)
    if not any(isinstance(state, Mapping) and MIXED_FORMAT in state for state in states):
        return merge_states(states)
    parsed = [MixedState.from_json(state) for state in states]
    first = parsed[0]
    for state in parsed:
        _require_same(state, first)
    merged = [_merged(i, parsed) for i in range(len(first.tables))]
    return MixedState(
        stop=first.stop,
        epoch=first.epoch,
        position=max(state.position for state in parsed),
        ended=all(state.ended for state in parsed),
        tables=tuple(merged),
    ).to_json()


def _require_same(state: MixedState, first: MixedState) -> None:
    for key, own, other in (
        ("stop", state.stop, first.stop),
        ("epoch", state.epoch, first.epoch),
        ("number of tables", len(state.tables), len(first.tables)),
    ):
        if own != other:
            raise StateError(f"merge_states: the states differ in {key}: {own} and {other}")


def _merged(i: int, states: Sequence[MixedState]) -> dict[str, Any]:
    """The state of one table's loader. StateError where the workers are in different passes over
    it: what is left of two passes is no state of one.
    """
    tables = [state.tables[i] for state in states]
    passes = sorted({int(table.get("epoch", 0)) % MOST_PASSES for table in tables})
    if states[0].stop == ALL_EXHAUSTED and len(passes) > 1:
        raise StateError(
            f"merge_states: tables[{i}]: the workers are in different passes over the table "
            f"({', '.join(map(str, passes))}), and what is left of several passes cannot be "
            f"continued: save one or some steps later, or use stop: {FIRST_EXHAUSTED}"
        )
    with naming(f"tables[{i}]"):
        return merge_states(tables)
