"""Which epochs a store holds: a store cannot list its keys, so the first worker of an epoch leaves
a note in a known place.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from featstore.dispatch.leases.delivered import Done
from featstore.dispatch.plan import Plan
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.base import Store
from featstore.errors import DispatchError

FORMAT = 1
_EPOCHS = "featstore/epochs"


@dataclass(frozen=True, kw_only=True)
class EpochNote:
    """What an observer must know of an epoch to read its leases.

    `num_splits` and `num_rows` are the whole plan's; `num_splits_before` of them and their
    `num_rows_before` were delivered before, as a restored state said, and have no leases.
    `started_unix_s`: when the first worker began, by its clock.
    """

    prefix: str
    epoch: int
    num_splits: int
    num_rows: int
    num_splits_before: int = 0
    num_rows_before: int = 0
    lease_s: float
    started_unix_s: float

    @classmethod
    def of(
        cls, keys: EpochKeys, plan: Plan, done: Done, *, lease_s: float, started_unix_s: float
    ) -> "EpochNote":
        before = [index for index, rows in done.items() if rows == "complete"]
        return cls(
            prefix=keys.prefix,
            epoch=plan.epoch,
            num_splits=len(plan),
            num_rows=plan.num_rows,
            num_splits_before=len(before),
            num_rows_before=sum(plan[index].num_rows for index in before),
            lease_s=lease_s,
            started_unix_s=started_unix_s,
        )

    @property
    def keys(self) -> EpochKeys:
        return EpochKeys(self.prefix, self.epoch)

    @property
    def loader(self) -> str:
        """The key of the loader that read the epoch, without the number of its pass."""
        return self.prefix.rstrip("/").rpartition("/")[2].partition("-")[0]

    @property
    def name(self) -> str:
        """`{run_id}/{restart}/{loader} epoch {epoch}`."""
        return f"{self.prefix.removeprefix('featstore/').rstrip('/')} epoch {self.epoch}"

    def encode(self) -> str:
        """The note as JSON with sorted keys: what is written into the store."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "EpochNote":
        """DispatchError for a value that this version did not write."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DispatchError(
                f"the store holds a note of an epoch that this version cannot read: expected "
                f"format {FORMAT}, "
                f"found {text[:200]!r}; use the version of featstore that the workers have"
            ) from error


def announce(store: Store, note: EpochNote) -> bool:
    """Leaves a note of the epoch, once however many workers do; whether this one did.

    A worker that dies in between leaves an epoch without a note, which `featstore dispatch status`
    and `receipt` do not find.
    """
    mine = uuid.uuid4().hex
    if store.compare_set(f"{note.prefix}{note.epoch}/announced", "", mine) != mine:
        return False
    number = store.add(_EPOCHS, 1)
    store.set(f"{_EPOCHS}/{number}", note.encode())
    return True


def announced(store: Store, last: int | None = None) -> Iterator[EpochNote]:
    """The epochs announced last, at most so many, or all, the oldest of them first."""
    count = int(store.get_or_none(_EPOCHS) or 0)
    for number in range(1 if last is None else max(0, count - last) + 1, count + 1):
        text = store.get_or_none(f"{_EPOCHS}/{number}")
        if text is not None:
            yield EpochNote.decode(text)
