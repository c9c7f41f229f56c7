"""Spark SQL of the ends of a graph: reading raw columns, aligning sequences, storing slots."""

from collections.abc import Sequence

import pyarrow as pa

from featstore.ops import columns, lists
from featstore.ops.malformed import NOT_FINITE, WHOLE
from featstore.ops.maps import is_map
from featstore.ops.texts import DECIMAL
from featstore.spec.sql.call import MAX_FLOAT, Call, Members, Template, literal, type_text

_MASK = 2**63 - 1
_SPACE = r"' \t\n\u000b\u000c\r'"


def numbers_of_texts(call: Call) -> str:
    """The numbers of a raw column of texts, or of lists of them."""
    number = _double if call.type in (pa.float64(), pa.list_(pa.float64())) else _long
    if lists.is_list(call.type):
        return call.each(call.text, lambda e: number(call, e))
    return number(call, call.text)


def _double(call: Call, text: str) -> str:
    trimmed = f"trim(BOTH {_SPACE} FROM {text})"
    return call.let(
        trimmed,
        lambda t: (
            f"CASE WHEN {t} RLIKE {_pattern(DECIMAL)} "
            f"THEN {call.finite(f'try_cast({t} AS DOUBLE)')} "
            f"WHEN lower({t}) RLIKE {_pattern(NOT_FINITE)} THEN try_cast({t} AS DOUBLE) END"
        ),
    )


def _long(call: Call, text: str) -> str:
    trimmed = f"trim(BOTH {_SPACE} FROM {text})"
    digits = f"regexp_replace({trimmed}, {_pattern(WHOLE)}, '$1$2')"
    return f"CASE WHEN {trimmed} RLIKE {_pattern(WHOLE)} THEN try_cast({digits} AS BIGINT) END"


def _pattern(of_all: str) -> str:
    return literal(rf"^(?:{of_all})\z", pa.string())


def _value(call: Call, text: str, declared: pa.DataType) -> str:
    """A raw value or list in the declared type; integers that it cannot hold become NULL."""
    if declared == pa.string():
        return f"make_valid_utf8({text})"
    if lists.is_list(declared) and declared.value_type == pa.string():
        return call.each(text, lambda e: f"make_valid_utf8({e})")
    return f"try_cast({text} AS {type_text(declared)})"


def _entries(call: Call, text: str, declared: pa.DataType) -> str:
    """A raw map's entries, of a nested map too."""
    read = _entries if is_map(declared.item_type) else _value
    key, value = declared.key_type, declared.item_type
    return call.each(
        f"map_entries({text})",
        lambda e: (
            f"struct({_value(call, f'{e}.key', key)} AS key, {read(call, f'{e}.value', value)} AS "
            f"value)"
        ),
    )


def _clean(call: Call) -> str:
    if is_map(call.type):
        return _clean_entries(call, call.text, call.type)
    if not call.of_list:
        return _clean_double(call.text) if call.type == pa.float64() else call.text
    array = (
        call.each(call.text, _clean_double) if call.type.value_type == pa.float64() else call.text
    )
    return call.only(array, lambda e: f"{e} IS NOT NULL")


def _clean_entries(call: Call, text: str, arrow_type: pa.DataType) -> str:
    """The entries that have a value."""
    item = arrow_type.item_type
    if item == pa.float64():
        text = call.each(
            text, lambda e: f"struct({e}.key AS key, {_clean_double(f'{e}.value')} AS value)"
        )
    text = call.only(text, lambda e: f"{e}.value IS NOT NULL")
    if not is_map(item):
        return text
    return call.each(
        text,
        lambda e: f"struct({e}.key AS key, {_clean_entries(call, f'{e}.value', item)} AS value)",
    )


def _clean_double(text: str) -> str:
    return f"(nanvl({text}, NULL) + 0.0D)"


def cut(array: str, max_len: object, truncate: object) -> str:
    """The first or last `max_len` elements; all of them where that is None."""
    if max_len is None:
        return array
    return (
        f"slice({array}, 1, {max_len})"
        if truncate == "head"
        else f"reverse(slice(reverse({array}), 1, {max_len}))"
    )


def _align(call: Call) -> str:
    """The complete events, truncated; NULL where lists differ in length or are missing."""
    first, *others = call.texts
    alike = " AND ".join(f"array_size({first}) = array_size({other})" for other in others)
    events = call.each_at(
        first, lambda e, at: _event(e, *(f"get({other}, {at})" for other in others))
    )
    complete = call.only(
        events, lambda e: " AND ".join(_complete(call, e, i) for i in range(len(call.types)))
    )
    return (
        f"CASE WHEN {alike} THEN {cut(complete, call.params['max_len'], call.params['truncate'])} "
        f"END"
    )


def _event(*values: str) -> str:
    return f"struct({', '.join(f'{value} AS c{i}' for i, value in enumerate(values))})"


def _complete(call: Call, event: str, position: int) -> str:
    value, arrow_type = f"{event}.c{position}", call.types[position].value_type
    if arrow_type == pa.float64():
        return f"abs(CAST({value} AS FLOAT)) <= {MAX_FLOAT}"
    if arrow_type == pa.string() and call.params["empty_as_null"]:
        return f"{value} <> ''"
    return f"{value} IS NOT NULL"


def _column_of(call: Call) -> str:
    plus = " + 0.0D" if call.type.value_type == pa.float64() else ""
    return call.each(call.text, lambda e: f"{e}.c{call.params['position']}{plus}")


def _sign_column(call: Call) -> str:
    slot, value = call.params["slot"], call.inputs[0]
    if isinstance(value, Members):
        return f"CASE WHEN {value.is_null} THEN 0 ELSE {_sign(slot, value.hashes)} END"
    num_members = call.types[0].value_type.num_fields
    signs = call.each(value, lambda e: _sign(slot, [f"{e}[{i}]" for i in range(num_members)]))
    return f"coalesce({signs}, array(0L))"


def _sign(slot: object, hashes: Sequence[str]) -> str:
    return f"greatest(xxhash64({slot}, {', '.join(hashes)}) & {_MASK}, 1)"


def _float_column(call: Call) -> str:
    if not call.of_list:
        value = call.let(
            f"CAST({call.text} AS FLOAT)",
            lambda v: f"CASE WHEN abs({v}) <= {MAX_FLOAT} THEN {v} + 0F END",
        )
        return f"coalesce({value}, float('NaN'))"
    floats = call.each(call.text, lambda e: f"CAST({e} AS FLOAT) + 0F")
    return (
        f"coalesce({call.only(floats, lambda e: f'abs({e}) <= {MAX_FLOAT}')}, array(float('NaN')))"
    )


COLUMN_TEMPLATES: dict[object, Template] = {
    columns.read_column: lambda call: (_entries if is_map(call.type) else _value)(
        call, call.text, call.type
    ),
    columns.clean: _clean,
    columns.empty_as_null: lambda call: (
        call.only(call.text, lambda e: f"{e} <> ''") if call.of_list else f"nullif({call.text}, '')"
    ),
    lists.fill_null: lambda call: (
        f"coalesce({call.text}, {literal(call.params['value'].as_py(), call.type)})"
    ),
    lists.align: _align,
    lists.column_of: _column_of,
    columns.sign_column: _sign_column,
    columns.index_column: lambda call: (
        f"coalesce({call.each(call.text, lambda e: f'{e} + 1')}, array(0L))"
        if call.of_list
        else f"coalesce(CAST({call.text} AS BIGINT) + 1, 0)"
    ),
    columns.float_column: _float_column,
}
