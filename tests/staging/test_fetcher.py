"""Staging single files from a real server that cuts, lies, refuses and replaces."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import BudgetError, ReplacedError, StagingError
from featstore.files.retry import RetryPolicy
from featstore.staging import Source, StageItem, Stager, Staging
from featstore.staging.remote import Remote

END_BYTES = 8


def make_file(
    num_columns: int, column_bytes: int, seed: int = 0, *, padding_bytes: int = 0
) -> bytes:
    """Columns c0, c1, ... one after the other, then a footer with the span of each, then the
    footer's length.
    """
    places = {f"c{i}": (i * column_bytes, (i + 1) * column_bytes) for i in range(num_columns)}
    footer = json.dumps({"places": places, "padding": "x" * padding_bytes}).encode()
    body = random.Random(seed).randbytes(num_columns * column_bytes)
    return body + footer + f"{len(footer):0{END_BYTES}d}".encode()


def planner(*names: str) -> Any:
    """The `plan_ranges` of a reader of these columns."""

    def plan_ranges(tail: bytes, size_bytes: int, name: str) -> Any:
        footer = _footer(tail)
        return (
            footer
            if isinstance(footer, int)
            else [tuple(footer["places"][column]) for column in names]
        )

    return plan_ranges


def read_column(path: Any, name: str) -> bytes:
    data = path.read_bytes()
    first, end = _footer(data)["places"][name]
    found: bytes = data[first:end]
    return found


def _footer(tail: bytes) -> Any:
    if len(tail) < END_BYTES:
        return END_BYTES
    footer_bytes = int(tail[-END_BYTES:])
    if len(tail) < footer_bytes + END_BYTES:
        return footer_bytes + END_BYTES
    return json.loads(tail[-END_BYTES - footer_bytes : -END_BYTES])


COLUMN_BYTES, NUM_COLUMNS = 400_000, 10
DATA = make_file(NUM_COLUMNS, COLUMN_BYTES)
PATH = "/t/a.bin"


@pytest.fixture
def site(unruly: Any) -> Any:
    unruly.files[PATH] = DATA
    return unruly


@pytest.fixture(autouse=True)
def _small_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hole limit would follow the latency of a busy machine; a fixed one lets the test count
    bytes.
    """
    monkeypatch.setattr("featstore.staging.remote._MAX_HOLE_BYTES", 16 << 10)


@pytest.fixture
def make(tmp_path: Path, closed_at_end: Callable[[Any], Any]) -> Callable[..., Any]:
    def stager(*names: Any, check: Any = None, max_attempts: int = 5, **options: Any) -> Any:
        options = {"directory": str(tmp_path / "cache"), "mode": "ranges"} | options
        plan = planner(*names) if names else None
        retry = RetryPolicy(first_pause_s=0.01, max_attempts=max_attempts)
        source = Source(plan_ranges=plan, check=check, retry=retry)
        return closed_at_end(Stager(Staging(**options), source))

    return stager


def _stage(stager: Any, site: Any, path: Any = PATH, **fields: Any) -> Any:
    item = StageItem(key=path, url=f"{site.url}{path}", size_bytes=len(site.files[path]), **fields)
    return next(stager.stage([item]))


def _entries(stager: Any) -> Any:
    return sorted(path.name.partition(".")[2] for path in stager.cache.root.iterdir())


def test_only_the_selected_columns_and_the_footer_are_fetched_to_their_own_offsets(
    site: Any, make: Callable[..., Any]
) -> None:
    stager = make("c2", "c7")
    with _stage(stager, site) as staged:
        assert staged.path.stat().st_size == len(DATA)
        assert staged.path.stat().st_blocks * 512 < 3 * COLUMN_BYTES
        for name in ("c2", "c7"):
            assert read_column(staged.path, name) == read_column_of(DATA, name)
        assert staged.held is not None
        assert all(
            staged.path.read_bytes()[first:end] == DATA[first:end] for first, end in staged.held
        )
    assert (
        site.sent_bytes(PATH)
        == stager.stats().fetched_bytes
        == staged.held_bytes
        < 3 * COLUMN_BYTES
    )
    assert stager.stats().num_ranges == 1


