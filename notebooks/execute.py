"""Executes the notebooks on the demo's table, and writes their outputs into them."""

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_TIMEOUT_S = 600  # of a cell


def execute(path: Path) -> Any:
    """A notebook with the outputs of a run in its folder, in a fresh kernel.

    Nothing that changes from run to run by itself is kept: neither when cells ran, nor in how many
    pieces something was printed, nor the version of Python.

    Args:
        path: The notebook, which is left as it is.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Executes all notebooks, one after the other."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        nbformat.write(execute(path), path)  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
