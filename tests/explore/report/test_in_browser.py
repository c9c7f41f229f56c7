"""The page in a real browser: sorting, searching, themes, narrow windows, hostile data, and that it
asks nobody for anything.

Nothing waits for a time: each step ends with an answer of the browser.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featstore
from featstore.explore.report.page import page
from featstore.explore.table import Table
from featstore.spec.parse import load_spec
from shared_parts.chromium import Tab
from tests.explore.report.conftest import DAYS, SPEC, day_rows
from tests.parquet_files import put_parquet

NUM_SLOTS = 1_000
SIZE_BYTES, OPEN_CPU_S = 10_000_000, 2.0
LEAST_CONTRAST, LEAST_CONTRAST_OF_BARS = 4.5, 3.0
ORDER = "[...document.querySelectorAll('#slots > tbody:not([hidden]) th button')].map(b => b.textContent)"
FOUND = "document.getElementById('found').textContent"
# Whether anything is wider than the window.
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
# The contrast of a text, or of the fill of a bar, with what is behind it (WCAG 2, relative luminance).
CONTRAST = """((query, property) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    const [x, y, z] = [r, g, b].map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return [0.2126 * x + 0.7152 * y + 0.0722 * z, alpha];
  };
  return Math.min(...[...document.querySelectorAll(query)].map(element => {
    const [front] = luminance(getComputedStyle(element)[property]);
    let behind = element;
    while (luminance(getComputedStyle(behind).backgroundColor)[1] < 255) behind = behind.parentElement;
    const [back] = luminance(getComputedStyle(behind).backgroundColor);
    return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  }));
})"""
TEXTS = "h1, h2, dt, dd, output, label, #slots th button, #slots td, figure p, figure td, figure th, .ends span, .key-now, .key-before"
BARS = "rect.now, rect.before, path.now"


@pytest.fixture(scope="module")
def compared(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "report.html"
    featstore.report(table.url, path, days=DAYS, label="click")
    return path


@pytest.fixture(scope="module")
def plain(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "report.html"
    featstore.report(table.url, path)
    return path


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a table of 1,000 slots."""
    home, draw = tmp_path_factory.mktemp("thousand"), np.random.default_rng(0)
    columns: dict[str, Any] = {
        f"slot_{i}": draw.normal(size=200).astype(np.float32)
        if i % 3 == 0
        else draw.integers(1 << 40, 2 << 40, 20)[draw.integers(20, size=200)]
        for i in range(NUM_SLOTS)
    }
    put_parquet(home / "table" / "rows.parquet", columns)
    featstore.report(home / "table", home / "report.html")
    return home / "report.html"


def open_details(tab: Tab) -> None:
    tab.value("document.querySelectorAll('#slots > tbody th button').forEach(b => b.click())")
    tab.drawn()


def header(tab: Tab, title: str) -> str:
    """An expression for the header of a column."""
    titles = tab.value("[...document.querySelectorAll('#slots thead th')].map(h => h.textContent)")
    return f"document.querySelectorAll('#slots thead th')[{titles.index(title)}]"


def test_the_page_asks_nobody_and_nothing_goes_wrong(tab: Tab, compared: Path) -> None:
    tab.open(compared)
    open_details(tab)
    assert tab.requests() == [compared.as_uri()]
    assert tab.complaints() == []


def test_the_browser_refuses_requests_and_scripts_that_are_not_the_page_s(
    tab: Tab, plain: Path
) -> None:
    """What the policy is for: if something were to break in, it would reach nobody."""
    tab.open(plain)
    fetched = "fetch('http://127.0.0.1:9/x').then(() => 'sent', error => String(error))"
    assert tab.value(fetched).startswith("TypeError")
    tab.value(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">')"
    )
    tab.value(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'}))"
    )
    tab.drawn()
    assert tab.value("window.broken === undefined")
    assert sum("Content Security Policy" in text for text in tab.complaints()) >= 3


