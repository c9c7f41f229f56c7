"""The environment of each peer, in its newest version, and the lines of code that a user writes.

torch, numpy and Arrow are the project's own for all of them, but for tensorflow's numpy.
"""

import ast
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from training_parts.environment import TENSORFLOW, python_with

OWN = "featstore"
# Installed without what they depend on, which the project's environment has.
_ALONE = {
    "pyarrow": ("pyarrow==26.0.1",),
    "polars": ("polars==2.1.0", "polars-runtime-32==2.1.0"),
    "duckdb": ("duckdb==2.0.1",),
    "datasets": ("datasets==5.2.0", "torchdata==0.11.0"),
    "ray": ("ray==2.60.0",),
    "torchdata": ("torchdata==0.11.0",),
    "streaming": (
        *("mosaicml-streaming==0.13.0", "torchvision==0.28.0", "brotli==1.2.1"),
        *("zstd==1.5.7.2", "python-snappy==0.7.3", "cramjam==2.14.0", "catalogue==2.0.10"),
    ),
    "litdata": ("litdata==0.2.76", "tifffile==2026.11.12"),
}
PEERS = (OWN, *_ALONE, "tensorflow")
_PEERS = Path(__file__).parent / "peers"


def python_of(peer: str, root: Path) -> str:
    """The interpreter of a peer, whose environment is made below `root` if it is not there."""
    if peer == OWN:
        return sys.executable
    if peer == "tensorflow":
        return python_with(root / peer, TENSORFLOW)
    return python_with(root / peer, alone=_ALONE[peer])


def version_of(peer: str) -> str:
    """The version that is compared."""
    if peer == OWN:
        return importlib.metadata.version("featstore-pipeline").partition(".dev")[0]
    return (TENSORFLOW if peer == "tensorflow" else _ALONE[peer][0]).rpartition("==")[2]


def lines_of(peer: str) -> dict[str, int]:
    """Lines of code of a peer's program: "lines" in all, with the shared helpers that it imports,
    and those of "convert" among them.

    Comments, docstrings and empty lines do not count.
    """
    tree = ast.parse((_PEERS / f"with_{peer}.py").read_text())
    imported = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    helpers = [
        name.rpartition(".")[2] for name in imported if name.startswith("compare_parts.peers.")
    ]
    texts = [ast.parse((_PEERS / f"{name}.py").read_text()) for name in helpers]
    converts = [node for node in tree.body if getattr(node, "name", "") == "convert"]
    return {
        "lines": sum(len(code_lines(one)) for one in (tree, *texts)),
        "convert": sum(len(code_lines(one)) for one in converts),
    }


def code_lines(tree: Any) -> set[int]:
    """The numbers of the lines that have code."""
    docs = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    with_code = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword)
        for number in (node.lineno, node.end_lineno or node.lineno)
    }
    return with_code - docs
