"""Every notebook runs from top to bottom on a small table, as it was committed: with outputs of the
same kinds, which contain no machine paths.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from featstore import api
from featstore.tools.demo_flights import load_flights, write_flights
from notebooks.execute import execute

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's table, with the flights of a few planes only."""
    directory = tmp_path_factory.mktemp("demo")
    write_flights(directory / "raw", load_flights().of_planes(60))
    spec = ROOT / "featstore" / "tools" / "flights.spec.yaml"
    api.extract(
        spec, str(directory / "raw"), str(directory / "table"), partition_from_path=["month"]
    )
    return directory / "table"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds_of_outputs(cell: Any) -> list[str]:
    """What a cell shows, in order: the name of a stream, or the types of a result."""
    return [
        str(output.name) if output.output_type == "stream" else " ".join(sorted(output.data))
        for output in cell.outputs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_committed_with_it(
    path: Path, small_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATSTORE_DEMO", str(small_table))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # beside other tests, several wait for each other
    run, committed = (code_cells(notebook) for notebook in (execute(path), read(path)))
    assert list(map(kinds_of_outputs, run)) == list(map(kinds_of_outputs, committed))


def test_the_notebooks_are_numbered_without_a_gap() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs_in_order_and_without_machine_paths(
    path: Path,
) -> None:
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert not re.search(r"/(home|root|work|tmp|Users)/", "".join(map(str, outputs)))
    assert path.stat().st_size < MOST_BYTES
