"""The part of a spec that a slot group needs, its columns and what they are made of; and the task
of a group's run, in which a unit writes a file for each base data file of its rows.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from featstore.base.schema import SlotSchema
from featstore.extraction.units.unit import UnitTask
from featstore.extraction.units.writer import DataFileWriter
from featstore.histories.stored import stored_histories, with_ranges
from featstore.spec.check import inputs_read, reached
from featstore.spec.model import Node, Spec
from featstore.spec.vocabulary import files_of
from featstore.table.layout import data_file_name, group_file_path
from featstore.table.metadata import FileMetadata, GroupOrigin


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of a spec.

    Attributes:
        spec: A spec that yields the columns `names`, and others that only decide which rows exist.
        names: The columns of the group.
        base: The whole spec without these columns and the nodes that only they need.
    """

    spec: Spec
    names: frozenset[str]
    base: Spec

    def stored(self, schema: SlotSchema) -> SlotSchema:
        """Returns the group's columns: of those that the spec yields, and ranges of histories."""
        return with_ranges(schema, self.spec).only(self.names)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The base data file that one of a unit's files is bound to.

    Attributes:
        row_groups: The rows of each row group of the base file; the unit's file is cut alike.
        rows_digest: Digest of the rows' identity: of their raw ranges, or of their keys.
    """

    base_path: str
    num_rows: int
    row_groups: tuple[int, ...]
    rows_digest: str


@dataclass(frozen=True, kw_only=True)
class GroupTask(UnitTask):
    """What all units of a slot group's run have in common.

    Attributes:
        part: The part of the spec to extract; `table_url` is the group's own table.
        targets: The base files of each unit, in the order of their rows, by the unit's index.
        bound_by: How rows were matched: `input`, or `key {column}`.
    """

    part: Part
    targets: Mapping[int, tuple[Target, ...]]
    bound_by: str = "input"

    def stored(self, schema: SlotSchema) -> SlotSchema:
        return self.part.stored(schema)

    def rows_per_row_group(self, unit: int, part: int = 0) -> int:
        return max(self.targets[unit][part].row_groups, default=0) or 1

    def rows_left(self, unit: int, part: int, writer: DataFileWriter) -> int:
        """As many rows as the base file has, and all that are left for the last one: whether they
        are as many is checked when all units are done.
        """
        is_last = part == len(self.targets[unit]) - 1
        return sys.maxsize if is_last else self.targets[unit][part].num_rows - writer.num_rows

    def file_metadata(self, unit: int = 0, part: int = 0) -> FileMetadata:
        target = self.targets[unit][part]
        base = {"path": target.base_path, "bound_by": self.bound_by, "rows": target.rows_digest}
        histories = [history.name for history in self.spec.histories] or None
        return FileMetadata(
            spec_hash=self.spec.hash,
            spec_version=self.spec.version,
            base=base,
            histories=histories,
        )

    def path(self, partition: Mapping[str, str], unit: int, attempt: int, part: int = 0) -> str:
        return group_file_path(
            self.targets[unit][part].base_path, data_file_name(self.tag, unit, attempt, part)
        )


def slots_part(spec: Spec, names: Iterable[str], keep: Iterable[str] = ()) -> Part:
    """Returns the part for stored slots.

    Slots that they are made of, or whose number they share, are computed but not stored. A column
    with `on_error: skip` is read if the whole spec reads it, because the rows that it skips are not
    in the table.

    Args:
        names: Names of the slots. With any of a history, the part has all of it.
        keep: Raw columns to keep besides, such as the key.
    """
    names = frozenset(names)
    base = _without(spec, names)
    shared = {node.share_slot for node in spec.nodes if node.name in names}
    stored = names | {node.name for node in spec.nodes if node.slot in shared}
    needed = _closure(spec, stored)
    nodes = [_as_inner(node, stored) for node in spec.nodes if node.name in needed]
    histories = tuple(each for each in spec.histories if names & each.slot_names)
    times = [each.as_of for each in histories]
    part = replace(_part(spec, nodes, [*keep, *times, *_skipping(base)]), histories=histories)
    ranges = (f.name for each in stored_histories(part) for f in each.row_fields)
    return Part(spec=part, names=names.union(ranges), base=base)


def is_made_by(spec: Spec, base_hash: str, groups: Iterable[GroupOrigin]) -> bool:
    """Whether data files and the slot groups beside them hold what the spec would make.

    They do if each group was made by its part of the spec, and the files by the rest of it.

    Args:
        spec: The spec.
        base_hash: The hash of the spec that made the data files.
        groups: The origins of the groups. Groups without slots of the spec do not matter.
    """
    stored, added = {node.name for node in spec.all_nodes if node.store}, set[str]()
    for group in groups:
        names = stored & set(group.slots)
        keys: list[list[str]] = [[], *([column] for column in spec.keep)]
        if any(slots_part(spec, names, key).spec.hash == group.spec_hash for key in keys):
            added |= names
    return (slots_part(spec, added).base if added else spec).hash == base_hash


def labels_part(spec: Spec, keep: Iterable[str] = ()) -> Part:
    """Returns the part for the labels and the weight; `keep` as for `slots_part`."""
    sources = {*spec.labels.values(), *([spec.weight] if spec.weight else [])}
    needed = _closure(spec, sources)
    nodes = [_as_inner(node, frozenset()) for node in spec.nodes if node.name in needed]
    part = replace(_part(spec, nodes, keep), labels=spec.labels, weight=spec.weight)
    return Part(
        spec=part,
        names=frozenset({*spec.labels, *([spec.weight] if spec.weight else [])}),
        base=spec,
    )


def _part(spec: Spec, nodes: Iterable[Node], keep: Iterable[str]) -> Spec:
    nodes = tuple(nodes)
    names = {node.name for node in nodes}
    read = {name for node in nodes for name in node.of}
    return replace(
        spec,
        nodes=nodes,
        labels={},
        weight=None,
        keep=tuple(dict.fromkeys(keep)),
        sequences=tuple(sequence for sequence in spec.sequences if read & set(sequence.of)),
        fitted={name: fitted for name, fitted in spec.fitted.items() if name in names},
        is_part=True,
        histories=(),
        checks=(),
        output=replace(spec.output, statistics=False, cluster_by=None),
    )


def _without(spec: Spec, names: frozenset[str]) -> Spec:
    """Returns the spec without these nodes and the nodes that only they need."""
    left = {node.name for node in spec.nodes if node.store} - names
    histories = tuple(each for each in spec.histories if not names & each.slot_names)
    read = _closure(
        spec, left | set(spec.labels.values()) | ({spec.weight} if spec.weight else set())
    )
    only_theirs = _closure(spec, names) - read
    nodes = tuple(node for node in spec.nodes if node.name not in only_theirs)
    fitted = {name: fitted for name, fitted in spec.fitted.items() if name not in only_theirs}
    output = replace(spec.output, cluster_by=None)
    without = replace(
        spec, nodes=nodes, histories=histories, fitted=fitted, checks=(), output=output
    )
    unread = files_of(spec).keys() - files_of(without).keys()
    vocabularies = {f: entry for f, entry in spec.vocabularies.items() if f not in unread}
    return replace(without, vocabularies=vocabularies)


def _closure(spec: Spec, names: Iterable[str]) -> set[str]:
    """Returns the nodes with these names, and all nodes that they depend on."""
    nodes = spec.by_name
    found = reached(names, lambda name: nodes[name].of if name in nodes else ())
    return found & nodes.keys()


def _as_inner(node: Node, stored: frozenset[str]) -> Node:
    """Returns a stored node unchanged, else the same node as an inner one with the same values."""
    return (
        node
        if node.name in stored
        else replace(node, slot=None, store=False, encode="sign", share_slot=None)
    )


def _skipping(base: Spec) -> list[str]:
    """Returns the raw columns that skip rows, out of those that the base reads. Rows of histories
    are matched by a key, so columns that only these read do not matter.
    """
    read = inputs_read(replace(base, histories=()))
    skips = {name for name in read if base.on_error.get(name) == "skip"}
    # With all columns of their sequences, which decide whether a row's lists differ in length.
    read_with = skips.union(*(group.of for group in base.sequences if skips & set(group.of)))
    return [name for name in base.inputs if name in read_with]
