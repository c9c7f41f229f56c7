"""Sources and folders as pages."""

from pathlib import Path, PurePosixPath

import pytest

from website.sources import folder_page, source_page, title


def test_a_source_is_shown_in_its_language(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("spec: 1\n")
    assert "````yaml\nspec: 1\n" in source_page(tmp_path, PurePosixPath("a.yaml"))


def test_a_folder_lists_its_modules_with_their_first_line(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "ids.py").write_text('"""Signs of values.\n\nMore."""\n')
    assert folder_page(tmp_path, PurePosixPath("ops")).endswith("- `ids.py`: Signs of values.\n")


def test_design_notes_are_listed_by_their_title(tmp_path: Path) -> None:
    (tmp_path / "design").mkdir()
    (tmp_path / "design" / "x.md").write_text("# A choice\n")
    page = folder_page(tmp_path, PurePosixPath("design"))
    assert page == "# Design\n\n- [A choice](x.md)\n"


def test_a_page_without_a_heading_is_refused() -> None:
    with pytest.raises(ValueError, match=r"begins with its heading.*found 'Text'"):
        title("Text\n")
