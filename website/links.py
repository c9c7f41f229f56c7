"""Links between files of the repository, rewritten for the site.

A page of the repository links to other files as they lie there: pages, sources, folders. On the
site a page of `docs/` lies one level higher, and sources and folders are pages too, so that the
site needs nothing beside itself.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

_FENCE = re.compile(r"^\s*(```+|~~~+)")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#")


def site_path(path: PurePosixPath, *, folder: bool) -> PurePosixPath:
    """Where a file or folder of the repository lies among the pages of the site.

    Args:
        path: Relative to the root of the repository.
        folder: Whether it is a folder.
    """
    if path == PurePosixPath("README.md"):
        return PurePosixPath("index.md")
    if path.parts[0] == "docs":
        path = path.relative_to("docs")
        return path / "index.md" if folder else path
    if folder:
        return (path if path.name == "benchmarks" else "source" / path) / "index.md"
    if path.suffix == ".ipynb":
        return path.with_suffix(".md")
    return path if path.suffix == ".md" else PurePosixPath("source", f"{path}.md")


def lines_outside_code(text: str) -> Iterator[tuple[str, bool]]:
    """Each line of a Markdown text, and whether it stands outside of fenced code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
            yield line, False
        else:
            yield line, not fence
            if match and match[1].startswith(fence) and line.strip() == match[1]:
                fence = ""


def linked(text: str) -> list[str]:
    """The targets of a page's links to files, without anchors."""
    targets = [
        match["target"].partition("#")[0]
        for line, outside in lines_outside_code(text)
        if outside
        for match in _LINK.finditer(line)
    ]
    return [target for target in targets if target and not _ELSEWHERE.match(target)]


def rewritten(text: str, convert: Callable[[str], str]) -> str:
    """A page with each target of a link to a file converted; anchors stay."""

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = match["target"].partition("#")
        if not target or _ELSEWHERE.match(target):
            return match[0]
        return f"]({convert(target)}{mark}{anchor})"

    return "".join(
        _LINK.sub(link, line) if outside else line for line, outside in lines_outside_code(text)
    )


def resolve(root: Path, page: PurePosixPath, target: str) -> PurePosixPath:
    """The file or folder of the repository that a page links to, relative to `root`.

    Raises:
        ValueError: There is none.
    """
    path = PurePosixPath(os.path.normpath(page.parent / target))
    if path.parts[0] == ".." or not (root / path).exists():
        raise ValueError(
            f"{page}: expected a link to a file or folder of the repository, found {target!r}, "
            f"which would be {path}; correct the link"
        )
    return path


def for_site(root: Path, page: PurePosixPath, text: str) -> str:
    """A page of the repository with its links as they are on the site.

    Args:
        root: The root of the repository.
        page: The page, relative to `root`.
        text: Its text.

    Raises:
        ValueError: A link leads to nothing.
    """
    start = site_path(page, folder=False).parent

    def convert(target: str) -> str:
        path = resolve(root, page, target)
        return os.path.relpath(site_path(path, folder=(root / path).is_dir()), start)

    return rewritten(text, convert)
