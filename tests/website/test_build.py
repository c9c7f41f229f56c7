"""The site is built strictly, and needs no network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from website.build import ROOT, write
from website.pages import pages, repository_pages


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "website.build", "--target", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    html = tmp_path / "site" / "html"
    found = {str(path.relative_to(html)) for path in html.rglob("*.html")}
    assert {
        "index.html",
        "reference/api.html",
        "design/tables.html",
    } <= found
    fetched = [
        (path.name, tag)
        for path in html.rglob("*.html")
        for tag in re.findall(r"<(?:script|link|img)\b[^>]*", path.read_text())
        if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)
    ]
    assert fetched == []


@pytest.mark.slow
def test_an_anchor_that_leads_nowhere_fails(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(ROOT / "docs", root / "docs")
    for name in ("benchmarks", "featstore", "release", "notebooks", "examples"):
        (root / name).symlink_to(ROOT / name)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, root)
    with (root / "docs" / "checks.md").open("a") as checks:
        checks.write("\n[x](loader.md#no-such-part)\n")
    settings = write(root, tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", settings],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "does not contain an anchor '#no-such-part'" in done.stderr


def test_every_page_of_the_repository_is_on_the_site() -> None:
    found = pages(ROOT)
    assert PurePosixPath("docs/design/project.md") in repository_pages(ROOT)
    assert {
        "index.md",
        "loader.md",
        "design/project.md",
        "benchmarks/size.md",
        "notebooks/01_first_look.md",
    } <= found.keys()
    assert "source/featstore/tools/flights.spec.yaml.md" in found
