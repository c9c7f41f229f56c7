"""Keeps the credentials of an object store from being sent to another host by a redirect. Pure.

The remote client follows redirects, and drops only the `Authorization` header when the host
changes. The session token of S3, which has a header of its own, and the signature of Azure, which
is in the query and hence in `Referer`, would be sent along. Redirects cannot be switched off, but a
proxy can be set, with hosts that bypass it. A dead proxy that only the store's own hosts bypass
ends such a redirect before anything is sent.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

# The dead proxy: nothing listens on port 9 (discard).
DEAD_PROXY = "127.0.0.1:9"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# The services that give credentials to machines and containers.
_METADATA = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23")
_DOMAINS: dict[str, tuple[str, ...]] = {
    "s3": ("amazonaws.com", "amazonaws.com.cn", "api.aws", *_METADATA),
    "az": ("windows.net", "microsoftonline.com", "fabric.microsoft.com", *_METADATA),
}
_ENDPOINTS = {
    "s3": (
        "AWS_ENDPOINT",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_STS",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
    "az": (
        "AZURE_ENDPOINT",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_AUTHORITY_HOST",
        "AZURE_STORAGE_AUTHORITY_HOST",
        "IDENTITY_ENDPOINT",
    ),
}
_ALIASES = {"abfs": "az", "abfss": "az"}
_EMULATOR = ("127.0.0.1", "localhost")


def own_hosts_only(scheme: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Client options that let requests reach the store's own hosts only.

    Args:
        scheme: The scheme of the URL.
        environment: Holds the endpoints, in the variables of each store, and a real proxy if there
            is one.

    Returns:
        The options. Empty for HTTP, which is read without credentials, for GCS, which sends them
        only in the header that is dropped, and behind a real proxy, which decides about hosts
        itself.
    """
    scheme = _ALIASES.get(scheme, scheme)
    given = {name.upper(): value for name, value in environment.items() if value}
    if scheme not in _DOMAINS or any(name.upper() in given for name in _PROXIES):
        return {}
    hosts = [urlsplit(given[name]).hostname for name in _ENDPOINTS[scheme] if name in given]
    emulator = _EMULATOR if "AZURE_STORAGE_USE_EMULATOR" in given and scheme == "az" else ()
    return {
        "proxy_url": f"http://{DEAD_PROXY}",
        "proxy_excludes": ",".join(
            [*(host for host in hosts if host), *emulator, *_DOMAINS[scheme]]
        ),
    }
