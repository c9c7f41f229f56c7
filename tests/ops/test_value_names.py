import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops.signature import MAX_TEXT, joined_texts, readable, readable_texts


def test_long_texts_are_cut_and_others_are_on_one_line() -> None:
    assert readable("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert readable("x" * (MAX_TEXT + 1)) == "x" * (MAX_TEXT - 1) + "…"
    assert (readable(""), readable("a\nb\0"), readable("ä 日本")) == ('""', r"a\nb\x00", "ä 日本")


@given(st.lists(st.text() | st.text(alphabet="ab \n", min_size=95, max_size=105)))
def test_many_texts_are_as_readable_as_each(texts: list[str]) -> None:
    found = readable_texts(pa.array(texts, pa.string())).to_pylist()
    for text, shown in zip(texts, found, strict=True):
        assert 0 < len(shown) <= MAX_TEXT
        assert "\n" not in shown
        if text.isascii():
            assert shown == readable(text)


def test_crosses_join_their_members_and_are_cut_too() -> None:
    long = pa.array(["x" * 90, "a"])
    first, second = joined_texts([long, long]).to_pylist()
    assert (len(first), second) == (MAX_TEXT, "a & a")
