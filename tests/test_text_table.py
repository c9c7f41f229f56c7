import re

from hypothesis import given
from hypothesis import strategies as st

from featstore.text_table import column_widths, text_table

ROWS = [
    (1, "user", "hash(user_id)", None),
    (2, "tags", "hash(tags) " * 12, "words of one and a half lines " * 4),
]
HEADERS = ("slot", "name", "operator", "params")


def test_without_a_width_every_row_is_one_line() -> None:
    lines = text_table(ROWS, HEADERS).splitlines()
    assert [line.split()[0] for line in lines] == ["slot", "------", "1", "2"]
    assert max(map(len, lines)) > 200


def test_a_table_fits_its_width_and_loses_no_word() -> None:
    for width in (60, 80, 120):
        text = text_table(ROWS, HEADERS, width=width)
        assert max(map(len, text.splitlines())) <= width
        for row in ROWS:
            for word in " ".join(str(cell) for cell in row if cell is not None).split():
                assert word in text
        assert len(re.findall("half", text)) == 4


def test_narrow_tables_are_as_they_would_be_without_a_width() -> None:
    assert text_table(ROWS[:1], HEADERS, width=80) == text_table(ROWS[:1], HEADERS)
    assert text_table([], HEADERS, width=80).splitlines()[0].split() == list(HEADERS)


def test_columns_are_aligned_as_told() -> None:
    text = text_table([("a", "1"), ("b", "1,000")], ("name", "rows"), align=("left", "right"))
    assert text.splitlines()[2:] == ["a            1", "b        1,000"]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(20, 250))
def test_only_the_widest_columns_are_narrowed_and_the_room_is_used(
    natural: list[int], width: int
) -> None:
    found = column_widths(natural, width)
    gaps = 2 * (len(natural) - 1)
    if sum(natural) + gaps <= width:
        assert found == natural
        return
    limit = max(found)
    assert found == [min(column, limit) for column in natural]
    if limit > 8:
        assert sum(found) + gaps <= width < sum(min(c, limit + 1) for c in natural) + gaps
