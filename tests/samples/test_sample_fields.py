import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError, SampleError
from featstore.samples.sample_fields import SampleFields, Stored, checksum, stored_id

FIELDS = SampleFields(kinds={"t": "text", "b": "bytes", "j": "json", "i": "integer", "r": "real"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    sample=st.fixed_dictionaries(
        {
            "t": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            "b": st.none() | st.binary(),
            "j": JSON.filter(lambda value: value is not None),
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "r": st.none() | st.floats(allow_nan=False),
        }
    )
)
def test_a_sample_comes_back_as_it_was_given(sample: dict[str, Any]) -> None:
    try:
        stored = FIELDS.stored(sample)
    except SampleError as error:
        assert "surrogates not allowed" in str(error)  # noqa: PT017  only of some texts in JSON
        return
    assert FIELDS.sample(stored) == sample


def test_what_is_absent_is_none_and_nan_stays_nan() -> None:
    found = FIELDS.sample(FIELDS.stored({"r": float("nan")}))
    assert math.isnan(found.pop("r"))
    assert found == {"t": None, "b": None, "j": None, "i": None}


def test_numbers_of_numpy_and_other_bytes_are_taken() -> None:
    given_as = {"i": np.int32(3), "r": np.float32(0.5), "b": memoryview(b"ab")}
    found = FIELDS.sample(FIELDS.stored(given_as))
    assert (found["i"], found["r"], found["b"]) == (3, 0.5, b"ab")
    assert FIELDS.sample(FIELDS.stored({"r": 3}))["r"] == 3.0


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"t": 1}, "field 't': expected text that UTF-8 can hold, found 1"),
        ({"t": "\ud800"}, "field 't': expected text that UTF-8 can hold"),
        ({"b": "a"}, "field 'b': expected bytes, found 'a'"),
        ({"j": {1}}, "field 'j': expected what JSON can hold"),
        ({"j": b"a"}, "field 'j': expected what JSON can hold"),
        ({"i": 2**63}, "field 'i': expected an integer of 64 bits"),
        ({"i": 1.0}, "field 'i': expected an integer of 64 bits, found 1.0"),
        ({"i": True}, "field 'i': expected an integer of 64 bits, found True"),
        ({"r": "1"}, "field 'r': expected a number, found '1'"),
        ({"r": False}, "field 'r': expected a number, found False"),
        ({"text": "a"}, "unknown field 'text'.*; the fields are t, b, j, i, r"),
        (["a"], r"expected a mapping of fields, found \['a'\]"),
    ],
)
def test_what_cannot_be_stored_is_named(sample: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        FIELDS.stored(sample)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({}, "fields: expected at least one"),
        (
            {"a": "string"},
            "fields: 'a': expected a kind of text, bytes, json, integer, real, found",
        ),
        ({"a": None}, "fields: 'a': expected a kind"),
        ({1: "text"}, "fields: 1: expected a kind"),
    ],
)
def test_fields_that_there_are_not_are_refused(kinds: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SampleFields(kinds=kinds)


def test_ids_are_texts_or_integers() -> None:
    found = [stored_id(one) for one in (None, "", "ä", 7, np.int64(8))]
    assert found == [None, "", "ä", "7", "8"]


@pytest.mark.parametrize("one", [1.5, True, b"a", 2**64, "\ud800"])
def test_what_is_no_id_is_refused(one: Any) -> None:
    with pytest.raises(SampleError, match="expected an id as text, or as an integer of 64 bits"):
        stored_id(one)
    with pytest.raises(SampleError, match="expected an id without NUL"):
        stored_id("a\0b")


@given(values=st.lists(st.binary(min_size=1), min_size=1), data=st.data())
def test_a_flipped_bit_is_another_checksum(values: list[bytes], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 8 * len(values[place]) - 1))
    flipped = bytearray(values[place])
    flipped[bit // 8] ^= 1 << bit % 8
    other = [*values[:place], bytes(flipped), *values[place + 1 :]]
    assert checksum(values) != checksum(other)


def test_known_checksums_never_change() -> None:
    written = b"7;t2:idt4:textb5:bytes1;0.5;None;"
    assert checksum((7, "id", "text", b"bytes", 1, 0.5, None)) == zlib.crc32(written) == 0xD270C10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a",), (b"a",)),
        (("1",), (1,)),
        ((1,), (1.0,)),
        (("None",), (None,)),
        ((1, 23), (12, 3)),
        (("",), ("", "")),
    ],
)
def test_types_and_lengths_are_part_of_a_checksum(
    one: tuple[Stored, ...], other: tuple[Stored, ...]
) -> None:
    assert checksum(one) != checksum(other)
