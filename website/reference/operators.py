"""The page of all operators, from their registry."""

import inspect
from collections.abc import Iterator

from featstore.ops.kinds import Param
from featstore.ops.registry import OPERATORS
from featstore.ops.signature import Operator
from website.reference.markdown import code, table


def operators_page() -> str:
    """Every operator with its inputs and parameters."""
    head = (
        "# Operators and parameters\n\nMade from the registry of operators. "
        "[Operators](../operators.md) says what each one gives, with examples.\n"
    )
    return "\n".join([head, *map(_section, OPERATORS.values())])


def _section(operator: Operator) -> str:
    summary = (inspect.getdoc(operator.function) or "").partition("\n\n")[0]
    rows = [*_rows(operator), *_frozen(operator)]
    params = table(("parameter", "expects", "default"), rows) if rows else "No parameters.\n"
    return f"## {operator.name}\n\n{summary}\n\nInputs: {_inputs(operator)}.\n\n{params}"


def _inputs(operator: Operator) -> str:
    low, high = operator.min_inputs, operator.max_inputs
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def _rows(operator: Operator) -> Iterator[tuple[str, str, str]]:
    for name, param in operator.params.items():
        yield code(name), param.kind.expected, _default(param)


def _frozen(operator: Operator) -> Iterator[tuple[str, str, str]]:
    for name, param in operator.frozen.items():
        yield code(name), param.kind.expected, "from the lock file"


def _default(param: Param) -> str:
    if param.required:
        return "required"
    return "" if param.default is None else code(str(param.default))
