"""The operators by name."""

from featstore.ops import (
    choices,
    elements,
    ids,
    maps,
    numbers,
    texts,
    timestamps,
    vocabularies,
)
from featstore.ops.kinds import (
    COUNT,
    MAX_COUNT,
    NUMBER,
    Param,
    accepted,
    converted,
    integer,
    literal,
    one_of,
    positive_number,
    text,
)
from featstore.ops.signature import Operator
from featstore.ops.vocabularies import Vocabulary

_MAX_LEN = Param(kind=COUNT)
_TRUNCATE = Param(kind=one_of("head", "tail"), default="head")
_BOUND = Param(kind=NUMBER)
_FITTED = Param(kind=NUMBER, required=True)
_ZONE = Param(
    kind=converted(
        "an IANA time zone, such as UTC or America/New_York",
        timestamps.time_zone,
        text().schema(),
    ),
    default="UTC",
)
_BOUNDARIES = Param(
    kind=converted(
        "strictly increasing finite numbers",
        numbers.boundaries,
        {"type": "array", "items": {"type": "number"}, "minItems": 1},
    ),
    required=True,
)
_CONSTANT = Param(
    kind=converted(
        "a constant: text, finite number, boolean, timestamp, or a list of these", literal
    )
)
_SEPARATOR = text("a text that is not empty")
_POSITION = integer(-MAX_COUNT, expected="an integer of 32 bits")


def _sliced(start: int, stop: int | None) -> str:
    bounds = f"{start or ''}:{'' if stop is None else stop}"
    return "" if bounds == ":" else f"[{bounds}]"


def _cut(max_len: int | None, end: str = "head") -> str:
    """The slice of the first or last `max_len` elements; None is all."""
    return _sliced(0, max_len) if max_len is None or end == "head" else _sliced(-max_len, None)


def _choice(*names: str, required: bool = True, default: str | None = None) -> Param:
    kind = one_of(*names, expected=f"one of {', '.join(names)}")
    return Param(kind=kind, required=required, default=default)


