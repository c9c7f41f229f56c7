"""The navigation of the site: sections by hand, and within them every page that is there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GUIDES = ("install.md", "demo.md", "extract.md", "checks.md", "table.md", "train.md", "loader.md")
REFERENCE = ("command_line.md", "operators.md", "contracts.md", "glossary.md", "stores.md")
WHY = ("architecture.md", "scale.md", "measured.md", "not_run.md", "faults.md")
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the navigation.

    Attributes:
        title: Its title.
        pages: Paths of pages, in order.
        parts: Sections within it, after its pages.
    """

    title: str
    pages: tuple[str, ...]
    parts: tuple["Section", ...] = ()

    def paths(self) -> Iterator[str]:
        """The paths of its pages and of those of its parts."""
        yield from self.pages
        for part in self.parts:
            yield from part.paths()

    def entry(self, titles: Mapping[str, str]) -> dict[str, list[object]]:
        """The section as mkdocs.yml has it."""
        pages: list[object] = [
            # A page named index is the page of its section.
            path if path.endswith("index.md") else {titles[path]: path}
            for path in self.pages
        ]
        return {self.title: pages + [part.entry(titles) for part in self.parts if part.pages]}


def navigation(titles: Mapping[str, str]) -> list[object]:
    """The navigation as mkdocs.yml has it, with every page once.

    A page of docs/ that no section names is a guide, and each of docs/howto/ stands under "How-to":
    a new page needs no line here.

    Args:
        titles: The title of each page by its path, without those of sources.
    """

    def within(folder: str) -> tuple[str, ...]:
        inner = (path for path in titles if path.startswith(f"{folder}/"))
        return tuple(sorted(inner, key=lambda path: (not path.endswith("/index.md"), path)))

    def there(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if path in titles)

    def by_title(path: str) -> str:
        return titles[path].lower()

    howto = sorted(within("howto"), key=by_title)
    named = {"index.md", "tutorial.md", "from_tfrecord.md", *REFERENCE, *WHY, *PROJECT}
    guides = [path for path in titles if "/" not in path and path not in {*named, *GUIDES}]
    sections = (
        Section(title="How-to", pages=(*howto, *there(("from_tfrecord.md",)))),
        Section(title="Guides", pages=(*there(GUIDES), *sorted(guides, key=by_title))),
        Section(title="Notebooks", pages=within("notebooks")),
        Section(title="Reference", pages=(*within("reference"), *there(REFERENCE))),
        Section(
            title="Why",
            pages=there(WHY),
            parts=(
                Section(title="Packages", pages=within("featstore")),
                Section(title="Design", pages=within("design")),
                Section(title="Benchmarks", pages=within("benchmarks")),
            ),
        ),
        Section(title="Project", pages=there(PROJECT)),
    )
    front: list[object] = [{titles[path]: path} for path in there(("index.md", "tutorial.md"))]
    return front + [section.entry(titles) for section in sections if any(section.paths())]
