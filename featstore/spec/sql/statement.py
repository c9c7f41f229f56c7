"""Prints a slot as Spark SQL: an expression over raw columns with the extractor's values."""

import itertools
from collections.abc import Iterator

import pyarrow as pa

from featstore.base.errors import SpecError, nearest
from featstore.spec.graph import Graph, build_graph
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.sql.call import Call, Members, Template
from featstore.spec.sql.column_sql import COLUMN_TEMPLATES, numbers_of_texts
from featstore.spec.sql.list_sql import LIST_TEMPLATES
from featstore.spec.sql.value_sql import VALUE_TEMPLATES
from featstore.spec.user import is_user_operator

# The template of each function that a graph's steps call. It returns an expression of Spark 4 with
# the same values; `call` describes its arguments. Each file has those of one family of operators.
TEMPLATES: dict[object, Template] = {**COLUMN_TEMPLATES, **VALUE_TEMPLATES, **LIST_TEMPLATES}


def sql(spec_url: str, slot: str) -> str:
    """The Spark SQL expression of a stored slot of the spec at a path or URL: see `slot_sql`."""
    return slot_sql(load_spec(spec_url), slot)


def slot_sql(spec: Spec, slot: str) -> str:
    """The Spark SQL expression of one stored slot, for Spark 4 in a session of time zone UTC.

    Logarithms may differ in the last digit of a float, because Java and C compute them differently.

    Args:
        spec: The spec.
        slot: The name or number of the slot.

    Returns:
        An expression of type bigint for ids and indices, float for floats, or an array of these.
        Missing values are marked as in data files.

    Raises:
        SpecError: The spec is wrong, it has no such slot, or an operator has no expression.
    """
    graph = build_graph(spec)
    if slot in spec.by_name and not spec.by_name[slot].store:
        raise SpecError(
            f"expected a stored slot, found {slot!r}, which is an inner node (`store: false`); "
            f"give it a number"
        )
    return str(_Printer(graph).value(_position(graph, slot)))


def _position(graph: Graph, slot: str) -> int:
    for found, position in zip(graph.schema.slots, graph.outputs, strict=False):
        if slot in (found.name, str(found.number)):
            return position
    names = graph.schema.names
    raise SpecError(
        f"expected one of the spec's {len(names)} stored slots, found "
        f"{slot!r}{nearest(slot, names)}"
    )


class _Printer:
    """Prints the steps from a slot down to raw columns."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._columns = list(graph.columns)
        prefix = "e"
        while any(
            name.lower().startswith(prefix) and name[len(prefix) :].isdecimal()
            for name in self._columns
        ):
            prefix += "_"  # a lambda's variable would hide the column
        self._variables: Iterator[str] = (f"{prefix}{i}" for i in itertools.count(1))

    def value(self, position: int) -> str | Members:
        step = self._graph.step(position)
        if step is None:
            name = self._columns[position]
            column = "`{}`".format(name.replace("`", "``"))
            if name not in self._graph.text:
                return column
            declared = self._graph.columns[name]
            return numbers_of_texts(
                Call(inputs=[column], types=[], params={}, type=declared, variables=self._variables)
            )
        template = TEMPLATES.get(step.function)
        if template is None:
            why = ", since it is user code" if is_user_operator(step.op) else ""
            raise SpecError(
                f"{step.owner}: the operator {step.op} has no Spark SQL expression{why}; use the "
                f"extractor for this slot"
            )
        call = Call(
            inputs=[self.value(i) for i in step.inputs],
            types=[self._type(i) for i in step.inputs],
            params=step.params,
            type=step.type,
            owner=step.owner,
            variables=self._variables,
        )
        return template(call)

    def _type(self, position: int) -> pa.DataType:
        step = self._graph.step(position)
        return self._graph.columns[self._columns[position]] if step is None else step.type
