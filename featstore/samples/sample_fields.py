"""The fields of a sample, and how their values are stored in SQLite."""

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featstore.base.errors import ConfigError, SampleError, all_nearest, nearest
from featstore.base.processes import cached_property
from featstore.base.redaction import shown
from featstore.native import kernels

Sample = dict[str, Any]
# What SQLite holds: NULL, INTEGER, REAL, TEXT, BLOB.
Stored = None | int | float | str | bytes
# With types and lengths: a value that moves into the next one, or becomes one of another type,
# changes it.
checksum = kernels.crc32_of_values


@dataclass(frozen=True, kw_only=True)
class SampleFields:
    """The fields of a store's samples, in order.

    Attributes:
        kinds: The kind of each field by its name: text, bytes, json, integer or real.

    Raises:
        ConfigError: There are no fields, or a kind is unknown.
    """

    kinds: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ConfigError("fields: expected at least one, such as {'text': 'text'}")
        for name, kind in self.kinds.items():
            if not isinstance(name, str) or kind not in _KINDS:
                raise ConfigError(
                    f"fields: {shown(name)}: expected a kind of {', '.join(_KINDS)}, found "
                    f"{shown(kind)}{nearest(str(kind), _KINDS)}"
                )

    @cached_property
    def as_json(self) -> str:
        """Names and kinds in order, as a store keeps them."""
        return json.dumps(list(self.kinds.items()))

    def stored(self, sample: Mapping[str, Any]) -> tuple[Stored, ...]:
        """The values of a sample, as SQLite holds them. A field that is absent is None.

        Raises:
            SampleError: A field is unknown, or its value is not of its kind.
        """
        if not isinstance(sample, Mapping):
            raise SampleError(f"expected a mapping of fields, found {shown(sample)}")
        if unknown := sample.keys() - self.kinds.keys():
            raise SampleError(
                f"unknown field {all_nearest(map(str, unknown), self.kinds)}; the fields are "
                f"{', '.join(self.kinds)}"
            )
        return tuple(
            None if (value := sample.get(name)) is None else _stored(name, kind, value)
            for name, kind in self.kinds.items()
        )

    def sample(self, values: Sequence[Stored]) -> Sample:
        """The sample of stored values."""
        found: Sample = dict(zip(self.kinds, values, strict=True))
        for name, load in self._loads.items():
            if found[name] is not None:
                found[name] = load(found[name])
        return found

    @cached_property
    def _loads(self) -> dict[str, Callable[[Any], Any]]:
        """What makes values of stored ones, of the fields whose values are not stored as such."""
        return {
            name: load
            for name, kind in self.kinds.items()
            if (load := _KINDS[kind].loaded) is not None
        }


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How values of one kind are stored and loaded. `stored` raises what Python raises; `loaded` is
    None where the stored value is the value.
    """

    expected: str
    stored: Callable[[Any], Stored]
    loaded: Callable[[Any], Any] | None


def stored_id(given: object) -> str | None:
    """An id as it is stored: a text, or an integer in decimal; None is no id.

    Raises:
        SampleError: It is something else.
    """
    if given is None:
        return None
    try:
        text = _utf8(given) if isinstance(given, str) else str(_integer(given))
    except (TypeError, ValueError) as error:
        raise SampleError(
            f"expected an id as text, or as an integer of 64 bits, found {shown(given)} ({error})"
        ) from error
    if "\0" in text:  # SQLite's functions of JSON end texts there.
        raise SampleError(f"expected an id without NUL, found {shown(given)}")
    return text


def _stored(name: str, kind: str, value: Any) -> Stored:
    try:
        return _KINDS[kind].stored(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SampleError(
            f"field {name!r}: expected {_KINDS[kind].expected}, found {shown(value)} ({error})"
        ) from error


def _utf8(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    value.encode()
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} is no bytes")
    return bytes(value)


def _integer(value: Any) -> int:
    number = operator.index(value)
    if isinstance(value, bool) or not -(2**63) <= number < 2**63:
        raise ValueError("not an integer of 64 bits")
    return number


def _real(value: Any) -> float | str:
    if isinstance(value, bool | str):
        raise TypeError(f"{type(value).__name__} is no number")
    number = float(value)
    return "nan" if math.isnan(number) else number  # SQLite would store NULL.


def _json(value: Any) -> str:
    return _utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


_KINDS: dict[str, _Kind] = {
    "text": _Kind(expected="text that UTF-8 can hold", stored=_utf8, loaded=None),
    "bytes": _Kind(expected="bytes", stored=_bytes, loaded=None),
    "json": _Kind(expected="what JSON can hold", stored=_json, loaded=json.loads),
    "integer": _Kind(expected="an integer of 64 bits", stored=_integer, loaded=None),
    "real": _Kind(expected="a number", stored=_real, loaded=float),
}