def read_column_of(data: Any, name: Any) -> Any:
    first = int(name[1:]) * COLUMN_BYTES
    return data[first : first + COLUMN_BYTES]


def test_a_footer_longer_than_was_guessed_is_fetched_in_two_steps_the_first_time_only(
    site: Any, make: Callable[..., Any]
) -> None:
    for path in ("/t/b.bin", "/t/c.bin"):
        site.files[path] = make_file(NUM_COLUMNS, COLUMN_BYTES, padding_bytes=300_000)
    stager = make("c0")
    for path, num_gets in (("/t/b.bin", 3), ("/t/c.bin", 2)):
        with _stage(stager, site, path) as staged:
            assert read_column(staged.path, "c0") == read_column_of(site.files[path], "c0")
        assert len(site.gets(path)) == num_gets
    assert site.sent_bytes("/t/b.bin") < COLUMN_BYTES + 400_000


def test_an_equal_or_narrower_selection_is_served_without_a_request(
    site: Any, make: Callable[..., Any]
) -> None:
    _stage(make("c2", "c7"), site).release()
    num_requests = len(site.log)
    for names in (("c7",), ("c2", "c7")):
        stager = make(*names)
        _stage(stager, site).release()
        assert stager.stats().num_hits == 1
    assert len(site.log) == num_requests


def test_a_wider_selection_fetches_only_what_is_missing_and_takes_the_place_of_the_narrower(
    site: Any, make: Callable[..., Any]
) -> None:
    _stage(make("c2"), site).release()
    before = site.sent_bytes(PATH)
    stager = make("c2", "c7")
    with _stage(stager, site) as staged:
        for name in ("c2", "c7"):
            assert read_column(staged.path, name) == read_column_of(DATA, name)
    assert site.sent_bytes(PATH) - before == COLUMN_BYTES
    assert [name for name in _entries(stager) if name.endswith("staged")] == [
        f"{staged.held_bytes}.staged"
    ]


def test_a_reader_of_the_narrower_file_keeps_it_while_the_wider_one_comes(
    site: Any, make: Callable[..., Any]
) -> None:
    narrow = _stage(make("c2"), site)
    wide = _stage(make("c7"), site)
    assert (
        read_column(narrow.path, "c2") == read_column_of(DATA, "c2") == read_column(wide.path, "c2")
    )


def test_whole_fetches_the_rest_of_a_file_of_which_ranges_are_there(
    site: Any, make: Callable[..., Any]
) -> None:
    _stage(make("c2"), site).release()
    with _stage(make(mode="whole"), site) as staged:
        assert staged.held is None
        assert staged.path.read_bytes() == DATA
    assert site.sent_bytes(PATH) == len(DATA)


def test_without_room_for_both_the_narrower_file_goes_and_all_of_the_wider_one_comes(
    site: Any, make: Callable[..., Any]
) -> None:
    _stage(make("c2"), site).release()
    stager = make("c2", "c7", budget_bytes=3 * COLUMN_BYTES - 200_000)
    with _stage(stager, site) as staged:
        assert read_column(staged.path, "c2") == read_column_of(DATA, "c2")
    assert stager.stats().num_evicted == 1


def test_a_broken_download_goes_on_at_the_byte_where_it_broke(
    site: Any, make: Callable[..., Any]
) -> None:
    site.fail(
        PATH,
        site.fault(after_bytes=1_000_000, cuts=True),
        site.fault(after_bytes=2_000_000, cuts=True),
    )
    stager = make(mode="whole")
    with _stage(stager, site) as staged:
        assert staged.path.read_bytes() == DATA
    gets = site.gets(PATH)
    assert [get.span for get in gets] == [
        None,
        f"bytes=1000000-{len(DATA) - 1}",
        f"bytes=3000000-{len(DATA) - 1}",
    ]
    assert [get.condition for get in gets] == [None, site.etag(PATH), site.etag(PATH)]
    assert site.sent_bytes(PATH) == len(DATA)
    assert stager.stats().num_retries == 2


