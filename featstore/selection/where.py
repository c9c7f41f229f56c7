"""Parses the text of a `where` into an Arrow expression over rows and a predicate over row groups.

`where` is SQL: `= == != < <= > >= in between is null and or not % ()` over columns, and
`sample(column, rate, seed)`. sqlglot parses it; every node outside that grammar is an error.
Columns may be named like any word of SQL; those of the grammar itself are put in backticks.
Comparison with null is null, and a row is kept where the predicate is true, as in SQL. NaN counts
as null in any column. The caller must give columns as of `SlotSchema.seen`, and replace the other
marks of missing values, 0 and `[0]` in slots, by nulls.
"""

import functools
import itertools
import math
import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import SelectionError, nearest, require_text
from featstore.base.libraries import LazyModule
from featstore.base.redaction import short
from featstore.base.text_table import short_names
from featstore.ops import hashing
from featstore.ops.arrays import cast_text
from featstore.selection.predicate import (
    COMPARISONS,
    FLIPPED,
    And,
    Compare,
    Flags,
    IsIn,
    IsNull,
    Not,
    Predicate,
    Ranges,
    Unknown,
    either,
    evaluate,
)
from featstore.selection.where_tree import WORDS, parse_tree, too_deep

exp: Any = LazyModule("sqlglot.expressions")
# sqlglot's base class of nodes has another name in each of its newer versions.
Node = Any
T = TypeVar("T")
# A number with a point or an exponent that a decimal can hold, with few digits.
_FRACTION = re.compile(r"\d*\.?\d*(?:[eE][+-]?\d{1,3})?")
# What sqlglot makes of a date without quotes: differences.
_DATE = re.compile(r"\d{4} - \d{1,2} - \d{1,2}")
# By the name of sqlglot's class for a node, since the classes are imported on first use.
_SYMBOLS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_LITERAL_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_SIGNS = (
    "; a slot of ids holds signs, which are numbers: `featstore whatis --text {text} --slot {slot} "
    "--table URL` prints that of a value, or compare a column that the spec keeps"
)
_GRAMMAR = "= == != < <= > >= in between is null and or not % () and sample(column, rate, seed)"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One `sample(column, rate, seed)`, a deterministic sample of the values of a column.

    A value is kept where `xxhash64(int seed, xxhash64(text)) & (2^63 - 1) < rate * 2^63`; null
    gives null. With equal seeds, the sample of a lower rate is a subset of that of a higher rate.

    Attributes:
        column: The column's name.
        rate: The share of values to keep.
        seed: Selects one of many independent samples.
    """

    column: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"sample({self.column}, {self.rate!r}, {self.seed})"

    def mask(self, values: pa.Array) -> pa.Array:
        """Which values are in the sample: bool (num_values,)."""
        if self.rate >= 1:  # also values that have no hash, such as uint64 above 2^63
            return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))
        largest = pa.scalar(int(self.rate * 2**63) - 1, pa.int64())  # the last sign of the sample
        kept = pc.less_equal(hashing.sign(self.seed, hashing.value_hash(values)), largest)
        return pc.if_else(pc.is_valid(values), kept, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of the top-level `and`.

    Attributes:
        expression: The Arrow expression of the term.
        columns: The columns that it reads.
        samples: The samples in it, which the expression reads as columns of their names.
        predicate: The same term, for row-group pruning.
    """

    expression: pc.Expression
    columns: frozenset[str]
    samples: tuple[Sample, ...]
    predicate: Predicate

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """The term's value for each row: bool or null (num_rows,)."""
        for sample in self.samples:
            table = table.append_column(
                sample.name, sample.mask(table.column(sample.column).combine_chunks())
            )
        return evaluate(self.expression, table)


