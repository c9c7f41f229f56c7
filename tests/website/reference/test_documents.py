"""The pages of keys have each key that the parsers know."""

from featstore.loader.request.train_config import KEYS, MIX_KEYS
from featstore.spec.parse import TOP_KEYS
from website.reference.documents import keys, kind, spec_page, train_page


def test_the_page_of_specs_has_every_key() -> None:
    page = spec_page()
    assert [key for key in TOP_KEYS if f"| <code>{key}</code> |" not in page] == []
    assert "<code>output.rows_per_row_group</code>" in page
    assert "<code>slots[].share_slot</code>" in page


def test_the_page_of_training_configs_has_every_key() -> None:
    page = train_page()
    assert [key for key in (*KEYS, *MIX_KEYS) if f"| <code>{key}</code> |" not in page] == []
    assert "<code>staging.budget_bytes</code>" in page
    assert "<code>slots[].buckets</code>" in page


def test_keys_lead_into_lists_mappings_and_choices() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
    schema = {
        "properties": {
            "one": {"anyOf": [inner, {"type": "null"}]},
            "many": {"type": "array", "items": inner},
            "named": {"type": "object", "additionalProperties": inner},
        }
    }
    assert list(keys(schema)) == [
        ("one", "mapping or null", ""),
        ("one.b", "text", "Required."),
        ("many", "list of mapping", ""),
        ("many[].b", "text", "Required."),
        ("named", "mapping", ""),
        ("named.*.b", "text", "Required."),
    ]


def test_a_long_choice_is_shortened() -> None:
    assert kind({"enum": list("abcdefghijk")}).endswith("<code>h</code>, ...")
