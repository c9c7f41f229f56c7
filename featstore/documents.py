"""Parsing of YAML documents (specs and training configs), strictly and within bounds.

A hostile document must not exhaust time or memory: by nesting (the parser is recursive), by
integers of thousands of digits, or by merging the same keys again and again.
"""

import contextlib
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer

# No spec comes near these bounds. Each level of nesting costs several Python frames, and the
# default recursion limit is 1,000.
MAX_NESTING = 50
# `int(text)` takes time that grows with the square of the digits, and Python refuses 4,300 of them.
_MAX_DIGITS = 1_000
# Aliases and merges can double the keys with every line ("billion laughs").
_MAX_KEYS = 100_000
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
# Scalars without quotes that are made into values. The others are `<<` and `=`.
_CONSTRUCTED = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "timestamp")
)
if TYPE_CHECKING:
    _Base = yaml.SafeLoader  # what both classes of loaders have in common
else:
    _Base = object


class DocumentError(Exception):
    """A text is not YAML, or exceeds a bound. The message is one line and says what and where."""


def load_yaml(text: str | bytes) -> object:
    """Parses a YAML document.

    Raises:
        DocumentError: The text is not YAML, a mapping has a key twice, an alias is within its own
            anchor, or the nesting, an integer or a mapping exceeds its bound.
    """
    if yaml.__with_libyaml__:
        # Whatever is wrong is found once more below, where it is said in the same words as ever.
        with contextlib.suppress(_NotPlainError, yaml.YAMLError, ValueError):
            return _PlainLoader(text).value()
    try:
        try:
            return yaml.load(text, _FastLoader)
        except yaml.YAMLError:
            return yaml.load(text, _PythonLoader)
    except yaml.YAMLError as error:
        raise DocumentError(_problem(error)) from None
    except (ValueError, RecursionError) as error:  # ValueError: a date such as 2026-99-99
        raise DocumentError(" ".join(str(error).split())) from None


def item_lines(text: str | bytes, key: str) -> tuple[int, ...]:
    """The line, counted from 1, on which each item of the list under a top-level key begins.

    It reads events alone, and makes no values of them.

    Args:
        text: A document that `load_yaml` accepts.
        key: The key.

    Returns:
        The lines; nothing if the document has no list there.
    """
    if yaml.__with_libyaml__:
        # libyaml refuses some documents, such as those of `%YAML 1.3`.
        with contextlib.suppress(yaml.YAMLError):
            return _item_lines(text, key, yaml.CSafeLoader)
    return _item_lines(text, key, yaml.SafeLoader)


def _item_lines(text: str | bytes, key: str, loader: Any) -> tuple[int, ...]:
    depth, num_nodes, is_wanted, lines = 0, 0, False, list[int]()
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            continue
        if depth == 1 and num_nodes % 2 == 0:
            is_wanted = isinstance(event, yaml.ScalarEvent) and event.value == key
        elif depth == 1:
            is_wanted = is_wanted and isinstance(event, yaml.SequenceStartEvent)
        elif depth == 2 and is_wanted:
            assert event.start_mark is not None  # all events of a text have one
            lines.append(event.start_mark.line + 1)
        num_nodes += depth == 1
        depth += isinstance(event, yaml.CollectionStartEvent)
    return tuple(lines)


def _problem(error: Exception) -> str:
    """The parser's complaint on one line, with line and column counted from 1 if it has them."""
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return problem + where


