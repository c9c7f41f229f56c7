"""Spark SQL of operators with frozen params; `quantile_bucketize` uses that of bucketize."""

import pyarrow as pa

from featstore.base.errors import SpecError
from featstore.ops import scaling, slot_columns, vocabularies
from featstore.ops.vocabularies import Vocabulary
from featstore.spec.sql.call import Call, Template, literal

_MAX_VALUES = 1_000  # Each is a literal in the SQL text, and is compared one by one.


def _min_max(call: Call) -> str:
    low, high = _number(call, "min"), _number(call, "max")

    def scaled(value: str) -> str:
        return (
            f"CASE WHEN {value} IS NOT NULL THEN (least(greatest({value}, {low}), {high}) - {low}) "
            f"/ ({high} - {low}) END"
        )

    return call.let(f"CAST({call.text} AS DOUBLE)", scaled)


def _vocabulary(call: Call) -> str:
    vocabulary = call.params["vocabulary"]
    assert isinstance(vocabulary, Vocabulary)
    if len(vocabulary) > _MAX_VALUES:
        raise SpecError(
            f"{call.owner}: expected a vocabulary of at most {_MAX_VALUES:,} values for Spark SQL, "
            f"found {len(vocabulary):,}; use the extractor for this slot"
        )
    values = ", ".join(literal(value, pa.string()) for value in vocabulary.values.to_pylist())
    missing = call.params["unknown"] == "missing"

    def index(value: str) -> str:
        position = f"array_position(array({values}), CAST({value} AS STRING))"
        return f"nullif({position}, 0) - 1" if missing else position

    if not call.of_list:
        return f"({index(call.text)})"
    return call.only(call.each(call.text, index), lambda e: f"{e} IS NOT NULL")


def _number(call: Call, name: str) -> str:
    return f"{call.params[name]!r}D"


FITTED_TEMPLATES: dict[object, Template] = {
    scaling.standardize: lambda call: call.finite(
        f"((CAST({call.text} AS DOUBLE) - {_number(call, 'mean')}) / {_number(call, 'stddev')})"
    ),
    scaling.min_max: _min_max,
    slot_columns.index_list_column: lambda call: (
        f"coalesce({call.each(call.text, lambda e: f'{e} + 1')}, array(0L))"
    ),
    vocabularies.find_in_vocabulary: _vocabulary,
}
