"""Which compiler a build takes."""

import os
import sys
from pathlib import Path

import pytest
from setuptools import build_meta

from release import backend

NONE = {"false": "false", "missing": "/no/such/cc", "makes nothing": "true"}


@pytest.mark.parametrize("compiler", NONE.values(), ids=NONE)
def test_zig_is_asked_for_and_taken_where_no_compiler_works(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert backend.ZIG in backend.get_requires_for_build_wheel()
    assert backend.ZIG in backend.get_requires_for_build_editable()
    monkeypatch.setenv("LDSHARED", "gcc -shared -Wl,-Bsymbolic-functions")  # as Debian's
    zig, taken = f"{sys.executable} -m ziglang cc -mcpu=baseline", []
    for name in ("build_wheel", "build_editable"):
        monkeypatch.setenv("CC", compiler)
        monkeypatch.setattr(
            build_meta, name, lambda *_: taken.append((os.environ["CC"], os.environ["LDSHARED"]))
        )
        getattr(backend, name)("dist")
    assert taken == [(zig, f"{zig} -shared")] * 2


def test_a_compiler_that_works_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "my compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done; echo > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"'{compiler}' -flag")
    assert backend.ZIG not in backend.get_requires_for_build_wheel()
    assert backend.ZIG not in backend.get_requires_for_build_editable()
    monkeypatch.setattr(build_meta, "build_wheel", lambda *_: os.environ["CC"])
    assert backend.build_wheel("dist") == f"'{compiler}' -flag"
