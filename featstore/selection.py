"""What a job asks for: slot names and globs to ordered names, and `where` text to an Arrow expression.

`where` is SQL: `= == != < <= > >= in between is null and or not % ()` over columns, and `sample(column, rate, seed)`. sqlglot
parses it; every node outside that grammar is refused. Comparison with null is null, and a row is kept where the predicate is
true, as in SQL. Columns must come with nulls for missing values, not with a data file's marks.
"""

import fnmatch
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from featstore.errors import SelectionError, nearest
from featstore.ops import hashing

# sqlglot's base class of nodes has another name in each of its newer versions.
Node = Any
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_GRAMMAR = "= == != < <= > >= in between is null and or not % () and sample(column, rate, seed)"


def select(patterns: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """The names that the patterns ask for, each once: patterns in their order, a glob's matches in the order of `names`.

    SelectionError where a pattern matches nothing, with the nearest names.
    """
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise SelectionError(f"no slot matches {pattern!r} among {len(names)} slots{nearest(pattern, names)}")
        chosen.update(dict.fromkeys(found))
    return tuple(chosen)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One `sample(column, rate, seed)`: the same values everywhere, and those of a lower rate are among those of a higher.

    A value is kept where `xxhash64(int seed, xxhash64(text)) & (2^63 - 1) < rate * 2^63`; null gives null.
    """

    column: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"sample({self.column}, {self.rate!r}, {self.seed})"

    def mask(self, values: pa.Array) -> pa.Array:
        """Which values are in the sample: bool (num_values,)."""
        if self.rate >= 1:
            return pc.if_else(pc.is_valid(values), True, pa.scalar(None, pa.bool_()))
        kept = pc.less(hashing.sign(self.seed, hashing.value_hash(values)), pa.scalar(int(self.rate * 2**63), pa.int64()))
        return pc.if_else(pc.is_valid(values), kept, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term of the top-level `and`: an Arrow expression, the columns that it reads, and its samples."""

    expression: pc.Expression
    columns: frozenset[str]
    samples: tuple[Sample, ...]

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """The term's value for each row: bool or null (num_rows,)."""
        for sample in self.samples:
            table = table.append_column(sample.name, sample.mask(table.column(sample.column).combine_chunks()))
        plan = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([self.expression], ["keep"])),
        ]
        return acero.Declaration.from_sequence(plan).to_table(use_threads=False).column("keep")


