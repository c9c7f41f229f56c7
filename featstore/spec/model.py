"""A spec as frozen data: the content of the document, before operators are looked up."""

import datetime
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featstore.ops.vocabularies import Vocabulary

VERSION = 1
ON_ERROR = ("fail", "null", "skip")
CHECKS = ("rows", "coverage", "label_rate", "distinct", "drift")
SEVERITIES = ("fail", "warn")
TIMESTAMP = pa.timestamp("us", tz="UTC")

_NAMES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    TIMESTAMP: "timestamp",
}
_TYPES = {name: arrow_type for arrow_type, name in _NAMES.items()} | {
    **dict.fromkeys(("str", "utf8", "varchar"), pa.string()),
    **dict.fromkeys(("tinyint", "short", "smallint", "int", "integer", "bigint"), pa.int64()),
    **dict.fromkeys(
        ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), pa.int64()
    ),
    **dict.fromkeys(("float", "float32", "float64"), pa.float64()),
    **dict.fromkeys(("bool",), pa.bool_()),
}
COMPRESSIONS = ("snappy", "zstd")
VALUES = ("auto", "top", "none")
TYPE_NAMES = (*_NAMES.values(), "list<...>", "map<string, ...>")


def type_names() -> tuple[str, ...]:
    """Names that `read_type` knows: the scalar types, and lists and maps of the canonical ones."""
    scalars = tuple(_NAMES.values())
    lists = tuple(f"list<{name}>" for name in scalars)
    maps = tuple(f"map<string, {_NAMES[item]}>" for item in (pa.string(), pa.int64(), pa.float64()))
    return (*scalars, *(name for name in _TYPES if name not in scalars), *lists, *maps)


def read_type(text: str) -> pa.DataType | None:
    """The canonical Arrow type of a declared type such as `list<string>`; None if it is unknown."""
    name = text.strip().lower()
    if name.startswith(("list<", "array<")) and name.endswith(">"):
        value = _TYPES.get(name[name.index("<") + 1 : -1].strip())
        return None if value is None else pa.list_(value)
    return _map_type(name) if name.startswith("map<") and name.endswith(">") else _TYPES.get(name)


def _map_type(name: str) -> pa.DataType | None:
    """A map from string to numbers or strings, or to such maps."""
    key, _, item = name[len("map<") : -1].partition(",")
    value = read_type(item)
    if _TYPES.get(key.strip()) != pa.string() or value is None:
        return None
    innermost = value.item_type if pa.types.is_map(value) else value
    return (
        pa.map_(pa.string(), value)
        if innermost in (pa.string(), pa.int64(), pa.float64())
        else None
    )


def type_name(arrow_type: pa.DataType) -> str:
    """The name of a canonical type as a spec writes it."""
    if pa.types.is_map(arrow_type):
        return f"map<string, {type_name(arrow_type.item_type)}>"
    return (
        f"list<{_NAMES[arrow_type.value_type]}>"
        if pa.types.is_list(arrow_type)
        else _NAMES[arrow_type]
    )


@dataclass(frozen=True, kw_only=True)
class Node:
    """One entry of `slots`: an operator over inputs or other nodes.

    Attributes:
        name: The node's name, and that of its column.
        op: The operator's name.
        of: The names of its inputs: nodes or raw columns.
        slot: The slot number; None for an inner node.
        store: Whether the result is stored as a slot.
        params: The operator's params, as written.
        default: Replaces missing inputs; for several inputs, a mapping by name.
        fill: Replaces missing results.
        empty_as_null: Whether empty texts count as missing.
        encode: `sign` or `index`.
        share_slot: The number of the slot whose signs this one shares.
        values: Which texts of its values are kept for people to read, one of `VALUES`; None as the
            spec says for all slots.
        where: The path in the document, such as `slots[3]`.
    """

    name: str
    op: str
    of: tuple[str, ...]
    slot: int | None = None
    store: bool = True
    params: Mapping[str, object] = field(default_factory=dict)
    default: object = None
    fill: object = None
    empty_as_null: bool = False
    encode: str = "sign"
    share_slot: int | None = None
    values: str | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """One entry of `sequences`: list inputs that describe the same events."""

    name: str
    of: tuple[str, ...]
    max_len: int | None = None
    truncate: str = "head"
    empty_as_null: bool = False

    @property
    def where(self) -> str:
        """Its path in the document."""
        return f"sequences.{self.name}"

    @property
    def options(self) -> dict[str, object]:
        """How its columns are aligned."""
        return {
            "max_len": self.max_len,
            "truncate": self.truncate,
            "empty_as_null": self.empty_as_null,
        }


