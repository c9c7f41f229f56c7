"""Pages of the site for sources and folders that other pages link to."""

import ast
from pathlib import Path, PurePosixPath

_LANGUAGES = {".py": "python", ".yaml": "yaml", ".c": "c", ".h": "c", ".json": "json"}


def source_page(root: Path, path: PurePosixPath) -> str:
    """A page that shows a source file."""
    language = _LANGUAGES.get(path.suffix, "text")
    return f"# {path.name}\n\n`{path}`\n\n````{language}\n{(root / path).read_text()}\n````\n"


def folder_page(root: Path, path: PurePosixPath) -> str:
    """A page that lists a folder: pages by their title, modules by their docstring's first line."""
    if path.name in ("design", "benchmarks"):
        pages = sorted((root / path).glob("*.md"))
        entries = [f"- [{title(page.read_text())}]({page.name})" for page in pages]
        return f"# {path.name.capitalize()}\n\n" + "\n".join(entries) + "\n"
    entries = []
    for inner in sorted((root / path).rglob("*.py")):
        summary = (ast.get_docstring(ast.parse(inner.read_text())) or "").partition("\n")[0]
        entries.append(f"- `{inner.relative_to(root / path)}`: {summary}")
    return f"# {path}\n\n" + "\n".join(entries) + "\n"


def title(text: str) -> str:
    """The heading of a page.

    Raises:
        ValueError: It does not begin with one.
    """
    first = text.partition("\n")[0]
    if not first.startswith("# "):
        raise ValueError(
            f"expected a page that begins with its heading, '# ...', found {first!r}; add one"
        )
    return first.removeprefix("# ").strip()
