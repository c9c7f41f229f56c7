"""The schema of a footer: its columns, their leaf columns, and the Arrow schema.

The files of a table mostly share it byte for byte, and describing thousands of columns takes longer
than reading them. So the last few schemas are cached, by their bytes.
"""

import base64
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featstore.base.processes import cached_property, forget_in_child
from featstore.base.schema import FIELD_ID
from featstore.native.arrow import SchemaBytes, arrow_schema, arrow_text_of
from featstore.native.column_types import plain_type
from featstore.native.damage import DAMAGE, damage_as, first_line
from featstore.native.format import ABSENT, ELEMENTS, SLOTS, FooterError, Numbers

PHYSICAL = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
# Bytes of a decoded value of each physical type of fixed width.
_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "BOOLEAN": 1, "INT96": 8}
_OFFSET_BYTES = 4.0
_MAX_DEPTH = 100  # Arrow describes nested columns by recursion; real ones are some ten deep
# Cached schemas. A job that reads tables, or versions of a table, with more schemas in turn would
# describe each file's columns again.
_MAX_KEPT = 8
_REQUIRED, _REPEATED = 0, 2  # of FieldRepetitionType
_LAST_CONVERTED = 25  # of ConvertedType
_AT = SLOTS[ELEMENTS]
_POSITIONS = [_AT[name] for name in ("begin", "end", "name", "name.end")]


