"""Figures with a row for each name, and short texts."""

import builtins
import pickle
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import MissingDependencyError
from featstore.explore.plots.frame import (
    MOST_ROWS,
    coverage_text,
    new_figure,
    number_drawn,
    row_figure,
    short_text,
    write_values,
)
from tests.explore.plots.rendered import render
from tests.programs import run_python


@pytest.mark.parametrize("num_rows", [1, 2, 41, 200])
def test_rows_of_any_number_are_readable(num_rows: int) -> None:
    names = [f"a_slot_with_a_name_of_a_usual_length_{i}" for i in range(num_rows)]
    figure, [axes] = row_figure(names, "A title")
    write_values(axes, [f"{i / 7:.3f}" for i in range(num_rows)])
    picture = render(figure)
    assert set(map(short_text, names)) <= set(picture.texts)
    assert len(set(map(short_text, names))) == num_rows


def test_no_rows_are_an_empty_picture() -> None:
    assert "nothing" in render(row_figure([], "nothing")[0]).texts


def test_a_picture_of_most_rows_can_be_drawn_in_the_resolution_of_print() -> None:
    figure, _ = row_figure([""] * MOST_ROWS, "")
    assert figure.get_figheight() * 300 < 2**16  # Agg's limit


@pytest.mark.parametrize("magic", ["", "%matplotlib inline"])
def test_a_notebook_shows_a_figure_as_one_image_with_and_without_its_magic(magic: str) -> None:
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell({magic!r})
from featstore.explore.plots.frame import row_figure
figure, _ = row_figure(["airline"], "Coverage")
shown, _ = shell.display_formatter.format(figure)
print(sorted(shown))
"""
    found = run_python(code).stdout
    assert found.endswith("['image/png', 'text/plain']\n")


def test_a_figure_can_be_copied_to_another_process() -> None:
    figure = pickle.loads(pickle.dumps(row_figure(["airline"], "Coverage")[0]))
    assert "airline" in render(figure).texts


def test_dollars_are_no_formulas() -> None:
    assert "cost_$x_1$" in render(row_figure(["cost_$x_1$"], "$title$")[0]).texts


@given(st.text(), st.integers(min_value=3, max_value=40))
def test_a_short_text_is_one_line_of_printable_characters(text: str, most: int) -> None:
    found = short_text(text, most)
    assert len(found) <= most
    assert all(c == " " or unicodedata.category(c)[0] not in "CZ" for c in found)
    assert found == " ".join(found.split()) or "…" in found


@given(st.text(alphabet="abc_", max_size=32))
def test_a_text_that_is_short_enough_stays_as_it_is(text: str) -> None:
    assert short_text(text) == text


def test_a_long_text_keeps_its_begin_and_its_end() -> None:
    assert short_text("abcdefghij", 5) == "ab…ij"


@given(st.floats(min_value=0.0, max_value=1.0))
def test_a_coverage_is_all_or_none_only_if_it_is_so_exactly(share: float) -> None:
    text = coverage_text(share)
    assert (text == "100%") == (share == 1.0)
    assert (text == "0%") == (share == 0.0)
    assert text not in ("100.0%", "0.0%")


def test_what_is_not_drawn_is_said() -> None:
    assert number_drawn([1, 2], "slots") == "2 slots"
    assert number_drawn(range(4000), "slots") == "the first 1,000 of 4,000 slots"


def test_a_table_is_explored_without_matplotlib_until_a_plot_is_made() -> None:
    code = "import sys, featstore.explore.table; print('matplotlib' in sys.modules)"
    assert run_python(code).stdout.strip() == "False"


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "featstore.explore.plots.notebook_figure", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"a plot needs matplotlib: .*\[explore\]"):
        new_figure(1.0, 1.0)
