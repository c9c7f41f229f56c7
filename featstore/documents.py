"""Parsing of YAML documents (specs and training configs), strictly and within bounds.

A hostile document must not exhaust time or memory: by nesting (the parser is recursive), by
integers of thousands of digits, or by merging the same keys again and again.
"""

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
    try:
        try:
            return yaml.load(text, _FastLoader)
        except yaml.YAMLError:
            return yaml.load(text, _PythonLoader)
    except yaml.YAMLError as error:
        raise DocumentError(_problem(error)) from None
    except (ValueError, RecursionError) as error:  # ValueError: a date such as 2026-99-99
        raise DocumentError(" ".join(str(error).split())) from None


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

    class _Events(Composer, yaml.CSafeLoader):
        """Composes the nodes of libyaml's events in Python. libyaml's own composer is recursive,
        and its nesting cannot be bounded.
        """

        def __init__(self, text: str | bytes) -> None:
            Composer.__init__(self)
            yaml.CSafeLoader.__init__(self, text)

    class _LibyamlLoader(_Strict, _Events):
        """Parses with libyaml: a spec of 4,000 slots takes a third of the time."""

    _LibyamlLoader.add_constructor("tag:yaml.org,2002:int", _Strict.construct_yaml_int)
    _FastLoader = _LibyamlLoader