@dataclass(frozen=True, kw_only=True)
class Where:
    """A parsed `where`: terms that must all be true."""

    text: str
    terms: tuple[Term, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(term.columns for term in self.terms))

    def matches_partition(self, values: Mapping[str, str | None]) -> bool | None:
        """Whether the rows of a partition can match: False none, True all, None where the rows themselves decide."""
        decided = [term for term in self.terms if term.columns <= values.keys()]
        row = pa.table({name: pa.array([value], pa.string()) for name, value in values.items()})
        if not all(term.mask(row)[0].as_py() for term in decided):
            return False
        return True if len(decided) == len(self.terms) else None

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Which rows to keep: bool (num_rows,), without nulls."""
        masks = [term.mask(table) for term in self.terms]
        return pc.fill_null(functools.reduce(pc.and_kleene, masks), False)


def parse_where(text: str, columns: Mapping[str, pa.DataType]) -> Where:
    """Parses a predicate over the given columns; SelectionError for bad syntax, unknown columns and unlike types."""
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        details = getattr(error, "errors", None) or [{"description": str(error)}]
        raise SelectionError(f"where {text!r}: cannot be parsed: {details[0]['description']}") from error
    terms = list(tree.flatten()) if isinstance(tree, exp.And) else [tree]
    return Where(text=text, terms=tuple(_Builder(text=text, columns=columns).term(node) for node in terms))


@dataclass
class _Builder:
    """Builds the Arrow expression of one term, noting what it reads."""

    text: str
    columns: Mapping[str, pa.DataType]
    used: set[str] = field(default_factory=set)
    samples: dict[str, Sample] = field(default_factory=dict)

    def term(self, node: Node) -> Term:
        self.used, self.samples = set(), {}
        expression = self.predicate(node)
        return Term(expression=expression, columns=frozenset(self.used), samples=tuple(self.samples.values()))

    def predicate(self, node: Node) -> pc.Expression:
        if isinstance(node, exp.Paren):
            return self.predicate(node.this)
        if isinstance(node, exp.Not):
            return ~self.predicate(node.this)
        if isinstance(node, exp.And | exp.Or):
            left, right = self.predicate(node.this), self.predicate(node.expression)
            return left & right if isinstance(node, exp.And) else left | right
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return self.operand(node.this).is_null()
        return self.comparison(node)

    def comparison(self, node: Node) -> pc.Expression:
        if type(node) in _COMPARISONS:
            self.check_types(node.this, [node.expression])
            return _COMPARISONS[type(node)](self.operand(node.this), self.operand(node.expression))
        if isinstance(node, exp.Between):
            self.check_types(node.this, [node.args["low"], node.args["high"]])
            value = self.operand(node.this)
            return (value >= self.operand(node.args["low"])) & (value <= self.operand(node.args["high"]))
        if isinstance(node, exp.In) and node.expressions:
            self.check_types(node.this, node.expressions)
            value = self.operand(node.this)
            return functools.reduce(operator.or_, (value == self.operand(item) for item in node.expressions))
        return self.boolean(node)

    def boolean(self, node: Node) -> pc.Expression:
        """A node that is true or false by itself: a sample, a literal, or a boolean column."""
        if isinstance(node, exp.Anonymous) and node.name.lower() == "sample":
            return self.sample(node)
        if isinstance(node, exp.Boolean):
            return pc.scalar(node.this)
        if isinstance(node, exp.Column) and self.columns.get(node.name) == pa.bool_():
            return self.operand(node)
        raise self.refuse(node)

    def operand(self, node: Node) -> pc.Expression:
        if isinstance(node, exp.Paren):
            return self.operand(node.this)
        if isinstance(node, exp.Column) and not node.table:
            return pc.field(self.column(node.name))
        if isinstance(node, exp.Mod):
            return self.remainder(node)
        return pc.scalar(self.literal(node))

    def remainder(self, node: exp.Mod) -> pc.Expression:
        """`a % n` with the sign of `a`, as in Spark: Arrow divides integers towards zero."""
        divisor = self.literal(node.expression)
        if not isinstance(divisor, int) or isinstance(divisor, bool) or divisor == 0:
            raise SelectionError(
                f"where {self.text!r}: expected an integer other than 0 after %, found {node.expression.sql()}"
            )
        self.check_types(node.this, [node.expression])
        value = self.operand(node.this)
        return value - value / pc.scalar(divisor) * pc.scalar(divisor)

    def literal(self, node: Node) -> str | int | float | bool:
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return -self.literal(node.this)  # type: ignore[operator]
        if not isinstance(node, exp.Literal):
            raise self.refuse(node)
        if node.is_string:
            return str(node.this)
        return int(node.this) if node.is_int else float(node.this)

    def column(self, name: str) -> str:
        if name not in self.columns:
            raise SelectionError(f"where {self.text!r}: no column {name!r}{nearest(name, self.columns)}")
        self.used.add(name)
        return name

    def sample(self, node: exp.Anonymous) -> pc.Expression:
        arguments = node.expressions
        if len(arguments) != 3 or not isinstance(arguments[0], exp.Column):
            raise SelectionError(f"where {self.text!r}: expected sample(column, rate, seed), found {node.sql()}")
        rate, seed = self.literal(arguments[1]), self.literal(arguments[2])
        if isinstance(rate, str) or not 0 <= rate <= 1 or not isinstance(seed, int):
            raise SelectionError(f"where {self.text!r}: expected a rate from 0 to 1 and an integer seed, found {node.sql()}")
        drawn = Sample(column=self.column(arguments[0].name), rate=float(rate), seed=seed)
        type_ = self.columns[drawn.column]
        if pa.types.is_floating(type_) or pa.types.is_nested(type_):
            raise SelectionError(f"where {self.text!r}: sample needs a scalar column other than floating point, found {type_}")
        self.samples[drawn.name] = drawn
        return pc.field(drawn.name)

    def check_types(self, node: Node, others: Sequence[Node]) -> None:
        """Refuses to compare text with numbers, and lists with anything."""
        families = {family for item in (node, *others) if (family := self.family(item)) is not None}
        if len(families) > 1 or "list" in families:
            sides = ", ".join(f"{item.sql()} ({self.family(item)})" for item in (node, *others))
            raise SelectionError(f"where {self.text!r}: expected values of one kind, found {sides}")

    def family(self, node: Node) -> str | None:
        if isinstance(node, exp.Paren | exp.Neg):
            return self.family(node.this)
        if isinstance(node, exp.Column):
            return _family(self.columns.get(node.name))
        if isinstance(node, exp.Literal):
            return "text" if node.is_string else "number"
        return "number" if isinstance(node, exp.Mod) else None

    def refuse(self, node: Node) -> SelectionError:
        return SelectionError(f"where {self.text!r}: expected {_GRAMMAR}, found {node.sql()!r}")


def _family(type_: pa.DataType | None) -> str | None:
    if type_ is None:
        return None
    if pa.types.is_nested(type_):
        return "list"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_):
        return "number"
    return "text" if pa.types.is_string(type_) or pa.types.is_large_string(type_) else None
