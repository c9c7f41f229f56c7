"""Draws the pictures in docs/plots from the demo's table: those of docs/plots.md, each by the last
line of the block above it, and the page of a report, by a Chromium.
"""

import re
import sys
from pathlib import Path
from typing import Any

import featstore

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from shared_parts.chromium import chromium, chromium_binary

DOCS = ROOT / "docs"
BLOCK = re.compile(r"```python\n(.*?)\n```\n(?:\n!\[[^]]*\]\((plots/\w+\.png)\))?", re.DOTALL)
OPEN = "[...document.querySelectorAll('#slots button')].find(b => b.textContent == '{}').click()"


def draw(page: str, directory: Path) -> list[str]:
    """Draws the pictures of a page below a directory; returns their names."""
    names, drawn = dict[str, Any](), list[str]()
    for block, picture in BLOCK.findall(page):
        before, _, last = block.rpartition("\n")
        exec(before, names)
        if picture:
            figure = eval(last, names)
            figure.savefig(directory / picture, metadata={"Software": None})
            drawn.append(picture)
        elif "# not run" not in last:
            exec(last, names)
    return drawn


def main() -> None:
    """Draws all; of a report only where a Chromium is installed."""
    print(*draw((DOCS / "plots.md").read_text(), DOCS))
    if (binary := chromium_binary()) is not None:
        report = Path("demo", "changes.html")
        featstore.report("demo/table", report, label="late", days=("2013-01", "2013-07"))
        with chromium(binary) as tab:
            tab.resize(1300, 860)
            tab.open(report)
            tab.value(OPEN.format("from_x_wind_octant"))
            tab.drawn()
            (DOCS / "plots" / "report.png").write_bytes(tab.screenshot())


if __name__ == "__main__":
    main()
