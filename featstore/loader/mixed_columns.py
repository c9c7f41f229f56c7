"""Whether the batches of several tables are alike."""

from collections.abc import Sequence
from typing import Any

from featstore.base.errors import ConfigError
from featstore.loader.request.request import Request

_KINDS = ("slots", "labels", "weight", "extras")


def require_alike(requests: Sequence[Request], names: Sequence[str]) -> None:
    """Checks that a training loop can treat batches of all tables alike.

    Args:
        requests: What is read of each table.
        names: The tables' names, for errors.

    Raises:
        ConfigError: Slots, labels, weight or extras differ between tables.
    """
    first = _columns(requests[0])
    for request, name in zip(requests[1:], names[1:], strict=True):
        found = _columns(request)
        for kind in _KINDS:
            _require_same(kind, first[kind], found[kind], (names[0], name))


def _require_same(
    kind: str, first: dict[str, Any], found: dict[str, Any], tables: tuple[str, str]
) -> None:
    """ConfigError that names the first column that differs."""
    of_first, of_other = tables
    for name in [*first, *found]:
        if name not in found or name not in first:
            has, lacks = (of_first, of_other) if name in first else (of_other, of_first)
            raise ConfigError(
                f"{kind}: {name!r} is selected of {has} and not of {lacks}: expected the same "
                "columns of all tables; name columns that all of them have instead of a glob"
            )
        if first[name] != found[name]:
            raise ConfigError(
                f"{kind}: {name!r} differs between tables: expected {_text(first[name])} as in "
                f"{of_first}, found {_text(found[name])} in {of_other}"
            )
    if list(first) != list(found):
        raise ConfigError(
            f"{kind}: expected the order {list(first)} as in {of_first}, found {list(found)} in "
            f"{of_other}: name columns instead of a glob"
        )


def _columns(request: Request) -> dict[str, dict[str, Any]]:
    """What is delivered, by kind and name, with what decides over its values in a batch."""
    slots = {
        item.slot.name: {
            "kind": str(item.slot.kind),
            "shape": "list" if item.slot.is_list else item.slot.width,
            "slot": item.slot.number,
            "num_indices": item.slot.num_indices,
        }
        for item in request.slots
    }
    weight: dict[str, Any] = {} if request.weight is None else {request.weight.name: {}}
    return {
        "slots": slots,
        "labels": {label.name: {} for label in request.labels},
        "weight": weight,
        "extras": {field.name: {"type": str(field.type)} for field in request.extras},
    }


def _text(column: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in column.items())
