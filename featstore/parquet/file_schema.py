"""The schema of a footer: its columns, the leaf columns below them, and what Arrow makes of them.

Files of a table mostly share it, byte for byte, and to describe thousands of columns takes longer
than to read them. So the layouts of the last few schemas are kept, found by their bytes.
"""

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from featstore.parquet.arrow import SchemaBytes, arrow_schema, arrow_text_of
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.format import ABSENT, ELEMENTS, SLOTS, Numbers
from featstore.parquet.walk import FooterError

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
_MOST_DEPTH = 100  # Arrow describes nested columns by recursion; real ones are some ten deep
_MOST_KEPT = 8
_REQUIRED, _REPEATED = 0, 2
_LAST_CONVERTED = 25
_AT = SLOTS[ELEMENTS]


class Leaf(NamedTuple):
    """A leaf column: its path, its physical type as a place in `PHYSICAL`, and its highest
    levels."""

    path: str
    physical: int
    max_repetition: int
    max_definition: int

    @property
    def physical_type(self) -> str:
        return PHYSICAL[self.physical]


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A column: its elements, the bytes of them, and the places of its leaf columns."""

    name: str
    num_elements: int
    begin: int
    end: int
    leaves: range


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """A schema; any number of threads may read it.

    `elements`: its bytes, from which those of `roots` count. `all_bytes`: all columns as a footer
    has them, with the text that Arrow wrote of them. `schema`: what Arrow makes of them.
    `by_name`: the places of the columns of each name, more than one where a name is not unique.
    `levels`: physical type, highest repetition and highest definition level, int64 (3,
    num_leaves).
    """

    elements: bytes
    all_bytes: SchemaBytes
    schema: pa.Schema
    roots: tuple[Root, ...]
    leaves: tuple[Leaf, ...]
    by_name: dict[str, tuple[int, ...]]
    levels: Numbers

    def bytes_of(self, places: Sequence[int]) -> SchemaBytes:
        """The columns at these places as a footer has them."""
        return self.all_bytes if len(places) == len(self.roots) else _bytes_of(self, tuple(places))


# Files that share a layout are mostly read for the same columns, one after the other.
@lru_cache(maxsize=2 * _MOST_KEPT)
def _bytes_of(layout: Layout, places: tuple[int, ...]) -> SchemaBytes:
    roots = [layout.roots[place] for place in places]
    if layout.all_bytes.arrow_text is None:
        return _bytes(layout.elements, roots, None)
    schema = pa.schema([layout.schema.field(place) for place in places])
    return _bytes(layout.elements, roots, arrow_text_of(schema))


def _bytes(elements: bytes, roots: Sequence[Root], arrow_text: bytes | None) -> SchemaBytes:
    return SchemaBytes(
        num_columns=len(roots),
        num_elements=sum(root.num_elements for root in roots),
        elements=b"".join([elements[root.begin : root.end] for root in roots]),
        arrow_text=arrow_text,
    )


class _Layouts:
    """The layouts used last. `_lock` guards `_known`; layouts are made outside it."""

    def __init__(self) -> None:
        self._known: deque[Layout] = deque(maxlen=_MOST_KEPT)
        self.free()

    def free(self) -> None:
        """Another lock, which nobody holds."""
        self._lock = threading.Lock()

    def of(self, elements: bytes, arrow_text: bytes | None, rows: Numbers) -> Layout:
        with self._lock:
            known = list(self._known)
        for layout in reversed(known):
            if layout.elements == elements and layout.all_bytes.arrow_text == arrow_text:
                return layout
        layout = _layout(elements, arrow_text, rows)
        with self._lock:
            self._known.append(layout)
        return layout


_LAYOUTS = _Layouts()
# Another thread may hold the lock while the process forks, and would hold it in the child for ever.
os.register_at_fork(after_in_child=_LAYOUTS.free)


def layout_of(elements: bytes, arrow_text: bytes | None, rows: Numbers) -> Layout:
    """The layout of a schema's bytes, whose elements were walked to `rows`, their positions counted
    from the first byte of `elements`. FooterError where it is no schema."""
    return _LAYOUTS.of(elements, arrow_text, rows)


def _layout(elements: bytes, arrow_text: bytes | None, rows: Numbers) -> Layout:
    roots, leaves = _columns(elements, rows)
    all_bytes = _bytes(elements, roots, arrow_text)
    by_name: dict[str, tuple[int, ...]] = {}
    for place, root in enumerate(roots):
        by_name[root.name] = (*by_name.get(root.name, ()), place)
    return Layout(
        elements=elements,
        all_bytes=all_bytes,
        schema=_schema(all_bytes),
        roots=tuple(roots),
        leaves=tuple(leaves),
        by_name=by_name,
        levels=np.array([leaf[1:] for leaf in leaves], np.int64).reshape(-1, 3).T,
    )


def _schema(columns: SchemaBytes) -> pa.Schema:
    try:
        return arrow_schema(columns)
    except DAMAGE as error:
        raise FooterError(f"its schema cannot be read: {first_line(error)}") from error


def _columns(elements: bytes, rows: Numbers) -> tuple[list[Root], list[Leaf]]:
    """The columns of a schema, and the leaf columns below them. FooterError where it is none."""
    _check_tree(rows[:, _AT["num_children"]])
    tree = _Tree(elements, rows)
    tree.check()
    roots, leaves = list[Root](), list[Leaf]()
    while tree.at < len(rows):
        at, name, found = tree.at, tree.names[tree.at], tree.leaves("", 0, 0)
        roots.append(
            Root(
                name=name,
                num_elements=tree.at - at,
                begin=int(rows[at, _AT["begin"]]),
                end=int(rows[tree.at - 1, _AT["end"]]),
                leaves=range(len(leaves), len(leaves) + len(found)),
            )
        )
        leaves += found
    return roots, leaves


def _check_tree(num_children: Numbers) -> None:
    """Elements, each followed by those below it, are one tree where after each of them but the last
    some are still to come, and after the last none."""
    counts = np.where(num_children == ABSENT, 0, num_children)
    is_within = ((counts >= 0) & (counts <= len(counts))).all()
    to_come = 1 + np.cumsum(counts - 1)
    if not len(counts) or not is_within or to_come[-1] or (to_come[:-1] <= 0).any():
        raise FooterError("expected the schema's elements to be one tree, found others")


class _Tree:
    """Reads the elements of a schema one after the other, from the first column on."""

    def __init__(self, elements: bytes, rows: Numbers) -> None:
        self._rows, self.at = rows, 1
        spans = zip(rows[:, _AT["name"]].tolist(), rows[:, _AT["name.end"]].tolist(), strict=True)
        self.names = [_decoded(elements[first:end]) for first, end in spans]
        self._num_children = np.maximum(rows[:, _AT["num_children"]], 0).tolist()
        self._repetitions = rows[:, _AT["repetition"]].tolist()
        self._types = rows[:, _AT["type"]].tolist()

    def check(self) -> None:
        """FooterError where an element below the first has what none can have."""
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
        """The leaf columns of the next element, which is at the levels, and of those below it."""
        at, path = self.at, prefix + self.names[self.at]
        if depth > _MOST_DEPTH:
            raise FooterError(f"column {path!r}: expected at most {_MOST_DEPTH} levels, found more")
        self.at += 1
        repetition += self._repetitions[at] == _REPEATED
        definition += self._repetitions[at] != _REQUIRED
        if not self._num_children[at]:
            return [Leaf(path, self._types[at], repetition, definition)]
        found = list[Leaf]()
        for _ in range(self._num_children[at]):
            found += self.leaves(f"{path}.", repetition, definition, depth + 1)
        return found


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FooterError(f"expected a column's name in UTF-8, found {name[:64]!r}") from None
