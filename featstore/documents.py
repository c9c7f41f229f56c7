"""YAML documents, for specs and training configs: read strictly, and within bounds.

A document must not decide how long it takes, or how much memory: neither by nesting, for which the
parser goes down by recursion, nor by numbers of thousands of digits, nor by keys that are merged
again and again.
"""

from collections.abc import Hashable
from typing import Any

import yaml

MOST_NESTED = 50
_MOST_DIGITS = 1_000
_MOST_KEYS = 100_000
_MERGE = "tag:yaml.org,2002:merge"


class DocumentError(Exception):
    """A text is no YAML, or goes beyond the bounds: what is wrong, on one line, and where."""


def load_yaml(text: str | bytes) -> object:
    """What a YAML document says.

    Raises:
        DocumentError: for what is no YAML, a key that is there twice, an alias within its own
            anchor, and for what is nested, long or large beyond the bounds.
    """
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        raise DocumentError(_problem(error)) from None
    except (ValueError, RecursionError) as error:  # a time such as 2026-99-99
        raise DocumentError(" ".join(str(error).split())) from None


def _problem(error: Exception) -> str:
    """What the parser did not like, with line and column counted from 1 where it names them."""
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return problem + where


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML would silently keep the last, and an
    alias within its own anchor, which would have no end. Keys of a merge (`<<: *base`) give way to
    those beside it."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._checked: set[int] = set()
        self._num_above = 0

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _MOST_DIGITS:
            problem = f"an integer of {len(node.value):,} digits: expected one of 64 bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return int(super().construct_yaml_int(node))

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if id(node) not in self._checked:  # merged keys may stand beside written ones after this
            self._checked.add(id(node))
            self._check_keys([key for key, _ in node.value if key.tag != _MERGE])
        super().flatten_mapping(node)
        if len(node.value) > _MOST_KEYS:
            problem = f"a mapping of more than {_MOST_KEYS:,} keys, with merged ones: merge fewer"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def _check_keys(self, written: list[yaml.Node]) -> None:
        seen: set[Any] = set()
        for node in written:
            key = self.construct_object(node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused by the parser itself
            if key in seen:
                problem = f"key {key!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            seen.add(key)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._num_above >= MOST_NESTED:
            problem = f"nested more than {MOST_NESTED} deep: expected fewer levels"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._num_above += 1
        node = super().compose_node(parent, index)
        self._num_above -= 1
        if is_alias and node is not None and node.end_mark is None:
            problem = f"alias *{event.anchor} within its own anchor"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
