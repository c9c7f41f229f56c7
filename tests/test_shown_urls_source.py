"""The source shows a URL only redacted, and keeps one as it is only under a name that says so.

A name that ends in `url` holds a URL as it is, secrets included. So such a value may not be put
into a text, nor be kept or handed on under another name, such as `where` or `table`, whose values
are shown: there it is redacted first.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
URL = re.compile(r"(^|_)ur[li]s?$")
# What a text may hold as it is. `redact` made the URLs of queued files of staging. An endpoint, and
# so the URL of a server, has a host and a port only.
CLEAN = re.compile(r"\bqueued\.url|_queue\[0\]\.url|endpoint\.url")
CLEAN_IN = {
    "featstore/dispatch/stores/server.py _talk": "self.url",
    "featstore/explore/views.py _select_source": "urls",  # SQL that reads the files
    "featstore/loader/iteration/job.py key": "self.follow.url",  # for a hash
    "featstore/spec/lock.py lock_url": "spec_url",  # the URL of another file
    "featstore/table/row_masks.py _whole": "url",  # likewise
    "featstore/table/snapshot.py _columns": "urls",  # a column of files
}
# URLs as they are that have other names.
ALSO_URLS = {
    "featstore/base/named_errors.py": {"place", "os.fspath(error.filename)"},
    "featstore/explore/table.py": {"given.source"},
    "featstore/extraction/fit.py": {"spec.source"},
    "featstore/extraction/group_job.py": {"outside[0]"},
    "featstore/files/table_marks.py": {"directory"},
    "featstore/files/walking.py": {"path"},
    "featstore/ingest/join_output.py": {"target"},
    "featstore/loader/plan/ordering.py": {"str(source)"},
    "featstore/loader/request/train_config.py": {"str(source)"},
    "featstore/loader/stage.py": {"directory"},
    "featstore/samples/sample_imports.py": {"self.source"},
    "featstore/spec/lock.py": {"source"},
    "featstore/spec/parse.py": {"source", "str(source)"},
    "featstore/staging/options.py": {"self.directory"},
}
# Functions that take a URL as it is under another name, and redact it if they show it.
TAKE_URLS = {
    *("Cache", "NamedErrors", "format_of", "from_json", "gone", "has_put_if_absent", "is_whole"),
    "exists",
    "join",
    *(
        "lies_within",
        "list",
        "load_spec",
        "load_train_config",
        "matches",
        "naming",
        "parse_partition",
    ),
    *(
        "parse_spec",
        "require_text",
        "status_of",
        "_cache",
        "_job",
        "_names",
        "_rename",
        "_spec",
        "_text",
    ),
}
LOGS = re.compile(r"(?i:log|logger|click|warnings)$")
SAYS = re.compile(r"^print$|Error$|Warning$")


@cache
def _modules() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted((ROOT / "featstore").rglob("*.py"))
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


@cache
def _parameters() -> dict[str, list[list[str]]]:
    """The names of positional parameters, by the name of the function or class."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for _, tree in _modules():
        for made in tree.body:
            if isinstance(made, ast.FunctionDef):
                found[made.name].append(_positional(made))
            elif isinstance(made, ast.ClassDef):
                for method in made.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        found[made.name].append(_positional(method)[1:])
    return found


def _positional(function: ast.FunctionDef) -> list[str]:
    return [part.arg for part in (*function.args.posonlyargs, *function.args.args)]


def _name(node: ast.AST | None) -> str:
    """The last name of an expression: `url` of `file.url`, `str(url)` and `urls[0]`."""
    match node:
        case ast.Attribute(value=owner, attr="store") if _name(owner).endswith("options"):
            return "store_url"  # `Dispatch.store`
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="str"), args=[part]):
            return _name(part)
        case ast.Subscript(value=part, slice=index) if not isinstance(index, ast.Slice):
            return _name(part)
        case ast.Call(func=part):
            return _name(part)
    return ""


def _outcomes(node: ast.expr) -> list[ast.expr]:
    """The expressions of which a conditional one has the value."""
    match node:
        case ast.IfExp(body=one, orelse=other):
            return [*_outcomes(one), *_outcomes(other)]
        case ast.BoolOp(values=parts):
            return [outcome for part in parts for outcome in _outcomes(part)]
    return [node]


