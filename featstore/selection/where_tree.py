"""The text of a `where` to sqlglot's tree, within bounds.

sqlglot goes down by recursion, some twenty calls for each parenthesis, so the depth of a text is
counted on its tokens first.
"""

import functools
from collections.abc import Iterable
from typing import Any

import sqlglot

from featstore.errors import SelectionError
from featstore.redaction import short

MOST_NESTED = 30
"""How many parentheses, or `not`, may stand within each other: three in four of the calls that
Python allows by default, of which the caller has used some."""
_OPEN = {"L_PAREN", "L_BRACKET", "L_BRACE"}
_CLOSE = {"R_PAREN", "R_BRACKET", "R_BRACE"}
_BEFORE_A_VALUE = {"NOT", "DASH"}


@functools.cache
def _dialect() -> Any:
    """Spark's SQL, in which a quote within a text may also be written twice, as in the standard's.
    (The import takes time.)"""
    from sqlglot.dialects.spark import Spark

    class FeatstoreWhere(Spark):
        class Tokenizer(Spark.Tokenizer):
            STRING_ESCAPES = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']  # noqa: RUF012  sqlglot's

    return sqlglot.Dialect.get_or_raise(FeatstoreWhere)


def parse_tree(text: str) -> Any:
    """The tree of one predicate. SelectionError for bad syntax, and for what is too deep."""
    try:
        tokens = _dialect().tokenize(text)
        if _depth(tokens) > MOST_NESTED:
            raise too_deep(text)
        trees = [tree for tree in _dialect().parser().parse(tokens, text) if tree is not None]
    except sqlglot.errors.SqlglotError as error:
        details = getattr(error, "errors", None) or [{"description": str(error)}]
        what = short(str(details[0]["description"]))
        raise SelectionError(f"where {short(text)!r}: cannot be parsed: {what}") from None
    except RecursionError:
        raise too_deep(text) from None
    if len(trees) != 1:
        raise SelectionError(f"where {short(text)!r}: expected one predicate, found {len(trees)}")
    return trees[0]


def too_deep(text: str) -> SelectionError:
    """What to raise for a text that is nested more deeply than it may."""
    return SelectionError(
        f"where {short(text)!r}: nested too deeply: expected at most {MOST_NESTED} parentheses, or "
        f"`not`, within each other; write values that are compared with one column as `in (...)`"
    )


def _depth(tokens: Iterable[Any]) -> int:
    """How many parentheses are open at once, or signs and `not` follow on each other, at most."""
    deepest = num_open = num_signs = 0
    for token in tokens:
        kind = token.token_type.name
        num_open += (kind in _OPEN) - (kind in _CLOSE)
        num_signs = num_signs + 1 if kind in _BEFORE_A_VALUE else 0
        deepest = max(deepest, num_open, num_signs)
    return deepest
