"""Builds the site: `python -m website.build`.

The pages are written to build/website/pages first, with a mkdocs.yml that has the navigation. From
there mkdocs makes build/website/html, strictly: a link or an anchor that leads nowhere fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from website.navigation import navigation
from website.pages import pages
from website.sources import title

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "website" / "mkdocs.yml"


def write(root: Path, target: Path) -> Path:
    """Writes the pages and the settings that mkdocs needs; returns the path of the settings.

    Args:
        root: The root of the repository.
        target: A folder, which is made anew.
    """
    shutil.rmtree(target, ignore_errors=True)
    texts = pages(root)
    for name, text in texts.items():
        path = target / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for suffix in ("png", "svg"):
        for picture in (root / "docs").glob(f"**/*.{suffix}"):
            copy = target / "pages" / picture.relative_to(root / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, copy)
    shutil.copytree(ROOT / "website" / "assets", target / "pages" / "assets")
    settings = {
        "docs_dir": str(target / "pages"),
        "site_dir": str(target / "html"),
        "nav": navigation(
            {
                name: "featstore" if name == "index.md" else title(text)
                for name, text in texts.items()
                if not name.startswith("source/")
            }
        ),
    }
    path = target / "mkdocs.yml"
    path.write_text(f"{SETTINGS.read_text()}\n{yaml.safe_dump(settings, sort_keys=False)}")
    return path


def main() -> int:
    """Builds the site, and says where it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=ROOT / "build" / "website")
    target = parser.parse_args().target.resolve()
    settings = write(ROOT, target)
    # Not --quiet, under which mkdocs does not count what it warns of.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", settings],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # decision 94 has read it
        check=False,
    )
    if done.returncode == 0:
        print(f"The site is in {target / 'html'}; to look at it:")
        print(f"  python -m http.server --bind 127.0.0.1 --directory {target / 'html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
