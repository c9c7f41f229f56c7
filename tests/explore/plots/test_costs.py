"""The picture of what reading costs."""

from featstore.explore.reading_costs import SCHEMA, ReadingCosts
from tests.explore.plots.rendered import assert_bar_ends_at, render, table_of


def test_slots_that_take_most_time_come_first_and_bars_are_as_long_as_the_figures() -> None:
    rows = [
        {"slot": "small", "stored_bytes_per_row": 0.5, "decode_ns_per_row": 1.25},
        {"slot": "absent", "stored_bytes_per_row": 0.0, "decode_ns_per_row": None},
        {"slot": "tags", "stored_bytes_per_row": 12.0, "decode_ns_per_row": 40.0},
    ]
    figure = ReadingCosts(
        num_rows=10, num_decoded_rows=10, table=table_of(SCHEMA, rows)
    ).plot_costs()
    picture, [left, right] = render(figure), figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["tags", "small", "absent"]
    for row, (num_bytes, ns) in enumerate([(12.0, 40.0), (0.5, 1.25)]):
        assert_bar_ends_at(picture, left, num_bytes, row)
        assert_bar_ends_at(picture, right, ns, row)
    assert {"12", "40", "0.5", "1.25", "0", "unknown"} <= set(picture.texts)


def test_two_hundred_slots_are_readable() -> None:
    names = [f"user_category_of_clicks_{i}" for i in range(200)]
    rows = [
        {"slot": name, "stored_bytes_per_row": i / 7, "decode_ns_per_row": i * 1.3}
        for i, name in enumerate(names)
    ]
    costs = ReadingCosts(num_rows=10, num_decoded_rows=10, table=table_of(SCHEMA, rows))
    assert set(names) <= set(render(costs.plot_costs()).texts)