def test_without_an_etag_the_modification_time_is_the_condition(
    site: Any, make: Callable[..., Any]
) -> None:
    site.has_etags = False
    site.fail(PATH, site.fault(after_bytes=1_000_000, cuts=True))
    with _stage(make(mode="whole"), site) as staged:
        assert staged.path.read_bytes() == DATA
    assert "GMT" in site.gets(PATH)[1].condition
    assert site.sent_bytes(PATH) == len(DATA)


def test_a_store_that_names_no_version_is_asked_from_the_start(
    site: Any, make: Callable[..., Any]
) -> None:
    site.has_etags = site.has_times = False
    site.fail(PATH, site.fault(after_bytes=1_000_000, cuts=True))
    with _stage(make(mode="whole"), site) as staged:
        assert staged.path.read_bytes() == DATA
    assert [get.span for get in site.gets(PATH)] == [None, None]


@pytest.mark.parametrize("has_etags", [True, False], ids=["by its ETag", "by its time"])
@pytest.mark.parametrize("names", [(), ("c2", "c7")], ids=["whole", "ranges"])
def test_an_object_replaced_during_a_download_is_noticed_and_no_old_bytes_remain(
    site: Any, make: Callable[..., Any], has_etags: bool, names: Any
) -> None:
    site.has_etags = has_etags
    other = make_file(NUM_COLUMNS, COLUMN_BYTES, seed=1)
    site.fail(
        PATH, site.fault(after_bytes=1000, act=lambda site, _: site.replace(PATH, other), cuts=True)
    )
    stager = make(*names, mode="ranges" if names else "whole")
    with _stage(stager, site) as staged:
        data = staged.path.read_bytes()
        assert all(
            data[first:end] == other[first:end] for first, end in staged.held or [(0, len(other))]
        )
        assert not names or staged.held
    assert 412 in [get.status for get in site.gets(PATH)]


@pytest.mark.parametrize("names", [(), ("c2", "c7")], ids=["whole", "ranges"])
def test_an_object_that_was_replaced_since_it_was_listed_is_an_error_at_once(
    site: Any, make: Callable[..., Any], names: Any
) -> None:
    stager = make(*names, mode="ranges" if names else "whole")
    item = StageItem(key=0, url=f"{site.url}{PATH}", size_bytes=len(DATA), version=site.etag(PATH))
    with next(stager.stage([item])) as staged:
        assert staged.path.stat().st_size == len(DATA)
    site.replace("/t/b.bin", make_file(NUM_COLUMNS, COLUMN_BYTES, seed=1))
    assert len(site.files["/t/b.bin"]) == len(DATA)
    with pytest.raises(ReplacedError, match=r"t/b\.bin was replaced: .*; open the table again"):
        next(stager.stage([replace(item, url=f"{site.url}/t/b.bin")]))
    assert {get.status for get in site.gets("/t/b.bin")} == {412}


def test_a_download_of_an_object_that_keeps_changing_is_given_up(
    site: Any, make: Callable[..., Any]
) -> None:
    for seed in range(1, 9):
        other = make_file(NUM_COLUMNS, COLUMN_BYTES, seed=seed)
        site.fail(
            PATH,
            site.fault(
                after_bytes=1000,
                act=lambda site, _, other=other: site.replace(PATH, other),
                cuts=True,
            ),
            site.fault(),
        )
    stager = make(mode="whole")
    with pytest.raises(StagingError, match=r"http.*/t/a\.bin was replaced while it was"):
        _stage(stager, site)
    assert _entries(stager) == []