@dataclass(frozen=True, kw_only=True)
class Input:
    """One entry of `inputs`.

    Attributes:
        type: The canonical type.
        on_error: What a malformed value causes, one of `ON_ERROR`; None where it is not set.
        optional: Whether files may lack the column.
    """

    type: pa.DataType
    on_error: str | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The constants that a first pass fitted for one node.

    Attributes:
        op: The operator.
        hash: Identifies the operator, params and sub-DAG that they were fitted for.
        num_values: The number of values that they were fitted on.
        params: The frozen params, as JSON types.
    """

    op: str
    hash: str
    num_values: int
    params: Mapping[str, Any]

    def __str__(self) -> str:
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{params} ({self.op} of {self.num_values:,} values)"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How data files are written. None of these options changes the content.

    Attributes:
        rows_per_row_group: Rows in each row group. Fewer enlarge files and footers (see
            docs/design/writing.md).
        rows_per_file: The most rows in one file.
        bytes_per_file: The size near which a file ends, with whole row groups.
        compression: One of `COMPRESSIONS`.
        statistics: Whether statistics are collected during extraction.
    """

    rows_per_row_group: int = 65_536
    rows_per_file: int = 1_048_576
    bytes_per_file: int = 512_000_000
    compression: str = "snappy"
    statistics: bool = True


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """One entry of `checks`: bounds for a figure of each partition that is written.

    Attributes:
        check: The figure, one of `CHECKS`.
        of: The slots (names or globs) or the labels that it is a figure of; nothing for `rows`.
        at_least: The least value that passes.
        at_most: The greatest value that passes.
        last: Of `drift`: the number of days before the partition's own that it is compared with.
        against: Of `rows`: `replaced` makes the figure the share of the rows that the partition had
            before the run that replaces it.
        severity: One of `SEVERITIES`: `fail` refuses the commit, `warn` stores and shows the
            result.
        where: The path in the document, after the line if it is known.
    """

    check: str
    of: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    last: int | None = None
    against: str | None = None
    severity: str = "fail"
    where: str = field(default="", compare=False)

    def as_entry(self) -> dict[str, Any]:
        """The entry of `checks`, without what is not set."""
        given = {"of": list(self.of) or None, "at_least": self.at_least, "at_most": self.at_most}
        severity = None if self.severity == SEVERITIES[0] else self.severity
        return without_none(
            {"check": self.check, "against": self.against}
            | given
            | {"last": self.last, "severity": severity}
        )


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One spec document, with the frozen params of its lock.

    Attributes:
        nodes: The entries of `slots`.
        inputs: The canonical type of each raw column.
        labels: The source (a node or an input) of each label.
        weight: The source of the weight.
        keep: The inputs that are stored unchanged.
        retired: Slot numbers that must not be used again.
        sequences: The groups of aligned list inputs.
        output: How data files are written.
        checks: What the statistics of each partition must hold, or it is not committed.
        values: Which texts of values are kept for people to read: `auto` the most frequent ones of
            slots with few different values, `top` those of all slots, `none` none. Like `output`
            it changes no value.
        version: The semantics version.
        on_error: By raw column, one of `ON_ERROR` where the document sets it.
        optional: The raw columns that files may lack.
        source: The path or URL of the document, for errors.
        fitted: The fitted constants, by node.
        vocabularies: The recorded files, by name in the document (see `ops.vocabularies`).
        base_url: The directory that files are relative to.
        is_part: Whether this is a subset of the columns of a spec that was checked as a whole. Such
            a subset may have no slot.
    """

    nodes: tuple[Node, ...]
    inputs: Mapping[str, pa.DataType]
    labels: Mapping[str, str] = field(default_factory=dict)
    weight: str | None = None
    keep: tuple[str, ...] = ()
    retired: frozenset[int] = frozenset()
    sequences: tuple[Sequence, ...] = ()
    output: OutputOptions = OutputOptions()
    checks: tuple[DataCheck, ...] = ()
    values: str = "auto"
    version: int = VERSION
    on_error: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    source: str = field(default="", compare=False, repr=False)
    fitted: Mapping[str, Fitted] = field(default_factory=dict)
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)
    base_url: str = field(default="", repr=False)
    is_part: bool = field(default=False, compare=False)

    @functools.cached_property
    def by_name(self) -> Mapping[str, Node]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the canonical JSON of everything that determines the extracted content.

        This includes the order of columns and what is frozen. Retired numbers, `output`, `checks`,
        `values`, and inputs that nothing reads are excluded. Any other option that is written out
        counts, even if it equals the default.
        """
        return digest(self._content())

    def _content(self) -> dict[str, Any]:
        read = (
            {name for node in self.nodes for name in node.of}
            | set(self.labels.values())
            | {self.weight, *self.keep}
        )
        read |= {name for sequence in self.sequences for name in sequence.of}
        sequences = (
            {"sequences": [_sequence_content(sequence) for sequence in self.sequences]}
            if self.sequences
            else {}
        )
        return (
            self._frozen_content()
            | sequences
            | {
                "spec": self.version,
                "inputs": {name: self._input_content(name) for name in self.inputs if name in read},
                "labels": [[name, source] for name, source in self.labels.items()],
                "weight": self.weight,
                "keep": list(self.keep),
                "nodes": [_node_content(node) for node in self.nodes],
            }
        )

    def _frozen_content(self) -> dict[str, Any]:
        content = {
            "fitted": {name: plain(entry.params) for name, entry in self.fitted.items()},
            "vocabularies": {
                file: [len(entry), entry.digest] for file, entry in self.vocabularies.items()
            },
        }
        return {key: value for key, value in content.items() if value}

    def _input_content(self, name: str) -> str | dict[str, object]:
        """The type's name, or a mapping where the input has options."""
        given = without_none(
            {"on_error": self.on_error.get(name), "optional": name in self.optional or None}
        )
        return (
            {"type": type_name(self.inputs[name]), **given}
            if given
            else type_name(self.inputs[name])
        )


def _node_content(node: Node) -> dict[str, Any]:
    return without_none(
        {
            "name": node.name,
            "op": node.op,
            "of": list(node.of),
            "slot": node.slot,
            "params": {
                name: plain(value) for name, value in node.params.items() if value is not None
            },
            "default": plain(node.default),
            "fill": plain(node.fill),
            "empty_as_null": node.empty_as_null or None,
            "encode": None if node.encode == "sign" else node.encode,
            "share_slot": node.share_slot,
        }
    )


def _sequence_content(sequence: Sequence) -> dict[str, Any]:
    return without_none(
        {
            "of": list(sequence.of),
            "max_len": sequence.max_len,
            "truncate": None if sequence.truncate == "head" else sequence.truncate,
            "empty_as_null": sequence.empty_as_null or None,
        }
    )


def without_none(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content without keys whose value is None."""
    return {key: value for key, value in content.items() if value is not None}


def digest(content: object) -> str:
    """The SHA-256 (hex) of the canonical JSON of some content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: object) -> object:
    """A value as JSON types.

    Whole floats become integers, so that 10 and 10.0 have one hash; timestamps become text.
    """
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