def test_slots_are_sorted_by_a_click_and_by_keys(tab: Tab, plain: Path) -> None:
    tab.open(plain)
    assert tab.value(ORDER) == ["user", "price", "tags", "hour", "log_price"]
    slot, distinct = header(tab, "slot"), header(tab, "distinct")
    tab.value(f"{slot}.querySelector('button').click()")
    assert tab.value(ORDER) == ["hour", "log_price", "price", "tags", "user"]
    assert tab.value(f"{slot}.getAttribute('aria-sort')") == "ascending"

    tab.value(f"{distinct}.querySelector('button').focus()")
    tab.press("Enter")
    assert tab.value(ORDER)[-1] == "tags"
    assert tab.value(f"{distinct}.getAttribute('aria-sort')") == "descending"
    assert tab.value(f"{slot}.getAttribute('aria-sort')") is None
    tab.press(" ")
    assert tab.value(ORDER)[0] == "tags"
    assert tab.value(f"document.activeElement === {distinct}.querySelector('button')")


def test_sorting_by_numbers_is_not_by_texts_and_unknown_ones_are_last(
    tab: Tab, tmp_path: Path
) -> None:
    columns = [
        {"title": title, "help": "", "number": title == "n", "wide": False} for title in "sn-"
    ]
    numbers: list[tuple[str, float | None]] = [("9", 9.0), ("10", 10.0), ("-", None), ("-1", -1.0)]
    slots = [
        {"cells": [[f"slot{i}", None], cell, ["", None]], "facts": [], "sparks": [], "charts": []}
        for i, cell in enumerate(numbers)
    ]
    contents = {"about": [], "columns": columns, "order": None, "partitions": [], "charts": []}
    path = tmp_path / "page.html"
    path.write_bytes(page("t", {**contents, "slots": slots}))
    tab.open(path)
    by_number = f"{header(tab, 'n')}.querySelector('button').click()"
    tab.value(by_number)
    assert tab.value(ORDER) == ["slot1", "slot0", "slot3", "slot2"]
    tab.value(by_number)
    assert tab.value(ORDER) == ["slot3", "slot0", "slot1", "slot2"]


def test_a_day_is_broken_at_spaces_and_not_at_its_hyphens(tab: Tab, tmp_path: Path) -> None:
    named = [{"title": title, "help": "", "number": title == "n", "wide": False} for title in "sny"]
    cells = [["slot", None], ["0.64 in 2026-11-02", 0.64], ["", None]]
    slots = [{"cells": cells, "facts": [], "sparks": [], "charts": []}]
    contents = {"about": [], "columns": named, "order": None, "partitions": [], "charts": []}
    path = tmp_path / "page.html"
    path.write_bytes(page("t", {**contents, "slots": slots}))
    tab.resize(900, 900)
    tab.open(path)
    [text, of_cell, *of_words] = tab.value("""(() => {
      const cell = document.querySelector("#slots td.number");
      return [cell.textContent, ...[cell, ...cell.children].map((part) => part.offsetHeight)];
    })()""")
    assert text == "0.64 in 2026-11-02"
    assert max(of_words) == min(of_words) < of_cell / 1.8  # two lines of whole words


def test_a_comparison_begins_with_the_slots_that_changed_most(tab: Tab, compared: Path) -> None:
    tab.open(compared)
    assert tab.value(f"{header(tab, 'drift')}.getAttribute('aria-sort')") == "descending"
    assert set(tab.value(ORDER)[:3]) == {"user", "price", "log_price"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("PRICE", ["price", "log_price"]),
        ("price log1p", ["log_price"]),
        ("t1", ["tags"]),
        ("02:00", ["hour"]),
        ("nowhere", []),
    ],
)
def test_a_search_finds_slots_by_name_operator_and_value(
    tab: Tab, plain: Path, words: str, found: list[str]
) -> None:
    tab.open(plain)
    assert tab.value(FOUND) == "5 slots"
    tab.value("document.getElementById('search').focus()")
    tab.type(words)
    assert tab.value(ORDER) == found
    assert tab.value(FOUND) == f"{len(found)} of 5 slots"
    tab.value("document.getElementById('search').select()")
    tab.type(" ")
    assert tab.value(FOUND) == "5 slots"


