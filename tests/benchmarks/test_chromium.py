"""The driver of Chromium: answers, events and errors of a real one."""

import tempfile
from pathlib import Path

import pytest

from shared_parts.chromium import chromium, chromium_binary


@pytest.fixture
def binary() -> str:
    found = chromium_binary()
    if found is None:
        pytest.skip("no chromium on PATH: install chromium")
    return found


def put_page(path: Path, body: str) -> Path:
    path.write_text(f"<!DOCTYPE html><title>t</title>{body}")
    return path


def test_a_page_is_opened_and_asked(binary: str, tmp_path: Path) -> None:
    first = put_page(tmp_path / "a.html", "<input><script>console.error('x'); y()</script>")
    second = put_page(tmp_path / "b.html", "<img src='missing.png'>")
    with chromium(binary) as tab:
        tab.open(first)
        assert tab.value("Promise.resolve([1, null, 'a'])") == [1, None, "a"]
        assert tab.requests() == [first.as_uri()]
        assert any("Uncaught" in text for text in tab.complaints())
        tab.value("document.querySelector('input').focus()")
        tab.type("héllo")
        tab.press(" ")
        assert tab.value("document.querySelector('input').value") == "héllo "
        tab.open(second)
        assert tab.requests() == [second.as_uri(), (tmp_path / "missing.png").as_uri()]


def test_what_the_browser_refuses_is_an_error(binary: str) -> None:
    with chromium(binary) as tab:
        with pytest.raises(RuntimeError, match=r"No\.such: Chromium refuses: .*wasn't found"):
            tab.ask("No.such")
        with pytest.raises(RuntimeError, match=r"nothing_there: .*not defined"):
            tab.value("nothing_there")


def test_a_browser_that_has_ended_is_an_error() -> None:
    ended = pytest.raises(RuntimeError, match="expected an answer, found that it has ended")
    with ended, chromium("true"):
        pass


def test_its_files_are_removed(binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not below `tmp_path`, which is too long for the socket that Chromium makes.
    with tempfile.TemporaryDirectory(prefix="c-") as home:
        monkeypatch.setattr("tempfile.tempdir", home)
        with chromium(binary):
            assert len(list(Path(home).iterdir())) == 1
        assert list(Path(home).iterdir()) == []
