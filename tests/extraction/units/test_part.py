"""The part of a spec that a slot group needs."""

from featstore.extraction.units.part import slots_part
from featstore.spec.parse import load_spec


def test_a_group_reads_what_skips_rows_of_the_base_with_its_whole_sequence() -> None:
    lists = {"type": "list<long>", "on_error": "skip"}
    slots = [
        {"slot": 1, "name": "items", "op": "hash", "of": "items"},
        {"slot": 2, "name": "user", "op": "hash", "of": "user"},
        {"slot": 3, "name": "more", "op": "hash", "of": "city"},
    ]
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"items": lists, "prices": "list<double>", "unread": lists, "city": "string"}
            | {"user": {"type": "long", "on_error": "skip"}, "age": {"type": "long"}},
            "sequences": {"visits": {"of": ["items", "prices"]}},
            "slots": slots,
            "keep": ["age"],
        }
    )
    assert slots_part(spec, ["more"]).spec.keep == ("items", "prices", "user")
    assert slots_part(spec, ["more"], ["age"]).spec.keep == ("age", "items", "prices", "user")
