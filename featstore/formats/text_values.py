"""Values that are written as text: which type they have, and their conversion to it."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.formats.parsed import halves, is_inferred, is_undecided, name_of
from featstore.ops.arrays import Mask, cast_text, values_of
from featstore.ops.lists import element_type

TIMESTAMP = pa.timestamp("us", tz="UTC")
SCALARS = (pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.bool_(), TIMESTAMP)
# Numbers whose text carries more than a number does: a leading zero or plus, as ids and codes have
# them, more digits than a double keeps, or space around.
_NO_NUMBER = r"^(?:[+-]?0[0-9]|\+|[+-]?[0-9]{16,}$|\s)|\s$"
# Numbers that a double may not keep: a whole part of 16 digits, 18 digits in all (17 are what
# programs print of a double), or an exponent that may be beyond its range. The rest is kept.
MAY_CHANGE = r"(?:^|[^0-9.])[1-9][0-9]{15}|[1-9](?:\.?[0-9]){17}|[eE][+-]?[0-9]{3}"
_WHOLE_OR_EXPONENT = r"^[+-]?[0-9]{16}|[eE][+-]?[0-9]{3}"
_MAX_DIGITS = 800  # more than any double has


def parse_texts(
    texts: pa.Array, wanted: pa.DataType, *, is_inferred: bool = False
) -> tuple[pa.Array, list[int]]:
    """Converts texts to a type of `SCALARS`.

    Times without a zone are in UTC. Space around numbers and times is ignored.

    Args:
        texts: The texts.
        wanted: The type.
        is_inferred: Whether nobody gave the type. A text that `infer_text_type` would not have
            called such a value, since something of it is lost, does not fit then.

    Returns:
        The values, null where a text is null or does not fit, and the positions of the latter.
    """
    if wanted == pa.string():
        return texts, []
    trimmed = pc.ascii_trim_whitespace(texts)
    parts, bad = [], []
    for first, part in halves(
        0, len(trimmed), lambda first, end: cast_text(trimmed.slice(first, end - first), wanted)
    ):
        bad += [first] if part is None else []
        parts.append(pa.nulls(1, wanted) if part is None else part)
    values = pa.concat_arrays(parts) if parts else pa.nulls(0, wanted)
    lossy = _is_lossy(texts, values) if is_inferred else _is_beyond(texts, values)
    if lossy.any():
        bad = np.union1d(np.array(bad, np.int64), np.flatnonzero(lossy)).tolist()
        values = pc.if_else(pa.array(lossy), pa.scalar(None, wanted), values)
    return values, bad


def parse_column(field: pa.Field, texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Converts texts to the type of a column, or to that of the elements of its lists.

    Returns:
        The values, as of `parse_texts`, and what is wrong by position. If no sampled row had a
        value to infer the type from, every text is.
    """
    wanted = element_type(field.type)
    values, bad = parse_texts(texts, wanted, is_inferred=is_inferred(field))
    expected = name_of(wanted)
    if is_undecided(field):
        bad = np.flatnonzero(values_of(pc.is_valid(texts))).tolist()
        expected = "no value, as no sampled row has one to tell the type"
    column = f"column {field.name!r}: expected {expected}"
    return values, {at: f"{column}, found {example(texts[at])}" for at in bad}


def infer_text_type(texts: pa.Array) -> pa.DataType:
    """The type of these texts: the first of boolean, long, double and timestamp that all of them
    are written as, otherwise string.

    Texts are numbers only if nothing is lost by reading them so: `007`, digits that a double does
    not keep, and numbers beyond its range are strings.
    """
    found = texts.drop_null()
    if not len(found):
        return pa.string()
    for kind in (pa.bool_(), pa.int64(), pa.float64()):
        values = cast_text(found, kind)
        if values is not None and not _is_lossy(found, values).any():
            return kind
    return infer_time(found)


def _is_lossy(texts: pa.Array, values: pa.Array) -> Mask:
    """Where a value says less than its text does."""
    if pa.types.is_boolean(values.type):
        lossy = pc.invert(pc.is_in(texts, pa.array(["true", "false"])))
    elif pa.types.is_integer(values.type):
        lossy = pc.not_equal(values.cast(pa.string()), texts)
    elif pa.types.is_floating(values.type):
        return changed_numbers(texts) | _true(pc.match_substring_regex(texts, _NO_NUMBER))
    else:
        return np.zeros(len(texts), np.bool_)
    return _true(pc.and_(lossy, pc.is_valid(texts)))


def _is_beyond(texts: pa.Array, values: pa.Array) -> Mask:
    """Where a number is beyond the range of a floating type, which makes an infinity of it."""
    if not pa.types.is_floating(values.type):
        return np.zeros(len(texts), np.bool_)
    beyond = _true(pc.is_inf(values))
    infinite = texts.take(pa.array(np.flatnonzero(beyond)))
    beyond[beyond] = _true(pc.match_substring_regex(infinite, "[0-9]"))
    return beyond


def changed_numbers(texts: pa.Array) -> Mask:
    """Which of these numbers a double does not keep, `(len(texts),)`."""
    # Cheaper than the whole pattern, which only few texts are then tried with.
    digits = pc.ascii_ltrim(texts, "+-0.")
    point = pc.match_substring(digits, ".").cast(pa.int32())
    is_long = pc.greater(pc.subtract(pc.binary_length(digits), point), 17)
    changed = _true(pc.or_(is_long, pc.match_substring_regex(texts, _WHOLE_OR_EXPONENT)))
    few = texts.take(pa.array(np.flatnonzero(changed)))
    changed[changed] = _true(pc.match_substring_regex(few, MAY_CHANGE))
    few = texts.take(pa.array(np.flatnonzero(changed)))
    changed[changed] = [not is_kept(text) for text in few.to_pylist()]
    return changed


def is_kept(text: str) -> bool:
    """Whether a double keeps a number: printed with as many or the fewest digits, it is equal."""
    try:
        value, digits = float(text), text.lower().partition("e")[0].lstrip("+-0.")
    except ValueError:
        return True  # no number, so no double either
    if not value or not math.isfinite(value):
        return not any(digit in digits for digit in "123456789")
    if "." in text:
        digits = digits.rstrip("0").replace(".", "")
    if len(digits) > _MAX_DIGITS:
        return False
    printed = (f"{abs(value):.{len(digits) - 1}e}", repr(abs(value)))
    return digits in (found.partition("e")[0].replace(".", "").lstrip("0") for found in printed)


def _true(mask: pa.BooleanArray) -> Mask:
    return values_of(pc.fill_null(mask, False)).copy()


def infer_time(texts: pa.Array) -> pa.DataType:
    """Timestamp if all of these texts, of which there is at least one, are times; else string."""
    # The first one alone rules out most columns. Halving thousands of other texts takes seconds.
    is_time = not parse_texts(texts[:1], TIMESTAMP)[1] and not parse_texts(texts, TIMESTAMP)[1]
    return TIMESTAMP if is_time else pa.string()


def example(value: pa.Scalar) -> str:
    """A text in quotes, shortened, whatever its bytes are."""
    text = value.cast(pa.binary()).as_py().decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
