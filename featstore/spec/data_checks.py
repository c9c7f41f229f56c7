"""The columns that `checks` of a spec are about: slots and labels, found by name."""

from collections.abc import Iterator, Sequence

from featstore.base.errors import SelectionError, SpecError, nearest
from featstore.selection.slot_names import select
from featstore.spec.model import DataCheck, Spec
from featstore.spec.parse import wrong


def columns_of(check: DataCheck, slots: Sequence[str], labels: Sequence[str]) -> tuple[str, ...]:
    """The slots, or the labels of a `label_rate`, that a check is about; none for `rows`.

    Args:
        check: The check.
        slots: The names of all slots.
        labels: The names of all labels.

    Raises:
        SpecError: There is no such slot or label.
    """
    where = f"{check.where}.of"
    if check.check == "label_rate":
        for name in check.of:
            if name not in labels:
                raise _no_label(where, name, slots, labels)
        return tuple(dict.fromkeys(check.of))
    try:
        return select(check.of, slots)
    except SelectionError:
        lost = next(name for name in check.of if not _matches(name, slots))
    note = "which is a label: its rate is checked by `label_rate`" if lost in labels else ""
    raise wrong(where, "a slot, or a glob that matches some", lost, slots, note=note)


def data_check_errors(spec: Spec) -> Iterator[SpecError]:
    """Yields an error for each check of a slot or label that the spec does not store."""
    slots = [node.name for node in spec.nodes if node.store]
    for check in spec.checks:
        try:
            columns_of(check, slots, list(spec.labels))
        except SpecError as error:
            yield error


def _no_label(where: str, name: str, slots: Sequence[str], labels: Sequence[str]) -> SpecError:
    known = f"one of {', '.join(labels)}" if labels else "but there are no `labels`"
    hint = "which is a slot without a label" if name in slots else ""
    return SpecError(
        f"{where}: expected a label, {known}, found {name!r}{hint and ', ' + hint}"
        f"{nearest(name, labels)}"
    )


def _matches(pattern: str, names: Sequence[str]) -> bool:
    try:
        return bool(select([pattern], names))
    except SelectionError:
        return False
