"""Keeps credentials of an object store from following a redirect to another host. Pure.

The remote client follows redirects and drops only `Authorization` on the way to another host: the
session token of S3, a header of its own, and the signature of Azure, which is in the query and so
in `Referer`, would go along. The client cannot be told to follow none; but it can be told of a
proxy and of the hosts that need none. A proxy that nothing listens to, and the store's own hosts as
the exceptions, end such a redirect before anything is sent.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

NOWHERE = "127.0.0.1:9"
"""Where nothing listens: the proxy of requests to other hosts than the store's."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# Where credentials of machines and containers come from.
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


def kept_home(scheme: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Client options that refuse any host but the store's own; empty where none are needed, or
    where a proxy is in use.

    HTTP is read without credentials, and GCS sends only what is dropped. `environment` holds the
    endpoints, as each store names them there. Behind a real proxy the hosts that are reached are
    the proxy's to decide.
    """
    scheme = _ALIASES.get(scheme, scheme)
    given = {name.upper(): value for name, value in environment.items() if value}
    if scheme not in _DOMAINS or any(name.upper() in given for name in _PROXIES):
        return {}
    hosts = [urlsplit(given[name]).hostname for name in _ENDPOINTS[scheme] if name in given]
    emulator = _EMULATOR if "AZURE_STORAGE_USE_EMULATOR" in given and scheme == "az" else ()
    return {
        "proxy_url": f"http://{NOWHERE}",
        "proxy_excludes": ",".join(
            [*(host for host in hosts if host), *emulator, *_DOMAINS[scheme]]
        ),
    }
