"""Cells of tables."""

from website.reference.markdown import code, table


def test_bars_and_line_ends_stay_within_their_cell() -> None:
    assert table(("a",), [("x | y\n  z",)]) == "| a |\n| --- |\n| x \\| y z |\n"
    assert code("a|b<c>*") == "<code>a&#124;b&lt;c&gt;&#42;</code>"
