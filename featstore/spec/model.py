"""A spec as frozen data: the content of the document, before operators are looked up.

The classes are the table of a spec's options. A field that is an option of the document says in its
type what it may be (a `Kind`), which also gives its JSON Schema; its default is that of the option,
and its docstring the help. Of a node the type tells further what the option is a part of:

- `CONTENT`: the hash of the spec. All options are unless they say something else.
- `VALUES`: the node's values as well, so its meaning, and what `featstore spec show` lists.
- `APART`: neither.
"""

import datetime
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import pyarrow as pa

from featstore.base.errors import parse_bytes
from featstore.base.json_schema import any_of
from featstore.base.processes import cached_property
from featstore.ops.kinds import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    MAX_COUNT,
    NAMES,
    TEXT,
    Kind,
    accepted,
    by_name,
    converted,
    entry_of,
    integer,
    list_of,
    one_of,
    options_of,
    or_empty,
    or_null,
)
from featstore.ops.timestamps import DURATION_TEXT, parse_duration
from featstore.ops.vocabularies import Vocabulary

VERSION = 1
CONTENT, VALUES, APART = "content", "values", "apart"
SEVERITIES = ("fail", "warn")
TIMESTAMP = pa.timestamp("us", tz="UTC")
# Made once: `json.dumps` makes an encoder for each call.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)

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