@dataclass(frozen=True, kw_only=True)
class Where:
    """A parsed `where`: terms that must all be true, over columns of these types."""

    text: str
    terms: tuple[Term, ...]
    types: Mapping[str, pa.DataType]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(term.columns for term in self.terms))

    def matches_partition(self, values: Mapping[str, str | None]) -> bool | None:
        """Whether the rows of a partition match.

        Args:
            values: The partition's values as text, by key.

        Returns:
            True where all rows match, False where none does, None where the rows decide.
        """
        decided = [term for term in self.terms if term.columns <= values.keys()]
        row = pa.table(
            {
                name: pa.array([value], pa.string()).cast(self.types[name])
                for name, value in values.items()
                if name in self.types
            }
        )
        if not all(term.mask(row)[0].as_py() for term in decided):
            return False
        return True if len(decided) == len(self.terms) else None

    def can_match(self, ranges: Ranges) -> Flags:
        """Whether some row of each row group may match, `(num_row_groups,)`."""
        return functools.reduce(
            operator.and_, (term.predicate.outcomes(ranges).true for term in self.terms)
        )

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Which rows to keep: bool (num_rows,), without nulls."""
        masks = [term.mask(table) for term in self.terms]
        return pc.fill_null(functools.reduce(pc.and_kleene, masks), False)


def parse_where(text: str, columns: Mapping[str, pa.DataType]) -> Where:
    """Parses a predicate.

    Args:
        text: The `where`, in the grammar of this module.
        columns: The types of the columns that it may name.

    Raises:
        ConfigError: It is no text.
        SelectionError: The syntax is wrong, a column is unknown, or values of different kinds are
            compared.
    """
    require_text("where", text)
    try:
        tree = _with_whole_numbers(parse_tree(text, columns))
        nodes = list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
        terms = tuple(_Builder(text=short(text), columns=columns).term(node) for node in nodes)
    except RecursionError:
        raise too_deep(text) from None
    except SelectionError as error:
        words = ", ".join(f"`{name}`" for name in columns if name.lower() in WORDS)
        if not words:
            raise
        raise SelectionError(f"{error}; put these columns in backticks: {words}") from None
    return Where(text=text, terms=terms, types=dict(columns))


@dataclass
class _Builder:
    """Builds the Arrow expression of one term and records what it reads.

    Attributes:
        text: The `where`, for error messages.
        columns: The types of the known columns.
        used: The columns that the term reads.
        samples: The samples of the term, by name.
    """

    text: str
    columns: Mapping[str, pa.DataType]
    used: set[str] = field(default_factory=set)
    samples: dict[str, Sample] = field(default_factory=dict)

    def term(self, node: Node) -> Term:
        predicate = self.predicate(node)
        if not self.used:
            raise SelectionError(
                f"where {self.text!r}: expected a predicate over columns, found {_sql(node)!r}"
            )
        return Term(
            expression=predicate.expression,
            columns=frozenset(self.used),
            samples=tuple(self.samples.values()),
            predicate=predicate,
        )

    def predicate(self, node: Node) -> Predicate:
        if isinstance(node, exp.Paren):
            return self.predicate(node.this)
        if isinstance(node, exp.Not):
            return Not(self.predicate(node.this))
        if isinstance(node, exp.And | exp.Or):
            parts = [self.predicate(part) for part in node.flatten()]
            return _joined(parts, And if isinstance(node, exp.And) else either)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            value, is_column = self.operand(node.this), isinstance(node.this, exp.Column)
            return IsNull(node.this.name, value) if is_column else Unknown(value.is_null())
        if isinstance(node, exp.Boolean):
            return Unknown(pc.scalar(bool(node.this)))
        return self.comparison(node)

    def comparison(self, node: Node) -> Predicate:
        if symbol := _SYMBOLS.get(type(node).__name__):
            return self.compare(node.this, symbol, node.expression)
        if isinstance(node, exp.Between):
            low, high = node.args["low"], node.args["high"]
            self.require_alike(node.this, low, high)
            return And(self.compare(node.this, ">=", low), self.compare(node.this, "<=", high))
        if isinstance(node, exp.In) and node.expressions:
            return self.membership(node.this, node.expressions)
        if isinstance(node, exp.Anonymous) and node.name.lower() == "sample":
            return Unknown(self.sample(node))
        if isinstance(node, exp.Column) and self.columns.get(node.name) == pa.bool_():
            return Unknown(self.operand(node))
        raise self.refuse(node)

    def compare(self, left: Node, symbol: str, right: Node) -> Predicate:
        self.require_alike(left, right)
        if isinstance(right, exp.Column):
            left, symbol, right = right, FLIPPED[symbol], left
        values = self.operands(left, right)
        if isinstance(left, exp.Column) and _is_literal(right):
            value, literal = values
            return Compare(left.name, value, symbol, literal)
        return Unknown(COMPARISONS[symbol](*values))

    def membership(self, node: Node, items: list[Node]) -> Predicate:
        """Whether a value is one of a list. Literals use a hash table, since lists may be long."""
        if all(map(_is_literal, items)):
            found = IsIn(node.name, *self.lookup(node, items))
            return found if isinstance(node, exp.Column) else Unknown(found.expression)
        # As one comparison: if one value is a float, all are compared as floats.
        value, *others = self.operands(node, *items)
        return Unknown(_joined([value == other for other in others], operator.or_))

    def lookup(self, node: Node, items: list[Node]) -> tuple[pc.Expression, pa.Array]:
        """A value and the literals that it is compared with, in one type.

        Of numbers that an integer is compared with, those that its type lacks are left out.
        """
        time = self.require_alike(node, *items)
        literals = [self.literal(item) for item in items]
        type_ = self.type_of(node)
        if _is_float(type_):
            zeros = [0.0, -0.0] if 0 in literals else []  # equal, and of different hashes
            numbers = pa.array([*map(float, literals), *zeros], pa.float64())
            return self.operand(node).cast(pa.float64(), safe=False), numbers
        if pa.types.is_integer(type_):
            can_be = np.iinfo(str(type_))  # Arrow names integers as numpy does
            literals = [
                int(number)
                for number in literals
                if number == int(number) and can_be.min <= number <= can_be.max
            ]
        if time is not None:
            literals, type_ = [self.instant(pa.scalar(text), time) for text in literals], time
        return self.operand(node, time), pa.array(literals, type_)

    def type_of(self, node: Node) -> pa.DataType:
        """The type of a column, a remainder or a literal."""
        node = _bare(node)
        if isinstance(node, exp.Mod):
            return self.type_of(node.this) if isinstance(node.this, exp.Column) else pa.int64()
        if isinstance(node, exp.Column):
            return self.columns[self.column(node.name)]
        return _LITERAL_TYPES[type(self.literal(node))]

    def require_alike(self, *nodes: Node) -> pa.DataType | None:
        """Checks that values are of one kind.

        Returns:
            The date or timestamp type in which to compare them, None for other kinds.

        Raises:
            SelectionError: The values are of different kinds.
        """
        families: dict[str, Node] = {}
        for node in nodes:
            families.setdefault(_family(self.type_of(node)), node)
        time = next(
            (self.columns[node.name] for family, node in families.items() if family == "time"), None
        )
        if time is not None and all(
            node.is_string for node in nodes if isinstance(node, exp.Literal)
        ):
            families.pop("text", None)
        if len(families) > 1 or families.keys() & {"list", "other"}:
            some = nodes if len(nodes) <= 3 else families.values()
            sides = ", ".join(f"{_sql(node)} ({_family(self.type_of(node))})" for node in some)
            raise SelectionError(
                f"where {self.text!r}: expected values of one kind, found {sides}"
                f"{self.hint_at_signs(nodes)}"
            )
        return time

    def hint_at_signs(self, nodes: Sequence[Node]) -> str:
        """How to find a sign, if a column of the type of signs, or of lists of them, stands beside
        a text.
        """
        bare = [_bare(node) for node in nodes]
        slots = [
            node.name
            for node in bare
            if isinstance(node, exp.Column)
            and self.columns.get(node.name) in (pa.int64(), pa.list_(pa.int64()))
        ]
        texts = [node.this for node in bare if isinstance(node, exp.Literal) and node.is_string]
        if not slots or not texts or short(texts[0]) != texts[0]:
            return ""  # No command can be given that has a long text, or a secret.
        return _SIGNS.format(text=shlex.quote(texts[0]), slot=shlex.quote(slots[0]))

    def operands(self, *nodes: Node) -> list[pc.Expression]:
        """Expressions of values that are compared with each other, which must be of one kind."""
        time = self.require_alike(*nodes)
        values = [self.operand(node, time) for node in nodes]
        if any(_is_float(self.type_of(node)) for node in nodes):
            # Arrow would choose a common type, such as float32, and reject integers that it lacks.
            return [value.cast(pa.float64(), safe=False) for value in values]
        return values

    def operand(self, node: Node, time: pa.DataType | None = None) -> pc.Expression:
        """A column, a remainder or a literal. With `time`, text is read as that type."""
        if isinstance(node, exp.Paren):
            return self.operand(node.this, time)
        if isinstance(node, exp.Column) and not node.table:
            return self.value(self.column(node.name))
        if isinstance(node, exp.Mod):
            return self.remainder(node)
        literal = pa.scalar(self.literal(node))
        return pc.scalar(literal if time is None else self.instant(literal, time))

    def value(self, name: str) -> pc.Expression:
        """A column's values, NaN as null: engines disagree on how NaN compares."""
        value, type_ = pc.field(name), self.columns[name]
        if pa.types.is_decimal(type_):
            return value.cast(pa.float64())
        return (
            pc.if_else(pc.is_nan(value), pa.scalar(None, type_), value)
            if pa.types.is_floating(type_)
            else value
        )

    def instant(self, text: pa.Scalar, time: pa.DataType) -> pa.Scalar:
        """Text as a date or timestamp; without a zone it is read as UTC."""
        if (found := cast_text(text, time)) is not None:
            return found
        raise SelectionError(f"where {self.text!r}: expected a {time}, found {text.as_py()!r}")

    def remainder(self, node: Node) -> pc.Expression:
        """`a % n` of an integer column, with the sign of `a`, as in Spark."""
        value, divisor = node.this, self.literal(node.expression)
        if not isinstance(divisor, int) or isinstance(divisor, bool) or divisor == 0:
            raise SelectionError(
                f"where {self.text!r}: expected an integer other than 0 after %, found "
                f"{_sql(node.expression)}"
            )
        if not isinstance(value, exp.Column) or not pa.types.is_integer(
            self.columns[self.column(value.name)]
        ):
            raise SelectionError(
                f"where {self.text!r}: expected an integer column before %, found {_sql(value)}"
            )
        column = pc.field(value.name)
        # Dividing the smallest int64 by -1 overflows. The result is 0, and null stays null.
        if abs(divisor) == 1:
            return column - column
        # Arrow divides integers towards zero.
        return column - column / pc.scalar(divisor) * pc.scalar(divisor)

    def literal(self, node: Node) -> str | int | float | bool:
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        sign, unsigned = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
        if not isinstance(unsigned, exp.Literal) or (sign < 0 and unsigned.is_string):
            raise self.refuse(node)
        if unsigned.is_string:
            return str(unsigned.this)
        try:
            number = sign * (int(unsigned.this) if unsigned.is_int else float(unsigned.this))
        except ValueError:  # such as `1e`
            raise self.refuse(node) from None
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise SelectionError(
                f"where {self.text!r}: expected an integer of 64 bits, found {_sql(node)}"
            )
        if math.isinf(number):
            raise SelectionError(
                f"where {self.text!r}: expected a number of 64 bits, found {_sql(node)}"
            )
        return number

    def column(self, name: str) -> str:
        if name not in self.columns and name.lower() == "nan":
            raise self.nan(name)
        if name not in self.columns:
            raise SelectionError(
                f"where {self.text!r}: no column {name!r}{nearest(name, self.columns)}; there are "
                f"{short_names([*self.columns])}"
            )
        self.used.add(name)
        return name

    def sample(self, node: Node) -> pc.Expression:
        arguments = node.expressions
        if len(arguments) != 3 or not isinstance(arguments[0], exp.Column):
            raise SelectionError(
                f"where {self.text!r}: expected sample(column, rate, seed), found {_sql(node)}"
            )
        rate, seed = self.literal(arguments[1]), self.literal(arguments[2])
        is_seed = isinstance(seed, int) and not isinstance(seed, bool) and -(2**31) <= seed < 2**31
        if isinstance(rate, str) or not 0 <= rate <= 1 or not is_seed:
            raise SelectionError(
                f"where {self.text!r}: expected a rate from 0 to 1 and an int32 seed, found "
                f"{_sql(node)}"
            )
        drawn = Sample(column=self.column(arguments[0].name), rate=float(rate), seed=int(seed))
        type_ = self.columns[drawn.column]
        if not (
            pa.types.is_integer(type_)
            or _family(type_) in ("text", "boolean")
            or pa.types.is_timestamp(type_)
        ):
            raise SelectionError(
                f"where {self.text!r}: sample needs a scalar column with a text form, found {type_}"
            )
        self.samples[drawn.name] = drawn
        return pc.field(drawn.name)

    def nan(self, found: str) -> SelectionError:
        return SelectionError(
            f"where {self.text!r}: NaN counts as null: expected `is null` or `is not null`, found "
            f"{found!r}"
        )

    def refuse(self, node: Node) -> SelectionError:
        if isinstance(node, exp.IsNan):
            return self.nan(_sql(node))
        found, hint = _sql(node), ""
        if _DATE.fullmatch(found):
            hint = f"; put the text of a date in quotes: '{found.replace(' ', '')}'"
        return SelectionError(f"where {self.text!r}: expected {_GRAMMAR}, found {found!r}{hint}")


