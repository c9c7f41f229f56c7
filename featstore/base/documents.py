"""Parsing of YAML documents (specs and training configs), strictly and within bounds.

A hostile document must not exhaust time or memory: by nesting (values are made by recursion), by
integers of thousands of digits, or by merging the same keys again and again.

Values are those of YAML 1.1. What YAML 1.2, and most people, read otherwise is refused: `010` is 8
in the one and 10 in the other.
"""

import contextlib
import itertools
import re
from typing import Any

import yaml

# No spec comes near these bounds. Each level of nesting costs several Python frames, and the
# default recursion limit is 1,000.
MAX_NESTING = 50
# `int(text)` takes time that grows with the square of the digits, and Python refuses 4,300 of them.
_MAX_DIGITS = 1_000
# Merges of merges can multiply the keys with every line ("billion laughs").
_MAX_KEYS = 100_000
_TAG = "tag:yaml.org,2002:"
_TEXT = f"{_TAG}str"
_COLLECTION_TAGS = {
    yaml.SequenceStartEvent: (None, "!", f"{_TAG}seq"),
    yaml.MappingStartEvent: (None, "!", f"{_TAG}map"),
}
# Scalars that are made into values. Those without quotes that are not are `<<` and `=`.
_SCALAR_TAGS = frozenset(
    f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "timestamp", "str", "binary")
)
# Scalars without quotes, and how YAML 1.2 (its core schema) reads them; others are text, null or
# times, on which the versions agree or which only 1.1 knows.
_YAML_1_2 = re.compile(
    r"(?P<int>[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<bool>true|True|TRUE|false|False|FALSE)"
)
_DIFFERING = frozenset(f"{_TAG}{kind}" for kind in _YAML_1_2.groupindex)
_ZERO_FIRST = re.compile("[-+]?0[0-9_]+")  # in 1.1 octal
_MAX_PROBLEMS, _MAX_SHOWN = 10, 40
_INCOMPLETE = object()  # a list or mapping that is being made


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
    try:
        document = _read(text)
    except yaml.YAMLError as error:
        raise DocumentError(_problem(error)) from None
    except (ValueError, RecursionError) as error:  # ValueError: a date such as 2026-99-99
        raise DocumentError(" ".join(str(error).split())) from None
    document.problems.sort(key=lambda problem: problem[0].index)
    found = [text + _place(mark) for mark, text in document.problems]
    if found and problems is None:
        more = f"; and {len(found) - _MAX_PROBLEMS:,} more" if len(found) > _MAX_PROBLEMS else ""
        raise DocumentError("; ".join(found[:_MAX_PROBLEMS]) + more)
    if problems is not None:
        problems += found
    return document.value


def item_lines(text: str | bytes, key: str) -> tuple[int, ...]:
    """The line, counted from 1, on which each item of the list under a top-level key begins.

    Args:
        text: A document that `load_yaml` accepts.
        key: The key.

    Returns:
        The lines; nothing if the document has no list there.
    """
    return tuple(_read(text).item_lines.get((key,), ()))


