"""The code of docs/plots.md runs, on the demo's table with the flights of a few planes, and every
plot that the page names is readable.
"""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import featstore
from featstore.tools.demo_flights import load_flights, write_flights
from notebooks.pictures import draw
from tests.explore.plots.rendered import render

PAGE = (Path(__file__).parents[3] / "docs" / "plots.md").read_text()
_BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    if "# not run" not in block
]
_PLOTS = [plot for plot in re.findall(r"\| `(.*\.plot_.*)` \|", PAGE) if plot.startswith("table")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_flights(home / "raw", load_flights().of_planes(60))
    spec = str(files("featstore.tools").joinpath("flights.spec.yaml"))
    url = str(home / "demo" / "table")
    featstore.extract(spec, str(home / "raw"), url, partition_from_path=["month"])
    return home


@pytest.fixture
def names(demo: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(demo)
    return {}


@pytest.mark.usefixtures("names")
def test_the_blocks_of_the_page_run_in_order_and_draw_its_pictures(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    pictures = re.findall(r"^!\[.*\]\((.*)\)$", PAGE, re.MULTILINE)
    assert draw(PAGE, tmp_path) == pictures
    assert [path.exists() for path in map(tmp_path.joinpath, pictures)] == [True] * 4
    assert len(_BLOCKS) == 6


@pytest.mark.slow
@pytest.mark.parametrize("plot", _PLOTS)
def test_each_plot_of_the_page_is_readable(names: dict[str, Any], plot: str) -> None:
    exec(_BLOCKS[0], names)
    render(eval(plot, names))


def test_the_page_names_every_plot() -> None:
    methods = {
        name
        for module in (
            "profile",
            "label_profile",
            "comparison",
            "partition_profiles",
            "reading_costs",
        )
        for name in re.findall(
            r"def (plot_\w+)\(self",
            files("featstore.explore").joinpath(f"{module}.py").read_text(),
        )
    }
    assert methods == set(re.findall(r"\.(plot_\w+)\(", PAGE))
