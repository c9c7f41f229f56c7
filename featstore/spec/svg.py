"""A graph in DOT as SVG, laid out by Graphviz's program `dot`."""

import shutil
import subprocess

from featstore.base.errors import MissingDependencyError, SpecError

_LIMIT_S = 120.0


def svg(dot_text: str) -> str:
    """The drawing of a graph.

    Args:
        dot_text: The graph, in DOT.

    Raises:
        MissingDependencyError: Graphviz is not installed, or not whole.
        SpecError: The graph takes more than two minutes to lay out.
    """
    program = shutil.which("dot")
    if program is None:
        raise MissingDependencyError(
            "the format svg needs Graphviz, whose program `dot` is not on the PATH: install it "
            "(`apt install graphviz`, `brew install graphviz`), or use the format mermaid, which "
            "code forges and notebooks draw"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=dot_text,
            capture_output=True,
            encoding="utf-8",
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise SpecError(
            f"the graph is too large: {program} took more than {_LIMIT_S:.0f} s to lay it out; "
            f"draw a part of it (--slot NAME)"
        ) from error
    if done.returncode:
        raise MissingDependencyError(
            f"expected Graphviz's {program} to draw SVG, found exit code {done.returncode}: "
            f"{done.stderr.strip()}; install Graphviz again"
        )
    return done.stdout