class Leaf(NamedTuple):
    """A leaf column: its path, its physical type as an index into `PHYSICAL`, and its highest
    levels.
    """

    path: str
    physical: int
    max_repetition: int
    max_definition: int

    @property
    def physical_type(self) -> str:
        return PHYSICAL[self.physical]


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A column of the schema.

    Attributes:
        name: Its name.
        num_elements: The schema elements that describe it.
        begin: The first byte of these elements.
        end: The end of these bytes.
        leaves: The indices of its leaf columns.
    """

    name: str
    num_elements: int
    begin: int
    end: int
    leaves: range


@dataclass(frozen=True, kw_only=True, eq=False)
class FileSchema:
    """A schema. Immutable, and safe to share between threads.

    Attributes:
        elements: The bytes of its elements. Positions in `roots` are relative to them.
        all_bytes: All columns as a footer holds them, with the text of Arrow's schema.
        schema: The Arrow schema in plain types, see `column_types`, without metadata of its own; a
            footer's key values have it.
        roots: The columns.
        leaves: The leaf columns of all columns, in order.
        by_name: The indices of the columns of each name; several if the name is not unique.
        levels: Physical type, highest repetition and highest definition level, int64
            (3, num_leaves).
    """

    elements: bytes
    all_bytes: SchemaBytes
    schema: pa.Schema
    roots: tuple[Root, ...]
    leaves: tuple[Leaf, ...]
    by_name: dict[str, tuple[int, ...]]
    levels: Numbers

    @cached_property
    def sizes(self) -> npt.NDArray[np.float64]:
        """What a decoded column of each leaf takes: bytes for each value, for each decompressed
        byte of texts, and for each row of lists, which have offsets. float64 (3, num_leaves).
        """
        widths = np.array([_WIDTHS.get(leaf.physical_type, 0) for leaf in self.leaves], float)
        are_texts = widths == 0
        are_lists = np.array(["." in leaf.path for leaf in self.leaves], float)
        return np.stack([widths + _OFFSET_BYTES * are_texts, are_texts, _OFFSET_BYTES * are_lists])

    @cached_property
    def by_id(self) -> dict[int, tuple[int, ...]]:
        """The indices of the columns of each field id; several if the id is not unique."""
        found: dict[int, tuple[int, ...]] = {}
        for index, column in enumerate(self.schema):
            if (text := (column.metadata or {}).get(FIELD_ID)) is not None:
                found[int(text)] = (*found.get(int(text), ()), index)
        return found

    def bytes_of(self, columns: Sequence[int]) -> SchemaBytes:
        """The columns with these indices as a footer holds them."""
        return (
            self.all_bytes if len(columns) == len(self.roots) else _bytes_of(self, tuple(columns))
        )


# Files that share a schema are mostly read for the same columns, one after the other.
@lru_cache(maxsize=2 * _MAX_KEPT)
def _bytes_of(schema: FileSchema, columns: tuple[int, ...]) -> SchemaBytes:
    roots = [schema.roots[index] for index in columns]
    if schema.all_bytes.arrow_text is None:
        return _bytes(schema.elements, roots, None)
    selected = pa.schema([schema.schema.field(index) for index in columns])
    return _bytes(schema.elements, roots, arrow_text_of(selected))


def _bytes(elements: bytes, roots: Sequence[Root], arrow_text: bytes | None) -> SchemaBytes:
    return SchemaBytes(
        num_columns=len(roots),
        num_elements=sum(root.num_elements for root in roots),
        elements=b"".join([elements[root.begin : root.end] for root in roots]),
        arrow_text=arrow_text,
    )


class SchemaCache:
    """The schemas described last, each with the Arrow text of the first file that had it.

    Thread-safe: `_lock` guards `_known`. A schema is described while the lock is held: threads that
    open the files of one table would otherwise all describe the same one at first.
    """

    def __init__(self) -> None:
        self._known: deque[tuple[bytes | None, FileSchema]] = deque(maxlen=_MAX_KEPT)
        self.forget()

    def forget(self) -> None:
        """Replaces the lock by a new one. What is known stays right in a forked child."""
        self._lock = threading.Lock()

    def get(
        self, elements: bytes, arrow_text: bytes | None, rows: Numbers, begin: int
    ) -> FileSchema:
        """The schema that the bytes of a footer's elements describe.

        Args:
            elements: The bytes.
            arrow_text: The text of Arrow's schema, if the footer has one.
            rows: The elements as `walk` found them.
            begin: The byte of the footer at which they begin.

        Raises:
            FooterError: They do not form a valid schema.
        """
        with self._lock:
            likely = [known for known in reversed(self._known) if known[1].elements == elements]
            for text, schema in likely:
                if text == arrow_text:
                    return schema
            of_columns = _text_of_columns(arrow_text)
            for _, schema in likely:
                if schema.all_bytes.arrow_text == of_columns:
                    return schema
            own = rows.copy()
            own[:, _POSITIONS] -= begin
            schema = _file_schema(elements, of_columns, own)
            self._known.append((arrow_text, schema))
            return schema


def _text_of_columns(arrow_text: bytes | None) -> bytes | None:
    """Arrow's text without the metadata of the whole schema, which can differ in each file: pandas
    stores the number of rows there, featstore the base file of a slot group's file. Columns have
    plain types, in which Arrow then reads them: it cannot take rows of views.
    """
    if arrow_text is None:
        return None
    try:
        columns = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(arrow_text)))
    except DAMAGE:
        return arrow_text  # Arrow raises a better error for it when the schema is described.
    return arrow_text_of(pa.schema([c.with_type(plain_type(c.type)) for c in columns]))


SCHEMAS = SchemaCache()
forget_in_child(SCHEMAS)


def _file_schema(elements: bytes, arrow_text: bytes | None, rows: Numbers) -> FileSchema:
    roots, leaves = _columns(elements, rows)
    all_bytes = _bytes(elements, roots, arrow_text)
    by_name: dict[str, tuple[int, ...]] = {}
    for index, root in enumerate(roots):
        by_name[root.name] = (*by_name.get(root.name, ()), index)
    with damage_as(lambda error: FooterError(f"its schema cannot be read: {first_line(error)}")):
        schema = arrow_schema(all_bytes)
    return FileSchema(
        elements=elements,
        all_bytes=all_bytes,
        schema=schema,
        roots=tuple(roots),
        leaves=tuple(leaves),
        by_name=by_name,
        levels=np.array([leaf[1:] for leaf in leaves], np.int64).reshape(-1, 3).T.copy(),
    )


def _columns(elements: bytes, rows: Numbers) -> tuple[list[Root], list[Leaf]]:
    """The columns of a schema, and all their leaf columns. FooterError if it is invalid."""
    _check_tree(rows[:, _AT["num_children"]])
    tree = _ElementTree(elements, rows)
    tree.check()
    roots, leaves = list[Root](), list[Leaf]()
    while tree.position < len(rows):
        first, name, own = tree.position, tree.names[tree.position], tree.leaves("", 0, 0)
        roots.append(
            Root(
                name=name,
                num_elements=tree.position - first,
                begin=int(rows[first, _AT["begin"]]),
                end=int(rows[tree.position - 1, _AT["end"]]),
                leaves=range(len(leaves), len(leaves) + len(own)),
            )
        )
        leaves += own
    return roots, leaves


def _check_tree(num_children: Numbers) -> None:
    """Checks that the elements, in preorder, form exactly one tree. FooterError if they do not."""
    counts = np.where(num_children == ABSENT, 0, num_children)
    is_within = ((counts >= 0) & (counts <= len(counts))).all()
    # Each element fulfils one announced child and announces its own. The number of outstanding ones
    # must reach 0 after the last element, and not before.
    outstanding = 1 + np.cumsum(counts - 1)
    if not len(counts) or not is_within or outstanding[-1] or (outstanding[:-1] <= 0).any():
        raise FooterError("expected the schema's elements to be one tree, found others")


class _ElementTree:
    """Reads the elements of a schema in order, from the first column on. `position` is the index of
    the next element.
    """

    def __init__(self, elements: bytes, rows: Numbers) -> None:
        self._rows, self.position = rows, 1
        spans = zip(rows[:, _AT["name"]].tolist(), rows[:, _AT["name.end"]].tolist(), strict=True)
        self.names = [_decoded(elements[first:end]) for first, end in spans]
        self._num_children = np.maximum(rows[:, _AT["num_children"]], 0).tolist()
        self._repetitions = rows[:, _AT["repetition"]].tolist()
        self._types = rows[:, _AT["type"]].tolist()

    def check(self) -> None:
        """Checks the elements after the first. FooterError if one has an impossible value."""
        of = {name: self._rows[1:, _AT[name]] for name in ("repetition", "converted", "type")}
        is_leaf = self._rows[1:, _AT["num_children"]] <= 0
        converted, type_ = of["converted"], of["type"]
        self._require((of["repetition"] >= 0) & (of["repetition"] <= 2), "a repetition of 0 to 2")
        is_known = (converted == ABSENT) | ((converted >= 0) & (converted <= _LAST_CONVERTED))
        self._require(is_known, f"a converted type of 0 to {_LAST_CONVERTED}")
        is_known = (type_ >= 0) & (type_ < len(PHYSICAL))
        self._require(is_known | ~is_leaf, "a physical type of 0 to 7")
        self._require(is_leaf | (type_ == ABSENT), "no physical type beside columns below it")

    def _require(self, is_met: np.ndarray, expected: str) -> None:
        if not is_met.all():
            name = self.names[1 + int(np.argmin(is_met))]
            raise FooterError(f"column {name!r}: expected {expected}, found something else")

    def leaves(self, prefix: str, repetition: int, definition: int, depth: int = 1) -> list[Leaf]:
        """Reads the next element and all below it, and returns the leaf columns.

        Args:
            prefix: The path of the parent, with a dot at its end.
            repetition: The repetition level of the parent.
            definition: The definition level of the parent.
            depth: The depth of the element.
        """
        index, path = self.position, prefix + self.names[self.position]
        if depth > _MAX_DEPTH:
            raise FooterError(f"column {path!r}: expected at most {_MAX_DEPTH} levels, found more")
        self.position += 1
        repetition += self._repetitions[index] == _REPEATED
        definition += self._repetitions[index] != _REQUIRED
        if not self._num_children[index]:
            return [Leaf(path, self._types[index], repetition, definition)]
        leaves = list[Leaf]()
        for _ in range(self._num_children[index]):
            leaves += self.leaves(f"{path}.", repetition, definition, depth + 1)
        return leaves


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FooterError(f"expected a column's name in UTF-8, found {name[:64]!r}") from None
