"""How blocks of a page are read and run."""

from pathlib import Path

import pytest

from tests.pages import page
from tests.pages.page import Block, blocks, run_page

PAGE = """# A page

```sh title="not run: it would take the machine away"
exit 1
```

```yaml title="a.yaml"
a: 1
```

```sh title="b.sh"
exit 1
```

```
cat a.yaml
! bash b.sh
ls /data/ctr
```

```text
a: 1
```

```python
from pathlib import Path
```

```python
assert Path("a.yaml").read_text() == "a: 1\\n"
```

- In a list:

    ```sh
    test -e a.yaml
    ```
"""


def page_of(text: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (root / "page.md").write_text(text)
    (root / "run" / "data" / "ctr").mkdir(parents=True)
    monkeypatch.setattr(page, "ROOT", root)
    monkeypatch.chdir(root / "run")
    return root / "run"


def test_a_page_is_run_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = page_of(PAGE, tmp_path, monkeypatch)
    assert run_page("page.md", directory) == 7


def test_what_is_left_out_has_a_reason() -> None:
    first, *others = blocks(PAGE)
    assert first.reason == "it would take the machine away"
    assert [block.reason for block in others] == [""] * 7
    assert others[-1] == Block(language="sh", title="", text="test -e a.yaml\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nfalse\ntrue\n```\n", "false"),
        ("```\necho one\n```\n```text\ntwo\n```\n", "page.md shows\ntwo"),
        ("```\ntest -e gone | cat\n```\n", "gone"),
    ],
)
def test_a_command_that_fails_or_says_something_else_fails_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    directory = page_of(text, tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=said):
        run_page("page.md", directory)
