"""The page of the public names of Python, from their signatures and docstrings."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import griffe

import featstore
from website.reference.markdown import code, table

_WIDTH = 70
_TITLES = {
    griffe.DocstringSectionKind.parameters: "Args",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
}


def api_page() -> str:
    """Every public name, with the public methods of classes."""
    head = (
        "# Python\n\nThe names that `import featstore` gives, made from their docstrings. "
        "They are loaded on first use.\n"
    )
    names = [name for name in featstore.__all__ if name != "__version__"]
    return "\n".join([head, *(_section(name, getattr(featstore, name)) for name in names)])


def _section(name: str, value: Any) -> str:
    parts = [f"## {name}\n", _described(f"featstore.{name}", value)]
    for method, inner in public_methods(value) if inspect.isclass(value) else ():
        parts += [f"### {name}.{method}\n", _described(f"{name}.{method}", inner)]
    return "\n".join(parts)


def public_methods(value: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class of ours adds, in the order of their definition."""
    for name, member in vars(value).items():
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(inner, property):
            inner = inner.fget
        if not name.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
            yield name, member


def _described(title: str, value: Any) -> str:
    if isinstance(value, property):
        return f"A property.\n\n{_docstring(value.fget)}"
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return f"```python\n{title}{_signature(function)}\n```\n\n{_docstring(function)}"


def _signature(value: Callable[..., Any]) -> str:
    """The signature of a function or class, one parameter a line where there are many."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # of a class that is a tuple or an exception
        return "(...)"
    kept = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    short = str(signature.replace(parameters=kept))
    if len(short) <= _WIDTH:
        return short
    result = str(signature.replace(parameters=[]))
    return _lines(kept) + result.removeprefix("()")


def _lines(parameters: list[inspect.Parameter]) -> str:
    """Parameters one a line, with the star before those that are given by name only."""
    lines = []
    star = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        lines.append(f"    {parameter},")
    return "(\n" + "\n".join(lines) + "\n)"


def _docstring(value: Any) -> str:
    docstring = griffe.Docstring(inspect.getdoc(value) or "", lineno=1)
    parts = []
    for section in griffe.parse_google(docstring, warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            parts.append(f"{section.value}\n")
        elif section.kind in _TITLES:
            parts.append(f"**{_TITLES[section.kind]}**\n\n{_items(section)}")
        else:
            raise ValueError(
                f"expected a docstring with the sections {', '.join(_TITLES.values())}, found "
                f"{section.kind.value} in that of {value!r}; describe it here how it is shown"
            )
    return "\n".join(parts)


def _items(section: Any) -> str:
    if section.kind in (griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields):
        return " ".join(item.description for item in section.value) + "\n"
    names = [getattr(item, "name", None) or str(item.annotation) for item in section.value]
    rows = [(code(name), item.description) for name, item in zip(names, section.value, strict=True)]
    return table(("name", "what it is"), rows)
