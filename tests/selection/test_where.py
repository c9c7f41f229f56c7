"""Selections by name and glob, and the `where` grammar."""

import math
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import SelectionError
from featstore.selection.slot_names import select
from featstore.selection.where import Where, parse_where

NAMES = ("user", "item", "price", "price_bin", "tags")
TABLE = pa.table(
    {
        "month": ["2013-01", "2013-01", "2013-02", "2013-02"],
        "user": pa.array([5, None, 7, 12], pa.int64()),
        "price": pa.array([1.5, None, -2.0, 9.0], pa.float32()),
        "click": pa.array([1, 0, None, 1], pa.int64()),
        "request_id": ["a", "b", None, "d"],
        "spent": pa.array([1.5, math.nan, None, -math.inf], pa.float64()),
        "least": pa.array([-(2**63), 1, None, 2**63 - 1], pa.int64()),
        "said": ["it's", "so", None, "\\'"],
        "ok": [True, False, None, True],
        "at": pa.array(["2026-01-01", "2026-01-02", None, "2026-01-03"]).cast(pa.timestamp("us")),
        "utc": pa.array(["2026-01-01", "2026-01-02", None, "2026-01-03"])
        .cast(pa.timestamp("us"))
        .cast(pa.timestamp("us", "UTC")),
        "day": pa.array(["2026-01-01", "2026-01-02", None, "2026-01-03"]).cast(pa.date32()),
        "cost": pa.array([1, 2, 2.5, 3]).cast(pa.decimal128(10, 2)),
        "blob": [b"x", b"y", b"z", b""],
        "tags": pa.array([[1], None, [], [2]], pa.list_(pa.int64())),
    }
)
COLUMNS = {field.name: field.type for field in TABLE.schema}


def kept(text: str) -> list[int]:
    mask = parse_where(text, COLUMNS).mask(TABLE)
    assert mask.null_count == 0
    return [row for row, keep in enumerate(mask.to_pylist()) if keep]


WORDS = (
    "all alter analyze any as begin cache call case comment commit create cross current_date "
    "current_timestamp date delete desc describe distinct drop else end except execute explain "
    "fetch for from full glob grant group having if ilike index inner insert intersect interval "
    "into join key kill lateral left like limit load merge minus natural offset on optimize order "
    "outer partition pivot pragma prepare qualify refresh rename returning right rlike rollback "
    "row sample select set show table tablesample then timestamp truncate union update use using "
    "values when where window with year"
)
FORMS = (
    *("{} = 1", "{} is null", "{} in (1, 2)", "{} between 1 and 2", "sample({}, 0.5, 1)"),
    *("z = {}", "{} % 2 = 1", "not {} = 1 and z = 2", "({}) = 1", "{} in (1, z)", "1 < {}"),
)