def _canonical_type(text: object) -> pa.DataType:
    found = read_type(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(text)
    return found


def _is_bound(value: object) -> bool:
    """Whether a figure of a check can be compared with a value."""
    if type(value) is int:
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


_ERROR_MODE = one_of("fail", "null", "skip")
TYPE = converted(
    f"a type ({', '.join(TYPE_NAMES)})",
    _canonical_type,
    # The first form offers the names to editors; the parser reads more, such as `List<String>`.
    any_of([{"enum": list(type_names())}, TEXT.schema()]),
    known=TYPE_NAMES,
)
# YAML reads a bare `null` as None.
ON_ERROR = Kind(
    expected=_ERROR_MODE.expected,
    read=lambda value, where: _ERROR_MODE.read("null" if value is None else value, where),
    schema=lambda: {"enum": [*_ERROR_MODE.schema()["enum"], None]},
)
KEPT_TEXTS = one_of("auto", "top", "none")
COLUMN_NAME = accepted(
    "a name of letters, digits and _, no digit first",
    lambda value: isinstance(value, str) and value.isidentifier(),
    TEXT.schema(),
)
SLOT_NUMBER = integer(1, expected=f"a slot number, 1 to {MAX_COUNT}")
_AT_LEAST_1 = accepted(
    "an integer of at least 1",
    lambda value: type(value) is int and value >= 1,
    {"type": "integer", "minimum": 1},
)
_BYTES = converted(
    "a number of bytes above 0, or text such as 512MB",
    lambda value: parse_bytes(value, ""),
    any_of([_AT_LEAST_1.schema(), TEXT.schema()]),
)
_WHOLE = accepted(
    "an integer of at least 0",
    lambda value: type(value) is int and 0 <= value < 2**63,
    {"type": "integer", "minimum": 0},
)
_WINDOW = converted(
    "a time such as 30s, 15m, 12h, 90d or 2w",
    parse_duration,
    {"type": "string", "pattern": f"^({DURATION_TEXT})$"},
)
# What the bounds of each figure of `checks` may be, and of a figure that is a share of another.
CHECK_BOUNDS: Mapping[str, Kind] = {
    "rows": _WHOLE,
    "coverage": accepted(
        "a share, 0 to 1",
        lambda value: _is_bound(value) and 0 <= value <= 1,
        {"type": "number", "minimum": 0, "maximum": 1},
    ),
    "label_rate": accepted("a number", _is_bound, {"type": "number"}),
    "distinct": _WHOLE,
    "drift": accepted(
        "a number of at least 0",
        lambda value: _is_bound(value) and value >= 0,
        {"type": "number", "minimum": 0},
    ),
}
_DAYS = accepted(
    "a number of days, at least 1",
    lambda value: type(value) is int and 1 <= value < 2**63,
    _AT_LEAST_1.schema(),
)
_REPLACED = accepted(
    "replaced", lambda value: value == "replaced", {"const": "replaced"}, ("replaced",)
)
SHARE_BOUND = accepted(
    "a share of the rows before, at least 0",
    lambda value: _is_bound(value) and value >= 0,
    {"type": "number", "minimum": 0},
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
        share_slot: The slot whose signs this one shares (example: docs/operators.md).
        values: Which texts of its values are kept for people to read: `auto`, `top` or `none`; None
            as the spec says for all slots.
        where: The path in the document, such as `slots[3]`.
    """

    slot: Annotated[int | None, or_null(SLOT_NUMBER)] = None
    name: Annotated[str, COLUMN_NAME]
    op: Annotated[str, TEXT]
    of: Annotated[tuple[str, ...], NAMES]
    store: Annotated[bool, BOOLEAN, APART] = True
    default: Annotated[object, ANYTHING, VALUES] = None
    fill: Annotated[object, ANYTHING, VALUES] = None
    empty_as_null: Annotated[bool, BOOLEAN, VALUES] = False
    encode: Annotated[str, one_of("sign", "index")] = "sign"
    share_slot: Annotated[int | None, or_null(SLOT_NUMBER)] = None
    values: Annotated[str | None, KEPT_TEXTS, APART] = None
    params: Mapping[str, object] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """One entry of `sequences`: list inputs that describe the same events.

    Attributes:
        truncate: Which end `max_len` keeps (example: docs/operators.md).
    """

    name: str
    of: Annotated[tuple[str, ...], NAMES]
    max_len: Annotated[int | None, or_null(COUNT)] = None
    truncate: Annotated[str, one_of("head", "tail")] = "head"
    empty_as_null: Annotated[bool, BOOLEAN] = False

    @property
    def where(self) -> str:
        """Its path in the document."""
        return f"sequences.{self.name}"

    @property
    def options(self) -> dict[str, object]:
        """How its columns are aligned."""
        return {name: getattr(self, name) for name in options_of(Sequence) if name != "of"}


@dataclass(frozen=True, kw_only=True)
class Input:
    """One entry of `inputs`.

    Attributes:
        type: The canonical type.
        on_error: What a malformed value causes: `fail`, `null` or `skip`; None where it is not set.
        optional: Whether files may lack the column.
        text: Whether its numbers may be written as decimal text.
    """

    type: Annotated[pa.DataType, TYPE]
    on_error: Annotated[str | None, ON_ERROR] = None
    optional: Annotated[bool, BOOLEAN] = False
    text: Annotated[bool, BOOLEAN] = False


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
    """How data files are written. None of these options changes the values of any row.

    Attributes:
        rows_per_row_group: Rows in each row group. Fewer enlarge files and footers (see
            docs/design/writing.md).
        rows_per_file: The most rows in one file.
        bytes_per_file: The size near which a file ends, with whole row groups.
        compression: `snappy` or `zstd`.
        statistics: Whether statistics are collected during extraction.
        cluster_by: The input whose equal values have their rows side by side (see
            docs/extract.md); None for the order of the raw rows. Histories have it by themselves.
    """

    rows_per_row_group: Annotated[int, _AT_LEAST_1] = 65_536
    rows_per_file: Annotated[int, _AT_LEAST_1] = 1_048_576
    bytes_per_file: Annotated[int, _BYTES] = 512_000_000
    compression: Annotated[str, one_of("snappy", "zstd")] = "snappy"
    statistics: Annotated[bool, BOOLEAN] = True
    cluster_by: Annotated[str | None, or_null(TEXT)] = None


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """One entry of `checks`: bounds for a figure of each partition that is written.

    Attributes:
        check: The figure: `rows`, `coverage`, `label_rate`, `distinct` or `drift`.
        of: The slots (names or globs) or the labels that it is a figure of; nothing for `rows`.
        but: Of figures of slots: those of `of` (names or globs) that are left out.
        at_least: The least value that passes.
        at_most: The greatest value that passes.
        last: Of `drift`: the number of days before the partition's own that it is compared with.
        against: Of `rows`: `replaced` makes the figure the share of the rows that the partition had
            before the run that replaces it.
        severity: One of `SEVERITIES`: `fail` refuses the commit, `warn` stores and shows the
            result.
        where: The path in the document, after the line if it is known.
    """

    check: Annotated[str, one_of(*CHECK_BOUNDS, expected=f"one of {', '.join(CHECK_BOUNDS)}")]
    of: Annotated[tuple[str, ...], NAMES] = ()
    but: Annotated[tuple[str, ...], NAMES] = ()
    at_least: float | None = None
    at_most: float | None = None
    last: Annotated[int | None, _DAYS] = None
    against: Annotated[str | None, _REPLACED] = None
    severity: Annotated[str, one_of(*SEVERITIES)] = SEVERITIES[0]
    where: str = field(default="", compare=False)

    def as_entry(self) -> dict[str, Any]:
        """The entry of `checks`, without what is not set."""
        of = {"of": list(self.of) or None, "but": list(self.but) or None}
        given = {"at_least": self.at_least, "at_most": self.at_most}
        severity = None if self.severity == SEVERITIES[0] else self.severity
        return without_none(
            {"check": self.check, "against": self.against}
            | of
            | given
            | {"last": self.last, "severity": severity}
        )


@dataclass(frozen=True, kw_only=True)
class EventHistory:
    """One entry of `histories`: the events of a key, of which each row sees those that were known
    before it (docs/design/histories.md).

    Attributes:
        name: The history's name, with which the names of its columns begin.
        key: The column that rows and events share, such as a user's id.
        as_of: The kept column with the time of a row. Events known before it are seen.
        at: The event column with the time of the event.
        logged_at: The event column with the time when the event became known; by default that of
            the event.
        max_len: The most events of a row; the last known ones are kept.
        window: Events longer before the row are left out: text such as `90d`, in microseconds here.
        inputs: The canonical type of each event column.
        nodes: The entries of `slots`, over event columns.
        on_error: By event column, what a malformed value causes, where the document sets it.
        optional: The event columns that files may lack.
        text: The event columns whose numbers may be written as text.
        where: The path in the document, such as `histories[0]`.
    """

    name: Annotated[str, COLUMN_NAME]
    key: Annotated[str, TEXT]
    as_of: Annotated[str, TEXT]
    at: Annotated[str, TEXT]
    logged_at: Annotated[str | None, or_null(TEXT)] = None
    max_len: Annotated[int, COUNT]
    window: Annotated[int | None, or_null(_WINDOW)] = None
    inputs: Mapping[str, pa.DataType]
    nodes: tuple[Node, ...]
    on_error: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    text: frozenset[str] = frozenset()
    where: str = field(default="", compare=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns in data files, besides the slots."""
        return tuple(f"{self.name}_{what}" for what in ("end", "length", "back", "key", "at"))

    @property
    def times(self) -> tuple[str, ...]:
        """The event columns with the times of an event."""
        return (self.at,) if self.logged_at in (None, self.at) else (self.at, str(self.logged_at))

    @property
    def slot_inputs(self) -> tuple[str, ...]:
        """The event columns that stored slots read, as declared."""
        read = {name for node in self.events.nodes for name in node.of}
        return tuple(name for name in self.inputs if name in read)

    @property
    def slot_names(self) -> frozenset[str]:
        """The names of its slots."""
        return frozenset(node.name for node in self.nodes if node.store)

    def is_derived(self, node: Node) -> bool:
        """Whether a slot is made of `at` and the row's time while reading, so nothing is stored."""
        return node.op == "time_since" and node.of == (self.at,)

    @property
    def derived(self) -> tuple[Node, ...]:
        """The slots that are made while reading."""
        return tuple(node for node in self.nodes if self.is_derived(node))

    @cached_property
    def events(self) -> "Spec":
        """The slots that are stored, as a spec whose rows are events. The key and the times are
        among its inputs.
        """
        return Spec(
            nodes=tuple(node for node in self.nodes if not self.is_derived(node)),
            inputs=self.inputs,
            on_error=self.on_error,
            optional=self.optional,
            text=self.text,
            is_part=True,
            history=self,
        )

    @property
    def meaning(self) -> dict[str, Any]:
        """What decides, besides a slot, which events a row sees."""
        key_type = self.inputs.get(self.key)  # None in a wrong spec, whose errors lint collects
        rule = changed_options(self, CONTENT)
        rule |= {"name": None, "type": None if key_type is None else type_name(key_type)}
        return without_none(rule)

    @property
    def content(self) -> dict[str, Any]:
        """What determines its content."""
        return changed_options(self, CONTENT) | {
            "inputs": self.events.input_contents(),
            "nodes": [_node_content(node) for node in self.nodes],
        }


class StoredColumn(NamedTuple):
    """A stored column that is no slot: its role (`label`, `weight` or `kept`), its name, the node
    or input that it holds, and its path in the document.
    """

    role: str
    name: str
    source: str
    where: str


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
        histories: The events of keys, such as a user's clicks, that rows see.
        checks: What the statistics of each partition must hold, or it is not committed.
        values: Which texts of values are kept for people to read: `auto` the most frequent ones of
            slots with few different values, `top` those of all slots, `none` none. Like `output`
            it changes no value.
        version: The semantics version.
        on_error: By raw column, what a malformed value causes, where the document sets it.
        optional: The raw columns that files may lack.
        text: The raw columns whose numbers may be written as text.
        source: The path or URL of the document, for errors.
        fitted: The fitted constants, by node.
        vocabularies: The recorded files, by name in the document (see `ops.vocabularies`).
        base_url: The directory that files are relative to.
        is_part: Whether this is a subset of the columns of a spec that was checked as a whole. Such
            a subset may have no slot.
        history: The history whose events are the rows of this spec.
    """

    nodes: tuple[Node, ...]
    inputs: Mapping[str, pa.DataType]
    labels: Annotated[Mapping[str, str], or_empty(by_name(TEXT, COLUMN_NAME), {})] = field(
        default_factory=dict
    )
    weight: Annotated[str | None, or_null(TEXT)] = None
    keep: Annotated[tuple[str, ...], or_empty(list_of(TEXT), [])] = ()
    retired: Annotated[frozenset[int], or_empty(list_of(SLOT_NUMBER), [])] = frozenset()
    sequences: Annotated[
        tuple[Sequence, ...], or_empty(by_name(entry_of(Sequence), COLUMN_NAME), {})
    ] = ()
    output: Annotated[OutputOptions, or_empty(entry_of(OutputOptions), {})] = OutputOptions()
    histories: tuple[EventHistory, ...] = ()
    checks: tuple[DataCheck, ...] = ()
    values: Annotated[str, KEPT_TEXTS] = "auto"
    version: int = VERSION
    on_error: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    text: frozenset[str] = frozenset()
    source: str = field(default="", compare=False, repr=False)
    fitted: Mapping[str, Fitted] = field(default_factory=dict)
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)
    base_url: str = field(default="", repr=False)
    is_part: bool = field(default=False, compare=False)
    history: EventHistory | None = field(default=None, compare=False, repr=False)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, then those of the histories, whose slot numbers are of one space."""
        return (*self.nodes, *(node for history in self.histories for node in history.nodes))

    @property
    def cluster_by(self) -> str | None:
        """The input whose equal values have their rows side by side: `output.cluster_by`, or the
        key of the first history.
        """
        return self.histories[0].key if self.histories else self.output.cluster_by

    @property
    def keys(self) -> frozenset[str]:
        """The inputs that are read for histories, or by `EventHistory.events` to order events."""
        own = () if self.history is None else (self.history.key, *self.history.times)
        of_rows = (name for each in self.histories for name in (each.key, each.as_of))
        return frozenset((*own, *of_rows))

    @property
    def raw_types(self) -> Mapping[str, pa.DataType]:
        """The types in which files of text are read, and Spark SQL expects columns."""
        return dict(self.inputs) | {
            name: pa.list_(pa.string()) if pa.types.is_list(self.inputs[name]) else pa.string()
            for name in self.text
        }

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def columns(self) -> tuple[StoredColumn, ...]:
        """The labels, the weight and the kept columns."""
        labels = (
            StoredColumn("label", name, of, f"labels.{name}") for name, of in self.labels.items()
        )
        kept = (StoredColumn("kept", name, name, f"keep[{i}]") for i, name in enumerate(self.keep))
        weight = self.weight
        return (
            *labels,
            *([StoredColumn("weight", weight, weight, "weight")] if weight is not None else []),
            *kept,
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the canonical JSON of everything that determines the extracted content.

        This includes the order of columns and what is frozen. Retired numbers, `output`, `checks`,
        `values`, and inputs that nothing reads are excluded. Any other option that is written out
        counts, even if it equals the default.
        """
        # What most specs lack is left out, so that their hashes are those of earlier versions.
        rare = {
            "fitted": {name: plain(entry.params) for name, entry in self.fitted.items()},
            "vocabularies": {
                file: [len(entry), entry.digest] for file, entry in self.vocabularies.items()
            },
            "sequences": [changed_options(sequence, CONTENT) for sequence in self.sequences],
            "histories": [history.content for history in self.histories],
        }
        usual = {
            "spec": self.version,
            "inputs": self.input_contents(),
            "labels": [[name, source] for name, source in self.labels.items()],
            "weight": self.weight,
            "keep": list(self.keep),
            "nodes": [_node_content(node) for node in self.nodes],
        }
        return digest({key: value for key, value in rare.items() if value} | usual)

    def input_contents(self) -> dict[str, Any]:
        """The content of each input that is read."""
        read = {*self.keys, *(column.source for column in self.columns)}
        read.update(*(node.of for node in self.nodes), *(group.of for group in self.sequences))
        return {name: self._input_content(name) for name in self.inputs if name in read}

    def _input_content(self, name: str) -> str | dict[str, object]:
        """The type's name, or a mapping where the input has options."""
        given = without_none(
            {
                "on_error": self.on_error.get(name),
                "optional": name in self.optional or None,
                "text": name in self.text or None,
            }
        )
        return (
            {"type": type_name(self.inputs[name]), **given}
            if given
            else type_name(self.inputs[name])
        )


def _node_content(node: Node) -> dict[str, Any]:
    params = {name: plain(value) for name, value in node.params.items() if value is not None}
    return changed_options(node, CONTENT, VALUES) | {"params": params}


def changed_options(entry: Any, *parts: str) -> dict[str, Any]:
    """The options of an entry that are a part of these, as JSON types, without defaults."""
    return {
        name: plain(value)
        for name, option in options_of(entry.__class__).items()
        if option.part in parts
        and ((value := getattr(entry, name)) != option.default or option.required)
    }


def without_none(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content without keys whose value is None."""
    return {key: value for key, value in content.items() if value is not None}


def digest(content: object) -> str:
    """The SHA-256 (hex) of the canonical JSON of some content."""
    return hashlib.sha256(_CANONICAL.encode(content).encode()).hexdigest()


def plain(value: object) -> object:
    """A value as JSON types.

    Whole floats become integers, so that 10 and 10.0 have one hash; timestamps become text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
