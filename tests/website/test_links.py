"""Links of pages: which are found, and where they lead on the site."""

from pathlib import Path, PurePosixPath

import pytest

from website.links import for_site, lines_outside_code, linked, site_path

PAGE = """# Title

See [the spec](../featstore/tools/a.yaml), [ops](../featstore/ops), [there](loader.md#slots),
[here](#title), [elsewhere](https://delta.io) and ![a drawing](drawing.svg).

```python
values[0](not_a_link.md)
```
"""


def test_links_in_code_and_to_elsewhere_are_left_alone() -> None:
    assert linked(PAGE) == [
        "../featstore/tools/a.yaml",
        "../featstore/ops",
        "loader.md",
        "drawing.svg",
    ]


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("README.md", False, "index.md"),
        ("docs/loader.md", False, "loader.md"),
        ("docs/howto/spark.md", False, "howto/spark.md"),
        ("docs/design", True, "design/index.md"),
        ("benchmarks", True, "benchmarks/index.md"),
        ("benchmarks/size.md", False, "benchmarks/size.md"),
        ("notebooks/01_first_look.ipynb", False, "notebooks/01_first_look.md"),
        ("benchmarks/size.py", False, "source/benchmarks/size.py.md"),
        ("featstore/ops", True, "source/featstore/ops/index.md"),
    ],
)
def test_each_file_has_one_place_on_the_site(path: str, folder: bool, expected: str) -> None:
    assert str(site_path(PurePosixPath(path), folder=folder)) == expected


def test_links_follow_their_targets_to_the_site(tmp_path: Path) -> None:
    (tmp_path / "featstore" / "ops").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for name in ("featstore/tools/a.yaml", "docs/loader.md", "docs/drawing.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    text = for_site(tmp_path, PurePosixPath("docs/page.md"), PAGE)
    assert "[the spec](source/featstore/tools/a.yaml.md)" in text
    assert "[ops](source/featstore/ops/index.md)" in text
    assert "[there](loader.md#slots)" in text
    assert "(drawing.svg)" in text
    assert "values[0](not_a_link.md)" in text


@pytest.mark.parametrize("target", ["gone.md", "../../outside.md"])
def test_a_link_that_leads_nowhere_is_named_with_its_page(tmp_path: Path, target: str) -> None:
    with pytest.raises(ValueError, match=rf"docs/page\.md: expected a link to a file .*{target}"):
        for_site(tmp_path, PurePosixPath("docs/page.md"), f"[x]({target})")


def test_a_fence_ends_with_one_of_its_own_length() -> None:
    text = "````\n```\ninside\n```\n````\noutside\n"
    assert [line for line, outside in lines_outside_code(text) if outside] == ["outside\n"]