_ALL = (
    Operator(
        name="hash",
        function=ids.hash_operator,
        result=ids.hash_type,
        params={"max_len": _MAX_LEN, "truncate": _TRUNCATE},
        hashes=True,
        elements=lambda params: _cut(params["max_len"], params["truncate"]),
    ),
    Operator(
        name="cross",
        function=ids.cross,
        result=ids.cross_type,
        params={"max_cross": _MAX_LEN},
        min_inputs=2,
        max_inputs=None,
        hashes=True,
        elements=lambda params: _cut(params["max_cross"]),
    ),
    Operator(
        name="identity",
        function=numbers.identity,
        result=numbers.identity_type,
        params={"max_len": _MAX_LEN, "truncate": _TRUNCATE},
        elements=lambda params: _cut(params["max_len"], params["truncate"]),
    ),
    Operator(name="log1p", function=numbers.log1p, result=numbers.float_type),
    Operator(
        name="clip",
        function=numbers.clip,
        result=numbers.clip_type,
        params={"min": _BOUND, "max": _BOUND},
    ),
    Operator(
        name="bucketize",
        function=numbers.bucketize,
        result=numbers.bucketize_type,
        params={"boundaries": _BOUNDARIES},
        num_values=numbers.num_buckets,
        names=numbers.bucket_names,
    ),
    Operator(
        name="quantile_bucketize",
        function=numbers.bucketize,
        result=numbers.bucketize_type,
        params={"num_buckets": Param(kind=integer(2, numbers.MAX_BUCKETS), required=True)},
        num_values=numbers.num_buckets,
        names=numbers.bucket_names,
        frozen={"boundaries": _BOUNDARIES},
        fit_only=("num_buckets",),
    ),
    Operator(
        name="standardize",
        function=numbers.standardize,
        result=numbers.float_type,
        frozen={
            "mean": _FITTED,
            "stddev": Param(kind=converted("a number above 0", positive_number), required=True),
        },
    ),
    Operator(
        name="min_max",
        function=numbers.min_max,
        result=numbers.float_type,
        frozen={"min": _FITTED, "max": _FITTED},
    ),
    Operator(
        name="vocabulary",
        function=vocabularies.find_in_vocabulary,
        result=vocabularies.vocabulary_type,
        params={
            "file": Param(
                kind=text("the path of a text file, relative to the spec"), required=True
            ),
            "unknown": _choice("missing", "index", required=False, default="missing"),
        },
        num_values=vocabularies.num_indices,
        names=vocabularies.entry_names,
        frozen={
            "vocabulary": Param(
                kind=accepted("a vocabulary", lambda of: isinstance(of, Vocabulary), {}),
                required=True,
            )
        },
        fit_only=("file",),
        fills=False,
        elements=lambda params: "",
    ),
    Operator(
        name="hour",
        function=timestamps.hour,
        result=timestamps.time_type,
        params={"tz": _ZONE},
        names=lambda params: timestamps.HOURS,
    ),
    Operator(
        name="day_of_week",
        function=timestamps.day_of_week,
        result=timestamps.time_type,
        params={"tz": _ZONE},
        names=lambda params: timestamps.DAYS,
    ),
    Operator(
        name="is_weekend",
        function=timestamps.is_weekend,
        result=timestamps.weekend_type,
        params={"tz": _ZONE},
        names=lambda params: timestamps.WEEKEND,
    ),
    Operator(
        name="time_since",
        function=timestamps.time_since,
        result=timestamps.since_type,
        params={"unit": _choice(*timestamps.UNITS)},
        min_inputs=2,
        max_inputs=2,
        elements=lambda params: "",
    ),
    Operator(
        name="lookup",
        function=maps.lookup,
        result=maps.lookup_type,
        params={"combiner": _choice(*elements.COMBINERS, required=False)},
        min_inputs=2,
        max_inputs=2,
        elements=lambda params: "",
    ),
    Operator(name="match", function=maps.match, result=maps.match_type, min_inputs=3, max_inputs=3),
    Operator(
        name="combine",
        function=elements.combine,
        result=elements.combine_type,
        params={"by": _choice(*elements.COMBINERS)},
    ),
    Operator(name="length", function=elements.length, result=elements.length_type),
    Operator(
        name="take",
        function=elements.take,
        result=elements.take_type,
        params={
            "n": Param(kind=COUNT, required=True),
            "end": _choice("head", "tail", required=False, default="head"),
        },
        elements=lambda params: _cut(params["n"], params["end"]),
    ),
    Operator(
        name="slice",
        function=elements.slice_operator,
        result=elements.slice_type,
        params={
            "start": Param(kind=_POSITION, default=0),
            "stop": Param(kind=_POSITION),
        },
        elements=lambda params: _sliced(params["start"], params["stop"]),
    ),
    Operator(name="distinct", function=elements.distinct, result=elements.distinct_type),
    Operator(
        name="overlap",
        function=elements.overlap,
        result=elements.overlap_type,
        params={"measure": _choice(*elements.MEASURES)},
        min_inputs=2,
        max_inputs=2,
    ),
    Operator(
        name="fill",
        function=choices.fill,
        result=choices.fill_type,
        params={"value": _CONSTANT},
        min_inputs=1,
        max_inputs=None,
    ),
    Operator(
        name="where",
        function=choices.where,
        result=choices.where_type,
        params={"then": _CONSTANT, "otherwise": _CONSTANT},
        min_inputs=2,
        max_inputs=3,
    ),
    Operator(
        name="compare",
        function=choices.compare,
        result=choices.compare_type,
        params={"relation": _choice(*choices.RELATIONS), "value": _CONSTANT},
        min_inputs=1,
        max_inputs=2,
    ),
    Operator(
        name="ratio", function=numbers.ratio, result=numbers.ratio_type, min_inputs=2, max_inputs=2
    ),
    Operator(
        name="power",
        function=numbers.power,
        result=numbers.float_type,
        params={"exponent": _FITTED},
    ),
    Operator(
        name="lower",
        function=texts.lower,
        result=texts.lower_type,
        elements=lambda params: "",
    ),
    Operator(
        name="split",
        function=texts.split,
        result=texts.text_list_type,
        params={"separator": Param(kind=_SEPARATOR, required=True)},
    ),
    Operator(
        name="tokenize",
        function=texts.tokenize,
        result=texts.text_list_type,
        params={"by": _choice("word", "character"), "n": Param(kind=COUNT, default=1)},
    ),
    Operator(
        name="weighted",
        function=texts.weighted,
        result=texts.weighted_type,
        params={
            "part": _choice("value", "weight"),
            "separator": Param(kind=_SEPARATOR, default=":"),
        },
        elements=lambda params: "",
    ),
)

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}
