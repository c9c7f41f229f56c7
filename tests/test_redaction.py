"""Secrets of a URL are never shown: neither in the URL itself, nor in a text with it, nor when a
client repeats a part of it.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.redaction import redact, redact_text, secrets_in, secrets_of, without_user

SECRETS = [
    "https://u:secret@h/p?sig=secret#secret",
    "s3://secret@b/k",
    "https://h/p?token=secret",
    "https://u:secret@h?secret",
]


@pytest.mark.parametrize("url", SECRETS)
def test_redacted_urls_and_texts_hold_no_credentials(url: Any) -> None:
    assert "secret" not in redact(url)
    text = redact_text(f"GET {url} failed ('{url}')")
    assert "secret" not in text
    assert text.startswith("GET ")
    assert text.endswith("')")


def test_the_version_of_a_table_shows_and_nothing_beside_it() -> None:
    """What a join prints names the version that an extraction may read."""
    url = "delta+s3://bucket/joined?version=3"
    assert redact(url) == redact(url.replace("bucket", "user:secret@bucket")) == url
    assert redact_text(f"wrote 2 rows, {url}") == f"wrote 2 rows, {url}"
    for more in ("&sig=secret", "#secret", "secret"):
        assert redact(f"{url}{more}") == "delta+s3://bucket/joined"
    assert redact("delta+s3://user:secret?x@bucket/joined?version=3") == "delta+s3://bucket/joined"


SECRET = st.text("abcXYZ019._~!$&'*+,;=:%|{}^[]é/?#@ \\\"<>()", min_size=1, max_size=12).map(
    lambda text: f"Sk3y{text}"
)
PART = st.text("abcxyz019._-", min_size=1, max_size=8)


@given(
    scheme=st.sampled_from(["https", "s3", "sftp", "HDFS", "az"]),
    user=st.text("abcxyz019%._~", max_size=6),
    secret=st.text("abcXYZ019._~!$&'*+,;=:%", min_size=1, max_size=12).map(
        lambda text: f"Sk3y{text}"
    ),
    host=PART,
    path=st.lists(PART, max_size=3).map("/".join),
    query=SECRET,
    fragment=SECRET,
)
def test_no_secret_is_left_in_the_name_of_a_url(
    scheme: str, user: str, secret: Any, host: Any, path: Any, query: Any, fragment: Any
) -> None:
    url = f"{scheme}://{user}:{secret}@{host}/{path}?sig={query}#{fragment}"
    assert redact(url) == f"{scheme}://{host}/{path}"
    assert "Sk3y" not in without_user(f"{scheme}://{user}:{secret}@{host}/{path}")
    quoted = f"{scheme}://{user}:{secret.replace(chr(39), '')}@{host}/{path}?sig=Sk3y#Sk3y"
    assert "Sk3y" not in redact_text(f"GET {quoted} failed, as did <{quoted}> and '{quoted}'")


@pytest.mark.parametrize("scheme", ["abfss", "abfs", "ABFSS"])
def test_the_container_of_azure_is_no_user(scheme: str) -> None:
    url = f"{scheme}://logs@account.dfs.core.windows.net/t/a.parquet"
    assert redact(url) == without_user(url) == url
    assert secrets_of(url) == set()
    with_password = f"{scheme}://logs:Sk3y@account.dfs.core.windows.net/t"
    assert redact(with_password) == f"{scheme}://account.dfs.core.windows.net/t"


@pytest.mark.parametrize(
    "url",
    [
        "https://user:pa/ss@host/x",
        "https://user:pa?ss@host/x",
        "https://user:pa#ss@host/x",
        "https://user:pa@ss@host/x",
    ],
)
def test_a_password_that_should_have_been_escaped_does_not_show(url: str) -> None:
    assert "ss" not in redact(url)
    assert "pa" not in redact(url)


def test_redacting_keeps_local_paths_as_they_are() -> None:
    assert redact("/data/a#b?c@d") == "/data/a#b?c@d"


def test_a_urls_identity_includes_the_query_but_not_the_user() -> None:
    assert without_user("https://u:p@h/a?x=1@2") == "https://h/a?x=1@2"
    for url in (
        "https://h/a@b",
        "https://h:80/a@b",
        "https://h:/a@b",
        "http://[::1]:80/a@b",
        "/data/u:p@x",
    ):
        assert without_user(url) == url


@given(
    links=st.lists(
        st.sampled_from(["simplecache", "zip", "zip://a.parquet", "blockcache"]),
        min_size=1,
        max_size=3,
    ),
    secret=SECRET,
    query=SECRET,
)
def test_no_secret_is_left_in_the_name_of_a_chain(
    links: list[str], secret: Any, query: Any
) -> None:
    chain = "::".join([*links, f"https://user:{secret}@host/x?sig={query}"])
    assert "Sk3y" not in redact(chain)
    if not set(secret) & set("/?#@: "):
        assert redact(chain) == "::".join([*links, "https://host/x"])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("github://org:secret@main/t", "github://main/t"),
        ("tcp://user:secret@127.0.0.1:29600", "tcp://127.0.0.1:29600"),
        ("weird+x://user:secret@host/t", "weird+x://host/t"),
        ("s3://key:secret/t", "s3://key/t"),  # a password whose @ was forgotten
        ("https://user:secret@[::1]:80/x?sig=secret", "https://[::1]:80/x"),
        ("simplecache::s3://secret@bucket/k", "simplecache::s3://bucket/k"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("hdfs://namenode:8020/t", "hdfs://namenode:8020/t"),
        ("a::b/c", "a::b/c"),
        ("s3://bucket/t#1/dt=2/x?y", "s3://bucket/t#1/dt=2/x?y"),
        ("az://container/t#1?x&sig=secret", "az://container/t#1"),
        ("gs://bucket/a&b=c", "gs://bucket/a&b=c"),
        ("hdfs://namenode/t#1", "hdfs://namenode/t#1"),
        ("file:///a?b=c#d", "file:///a?b=c#d"),
        ("file:/a?b=c#d", "file:/a?b=c#d"),
        ("http://host/t#1", "http://host/t"),
    ],
)
def test_a_url_is_shown_with_everything_but_its_secrets(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert redact_text(f"(see [{url}]: it failed)") == f"(see [{shown}]: it failed)"


def test_parts_of_a_url_that_a_client_repeats_are_hidden_too() -> None:
    url = "github://org:s%2Fcret@main/t?token=abc#part"
    assert secrets_of(url) == {"s%2Fcret", "s/cret", "abc", "part"}
    said = redact_text("GET /repos/org/s/cret failed: abc, abcd, part", secrets_of(url))
    assert said == "GET /repos/org/*** failed: ***, abcd, ***"
    assert secrets_of("/data/a?b#c@d") == set()


def test_variables_that_hold_credentials_are_known_by_their_names_and_endpoints_by_their_users() -> (
    None
):
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "AWS_SESSION_TOKEN": "token-0",
        "AWS_ENDPOINT_URL": "https://user:hidden@minio:9000",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "AWS_SKIP_SIGNATURE": "true",
        "HOME": "/home/someone",
    }
    assert secrets_in(environment) == {"wJalrXUtnFEMI", "token-0", "hidden"}
