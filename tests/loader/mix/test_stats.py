"""The metrics of a mixture."""

from featstore.loader.batches.stats import summed_stats


def test_numbers_are_summed_and_some_are_told_of_each_table() -> None:
    one = {
        "rows": 3,
        "batches": 1,
        "epochs": 0,
        "wait_s": 0.5,
        "decode_s": 1.0,
        "stages": {"decode": {"bytes": 10}},
        "slots": {"a": {"bytes": 4}},
        "worker": {"rank": 0, "index": 1},
    }
    other = {**one, "rows": 4, "slots": {"b": {"bytes": 5}}, "leases_lost": 2}
    found = summed_stats([one, other])
    assert found["rows"] == 7
    assert found["leases_lost"] == 2
    assert found["stages"] == {"decode": {"bytes": 20}}
    assert found["slots"] == {"a": {"bytes": 4}, "b": {"bytes": 5}}
    assert found["worker"] == {"rank": 0, "index": 1}
    assert [each["rows"] for each in found["tables"].values()] == [3, 4]
    assert list(found["tables"]) == ["0", "1"]