def test_a_slot_opens_and_closes_by_keys_and_shows_its_charts(tab: Tab, compared: Path) -> None:
    tab.open(compared)
    button = (
        "[...document.querySelectorAll('#slots th button')].find(b => b.textContent === 'user')"
    )
    detail = f"{button}.closest('tbody').querySelector('.detail')"
    assert tab.value(f"{detail} === null")
    tab.value(f"{button}.focus()")
    tab.press("Enter")
    assert tab.value(f"{button}.getAttribute('aria-expanded')") == "true"
    titles = tab.value(f"[...{detail}.querySelectorAll('h2')].map(h => h.textContent)")
    assert titles == [
        "Most frequent values, share of all values",
        "Rate of click",
        "Coverage by partition",
        "Drift from the partition before (PSI)",
    ]
    texts = tab.value(f"[...{detail}.querySelectorAll('figure th')].map(h => h.textContent)")
    assert {"u0", "u1", "u2", "u3", "u4", "u5"} == set(texts)
    tab.press(" ")
    assert tab.value(f"{button}.getAttribute('aria-expanded')") == "false"
    assert tab.value(f"{detail}.hidden")


def test_bars_are_as_long_as_the_figures_say(tab: Tab, compared: Path) -> None:
    tab.open(compared)
    open_details(tab)
    bars = tab.value("""(() => {
      const rows = [...document.querySelectorAll("figure tr")];
      return rows.map(row => [...row.querySelectorAll("rect")].map(
        bar => bar.getBoundingClientRect().width / bar.ownerSVGElement.getBoundingClientRect().width));
    })()""")
    assert len(bars) > 10
    assert all(0.0 <= width <= 1.001 for row in bars for width in row)
    heights = tab.value("""[...document.querySelectorAll("svg.columns")].map(svg => {
      const most = svg.getBoundingClientRect().height;
      return Math.max(...[...svg.querySelectorAll("rect:not(.none)")].map(
        bar => bar.getBoundingClientRect().height / most));
    })""")
    # Coverage is drawn to 1; the histograms to their highest bar.
    assert pytest.approx(max(heights), abs=0.02) == 1.0


