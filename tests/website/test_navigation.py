"""The navigation has every page once, also those that no section names."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from website.navigation import GUIDES, PROJECT, REFERENCE, WHY, navigation

NAMED = ["index.md", "tutorial.md", "from_tfrecord.md", *GUIDES, *REFERENCE, *WHY, *PROJECT]
FOLDERS = ["", "howto/", "notebooks/", "reference/", "design/", "benchmarks/", "featstore/x/"]


def paths_in(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        for value in [entry] if isinstance(entry, str) else entry.values():
            found += [value] if isinstance(value, str) else paths_in(value)
    return found


new_pages = st.builds(
    "{}{}.md".format, st.sampled_from(FOLDERS), st.from_regex(r"new_[a-z]{1,6}", fullmatch=True)
)


@given(st.sets(st.one_of(st.sampled_from(NAMED), new_pages)))
def test_every_page_is_there_once(pages: set[str]) -> None:
    titles = {path: path.upper() for path in pages}
    assert sorted(paths_in(navigation(titles))) == sorted(pages)


def test_a_new_howto_stands_under_howto_by_its_title() -> None:
    titles = {"howto/b.md": "Backfill", "howto/a.md": "Deleting", "mixing.md": "Mixing"}
    assert navigation(titles) == [
        {"How-to": [{"Backfill": "howto/b.md"}, {"Deleting": "howto/a.md"}]},
        {"Guides": [{"Mixing": "mixing.md"}]},
    ]