def _joined(parts: list[T], join: Callable[[T, T], T]) -> T:
    """Joins all parts as a balanced tree: a chain of many parts would exceed recursion limits."""
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [left if right is None else join(left, right) for left, right in pairs]
    return parts[0]


def _sql(node: Node) -> str:
    """The SQL of a node, shortened for messages."""
    return short(node.sql())


def _is_literal(node: Node) -> bool:
    return isinstance(node, exp.Literal | exp.Neg | exp.Boolean)


def _bare(node: Node) -> Node:
    """The node without parentheses around it."""
    return _bare(node.this) if isinstance(node, exp.Paren) else node


def _with_whole_numbers(tree: Node) -> Node:
    """The tree, in which `7.0` and `1e3` are 7 and 1000: a double does not keep every integer."""
    for literal in tree.find_all(exp.Literal):
        # Of more digits none are an integer of 64 bits, and a double tells what they are.
        if not literal.is_string and not literal.is_int and _FRACTION.fullmatch(literal.this):
            number = Decimal(literal.this)
            if abs(number) < 2**63 and number == int(number):
                literal.set("this", str(int(number)))
    return tree


def _is_float(type_: pa.DataType) -> bool:
    """Whether a comparison with values of a type must use float64."""
    return bool(pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _family(type_: pa.DataType) -> str:
    """The kind of values of a column: only values of one kind can be compared."""
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "text"
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return "time"
    return (
        "boolean"
        if pa.types.is_boolean(type_)
        else "list"
        if pa.types.is_nested(type_)
        else "other"
    )