class _Strict(_Base):
    """Refuses duplicate keys, of which YAML would silently keep the last, and an alias within its
    own anchor, which would be an endless document. Written keys override those of a merge
    (`<<: *base`).
    """

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._checked: set[int] = set()
        self._num_above = 0

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _MAX_DIGITS:
            problem = f"an integer of {len(node.value):,} digits: expected one of 64 bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return int(super().construct_yaml_int(node))

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Flattening adds the merged keys to the node, where they may repeat written ones. So only
        # the keys of the first visit are checked.
        if id(node) not in self._checked:
            self._checked.add(id(node))
            self._check_keys([key for key, _ in node.value if key.tag != _MERGE])
        super().flatten_mapping(node)
        if len(node.value) > _MAX_KEYS:
            problem = f"a mapping of more than {_MAX_KEYS:,} keys, with merged ones: merge fewer"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def _check_keys(self, written: list[yaml.Node]) -> None:
        seen: set[Any] = set()
        for node in written:
            key = self.construct_object(node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the parser itself refuses it
            if key in seen:
                problem = f"key {key!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            seen.add(key)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._num_above >= MAX_NESTING:
            problem = f"nested more than {MAX_NESTING} deep: expected fewer levels"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._num_above += 1
        node = super().compose_node(parent, index)
        self._num_above -= 1
        # The end mark is set when a collection is complete, so a node without one is its own
        # ancestor here.
        if is_alias and node is not None and node.end_mark is None:
            problem = f"alias *{event.anchor} within its own anchor"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node


class _PythonLoader(_Strict, yaml.SafeLoader):
    """Parses in Python: its errors are the clearer ones."""


_PythonLoader.add_constructor("tag:yaml.org,2002:int", _Strict.construct_yaml_int)
_FastLoader: Any = _PythonLoader

if yaml.__with_libyaml__:

    class _NotPlainError(Exception):
        """The document is more than `_PlainLoader` makes, or it is wrong."""

    class _PlainLoader(yaml.CSafeLoader):
        """Makes values straight from libyaml's events, without a node and two marks for each: that
        takes half the time, and thousands of objects fewer for the garbage collector.

        It knows mappings with scalars as keys, sequences and scalars. For documents with anchors,
        tags or merges, and for those that break a rule or bound of this module, it raises
        `_NotPlainError`.
        """

        def __init__(self, text: str | bytes) -> None:
            super().__init__(text)
            # Scalars repeat, above all keys. Each is resolved once.
            self._scalars: dict[str, Any] = {}

        def value(self) -> object:
            """The value of the only document; None for an empty text."""
            self._next(yaml.StreamStartEvent)
            if type(self.peek_event()) is yaml.StreamEndEvent:
                return None
            self._next(yaml.DocumentStartEvent)
            value = self._value(self.get_event(), 0)
            self._next(yaml.DocumentEndEvent)
            self._next(yaml.StreamEndEvent)
            return value

        def _next(self, expected: type) -> None:
            if type(self.get_event()) is not expected:
                raise _NotPlainError

        def _value(self, event: Any, num_above: int) -> Any:
            # An alias is an event with an anchor too.
            if num_above >= MAX_NESTING or event.anchor is not None or event.tag is not None:
                raise _NotPlainError
            kind = type(event)
            if kind is yaml.ScalarEvent:
                return self._scalar(event.value) if event.implicit[0] else event.value
            if kind is yaml.SequenceStartEvent:
                return self._sequence(num_above + 1)
            return self._mapping(num_above + 1)

        def _sequence(self, num_above: int) -> list[Any]:
            items = []
            while type(event := self.get_event()) is not yaml.SequenceEndEvent:
                items.append(self._value(event, num_above))
            return items

        def _mapping(self, num_above: int) -> dict[Any, Any]:
            entries: dict[Any, Any] = {}
            while type(event := self.get_event()) is not yaml.MappingEndEvent:
                if type(event) is not yaml.ScalarEvent:
                    raise _NotPlainError
                key = self._value(event, num_above)
                if key in entries or len(entries) >= _MAX_KEYS:
                    raise _NotPlainError
                entries[key] = self._value(self.get_event(), num_above)
            return entries

        def _scalar(self, text: str) -> Any:
            """The value of a scalar without quotes."""
            if text not in self._scalars:
                self._scalars[text] = self._resolved(text)
            return self._scalars[text]

        def _resolved(self, text: str) -> Any:
            tag = self.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
            if tag == _TEXT:
                return text
            if tag not in _CONSTRUCTED or len(text) > _MAX_DIGITS:
                raise _NotPlainError
            return self.yaml_constructors[tag](self, yaml.ScalarNode(tag, text))

    class _Events(Composer, yaml.CSafeLoader):
        """Composes the nodes of libyaml's events in Python. libyaml's own composer is recursive,
        and its nesting cannot be bounded.
        """

        def __init__(self, text: str | bytes) -> None:
            Composer.__init__(self)
            yaml.CSafeLoader.__init__(self, text)

    class _LibyamlLoader(_Strict, _Events):
        """Parses with libyaml, which takes a third of the time."""

    _LibyamlLoader.add_constructor("tag:yaml.org,2002:int", _Strict.construct_yaml_int)
    _FastLoader = _LibyamlLoader
