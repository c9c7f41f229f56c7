import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from featstore.staging.cache import Cache, Download, Limits, Pin
from featstore.staging.record import Record

NAME = "0" * 40

SPANS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda pair: (min(pair), max(pair))),
    max_size=6,
)


@given(size_bytes=st.integers(100, 200), tag=st.text(), spans=SPANS)
def test_a_record_is_read_as_it_was_written(size_bytes: int, tag: str, spans: Any) -> None:
    record = Record.of("s3://b/k", size_bytes, tag, [(*span, 7) for span in spans])
    assert Record.from_json(record.to_json()) == record
    assert record.held_bytes == len({at for first, end in spans for at in range(first, end)})


@given(cut=st.integers(0, 200))
def test_a_torn_record_is_none(cut: int) -> None:
    text = Record.of("s3://b/k", 100, "v", [(0, 10, 1), (90, 100, 2)]).to_json()
    assert (Record.from_json(text[:cut]) is None) == (cut < len(text))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"held": [[10, 0]]},
        {"held": [[0, 50], [40, 60]]},
        {"held": [[0, 101]]},
        {"held": [["a", "b"]]},
        {"held": None},
        {"sums": [[0, 9, 1]]},
        {"sums": [[0, 10]]},
        {"more": 1},
        {"size_bytes": "many"},
    ],
)
def test_a_record_of_another_format_is_none(change: Any) -> None:
    found = json.loads(Record.of("s3://b/k", 100, "v", [(0, 10, 1)]).to_json()) | change
    assert Record.from_json(json.dumps(found)) is None
    assert Record.from_json("[]") is None


def test_credentials_are_in_no_record() -> None:
    record = Record.of("https://u:secret@host/x?sig=secret#secret", 100, "v", [])
    assert record.url == "https://host/x"
    assert "secret" not in record.to_json()


def test_a_record_knows_whether_the_file_is_whole() -> None:
    assert Record.of("x", 10, "", [(0, 4, 1), (4, 10, 2)]).is_whole
    assert not Record.of("x", 10, "", [(0, 4, 1), (5, 10, 2)]).is_whole
    assert Record.of("x", 0, "", []).is_whole


SOUND = Record.of("s3://b/k", 100, "v", [(0, 10, 1), (90, 100, 2)]).to_json().encode()
CHANGES = st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4)


@given(data=st.binary(max_size=300))
@example(data=b"\xff\xfe" + SOUND.decode().encode("utf-16-le"))
@example(data=b"\xef\xbb\xbf" + SOUND)
@example(data=b"[" * 100_000)
@example(data=b"9" * 10_000)
@example(data=b"\x00" * 100)
def test_a_file_whose_record_is_raw_bytes_is_staged_again(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    assert _kind_of_request(_cache_at(tmp_path_factory), data) is Download


@given(changes=CHANGES)
def test_a_damaged_record_is_staged_again_or_sound(
    tmp_path_factory: pytest.TempPathFactory, changes: Any
) -> None:
    data = bytearray(SOUND)
    for at, byte in changes:
        data[at] = byte
    assert _kind_of_request(_cache_at(tmp_path_factory), bytes(data)) in (Download, Pin)


def _cache_at(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(str(tmp_path_factory.mktemp("cache")), Limits(budget_bytes=1_000))


def _kind_of_request(cache: Any, data: Any) -> Any:
    """The answer to a request for a staged file of 100 bytes whose record is `data`."""
    path = cache.root / f"{NAME}.20.staged"
    path.write_bytes(bytes(100))
    path.with_suffix(".held").write_bytes(data)
    found = cache.request(NAME, 100, 100)
    if isinstance(found, Pin):
        assert found.record.held_bytes <= 100
        assert all(0 <= first <= end <= 100 for first, end in found.record.held)
        found.release()
    else:
        assert not path.exists()
        found.abandon()
    return type(found)
