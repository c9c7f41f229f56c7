"""How the data files of a spec hold its histories."""

from dataclasses import replace

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.histories.file_format import StoredHistory
from featstore.ops.registry import OPERATORS
from featstore.spec.check import read_params
from featstore.spec.graph import MEANING_DIGITS, build_graph, op_text
from featstore.spec.meaning import semantic_hashes
from featstore.spec.model import EventHistory, Node, Spec


def stored_histories(spec: Spec) -> tuple[StoredHistory, ...]:
    """What data files and the table's schema say of each history."""
    hashes = semantic_hashes(spec) if spec.histories else {}
    return tuple(
        StoredHistory(
            name=history.name,
            key=history.key,
            as_of=history.as_of,
            at=history.at,
            logged_at=None if len(history.times) == 1 else history.logged_at,
            max_len=history.max_len,
            window_us=history.window,
            lists=tuple(
                replace(slot, shape=(None,)) for slot in build_graph(history.events).schema
            ),
            ages=tuple(_age(history, node, hashes[node.name]) for node in history.derived),
        )
        for history in spec.histories
    )


def with_ranges(schema: SlotSchema, spec: Spec) -> SlotSchema:
    """The schema of a table: the columns of rows, and the ranges that rows have in lists."""
    ranges = [field for history in stored_histories(spec) for field in history.row_fields]
    return replace(schema, kept=(*schema.kept, *ranges))


def _age(history: EventHistory, node: Node, meaning: str) -> tuple[Slot, str]:
    slot = Slot(
        name=node.name,
        kind=SlotKind.FLOAT,
        shape=(None,),
        number=node.slot,
        op=op_text(node),
        op_path=f"{op_text(node)} before {history.as_of}",
        meaning=meaning[:MEANING_DIGITS],
    )
    return slot, str(read_params(node, OPERATORS[node.op])["unit"])