def _shown(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that are put into a text, or get a name that does not say `url`."""
    for node in ast.walk(tree):
        match node:
            case ast.FormattedValue(value=value):
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from (v for t, v in zip(targets, values, strict=False) if not _says_url(t))
            case ast.Assign(targets=[target], value=value) if not _says_url(target):
                yield value
            case ast.AnnAssign(target=target, value=ast.expr() as value) if not _says_url(target):
                yield value
            case ast.Dict(keys=keys, values=values):
                yield from (
                    value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and not URL.search(str(key.value))
                )
            case ast.BinOp(left=ast.Constant(), right=value):
                yield value
            case ast.Call():
                named = ((part.arg or "url", part.value) for part in node.keywords)
                yield from (v for n, v in named if not URL.search(n) and n != _name(v))
                yield from _shown_arguments(node)


def _shown_arguments(call: ast.Call) -> Iterator[ast.expr]:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name) if SAYS.search(name):
            yield from call.args
        case ast.Attribute(value=ast.Name(id=name)) if LOGS.search(name):
            yield from call.args
        case ast.Attribute(value=ast.Constant()):  # ", ".join(urls)
            yield from (getattr(part, "elt", part) for part in call.args)
        case ast.Name(id=name) if name not in TAKE_URLS:
            for i, value in enumerate(call.args):
                names = [known[i] for known in _parameters().get(name, []) if i < len(known)]
                if names and not any(map(URL.search, names)):
                    yield value


def _says_url(node: ast.AST) -> bool:
    return URL.search(_name(node)) is not None


def _bare(tree: ast.AST, path: str = "") -> Iterator[ast.expr]:
    also = ALSO_URLS.get(path, set())
    for outcome in (outcome for value in _shown(tree) for outcome in _outcomes(value)):
        if _says_url(outcome) or also:
            text = ast.unparse(outcome)
            if text in also or (_says_url(outcome) and not CLEAN.search(text)):
                yield outcome


def _texts(path: str, tree: ast.AST) -> set[str]:
    return {f"{path}:{value.lineno}: {ast.unparse(value)}" for value in _bare(tree, path)}


def test_the_source_shows_no_url_as_it_is() -> None:
    assert sum(isinstance(n, ast.FormattedValue) for _, t in _modules() for n in ast.walk(t)) > 500
    found = {text for path, tree in _modules() for text in _texts(path, tree)}
    clean = {
        text
        for path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (known := CLEAN_IN.get(f"{path} {node.name}"))
        for text in _texts(path, node)
        if text.endswith(f": {known}")
    }
    assert found == clean
    assert len(clean) == len(CLEAN_IN)
    for path, parts in ALSO_URLS.items():
        text = (ROOT / path).read_text()
        assert all(f"redact({part})" in text for part in parts), path


@pytest.mark.parametrize(
    "source",
    [
        'raise InputError(f"{url}: expected rows")',
        'text = f"no table at {self.table_url}"',
        'text = f"{str(spec_url)}: written"',
        'text = f"{commit_url(url, 3)} is gone"',
        'text = f"dispatch store {options.store!r} is lost"',
        'text = "no table at " + url',
        'text = "no table at %s" % table.url',
        'text = ", ".join(file.url for file in files)',
        'where = url if version is None else f"version {version}"',
        "size_bytes, name = item.size_bytes, item.url",
        '_LOG.warning("%s is read again", item.url)',
        "raise FileNotFoundError(errno.ENOENT, 'No such file', url)",
        "TableFormatError('a table', url)",
        "merge_schemas(existing, stored, snapshot.url)",
        "Description(table=snapshot.url)",
        '{"output": self.output_url}',
    ],
)
def test_a_url_that_is_shown_as_it_is_is_found(source: str) -> None:
    assert list(_bare(ast.parse(source)))
    redacted = re.sub(r"commit_url\(.*?\)|str\(\w+\)|[\w.]*(url|store)\b", r"redact(\g<0>)", source)
    assert not list(_bare(ast.parse(redacted)))


def test_no_data_class_shows_its_url() -> None:
    fields = [
        (f"{path}: {kind.name}.{field.target.id}", field)
        for path, tree in _modules()
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        and any("dataclass" in ast.unparse(mark) for mark in kind.decorator_list)
        for field in kind.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and _says_url(field.target)
    ]
    assert len(fields) > 20
    shows = {
        where
        for where, field in fields
        if field.value is None or "repr=False" not in ast.unparse(field.value)
    }
    ours = {
        where for where in shows if not where.startswith(("featstore/staging/", "featstore/tools/"))
    }
    assert ours == set()
