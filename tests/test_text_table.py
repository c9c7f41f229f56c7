import itertools
import re

from hypothesis import assume, given
from hypothesis import strategies as st

from featstore.base.text_table import (
    column_widths,
    html_table,
    short_names,
    telling_columns,
    text_table,
    whole,
)

ROWS = [
    (1, "user", "hash(user_id)", None),
    (2, "tags", "hash(tags) " * 12, "words of one and a half lines " * 4),
]
HEADERS = ("slot", "name", "operator", "params")


def test_without_a_width_every_row_is_one_line() -> None:
    lines = text_table(ROWS, HEADERS).splitlines()
    assert [line.split()[0] for line in lines] == ["slot", "----", "1", "2"]
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


def test_cells_that_look_like_numbers_are_wrapped_too() -> None:
    rows = [("4,039", "1_000", "1e5", "7" * 40), ("-1,5", "nan", "", "x y " * 20)]
    text = text_table(rows, ("a", "b", "c", "d"), width=50, align=("right",) * 4)
    assert max(map(len, text.splitlines())) <= 50
    assert all(cell in text for cell in ("4,039", "1_000", "1e5", "-1,5", "nan"))
    assert text.count("7") == 40


def test_columns_are_aligned_as_told() -> None:
    text = text_table([("a", "1"), ("b", "1,000")], ("name", "rows"), align=("left", "right"))
    assert text.splitlines() == ["name   rows", "----  -----", "a         1", "b     1,000"]


def test_columns_without_room_are_lines_below_their_rows_and_no_word_is_broken() -> None:
    rows = [
        ("airline_x_from_airport", "hash over two words", "9189439142311354920", "-"),
        ("hour", "hour(ts)", "17", "missing in one of seven"),
    ]
    headers = ("name", "operator", "sign", "note")
    assert text_table(rows, headers, width=120) == text_table(rows, headers)
    assert text_table(rows, headers, width=60).splitlines() == [
        "name                    operator       sign",
        "    note",
        "----------------------  -------------  -------------------",
        "airline_x_from_airport  hash over two  9189439142311354920",
        "                        words",
        "hour                    hour(ts)       17",
        "    missing in one of seven",
    ]
    assert text_table(rows, headers, width=40).splitlines() == [
        "name                    operator",
        "----------------------  -------------",
        "airline_x_from_airport  hash over two",
        "                        words",
        "    sign: 9189439142311354920",
        "hour                    hour(ts)",
        "    sign: 17",
        "    note: missing in one of seven",
    ]
    shares = [(*rows[0][:3], "0.0%"), (*rows[1][:3], "-")]
    headers = (*headers[:3], "coverage")
    assert text_table(shares, headers, width=60).splitlines()[5:] == [
        "    0.0%",
        "hour                    hour(ts)       17",
    ]


def test_values_are_not_wrapped_inside() -> None:
    values = "  ".join(whole(f"JFK & LA{i} (3.{i}%)") for i in range(5))
    text = text_table([("route", values, "5,714 ±1.1%")], ("slot", "values", "distinct"), width=40)
    for part in (*(f"JFK & LA{i} (3.{i}%)" for i in range(5)), "5,714 ±1.1%"):
        assert any(part in line for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 40
    long = text_table([("a", whole("one value " * 9))], ("slot", "values"), width=40)
    assert max(map(len, long.splitlines())) <= 40


CELL = st.text(alphabet="ab_ ", max_size=30)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=4), st.integers(32, 100))
def test_a_table_of_any_cells_fits_and_has_every_word_whole(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    text = text_table(rows, ("one", "two", "three"), width=width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for cell in itertools.chain.from_iterable(rows):
        assert set(cell.split()) - {""} <= set(words)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 300)), min_size=1), st.integers(20, 250)
)
def test_widths_use_the_room_and_break_no_word_if_they_need_not(
    columns: list[tuple[int, int]], width: int
) -> None:
    words = [word for word, _ in columns]
    natural = [word + more for word, more in columns]
    found = column_widths(natural, words, width)
    room = width - 2 * (len(columns) - 1)
    assume(sum(words) <= room)
    if sum(natural) <= room:
        assert found == natural
    else:
        assert all(w <= f <= n for w, f, n in zip(words, found, natural, strict=True))
        # One more character for each column that was limited would be too much.
        limited = [f < n for f, n in zip(found, natural, strict=True)]
        assert sum(found) <= room < sum(found) + sum(limited)


def test_html_escapes_every_text() -> None:
    html = html_table("a < b", ("<th>",), [("<td>",), (7,)])
    assert html == (
        "<p>a &lt; b</p><table><tr><th>&lt;th&gt;</th></tr>"
        "<tr><td>&lt;td&gt;</td></tr><tr><td>7</td></tr></table>"
    )


def test_names_fit_a_line() -> None:
    assert short_names([]) == "[]"
    assert short_names("abcdef") == "['a', 'b', 'c', 'd', 'e', 'f']"
    many = [f"slot{i}" for i in range(2_000)]
    assert short_names(many).endswith("'slot5', and 1,994 more]")


def test_columns_of_zeros_give_way_where_a_table_does_not_fit() -> None:
    headers = ["slot", "nulls", "errors", "collisions", "unknown", "values"]
    rows: list[list[object]] = [
        ["price", 0, "0.0%", "0 of 12", "-", 17],
        ["user", "0", "0.1%", "0 of 3", None, 4],
    ]
    assert telling_columns(headers, rows, 100) == [0, 1, 2, 3, 4, 5]
    assert telling_columns(headers, rows, 40) == [0, 2, 5]


def test_some_column_is_always_left() -> None:
    assert telling_columns(["errors", "nulls"], [["0", "-"]], 5) == [0, 1]
    assert telling_columns(["errors", "nulls"], [], 5) == [0, 1]