@pytest.mark.parametrize("form", FORMS)
def test_a_column_may_be_named_like_a_word_of_sql(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    for word in WORDS.split():
        columns = {word: pa.int64(), "z": pa.int64()}
        for name in (word, f"`{word}`"):
            where = parse_where(form.format(name), columns)
            assert where.columns == {word, *("z" if "z" in form else "")}
    assert not caplog.records


def test_a_text_that_names_a_column_stays_a_text() -> None:
    columns = {"order": pa.string(), "z": pa.string()}
    assert parse_where("z = 'order' or z = \"order\"", columns).columns == {"z"}


@pytest.mark.parametrize("word", ["and", "between", "false", "not", "null", "or"])
def test_a_column_named_like_a_word_of_the_grammar_is_put_in_backticks(word: str) -> None:
    columns = {word: pa.int64()}
    for form in ("{} = 1", "{} in (1, 2)", "{} between 1 and 2", "sample({}, 0.5, 1)"):
        assert parse_where(form.format(f"`{word}`"), columns).columns == {word}
    with pytest.raises(SelectionError, match=rf"put these columns in backticks: `{word}`$"):
        parse_where(f"{word} = 1", columns)


def test_what_sqlglot_says_of_other_statements_is_not_shown(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for text in ("alter user = 1", "drop table t", "vacuum = 1", "set a = 1"):
        with pytest.raises(SelectionError):
            parse_where(text, COLUMNS)
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_a_selection_keeps_the_order_of_its_patterns_and_names_each_slot_once() -> None:
    assert select(["tags", "price*", "price", "user"], NAMES) == (
        "tags",
        "price",
        "price_bin",
        "user",
    )


def test_an_unknown_slot_answers_with_the_nearest_names() -> None:
    with pytest.raises(
        SelectionError, match=r"no slot matches 'prise' among 5 slots; did you mean 'price'"
    ):
        select(["prise"], NAMES)


def test_names_in_one_text_are_told_to_be_given_one_by_one() -> None:
    with pytest.raises(
        SelectionError, match=r"no slot matches 'price,user' \(give each name by itself\)"
    ):
        select(["price,user"], NAMES)


def test_a_glob_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SelectionError, match=r"no slot matches 'x\*'"):
        select(["x*"], NAMES)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("user = 5", [0]),
        ("user == 5", [0]),
        ("user != 5", [2, 3]),
        ("user <> 5", [2, 3]),
        ("user < 7", [0]),
        ("user <= 7", [0, 2]),
        ("user > 7", [3]),
        ("user >= 7", [2, 3]),
        ("user in (5, 12)", [0, 3]),
        ("user not in (5, 12)", [2]),
        ("price between -2 and 1.5", [0, 2]),
        ("price = -2.0", [2]),
        ("user is null", [1]),
        ("user is not null", [0, 2, 3]),
        ("tags is null", [1]),
        ("not (user = 5 or click = 1)", []),
        ("user = 5 or click = 1", [0, 3]),
        ("user % 5 = 2", [2, 3]),
        ("month = '2013-02' and click = 1", [3]),
        ("ok", [0, 3]),
        ("not ok", [1]),
        ("ok = true", [0, 3]),
        ("ok != true", [1]),
        ("at >= '2026-01-02'", [1, 3]),
        ("at between '2026-01-01' and '2026-01-01 12:00:00'", [0]),
        ("day = '2026-01-02'", [1]),
        ("utc >= '2026-01-02'", [1, 3]),
        ("utc >= '2026-01-02T01:00:00+01:00'", [1, 3]),
        ("cost > 2", [2, 3]),
        ("cost in (2.5, 4)", [2]),
        ("sample(request_id, 1, 7)", [0, 1, 3]),
        ("sample(request_id, 0, 7)", []),
        ("`month` >= '2013-02'", [2, 3]),
        ("spent is null", [1, 2]),
        ("spent is not null", [0, 3]),
        ("spent > 1", [0]),
        ("spent != 1.5", [3]),
        ("not (spent > 1)", [3]),
        ("spent = spent", [0, 3]),
        ("spent not in (1.5, 2)", [3]),
        ("spent between -1 and 2 or spent < 0", [0, 3]),
        ("least = -9223372036854775808", [0]),
        ("least > -9223372036854775808", [1, 3]),
        ("least in (- 9223372036854775808, 1)", [0, 1]),
        ("least between -9223372036854775808 and -9223372036854775807", [0]),
        ("least % -9223372036854775808 = 0", [0]),
        ("least % -1 = 0 and least % 1 = 0", [0, 1, 3]),
        ("said = 'it''s'", [0]),
        ('said = "it\'s"', [0]),
        (r"said = 'it\'s'", [0]),
        (r"said in ('''', '\\''')", [3]),
        ("said != '' and said < 'it''t'", [0, 3]),
    ],
)
def test_a_predicate_keeps_the_rows_where_it_is_true(text: str, rows: list[int]) -> None:
    assert kept(text) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("usr = 1", r"no column 'usr'; did you mean 'user'\?; there are \['"),
        (
            "month > 2026-11-02",
            r"found '2026 - 11 - 02'; put the text of a date in quotes: '2026-11-02'",
        ),
        (
            "user = 'x'",
            r"expected values of one kind, found user \(number\), 'x' \(text\); .*"
            "`featstore whatis --text x --slot user --table URL`",
        ),
        ("tags = 'x y'", r"found tags \(list\), 'x y' \(text\); .*--text 'x y' --slot tags "),
        ("tags = 1", r"found tags \(list\), 1 \(number\)$"),
        ("month = 1", r"found month \(text\), 1 \(number\)$"),
        ("price = 'x'", r"found price \(number\), 'x' \(text\)$"),
        ("user +", r"cannot be parsed: Required keyword"),
        ("select 1", "cannot be parsed"),
        ("month like 'x'", r"found .month LIKE 'x'"),
        ("lower(month) = 'x'", r"found 'LOWER\(month\)'"),
        ("user", r"found 'user'"),
        ("user % 0 = 1", r"expected an integer other than 0 after %"),
        ("sample(request_id, 2, 7)", r"expected a rate from 0 to 1"),
        ("sample(request_id)", r"expected sample\(column, rate, seed\)"),
        ("sample(price, 0.5, 7)", r"sample needs a scalar column with a text form, found float"),
        ("sample(cost, 0.5, 7)", r"found decimal"),
        ("sample(request_id, 0.5, 3000000000)", r"an int32 seed"),
        ("price % 2 = 1", r"expected an integer column before %, found price"),
        ("user = 99999999999999999999", r"expected an integer of 64 bits"),
        (
            "user = 9223372036854775808",
            r"expected an integer of 64 bits, found 9223372036854775808",
        ),
        (
            "user = -9223372036854775809",
            r"expected an integer of 64 bits, found -9223372036854775809",
        ),
        ("said = -'5'", r"found \"-'5'\""),
        ("price = nan", r"NaN counts as null: expected `is null` or `is not null`, found 'nan'"),
        ("price > NaN or user = 1", r"NaN counts as null: .* found 'NaN'"),
        ("isnan(price)", r"NaN counts as null: .* found 'IS_?NAN\(price\)'"),
        ("said = 'it' 's'", r"found .*CONCAT"),
        ("ok = 1", r"found ok \(boolean\), 1 \(number\)"),
        ("user = true", r"found user \(number\), TRUE \(boolean\)"),
        ("at > 'soon'", r"expected a timestamp\[us\], found 'soon'"),
        ("blob = 'x'", r'found "blob" \(other\)'),
        ("true", r"expected a predicate over columns, found 'TRUE'"),
        ("1 = 1", r"expected a predicate over columns"),
    ],
)
def test_what_the_grammar_does_not_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        parse_where(text, COLUMNS)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 100))
def test_samples_of_one_seed_are_nested_across_rates(one: float, other: float, seed: int) -> None:
    values = pa.table({"id": [f"r{i}" for i in range(200)]})
    low, high = (set(_sampled(values, rate, seed)) for rate in sorted((one, other)))
    assert low <= high