def test_bars_of_close_rates_show_how_they_differ(tab: Tab, tmp_path: Path) -> None:
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"user": "string", "clicked": "long"},
            "labels": {"click": "clicked"},
            "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
        }
    )
    clicked = [int(i % 100 < (50 if i % 2 else 56)) for i in range(10_000)]
    raw = put_parquet(tmp_path / "raw.parquet", {"user": ["a", "b"] * 5_000, "clicked": clicked})
    featstore.extract(spec, raw, tmp_path / "table")
    featstore.report(tmp_path / "table", tmp_path / "report.html", label="click")
    tab.open(tmp_path / "report.html")
    open_details(tab)
    figure = "[...document.querySelectorAll('figure')].find(f => f.innerText.includes('Rate of'))"
    rows = tab.value(f"""[...({figure}).querySelectorAll("tr")].map(row => [
        row.innerText, ...["rect", ".baseline"].map(part => {{
          const [drawn, all] = [part, "svg"].map(of => row.querySelector(of).getBoundingClientRect());
          return (drawn.right - all.left) / all.width;
        }})])""")
    bars = {text.split()[0]: (bar, line) for text, bar, line in rows}
    assert bars["a"][0] - bars["b"][0] > 0.5
    assert bars["b"][0] > 0.1
    assert bars["b"][0] < bars["b"][1] < bars["a"][0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_bars_can_be_told_from_what_is_behind_them(
    tab: Tab, compared: Path, theme: str
) -> None:
    tab.prefer(theme)
    tab.open(compared)
    open_details(tab)
    assert tab.value(f"{CONTRAST}({TEXTS!r}, 'color')") >= LEAST_CONTRAST
    assert tab.value(f"{CONTRAST}({BARS!r}, 'fill')") >= LEAST_CONTRAST_OF_BARS


def test_the_theme_is_the_system_s_until_the_button_is_pressed(tab: Tab, plain: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.open(plain)
    light = tab.value(background)
    tab.prefer("dark")
    tab.drawn()
    dark = tab.value(background)
    assert light != dark
    assert tab.value("document.getElementById('theme').textContent") == "light"
    tab.value("document.getElementById('theme').focus()")
    tab.press("Enter")
    assert tab.value(background) == light
    tab.press("Enter")
    assert tab.value(background) == dark


@pytest.mark.parametrize("width", [1300, 1280, 900, 390])
def test_figures_are_whole_and_do_not_touch_and_names_are_broken_at_underscores(
    tab: Tab, compared: Path, width: int
) -> None:
    tab.resize(width, 900)
    tab.open(compared)
    tab.value("""(() => {
      for (const row of document.querySelectorAll("#slots > tbody > tr")) {
        for (const cell of row.querySelectorAll(".number:not(.wide)")) cell.textContent = "0.580 (0.0066)";
      }
    })()""")
    assert (
        tab.value("""[...document.querySelectorAll("#slots td.number")].filter(
      (cell) => cell.offsetWidth && cell.scrollWidth > cell.clientWidth).length""")
        == 0
    )
    gaps = tab.value("""[...document.querySelectorAll("#slots > tbody > tr")].flatMap((row) => {
      const boxes = [...row.cells].filter((cell) => cell.offsetWidth).map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return range.getBoundingClientRect();
      });
      return boxes.slice(1).map((box, i) => box.left - boxes[i].right);
    })""")
    assert len(gaps) > 10
    assert min(gaps) >= 4.0
    pieces = tab.value("""[...document.querySelectorAll("#slots tbody th button")].map((button) =>
      [...button.childNodes].filter((node) => node.nodeType === 3).map((node) => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return [node.data, range.getClientRects().length];
      }))""")
    assert ["log_", 1] in [piece for name in pieces for piece in name]
    assert {lines for name in pieces for _, lines in name} == {1}


@pytest.mark.parametrize("width", [1300, 900, 420, 320])
def test_nothing_is_wider_than_the_window(tab: Tab, compared: Path, width: int) -> None:
    tab.resize(width, 900)
    tab.open(compared)
    open_details(tab)
    assert not tab.value(TOO_WIDE)
    widths = tab.value(
        "[...document.querySelectorAll('#slots > tbody > tr > th')].map(h => h.clientWidth)"
    )
    assert min(widths) >= 100


HOSTILE = (
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    '" onmouseover="window.broken = 1',
    "<!-- <script>",
    "javascript:window.broken = 1",
    "a\u2028b\u202eb",
)


def test_hostile_names_and_values_are_shown_as_texts(tab: Tab, tmp_path: Path) -> None:
    names = [text.replace("\u202e", "") for text in HOSTILE]
    put_parquet(tmp_path / "plain" / "rows.parquet", {name: [1, 2, 2] for name in HOSTILE})
    featstore.report(tmp_path / "plain", tmp_path / "names.html")
    rows = {**day_rows(0), "user": [HOSTILE[i % len(HOSTILE)] for i in range(40)]}
    put_parquet(tmp_path / "raw.parquet", rows)
    featstore.extract(SPEC, tmp_path / "raw.parquet", tmp_path / "t")
    featstore.report(tmp_path / "t", tmp_path / "values.html", label="click")
    for page_name in ("names", "values"):
        path = tmp_path / f"{page_name}.html"
        tab.open(path)
        open_details(tab)
        assert tab.value("window.broken === undefined")
        assert tab.value("document.querySelectorAll('img, script:not([id]), iframe').length") == 1
        assert tab.requests() == [path.as_uri()]
        assert tab.complaints() == []
        shown = tab.value("document.body.innerText")
        assert all(name in shown for name in names[:5])


@pytest.mark.slow
def test_a_thousand_slots_open_quickly_and_are_small(tab: Tab, thousand: Path) -> None:
    """CPU time of the browser's main thread, which other work on the machine does not lengthen."""
    assert thousand.stat().st_size < SIZE_BYTES
    spent_s = []
    for _ in range(3):
        tab.open(thousand)
        spent_s.append(tab.task_cpu_s())
    assert len(tab.value(ORDER)) == NUM_SLOTS
    # Less than this would not be the drawing of a thousand rows.
    assert 0.02 < min(spent_s) < OPEN_CPU_S
    tab.value("document.getElementById('search').focus()")
    tab.type("slot_777")
    assert tab.value(ORDER) == ["slot_777"]
    assert tab.value(FOUND) == "1 of 1,000 slots"
