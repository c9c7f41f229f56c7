"""Sections of an epoch: the files of one value of a partition key, such as one day. With
`shuffle.within` they are read in the order of their values, and rows are mixed within them only.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from featstore.base.errors import ConfigError, nearest
from featstore.base.schema import SlotSchema
from featstore.dispatch.plan import Split
from featstore.loader.plan.ordering import RANK, Ordering
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.matching import (
    Partition,
    SelectedFiles,
    matching,
    partition_value,
)
from featstore.loader.request.request import Request
from featstore.table.snapshot import Snapshot


def section_key(shuffle: Shuffle | None, schema: SlotSchema, ordering: Ordering) -> pa.Field | None:
    """The partition key that `shuffle.within` names; None if it names none.

    Raises:
        ConfigError: The table has no such key, or workers in this order do not begin with the same
            section.
    """
    if shuffle is None or shuffle.within is None:
        return None
    if ordering.kind == RANK:
        raise ConfigError(
            "shuffle.within: expected order dynamic, static or replay, found rank, in which each "
            "worker has a part of the epoch for itself, so that the last one would begin with the "
            "last partitions"
        )
    keys = {field.name: field for field in schema.partition_keys}
    if shuffle.within not in keys:
        known = f"it has {', '.join(keys)}" if keys else "it has none"
        raise ConfigError(
            f"shuffle.within: expected a partition key of the table, found {shuffle.within!r}"
            f"{nearest(shuffle.within, keys)}; {known}"
        )
    return keys[shuffle.within]


def in_sections(files: SelectedFiles, key: pa.Field | None) -> SelectedFiles:
    """The files in the order of their sections: null first, then by the key's value, as its type
    compares. Without a key in the order in which they are.
    """
    return files if key is None else files.sorted_by(_Values(key).of)


def matching_in_sections(
    snapshot: Snapshot, request: Request, key: pa.Field | None
) -> SelectedFiles:
    """The data files of a snapshot that can match, in the order of their sections."""
    return in_sections(matching(snapshot, request), key)


def section_sizes(
    splits: Sequence[Split], files: SelectedFiles, key: pa.Field | None
) -> tuple[int, ...]:
    """How many splits each section has, of splits in the order of `in_sections`. Empty without a
    key.
    """
    if key is None:
        return ()
    values = _Values(key)
    found = groupby(splits, key=lambda split: values.of(files[split.path][1]))
    return tuple(sum(1 for _ in of_section) for _, of_section in found)


class _Values:
    """The values of a partition key, which many files share, so that they compare."""

    def __init__(self, key: pa.Field) -> None:
        self._key = key
        self._found: dict[str | None, tuple[bool, Any]] = {}

    def of(self, partition: Partition) -> tuple[bool, Any]:
        """Whether there is a value, and the value; those without compare as equal."""
        text = partition.values.get(self._key.name)
        if text not in self._found:
            value = partition_value(self._key, partition).as_py()
            self._found[text] = (value is not None, value)
        return self._found[text]
