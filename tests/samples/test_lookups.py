"""Ids are found by their hashes, and compared: also where two of them have one hash."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.decoded.decoded_cache import DecodedCache
from featstore.decoded.entry_file import MappedEntry
from featstore.ops.hashing import value_hash
from featstore.samples import lookups
from featstore.samples.lookups import id_entry, places_of_ids
from featstore.staging.cache import Cache, Limits

BUDGET_BYTES = 1_000_000


@pytest.fixture
def cache(tmp_path: Path) -> DecodedCache:
    return DecodedCache(
        Cache(str(tmp_path), Limits(budget_bytes=BUDGET_BYTES)), BUDGET_BYTES, grace_s=0.1
    )


def found(cache: DecodedCache, ids: pa.Array, wanted: list[Any]) -> list[int]:
    name = repr(ids.to_pylist())
    [entry] = cache.open_all([id_entry(name, "key", len(ids), lambda: ids)])
    with entry:
        return _places(entry, ids, wanted)


def _places(entry: MappedEntry, ids: pa.Array, wanted: list[Any]) -> list[int]:
    places = places_of_ids(
        entry, pa.array(wanted, ids.type), lambda at: ids.take(pa.array(at, pa.int64()))
    )
    assert places.dtype == np.int64
    return [int(place) for place in places]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
)
@given(
    ids=st.lists(st.one_of(st.none(), st.text(max_size=3)), unique=True, max_size=30),
    wanted=st.lists(st.text(max_size=3), max_size=30),
    num_hashes=st.sampled_from([1, 3, 2**60]),
)
def test_every_id_is_found_where_it_is_and_no_other(
    cache: DecodedCache, ids: list[str | None], wanted: list[str], num_hashes: int
) -> None:
    """Also with few hashes for many ids."""
    wanted = wanted + [text for text in ids if text is not None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "value_hash", _few(num_hashes))
        name = f"{num_hashes} {ids!r}"
        values = pa.array(ids, pa.string())
        [entry] = cache.open_all([id_entry(name, "key", len(ids), lambda: values)])
        with entry:
            places = _places(entry, values, wanted)
    assert places == [ids.index(text) if text in ids else -1 for text in wanted]


def _few(num_hashes: int) -> Any:
    original = value_hash

    def hashed(array: pa.Array) -> pa.Array:
        values = original(array).to_pylist()
        return pa.array([None if v is None else v % num_hashes for v in values], pa.int64())

    return hashed


def test_integers_and_timestamps_are_ids(cache: DecodedCache) -> None:
    assert found(cache, pa.array([7, 2**62, -1], pa.int64()), [-1, 8, 2**62]) == [2, -1, 1]
    days = pa.array([0, 86_400_000_000], pa.timestamp("us"))
    assert found(cache, days, [days[1].as_py(), None]) == [1, -1]


def test_ids_that_are_no_int64_microseconds_or_short_texts_are_found(cache: DecodedCache) -> None:
    assert found(cache, pa.array([2**64 - 1, None, 3], pa.uint64()), [3, 2**63, 2**64 - 1]) == [
        2,
        -1,
        0,
    ]
    seconds = pa.array([2**62, 5], pa.int64()).cast(pa.timestamp("s"))
    [entry] = cache.open_all([id_entry("seconds", "key", 2, lambda: seconds)])
    with entry:
        assert places_of_ids(entry, seconds, seconds.take).tolist() == [0, 1]
    texts = pa.array(["a", None, "b"], pa.large_string())
    assert found(cache, texts, ["b", "c", "a"]) == [2, -1, 0]


def test_no_ids_find_nothing(cache: DecodedCache) -> None:
    assert found(cache, pa.array([], pa.string()), ["a"]) == [-1]
    assert found(cache, pa.array([None, None], pa.string()), ["a", None]) == [-1, -1]


@pytest.mark.parametrize("num_hashes", [1, 2**60])
def test_an_id_of_two_samples_is_named(
    cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, num_hashes: int
) -> None:
    monkeypatch.setattr(lookups, "value_hash", _few(num_hashes))
    with pytest.raises(DataFileError, match="expected each id once, found 'b' in samples 1 and 4"):
        found(cache, pa.array(["a", "b", "c", None, "b"]), ["a"])
