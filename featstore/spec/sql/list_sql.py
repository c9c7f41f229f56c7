"""Spark SQL of operators on lists, maps and texts."""

import re

import pyarrow as pa

from featstore.ops import elements, maps, texts
from featstore.ops.lists import is_list
from featstore.spec.sql.call import MAX_FLOAT, Call, Template, as_double, integer, literal
from featstore.spec.sql.column_sql import cut

# What Python's str.split and Arrow take for white space; Java's \s is less.
_WHITE_SPACE = r"[\t-\r\x1C-\x20\x85\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]+"
_DECIMAL = rf"^{texts.DECIMAL}\z"


def _lookup(call: Call) -> str:
    entries, keys = call.texts
    if not is_list(call.types[1]):
        return _find(call, entries, _key(keys, call.types[1]))
    key_type = call.types[1].value_type
    found = call.let(entries, lambda m: _found(call, m, keys, key_type))
    if call.params["combiner"] is None:
        return found
    return _combined(
        call, as_double(found, pa.list_(call.types[0].item_type)), call.params["combiner"]
    )


def _found(call: Call, entries: str, keys: str, key_type: pa.DataType) -> str:
    values = call.each(keys, lambda k: _find(call, entries, _key(k, key_type)))
    return (
        f"CASE WHEN {entries} IS NOT NULL THEN {call.only(values, lambda v: f'{v} IS NOT NULL')} "
        f"END"
    )


def _find(call: Call, entries: str, key: str) -> str:
    """The value of the last entry with this key."""
    return f"try_element_at({call.only(entries, lambda e: f'{e}.key = {key}')}, -1).value"


def _key(text: str, arrow_type: pa.DataType) -> str:
    return text if arrow_type == pa.string() else f"CAST({text} AS STRING)"


def _match(call: Call) -> str:
    entries, *keys = call.texts
    for key, arrow_type in zip(keys, call.types[1:], strict=True):
        entries = _find(call, entries, _key(key, arrow_type))
    return entries


def _combined(call: Call, doubles: str, by: object) -> str:
    return call.finite(
        f"array_{by}({doubles})"
        if by in ("max", "min")
        else call.let(doubles, lambda v: _sum(call, v, by))
    )


def _sum(call: Call, doubles: str, by: object) -> str:
    """Adds from left to right, since the last bit depends on the order; NULL for an empty list."""
    total, element = next(call.variables), next(call.variables)
    added = f"aggregate({doubles}, 0.0D, ({total}, {element}) -> {total} + {element})"
    return (
        f"CASE WHEN size({doubles}) > 0 THEN "
        f"{added}{f' / size({doubles})' if by == 'mean' else ''} END"
    )


def _slice(call: Call) -> str:
    start, stop = call.params["start"], call.params["stop"]
    part, measure = ("slice", "array_size") if call.of_list else ("substring", "char_length")

    def sliced(value: str) -> str:
        size = f"{measure}({value})"
        first = _bound(start, size)
        length = f"greatest({size if stop is None else _bound(stop, size)} - {first}, 0)"
        return f"{part}({value}, CAST({first} + 1 AS INT), CAST({length} AS INT))"

    return call.let(call.text, sliced)


def _bound(position: int, size: str) -> str:
    """A slice position, as Python resolves it for a list or text of this size."""
    return (
        f"least({position}, {size})"
        if position >= 0
        else f"greatest({size} + {integer(position)}, 0)"
    )


def _overlap(call: Call) -> str:
    left, right = call.texts
    shared = f"array_size(array_intersect({left}, {right}))"
    if call.params["measure"] == "count":
        return shared
    whole = (
        f"array_union({left}, {right})"
        if call.params["measure"] == "ratio"
        else f"array_distinct({left})"
    )
    return f"({shared} / nullif(array_size({whole}), 0))"


def _lower_text(call: Call, text: str) -> str:
    """Maps each code point alone, so that Spark's rules for context do not apply.

    The simple lower case is the first code point of the full one.
    """
    return f"array_join({call.each(_pieces(text, ''), lambda c: f'left(lower({c}), 1)')}, '')"


def _split(call: Call) -> str:
    separator = re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", str(call.params["separator"]))
    return call.let(
        call.text, lambda t: f"filter({_pieces(t, separator)}, {next(call.variables)} -> {t} <> '')"
    )


def _pieces(text: str, pattern: str) -> str:
    """The pieces of a text between matches; its code points, where the pattern is empty."""
    return f"split({text}, {literal(pattern, pa.string())})"


def _tokenize(call: Call) -> str:
    by_word, n = call.params["by"] == "word", call.params["n"]
    pieces = call.only(
        _pieces(call.text, _WHITE_SPACE if by_word else ""),
        lambda e: f"{e} <> ''",
    )
    if n == 1:
        return pieces
    joint = "' '" if by_word else "''"

    def runs(parts: str) -> str:
        firsts = f"slice({parts}, 1, greatest(size({parts}) - {n} + 1, 0))"
        return call.each_at(
            firsts, lambda _, at: f"array_join(slice({parts}, {at} + 1, {n}), {joint})"
        )

    return call.let(pieces, runs)


def _weighted(call: Call) -> str:
    separator = literal(call.params["separator"], pa.string())
    if call.params["part"] == "weight":
        return call.only(
            call.each(call.text, lambda e: _weight(e, separator)),
            lambda w: f"abs({w}) <= {MAX_FLOAT}",
        )
    kept = call.only(call.text, lambda e: f"abs({_weight(e, separator)}) <= {MAX_FLOAT}")
    return call.each(
        kept,
        lambda e: (
            f"CASE WHEN contains({e}, {separator}) THEN {_before_last(e, separator)} ELSE {e} END"
        ),
    )


def _weight(element: str, separator: str) -> str:
    """The number after the last separator: 1 without one, NULL if it is not a decimal number."""
    last = f"substring_index({element}, {separator}, -1)"
    number = (
        f"WHEN {last} RLIKE {literal(_DECIMAL, pa.string())} THEN try_cast({last} AS DOUBLE) + 0.0D"
    )
    return f"CASE WHEN NOT contains({element}, {separator}) THEN 1.0D {number} END"


def _before_last(element: str, separator: str) -> str:
    last = f"substring_index({element}, {separator}, -1)"
    return (
        f"left({element}, char_length({element}) - char_length({last}) - char_length({separator}))"
    )


LIST_TEMPLATES: dict[object, Template] = {
    maps.lookup: _lookup,
    maps.match: _match,
    elements.combine: lambda call: _combined(
        call, as_double(call.text, call.types[0]), call.params["by"]
    ),
    elements.length: lambda call: (
        f"array_size({call.text})" if call.of_list else f"char_length({call.text})"
    ),
    elements.take: lambda call: cut(call.text, call.params["n"], call.params["end"]),
    elements.slice_operator: _slice,
    elements.distinct: lambda call: f"array_distinct({call.text})",
    elements.overlap: _overlap,
    texts.lower: lambda call: (
        call.each(call.text, lambda e: _lower_text(call, e))
        if call.of_list
        else _lower_text(call, call.text)
    ),
    texts.split: _split,
    texts.tokenize: _tokenize,
    texts.weighted: _weighted,
}
