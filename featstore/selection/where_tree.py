"""Parses the text of a `where` to sqlglot's tree, with a limit on nesting.

sqlglot parses by recursion, about twenty calls for each parenthesis, so the depth of a text is
counted on its tokens first.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar

from featstore.base.errors import SelectionError
from featstore.base.libraries import LazyModule
from featstore.base.redaction import short

sqlglot: Any = LazyModule("sqlglot")

MOST_NESTED = 30
"""The deepest nesting of parentheses, or of `not`. It takes three quarters of Python's default
recursion limit, since the caller has used some of it."""
_OPEN = {"L_PAREN", "L_BRACKET", "L_BRACE"}
_CLOSE = {"R_PAREN", "R_BRACKET", "R_BRACE"}
_BEFORE_A_VALUE = {"NOT", "DASH"}
# The words of the grammar. Every other word of SQL may be the name of a column.
WORDS = frozenset({"and", "or", "not", "in", "between", "is", "null", "true", "false"})


@functools.cache
def _dialect() -> Any:
    """Spark's SQL, extended by the standard's doubled quotes within a text.

    The dialect is imported on first use, because the import is slow.
    """
    from sqlglot.dialects.spark import Spark

    class FeatstoreWhere(Spark):
        class Tokenizer(Spark.Tokenizer):
            COMMANDS: ClassVar[set[Any]] = set()  # sqlglot makes one text of what follows these
            STRING_ESCAPES = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']  # noqa: RUF012  sqlglot's

    return sqlglot.Dialect.get_or_raise(FeatstoreWhere)


def parse_tree(text: str, columns: Collection[str] = ()) -> Any:
    """Parses one predicate.

    Args:
        text: The predicate.
        columns: Names that are columns, also where they are words of SQL.

    Raises:
        SelectionError: The syntax is wrong, the text is nested too deeply, or it is not exactly one
            predicate.
    """
    try:
        tokens = _named(_dialect().tokenize(text), text, columns)
        if _depth(tokens) > MOST_NESTED:
            raise too_deep(text)
        # As a condition, since sqlglot warns of statements that it does not know.
        parsed = _dialect().parser().parse_into(sqlglot.exp.Condition, tokens, text)
        trees = [tree for tree in parsed if tree is not None]
    except sqlglot.errors.SqlglotError as error:
        details = getattr(error, "errors", None) or [{"description": str(error)}]
        what = short(str(details[0]["description"]))
        raise SelectionError(f"where {short(text)!r}: cannot be parsed: {what}") from None
    except RecursionError:
        raise too_deep(text) from None
    if len(trees) != 1:
        raise SelectionError(f"where {short(text)!r}: expected one predicate, found {len(trees)}")
    return trees[0]


def _named(tokens: Sequence[Any], text: str, columns: Collection[str]) -> list[Any]:
    """The tokens, with names in place of those words of SQL that are columns."""
    words = {name for name in columns if _is_word_of_sql(name)}
    return [
        type(token).identifier(token.text)
        if token.text in words
        and text[token.start : token.end + 1] == token.text  # no quoted text
        and not (after is not None and after.token_type.name == "L_PAREN")
        else token
        for token, after in itertools.zip_longest(tokens, tokens[1:])
    ]


def _is_word_of_sql(name: str) -> bool:
    known, upper = _dialect(), name.upper()
    return name.lower() not in WORDS and (
        upper in known.tokenizer_class.KEYWORDS
        or upper in known.parser_class.NO_PAREN_FUNCTION_PARSERS
    )


def too_deep(text: str) -> SelectionError:
    """The error for a text that is nested more deeply than `MOST_NESTED`."""
    return SelectionError(
        f"where {short(text)!r}: nested too deeply: expected at most {MOST_NESTED} parentheses, or "
        f"`not`, within each other; write values that are compared with one column as `in (...)`"
    )


def _depth(tokens: Iterable[Any]) -> int:
    """The most parentheses that are open at once, or signs and `not` in a row."""
    deepest = num_open = num_signs = 0
    for token in tokens:
        kind = token.token_type.name
        num_open += (kind in _OPEN) - (kind in _CLOSE)
        num_signs = num_signs + 1 if kind in _BEFORE_A_VALUE else 0
        deepest = max(deepest, num_open, num_signs)
    return deepest
