"""A small spec with checks, as a document."""

from typing import Any


def document(*checks: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {
        "spec": 1,
        "inputs": {"user": "string", "price": "double", "clicked": "long"},
        "labels": {"click": "clicked"},
        "slots": [
            {"slot": 101, "name": "user", "op": "hash", "of": "user"},
            {"slot": 102, "name": "price", "op": "log1p", "of": "price"},
        ],
        "checks": list(checks),
    } | keys
