"""Show: the graph in order."""

from pathlib import Path

import pytest

from featstore.base.errors import SpecError
from featstore.spec.show import show

SPEC = """
spec: 1
inputs: {user: string, price: double, clicked: long, id: string}
labels: {click: clicked}
keep: [id]
slots:
  - {slot: 2, name: crossed, op: cross, of: [user, bin]}
  - {slot: 1, name: tail, op: log1p, of: price, default: 0.5}
  - {name: bin, op: bucketize, of: price, boundaries: [1, 2], store: false}
"""


def test_nodes_stand_after_what_they_read_with_kind_shape_and_raw_inputs(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    lines = [
        " ".join(line.split()) for line in str(show(str(tmp_path / "spec.yaml"))).splitlines()[2:]
    ]
    assert lines == [
        "bin inner bucketize(price) boundaries=[1, 2] price: double",
        "1 tail float scalar log1p(price) default=0.5 price: double",
        "2 crossed id scalar cross(user, bin) user: string, price: double",
        "click label clicked",
        "id kept",
    ]


def test_a_wrong_spec_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.replace("[user, bin]", "[user, bon]"))
    with pytest.raises(SpecError, match=r"slots\[0\]\.of\[1\].*did you mean 'bin'"):
        show(str(tmp_path / "spec.yaml"))


def test_sequences_shared_signs_and_the_weight_are_shown(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        """
spec: 1
inputs: {items: list<string>, item: string, prices: list<double>, w: double}
weight: w
sequences:
  clicks: {of: [items, prices], max_len: 20}
slots:
  - {slot: 1, name: item, op: hash, of: item}
  - {slot: 2, name: items, op: hash, of: items, share_slot: 1}
"""
    )
    lines = [
        " ".join(line.split()) for line in str(show(str(tmp_path / "spec.yaml"))).splitlines()[2:]
    ]
    assert lines == [
        "1 item id scalar hash(item) item: string",
        "2 items id list hash(items) share_slot=1 items: list<string>",
        "w weight",
        "clicks sequence list max_len=20 items: list<string>, prices: list<double>",
    ]
