"""Parsing of YAML documents (specs and training configs), strictly and within bounds.

A hostile document must not exhaust time or memory: by nesting (the parser is recursive), by
integers of thousands of digits, or by merging the same keys again and again.

Values are those of YAML 1.1. What YAML 1.2, and most people, read otherwise is refused: `010` is 8
in the one and 10 in the other.
"""

import contextlib
import re
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
# Scalars without quotes, and how YAML 1.2 (its core schema) reads them; others are text, null or
# times, on which the versions agree or which only 1.1 knows.
_YAML_1_2 = {
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
    "bool": re.compile("true|True|TRUE|false|False|FALSE"),
}
_ZERO_FIRST = re.compile("[-+]?0[0-9_]+")  # in 1.1 octal
_MAX_PROBLEMS, _MAX_SHOWN = 10, 40
if TYPE_CHECKING:
    _Base = yaml.SafeLoader  # what both classes of loaders have in common
else:
    _Base = object


class DocumentError(Exception):
    """A text is not YAML, or exceeds a bound. The message is one line and says what and where."""


def load_yaml(text: str | bytes, problems: list[str] | None = None) -> object:
    """Parses a YAML document.

    Args:
        text: The document.
        problems: If given, keys that a mapping has twice, and values that versions of YAML read
            differently, are not raised but appended here, each with key, line and column. The last
            of equal keys is taken then, and the value of YAML 1.1.

    Raises:
        DocumentError: The text is not YAML, a mapping has a key twice, a value has other meanings
            in other versions of YAML, an alias is within its own anchor, or the nesting, an integer
            or a mapping exceeds its bound.
    """
    if yaml.__with_libyaml__:
        # Whatever is wrong is found once more below, where it is said in the same words as ever.
        with contextlib.suppress(_NotPlainError, yaml.YAMLError, ValueError):
            return _PlainLoader(text).value()
    try:
        try:
            value, found = _load(text, _FastLoader)
        except yaml.YAMLError:
            value, found = _load(text, _PythonLoader)
    except yaml.YAMLError as error:
        raise DocumentError(_problem(error)) from None
    except (ValueError, RecursionError) as error:  # ValueError: a date such as 2026-99-99
        raise DocumentError(" ".join(str(error).split())) from None
    if found and problems is None:
        more = f"; and {len(found) - _MAX_PROBLEMS:,} more" if len(found) > _MAX_PROBLEMS else ""
        raise DocumentError("; ".join(found[:_MAX_PROBLEMS]) + more)
    if problems is not None:
        problems += found
    return value


def _load(text: str | bytes, kind: Any) -> tuple[object, list[str]]:
    """The value of a document, and what is wrong with it, in the order of the lines."""
    loader = kind(text)
    try:
        value = loader.get_single_data()
        loader.problems.sort(key=lambda problem: problem[0].index)
        return value, [text + _place(mark) for mark, text in loader.problems]
    finally:
        loader.dispose()


def _reads_differ(tag: str, text: str) -> bool:
    """Whether YAML 1.2 reads this scalar without quotes as another value than 1.1, whose tag it
    has.

    Integers that begin with 0 count even where they mean the same, such as 07: the next is 010.
    """
    kind = tag.rpartition(":")[2]
    found = _kind_1_2(text)
    if kind not in _YAML_1_2:
        return found is not None
    return kind != found or (kind == "int" and _ZERO_FIRST.fullmatch(text) is not None)


def _kind_1_2(text: str) -> str | None:
    return next((kind for kind, texts in _YAML_1_2.items() if texts.fullmatch(text)), None)


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


def _value_1_2(text: str) -> object:
    """What YAML 1.2 makes of a scalar without quotes that 1.1 reads otherwise."""
    kind = _kind_1_2(text)
    if kind == "int":
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    return float(text) if kind == "float" else text


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the text {_short(repr(value))}"
    return str(value).lower() if isinstance(value, bool) else _short(value)


def _problem(error: Exception) -> str:
    """The parser's complaint on one line, with line and column counted from 1 if it has them."""
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    return problem + _place(getattr(error, "problem_mark", None))


def _place(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"


def _short(text: object) -> str:
    found = str(text)
    return found if len(found) <= _MAX_SHOWN else f"{found[:_MAX_SHOWN]}..."


class _Strict(_Base):
    """Refuses an alias within its own anchor, which would be an endless document. Written keys
    override those of a merge (`<<: *base`).

    Attributes:
        problems: Duplicate keys, of which YAML silently keeps the last, and values that versions of
            YAML read differently: where each is, and what it is.
    """

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.problems: list[tuple[Any, str]] = []
        self._checked: set[int] = set()
        # The keys and positions that lead to the node which is composed.
        self._path: list[str] = []

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
                self.problems.append((node.start_mark, f"key {_short(repr(key))} appears twice"))
            seen.add(key)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if len(self._path) >= MAX_NESTING:
            problem = f"nested more than {MAX_NESTING} deep: expected fewer levels"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._path.append(self._step(parent, index))
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and not is_alias:
            self._check_scalar(node, event.tag, index is None and parent is not None)
        self._path.pop()
        # The end mark is set when a collection is complete, so a node without one is its own
        # ancestor here.
        if is_alias and node is not None and node.end_mark is None:
            problem = f"alias *{event.anchor} within its own anchor"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node

    def _step(self, parent: yaml.Node | None, index: Any) -> str:
        """What the node adds to the path; nothing for the document and for a key."""
        if isinstance(index, int):
            return f"[{index}]"
        name = _short(index.value) if isinstance(index, yaml.ScalarNode) else ""
        return f".{name}" if name and len(self._path) > 1 else name

    def _check_scalar(self, node: yaml.ScalarNode, tag: str | None, is_key: bool) -> None:
        is_text = tag == _TEXT or (tag is None and node.style)
        if is_text or not _reads_differ(node.tag, node.value):
            return
        path = "".join(self._path)
        where = f"a key of {path or 'the document'}" if is_key else path or "document"
        value = self.yaml_constructors[node.tag](self, node)
        self.problems.append(
            (
                node.start_mark,
                f"{where}: {_short(node.value)} is {_shown(value)} in YAML 1.1, as it has been "
                f"read so far, and {_shown(_value_1_2(node.value))} in YAML 1.2: write what both "
                f"read as you mean it, or quote a text",
            )
        )


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
            if _reads_differ(tag, text):
                raise _NotPlainError
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