def test_an_object_of_another_size_than_the_table_says_is_an_error_at_once(
    site: Any, make: Callable[..., Any]
) -> None:
    item = StageItem(key=0, url=f"{site.url}{PATH}", size_bytes=len(DATA) - 5)
    stager = make("c2", mode="whole")
    with pytest.raises(
        StagingError,
        match=r"wrong size: expected \d+ bytes, found \d+; if the file was replaced, open the table again",
    ):
        next(stager.stage([item]))
    assert (stager.stats().num_retries, _entries(stager)) == (0, [])


def test_a_wider_selection_of_an_object_that_was_replaced_begins_anew(
    site: Any, make: Callable[..., Any]
) -> None:
    """The table knows no version, and the held bytes are those of the old object."""
    _stage(make("c2"), site).release()
    other = make_file(NUM_COLUMNS, COLUMN_BYTES, seed=1)
    site.replace(PATH, other)
    with _stage(make("c2", "c7"), site) as staged:
        for name in ("c2", "c7"):
            assert read_column(staged.path, name) == read_column_of(other, name)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_request_is_retried_after_a_server_error(
    site: Any, make: Callable[..., Any], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    site.fail(PATH, site.fault(status=status), site.fault(status=status))
    with _stage(make(mode="whole"), site) as staged:
        assert staged.path.read_bytes() == DATA
    assert caplog.text.count("trying again") == 2


@pytest.mark.parametrize("status", [400, 422, 501])
def test_a_refused_request_is_not_retried(site: Any, make: Callable[..., Any], status: int) -> None:
    site.fail(PATH, *(site.fault(status=status) for _ in range(9)))
    stager = make(mode="whole", max_attempts=2)
    with pytest.raises(OSError, match="the store refuses the request"):
        _stage(stager, site)
    assert len(site.gets(PATH)) == 1


@pytest.mark.parametrize("claimed_bytes", [1000, -1000])
def test_a_wrong_content_length_never_becomes_a_file(
    site: Any, make: Callable[..., Any], claimed_bytes: int
) -> None:
    site.fail(PATH, *(site.fault(claimed_bytes=claimed_bytes) for _ in range(9)))
    stager = make(mode="whole", max_attempts=2)
    with pytest.raises(StagingError, match=r"wrong size"):
        _stage(stager, site)
    assert _entries(stager) == []


def test_a_server_that_ignores_ranges_is_an_error_that_says_so(
    site: Any, make: Callable[..., Any]
) -> None:
    site.ignores_ranges = True
    stager = make("c2", max_attempts=2)
    with pytest.raises(OSError, match=r"(?i)range"):
        _stage(stager, site)
    assert _entries(stager) == []


def test_a_file_that_fails_its_check_is_not_published_and_is_named_in_the_error(
    site: Any, make: Callable[..., Any]
) -> None:
    def check(path: Any, name: Any, held: Any) -> None:
        raise ValueError(f"{name} is unsound")

    stager = make("c2", check=check)
    with pytest.raises(ValueError, match=r"http.*/t/a\.bin is unsound"):
        _stage(stager, site)
    assert _entries(stager) == []


def test_a_footer_longer_than_the_file_is_an_error(site: Any, make: Callable[..., Any]) -> None:
    site.files[PATH] = DATA[:-8] + b"99999999"
    with pytest.raises(
        StagingError, match=r"expected a footer of at most \d+ bytes, found one of 100000007"
    ):
        _stage(make("c2"), site)


def test_auto_fetches_small_files_whole_and_columns_of_large_ones_if_that_is_cheaper(
    site: Any, make: Callable[..., Any]
) -> None:
    site.files["/t/small.bin"] = make_file(2, 100)
    stager = make("c0", mode="auto")
    with _stage(stager, site, "/t/small.bin") as staged:
        assert staged.held is None
    assert len(site.gets("/t/small.bin")) == 1
    site.files["/t/large.bin"] = make_file(20, 4_000_000)
    with _stage(stager, site, "/t/large.bin") as staged:
        assert staged.path is not None
        assert read_column(staged.path, "c0") == site.files["/t/large.bin"][:4_000_000]
    assert site.sent_bytes("/t/large.bin") < 8_000_000


@pytest.mark.parametrize(("num_selected", "is_whole"), [(7, False), (9, True)])
def test_auto_takes_a_file_whole_of_which_three_quarters_are_selected(
    site: Any, make: Callable[..., Any], num_selected: int, is_whole: bool
) -> None:
    """Whatever the file before it was, and however cheap its holes seem."""
    stager = make(*(f"c{number}" for number in range(num_selected)), mode="auto")
    site.files["/t/b.bin"] = make_file(4 * NUM_COLUMNS, COLUMN_BYTES // 4)
    with _stage(stager, site, "/t/b.bin") as other, _stage(stager, site) as staged:
        assert (staged.held is None, other.held is None) == (is_whole, False)


def test_auto_stages_ranges_of_a_file_that_is_larger_than_the_budget(
    site: Any, make: Callable[..., Any]
) -> None:
    stager = make("c2", mode="auto", budget_bytes=1_000_000)
    stager.fetcher._remotes[site.url] = Remote(latency_s=1e-5, bytes_per_s=1e12, weight_bytes=1.0)
    with _stage(stager, site) as staged:
        assert read_column(staged.path, "c2") == read_column_of(DATA, "c2")
        assert staged.held_bytes < 1_000_000


def test_a_file_that_is_gone_is_left_to_its_reader(
    site: Any, make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "featstore.staging.fetcher")
    stager = make("c2", max_attempts=1)
    item = StageItem(key=0, url=f"{site.url}/t/gone.bin", size_bytes=len(DATA))
    with next(stager.stage([item])) as staged:
        assert staged.path is None
    assert "gone.bin'; it is left to its reader" in caplog.text


def test_holes_are_not_bridged_where_the_budget_has_no_room_for_them(
    site: Any, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("featstore.staging.remote._MIN_HOLE_BYTES", 64 << 20)
    monkeypatch.setattr("featstore.staging.remote._MAX_HOLE_BYTES", 64 << 20)
    with _stage(make("c2", "c7", budget_bytes=1_000_000), site) as staged:
        assert read_column(staged.path, "c7") == read_column_of(DATA, "c7")
    assert staged.held_bytes < 1_000_000
    assert len(site.gets(PATH)) == 3
    with _stage(make("c1", "c4", directory=None), site) as staged:
        assert staged.held_bytes > 4 * COLUMN_BYTES
    assert len(site.gets(PATH)) == 5


def test_ranges_that_exceed_the_budget_are_an_error(site: Any, make: Callable[..., Any]) -> None:
    with pytest.raises(
        BudgetError,
        match=r"budget_bytes is 500 kB .*but the selected columns of http.*/t/a\.bin take",
    ):
        _stage(make("c2", "c7", budget_bytes=500_000), site)


def test_a_bandwidth_limit_is_kept(site: Any, make: Callable[..., Any]) -> None:
    """The bytes of the last quarter of a second may pass as soon as the time of those before them
    is over.
    """
    stager, bytes_per_s = make(mode="whole", max_bytes_per_s=8_000_000), 8_000_000
    since = time.monotonic()
    _stage(stager, site).release()
    assert time.monotonic() - since >= len(DATA) / bytes_per_s - 0.25
    assert "limits" in [path.name for path in stager.cache.root.iterdir()]


def test_estimates_are_kept_per_host_and_without_credentials(
    site: Any, make: Callable[..., Any]
) -> None:
    stager = make(mode="whole")
    assert not stager.fetcher.remote(site.url).num_seen
    _stage(stager, site).release()
    assert stager.fetcher.remote(site.url.replace("http://", "http://user:secret@")).num_seen
    assert not stager.fetcher.remote("http://elsewhere/").num_seen
