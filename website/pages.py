"""The pages of the site, by their path there."""

from pathlib import Path, PurePosixPath

from website import links, sources
from website.dialect import for_renderer
from website.notebooks import notebook_text
from website.reference.api import api_page
from website.reference.commands import commands_page
from website.reference.documents import spec_page, train_page
from website.reference.operators import operators_page

GENERATED = {
    "reference/api.md": api_page,
    "reference/commands.md": commands_page,
    "reference/operators.md": operators_page,
    "reference/spec.md": spec_page,
    "reference/training_config.md": train_page,
}
_FOLDERS = tuple(PurePosixPath(path) for path in ("docs/design", "benchmarks"))


def repository_pages(root: Path) -> list[PurePosixPath]:
    """The pages of the repository that the site has, relative to its root."""
    patterns = ("*.md", "docs/**/*.md", "featstore/*/*.md", "benchmarks/*.md", "notebooks/*.ipynb")
    found = (path.relative_to(root) for pattern in patterns for path in root.glob(pattern))
    return sorted(map(PurePosixPath, found))


def page_text(root: Path, path: PurePosixPath) -> str:
    """A page of the repository as Markdown.

    Args:
        root: The root of the repository.
        path: One of `repository_pages`.
    """
    text = (root / path).read_text()
    return notebook_text(text) if path.suffix == ".ipynb" else text


def pages(root: Path) -> dict[str, str]:
    """The text of every page of the site by its path there.

    Args:
        root: The root of the repository.

    Raises:
        ValueError: A link leads to nothing.
    """
    texts = {path: page_text(root, path) for path in repository_pages(root)}
    found = {
        str(links.site_path(path, folder=False)): for_renderer(links.for_site(root, path, text))
        for path, text in texts.items()
    }
    found |= {name: page() for name, page in GENERATED.items()}
    targets = {
        links.resolve(root, path, target)
        for path, text in texts.items()
        for target in links.linked(text)
    }
    for path in sorted(targets.union(_FOLDERS) - texts.keys()):
        folder = (root / path).is_dir()
        if folder or not is_picture(path):
            make = sources.folder_page if folder else sources.source_page
            found[str(links.site_path(path, folder=folder))] = make(root, path)
    return found


def is_picture(path: PurePosixPath) -> bool:
    """Whether a file is shown as it is."""
    return path.parts[0] == "docs" and path.suffix in (".png", ".svg")