class _Document:
    """Makes values straight from the parser's events. Nodes between them, as in PyYAML's own
    loaders, take twice as long, and libyaml's own nodes could not be bounded in their nesting.

    Attributes:
        value: The value; None for an empty text.
        problems: Duplicate keys, of which YAML silently keeps the last, and values that versions of
            YAML read differently: where each is, and what it is.
        item_lines: By the path of each list of the top level, the line of each item, counted from
            1.
    """

    def __init__(self, parser: Any) -> None:
        self._parser, self._next = parser, parser.get_event
        self.problems: list[tuple[Any, str]] = []
        self.item_lines: dict[tuple[Any, ...], list[int]] = {}
        # Scalars without quotes repeat, above all keys. By tag and text: the value, and what is to
        # be said of it.
        self._scalars: dict[tuple[str | None, str], tuple[Any, str]] = {}
        self._anchors: dict[str, Any] = {}
        # How many keys a mapping with merges was made of, repeated ones included, by its id.
        self._num_keys: dict[int, int] = {}
        self.value = self._only_document()

    def _only_document(self) -> Any:
        parser = self._parser
        parser.get_event()  # of the stream
        if parser.check_event(yaml.StreamEndEvent):
            return None
        parser.get_event()  # of the document
        value = self._value(parser.get_event(), ())
        parser.get_event()  # of the document's end
        if not parser.check_event(yaml.StreamEndEvent):
            raise _wrong("expected a single document, found another one", parser.get_event())
        return value

    def _value(self, event: Any, path: tuple[Any, ...]) -> Any:
        """The value that begins with an event.

        Args:
            event: The event.
            path: The keys, as they are written, and the positions that lead to it. That of a key
                itself ends with None.
        """
        if len(path) >= MAX_NESTING:
            raise _wrong(f"nested more than {MAX_NESTING} deep: expected fewer levels", event)
        kind, anchor = type(event), event.anchor
        if kind is yaml.AliasEvent:
            return self._aliased(event)
        if anchor is not None:
            if anchor in self._anchors:
                raise _wrong(f"found duplicate anchor {anchor!r}", event)
            self._anchors[anchor] = _INCOMPLETE
        if kind is yaml.ScalarEvent:
            value = self._scalar(event, path)
        elif event.tag not in _COLLECTION_TAGS[kind]:
            what = "list" if kind is yaml.SequenceStartEvent else "mapping"
            raise _wrong(f"expected no tag such as {event.tag!r} of a {what}", event)
        else:
            value = self._list(path) if kind is yaml.SequenceStartEvent else self._mapping(path)
        if anchor is not None:
            self._anchors[anchor] = value
        return value

    def _aliased(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise _wrong(f"found undefined alias {event.anchor!r}", event)
        if self._anchors[event.anchor] is _INCOMPLETE:  # it would be an endless document
            raise _wrong(f"alias *{event.anchor} within its own anchor", event)
        return self._anchors[event.anchor]

    def _list(self, path: tuple[Any, ...]) -> list[Any]:
        items: list[Any] = []
        lines: list[int] = []
        if len(path) == 1:
            self.item_lines[path] = lines
        while type(event := self._next()) is not yaml.SequenceEndEvent:
            lines.append(event.start_mark.line + 1)
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: tuple[Any, ...]) -> dict[Any, Any]:
        """A mapping. Written keys override those of a merge (`<<: *base`)."""
        written: dict[Any, Any] = {}
        bases: list[dict[Any, Any]] = []
        key_path = (*path, None)
        while type(event := self._next()) is not yaml.MappingEndEvent:
            text = event.value if type(event) is yaml.ScalarEvent else ""
            if text == "<<" and event.implicit[0]:
                bases += self._bases((*path, text))
                continue
            key = self._value(event, key_path)
            if isinstance(key, (list, dict)):
                raise _wrong("found unhashable key", event)
            if key in written:
                said = f"key {_short(repr(key))} appears twice"
                self.problems.append((event.start_mark, said))
            written[key] = self._value(self._next(), (*path, text))
        num_keys = len(written) + sum(self._num_keys.get(id(base), len(base)) for base in bases)
        if num_keys > _MAX_KEYS:
            said = f"a mapping of more than {_MAX_KEYS:,} keys, with merged ones: merge fewer"
            raise _wrong(said, event)
        if not bases:
            return written
        found = dict(itertools.chain.from_iterable(of.items() for of in (*bases, written)))
        self._num_keys[id(found)] = num_keys
        return found

    def _bases(self, path: tuple[Any, ...]) -> list[dict[Any, Any]]:
        """The mappings of a merge; of equal keys that of the last one counts."""
        event = self._next()
        value = self._value(event, path)
        bases = value[::-1] if isinstance(value, list) else [value]
        if not all(isinstance(base, dict) for base in bases):
            raise _wrong("expected a mapping or a list of mappings for merging", event)
        return bases

    def _scalar(self, event: Any, path: tuple[Any, ...]) -> Any:
        text, tag = event.value, event.tag
        if tag is None and not event.implicit[0]:  # in quotes
            return text
        if (tag, text) not in self._scalars:
            self._scalars[tag, text] = self._resolved(event)
        value, note = self._scalars[tag, text]
        if note:
            self.problems.append((event.start_mark, f"{_where(path)}: {note}"))
        return value

    def _resolved(self, event: Any) -> tuple[Any, str]:
        """The value of a scalar with a tag or without quotes, and that YAML 1.2 reads another."""
        text, tag = event.value, event.tag
        if tag in (None, "!"):
            tag = self._parser.resolve(yaml.ScalarNode, text, event.implicit)
        if tag not in _SCALAR_TAGS:
            raise _wrong(f"could not determine a constructor for the tag {tag!r}", event)
        if tag == f"{_TAG}int" and len(text) > _MAX_DIGITS:
            raise _wrong(f"an integer of {len(text):,} digits: expected one of 64 bits", event)
        node = yaml.ScalarNode(tag, text, event.start_mark, event.end_mark)
        try:
            value = self._parser.yaml_constructors[tag](self._parser, node)
        except (AttributeError, LookupError):  # PyYAML does not expect such a text with the tag
            said = f"expected a value of the tag {tag!r}, found {_short(repr(text))}"
            raise _wrong(said, event) from None
        other = None if event.tag == _TEXT else _read_otherwise(tag, text)
        if other is None:
            return value, ""
        return value, (
            f"{_short(text)} is {_shown(value)} in YAML 1.1, as it has been read so far, and "
            f"{_shown(other)} in YAML 1.2: write what both read as you mean it, or "
            f"quote a text"
        )


def _read(text: str | bytes) -> _Document:
    """The document, parsed by libyaml, which takes a third of the time, if it can."""
    with contextlib.suppress(yaml.YAMLError):
        if yaml.__with_libyaml__:
            return _Document(yaml.CSafeLoader(text))
    # libyaml refuses some documents, such as those of `%YAML 1.3`; and of what is wrong, Python's
    # parser says more clearly what and where.
    return _Document(yaml.SafeLoader(text))


def _where(path: tuple[Any, ...]) -> str:
    is_key = path[-1:] == (None,)
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{_short(step)}"
        for step in path[: -is_key or None]
    )
    found = "".join(steps).removeprefix(".")
    return f"a key of {found or 'the document'}" if is_key else found or "document"


def _wrong(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _read_otherwise(tag: str, text: str) -> object:
    """What YAML 1.2 makes of a scalar without quotes; None if it is what 1.1 does, whose tag it
    has.

    Integers that begin with 0 count even where they mean the same, such as 07: the next is 010.
    """
    match = _YAML_1_2.fullmatch(text)
    kind = None if match is None else match.lastgroup
    of_both = tag.rpartition(":")[2] == kind or (kind is None and tag not in _DIFFERING)
    if of_both and not (kind == "int" and _ZERO_FIRST.fullmatch(text)):
        return None
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
