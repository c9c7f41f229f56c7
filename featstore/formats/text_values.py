"""Values that are written as text: which type they have, and their conversion to it."""

import pyarrow as pa
import pyarrow.compute as pc

from featstore.formats.parsed import halves

TIMESTAMP = pa.timestamp("us", tz="UTC")
SCALARS = (pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.bool_(), TIMESTAMP)
# Numbers whose digits carry more than a number does: a leading zero or plus, as ids and codes have
# them, or more digits than a double keeps.
_NO_NUMBER = r"^(?:[+-]?0[0-9]|\+|[+-]?[0-9]{16,}$)"


def parse_texts(texts: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Converts texts to a type of `SCALARS`.

    Times without a zone are in UTC. Space around numbers and times is ignored.

    Returns:
        The values, null where a text is null or does not fit, and the positions of the latter.
    """
    if wanted == pa.string():
        return texts, []
    trimmed = pc.ascii_trim_whitespace(texts)
    parts, bad = [], []
    for first, part in halves(
        0, len(trimmed), lambda first, end: _cast(trimmed.slice(first, end - first), wanted)
    ):
        bad += [first] if part is None else []
        parts.append(pa.nulls(1, wanted) if part is None else part)
    return (pa.concat_arrays(parts) if parts else pa.nulls(0, wanted)), bad


def infer_text_type(texts: pa.Array) -> pa.DataType:
    """The type of these texts: the first of boolean, long, double and timestamp that all of them
    are written as, otherwise string.

    Texts are numbers only if nothing is lost by reading them so: `007` and digits that a double
    does not keep are strings.
    """
    found = texts.drop_null()
    if not len(found):
        return pa.string()
    if pc.all(pc.is_in(found, pa.array(["true", "false"]))).as_py():
        return pa.bool_()
    longs = _cast(found, pa.int64())
    if longs is not None and longs.cast(pa.string()).equals(found):
        return pa.int64()
    is_number = not pc.any(pc.match_substring_regex(found, _NO_NUMBER)).as_py()
    if is_number and _cast(found, pa.float64()) is not None:
        return pa.float64()
    return infer_time(found)


def infer_time(texts: pa.Array) -> pa.DataType:
    """Timestamp if all of these texts, of which there is at least one, are times; else string."""
    # The first one alone rules out most columns. Halving thousands of other texts takes seconds.
    is_time = not parse_texts(texts[:1], TIMESTAMP)[1] and not parse_texts(texts, TIMESTAMP)[1]
    return TIMESTAMP if is_time else pa.string()


def _cast(texts: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid:
        if wanted != TIMESTAMP:
            return None
    try:
        return texts.cast(pa.timestamp("us")).cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return None


def example(value: pa.Scalar) -> str:
    """A text in quotes, shortened, whatever its bytes are."""
    text = value.cast(pa.binary()).as_py().decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
