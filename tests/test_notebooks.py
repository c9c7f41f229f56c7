"""Every notebook runs from top to bottom on a small table, and is committed with outputs that
contain no machine paths.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from featstore import api
from featstore.demo.flights import load_flights, write_flights

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def small_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's table, with the flights of a few planes only."""
    directory = tmp_path_factory.mktemp("demo")
    write_flights(directory / "raw", load_flights().of_planes(60))
    spec = ROOT / "featstore" / "demo" / "flights.spec.yaml"
    api.extract(
        spec, str(directory / "raw"), str(directory / "table"), partition_from_path=["month"]
    )
    return directory / "table"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, small_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEATSTORE_DEMO", str(small_table))
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs_in_order_and_without_machine_paths(
    path: Path,
) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]  # type: ignore[no-untyped-call]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(
        output.output_type == "display_data" or "data" in output
        for cell in cells
        for output in cell.outputs
    )
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    text = "".join(
        str(output) for cell in cells for output in cell.outputs if output.output_type != "error"
    )
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