def _sampled(values: pa.Table, rate: float, seed: int) -> list[str]:
    where = parse_where(f"sample(id, {rate:.12f}, {seed})", {"id": pa.string()})
    found: list[str] = values.filter(where.mask(values))["id"].to_pylist()
    return found


def test_a_sample_draws_about_its_rate() -> None:
    values = pa.table({"id": [f"request-{i}" for i in range(20_000)]})
    assert 0.29 < len(_sampled(values, 0.3, 7)) / 20_000 < 0.31


@pytest.mark.parametrize(
    ("text", "month", "expected"),
    [
        ("month >= '2013-02'", "2013-01", False),
        ("month >= '2013-02'", "2013-02", True),
        ("month >= '2013-02' and click = 1", "2013-02", None),
        ("month >= '2013-02' and click = 1", "2013-01", False),
        ("month >= '2013-02' or click = 1", "2013-01", None),
    ],
)
def test_partitions_are_pruned_by_the_terms_that_read_only_partition_keys(
    text: str, month: str, expected: bool | None
) -> None:
    assert parse_where(text, COLUMNS).matches_partition({"month": month}) is expected


def test_typed_partition_keys_are_compared_in_their_type() -> None:
    where = parse_where("day >= 10", {"day": pa.int64()})
    assert [where.matches_partition({"day": value}) for value in ("9", "10", None)] == [
        False,
        True,
        False,
    ]


