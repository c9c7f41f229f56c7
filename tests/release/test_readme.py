"""README.md as a package index shows it."""

import re
from pathlib import Path

import pytest

from release.dist import document
from release.readme import project_urls, standalone

ADDRESS = "https://host.example/people/featstore"


def test_links_lead_to_pages_of_the_repository_and_pictures_to_their_bytes() -> None:
    text = "![A pipe](docs/pipe.svg) and [why](docs/why.md#cost)"
    assert standalone(text, f"{ADDRESS}/") == (
        f"![A pipe]({ADDRESS}/raw/HEAD/docs/pipe.svg) and [why]({ADDRESS}/blob/HEAD/docs/why.md#cost)"
    )


def test_without_an_address_texts_stay_and_pictures_go() -> None:
    text = "# Title\n\n![A pipe](docs/pipe.svg)\n\nSee [why](docs/why.md), [here](#title)."
    assert standalone(text, "") == "# Title\n\nSee why, [here](#title)."


@pytest.mark.parametrize("target", ["https://example.org/a(b", "mailto:a@example.org", "#how-fast"])
def test_absolute_links_and_those_within_the_page_stay(target: str) -> None:
    assert standalone(f"[x]({target})", "") == f"[x]({target})"
    assert standalone(f"[x]({target})", ADDRESS) == f"[x]({target})"


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_no_relative_link_is_left_of_the_readme(address: str) -> None:
    text = Path(__file__).parents[2].joinpath("README.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", standalone(text, address))
    assert all(target.startswith(ADDRESS) for target in targets)
    assert len(targets) == (len(re.findall(r"\]\(", text)) if address else 0)


def test_the_metadata_names_the_repository_and_what_people_look_for() -> None:
    assert project_urls("") == {}
    assert project_urls(f"{ADDRESS}/") == {
        "Repository": ADDRESS,
        "Documentation": f"{ADDRESS}/blob/HEAD/docs/tutorial.md",
        "Changelog": f"{ADDRESS}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    }


def test_a_source_distribution_without_git_holds_what_its_build_runs() -> None:
    """setuptools-scm lists no files where there is no git, so MANIFEST.in must."""
    root = Path(__file__).parents[2]
    assert 'ROOT / "release" / "readme.py"' in (root / "setup.py").read_text()
    assert document()["build-system"]["backend-path"] == ["release"]
    included = (root / "MANIFEST.in").read_text().splitlines()
    assert included == ["include release/backend.py", "include release/readme.py"]
