"""The operators by name."""

from featstore.ops import ids, numbers, timestamps
from featstore.ops.signature import Operator, Param, number, one_of, positive_int

_MAX_LEN = Param(expected="an integer of at least 1", read=positive_int)
_TRUNCATE = Param(expected="head or tail", read=one_of("head", "tail"), default="head")
_BOUND = Param(expected="a finite number", read=number)
_ZONE = Param(expected="an IANA time zone, such as UTC or America/New_York", read=timestamps.time_zone, default="UTC")
_BOUNDARIES = Param(expected="strictly increasing finite numbers", read=numbers.boundaries, required=True)

_ALL = (
    Operator(
        name="hash",
        function=ids.hash_operator,
        result=ids.hash_type,
        params={"max_len": _MAX_LEN, "truncate": _TRUNCATE},
        hashes=True,
    ),
    Operator(
        name="cross",
        function=ids.cross,
        result=ids.cross_type,
        params={"max_cross": _MAX_LEN},
        min_inputs=2,
        max_inputs=None,
        hashes=True,
    ),
    Operator(
        name="identity",
        function=numbers.identity,
        result=numbers.identity_type,
        params={"max_len": _MAX_LEN, "truncate": _TRUNCATE},
    ),
    Operator(name="log1p", function=numbers.log1p, result=numbers.float_type),
    Operator(name="clip", function=numbers.clip, result=numbers.clip_type, params={"min": _BOUND, "max": _BOUND}),
    Operator(
        name="bucketize",
        function=numbers.bucketize,
        result=numbers.bucketize_type,
        params={"boundaries": _BOUNDARIES},
        num_values=numbers.num_buckets,
    ),
    Operator(name="hour", function=timestamps.hour, result=timestamps.time_type, params={"tz": _ZONE}),
    Operator(name="day_of_week", function=timestamps.day_of_week, result=timestamps.time_type, params={"tz": _ZONE}),
)

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}