def test_a_where_travels_to_another_process() -> None:
    where: Where = pickle.loads(
        pickle.dumps(parse_where("user = 5 or sample(request_id, 0.5, 1)", COLUMNS))
    )
    assert where.columns == {"user", "request_id"}
    assert where.mask(TABLE).to_pylist()[0] is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id > 1.5", [2]),
        ("-0.5 < id", [0, 1, 2]),
        ("id in (1.0, 2.5)", [1]),
        ("(id) > 1.5", [2]),
        ("id between 1.5 and 9223372036854775807", [2]),
        ("id % 4611686018427387905 > 1.5", [2]),
        ("id = 4611686018427387905.0", []),
        ("id in (4611686018427387905, 1.5)", []),
        ("id in (4611686018427387904.0, 1.5)", [2]),
        ("id > 4611686018427387903.0", [2]),
        ("id between 0.5 and 4611686018427387903", [1]),
        ("price > 20000001", [2]),
        ("price > -9223372036854775808", [0, 1, 2]),
        ("price < id", [0, 1]),
        ("cost >= 9223372036854775807", [2]),
    ],
)
def test_integers_of_any_size_are_compared_with_fractions(text: str, expected: Any) -> None:
    columns = {"id": pa.array([0, 1, 2**62]), "price": pa.array([-1, 0, 2.0**63], pa.float32())}
    table = pa.table(columns | {"cost": pa.array([0, 1, 2.0**63], pa.float64())})
    mask = parse_where(text, {field.name: field.type for field in table.schema}).mask(table)
    assert [row for row, kept in enumerate(mask.to_pylist()) if kept] == expected


@pytest.mark.parametrize("text", ["u = 1e19", "u in (1e19, 1.5)", "u between 1e19 and 1.1e19"])
def test_unsigned_integers_beyond_those_with_a_sign_are_found_by_their_exponents(text: str) -> None:
    table = pa.table({"u": pa.array([1, 10**19], pa.uint64())})
    assert parse_where(text, {"u": pa.uint64()}).mask(table).to_pylist() == [False, True]


def test_a_list_with_a_float_column_is_compared_as_floats_also_its_literals() -> None:
    """As one comparison of all values, as by SQL: not each pair in a type of its own."""
    columns = {"i": pa.array([2**53 + 1, 3, 4]), "u": pa.array([2**64 - 1, 3, 4], pa.uint64())}
    table = pa.table(columns | {"f": pa.array([0.5, 3, 5])})
    types = {field.name: field.type for field in table.schema}
    for text, expected in [
        ("i in (f, 9007199254740992)", [True, True, False]),
        ("i not in (f, 9007199254740992)", [False, False, True]),
        ("u in (f, 1)", [False, True, False]),
    ]:
        assert parse_where(text, types).mask(table).to_pylist() == expected


def test_a_sample_of_all_values_needs_no_hash_of_them() -> None:
    table = pa.table({"u": pa.array([2**64 - 1, 3, None], pa.uint64())})
    mask = parse_where("sample(u, 1, 7)", {"u": pa.uint64()}).mask(table)
    assert mask.to_pylist() == [True, True, False]


@pytest.mark.parametrize("number", ["1e99999999999999999999", "1e"])
def test_a_number_that_nothing_holds_is_refused(number: str) -> None:
    with pytest.raises(SelectionError, match="where "):
        parse_where(f"n > {number}", {"n": pa.int64()})


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\\"), max_size=6),
    st.sampled_from("'\""),
)
def test_any_text_can_be_written_with_its_quotes_doubled(text: str, quote: Any) -> None:
    table = pa.table({"said": [text, text + "x", None]})
    doubled = text.replace(quote, 2 * quote)
    assert parse_where(f"said = {quote}{doubled}{quote}", {"said": pa.string()}).mask(
        table
    ).to_pylist() == [True, False, False]


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([1, -1, 7, -7, -(2**63)]),
)
def test_integers_of_64_bits_are_compared_and_divided_as_they_are(
    one: int, other: int, divisor: Any
) -> None:
    table, columns = pa.table({"n": [one]}), {"n": pa.int64()}

    def value(text: Any) -> Any:
        return parse_where(text, columns).mask(table)[0].as_py()

    assert value(f"n < {other}") is (one < other)
    assert value(f"n = {one}") is True
    remainder = abs(one) % abs(divisor) * (-1 if one < 0 else 1)
    assert value(f"n % {divisor} = {remainder}") is True
