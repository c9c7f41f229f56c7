"""The environment variables with credentials and endpoints of each store, a check that there are
credentials, and what keeps them from other hosts.

A client without credentials asks the metadata service of the cloud's machines. On any other machine
nothing answers there, and the client waits for a minute or for ever. So the service is tried here
first, with a short time limit.
"""

import http.client
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from featstore.base.errors import AccessError
from featstore.base.redaction import redact
from featstore.files.looks import exists

# The time limit for connecting to the metadata service, and again for its response. It is in the
# local network and answers in milliseconds; botocore waits as long.
METADATA_S = 1.0
_METADATA_ADDRESS = "169.254.169.254"


@dataclass(frozen=True, kw_only=True)
class MetadataService:
    """A request that a cloud's metadata service answers with 200, on its machines only.

    Attributes:
        method: The HTTP method.
        path: The path of the request.
        headers: Its headers.
        variables: Variables with the service's address; the first one that is set counts.
        disabled: A variable that forbids the request if it is `true`.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    variables: tuple[str, ...] = ()
    disabled: str = ""


@dataclass(frozen=True, kw_only=True)
class StoreVariables:
    """The environment variables of a store's client.

    Attributes:
        credentials: The variables for credentials, as a text for messages.
        endpoint: The variables for the endpoint, as a text for messages.
        plain_http: The variable that allows an endpoint without TLS.
        denied: What to do if access is refused, as a text for messages.
        given: Variables of which any provides credentials.
        file: A file below the home directory that provides credentials.
        metadata: The service that the client asks if neither does.
    """

    credentials: str
    endpoint: str
    plain_http: str = ""
    denied: str = ""
    given: tuple[str, ...] = ()
    file: str = ""
    metadata: MetadataService | None = None

    @property
    def message_fields(self) -> dict[str, str]:
        """The fields that the texts of `store_errors` may use."""
        denied = f"check {self.credentials}, and that they may read and write there"
        return {
            "credentials": self.credentials,
            "endpoint": self.endpoint,
            "plain_http": self.plain_http,
            "denied": self.denied or denied,
        }


_S3 = StoreVariables(
    credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN for temporary "
    "ones; AWS_SKIP_SIGNATURE=true for a public bucket)",
    endpoint="AWS_ENDPOINT_URL and AWS_REGION",
    plain_http="AWS_ALLOW_HTTP",
    given=(
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_IMDSV1_FALLBACK",  # the service may lack tokens, which the check would ask for
        "AWS_SKIP_SIGNATURE",
    ),
    metadata=MetadataService(
        method="PUT",
        path="/latest/api/token",
        headers=(("X-aws-ec2-metadata-token-ttl-seconds", "60"),),
        variables=("AWS_METADATA_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        disabled="AWS_EC2_METADATA_DISABLED",
    ),
)
_GCS = StoreVariables(
    credentials="GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT, the path of a key file "
    "(GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    endpoint="GOOGLE_BASE_URL",
    plain_http="GOOGLE_ALLOW_HTTP",
    given=(
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
        "GOOGLE_SKIP_SIGNATURE",
    ),
    file=".config/gcloud/application_default_credentials.json",
    metadata=MetadataService(
        method="GET",
        path="/computeMetadata/v1/instance/id",
        headers=(("Metadata-Flavor", "Google"),),
        variables=("GCE_METADATA_HOST",),
    ),
)
_AZURE = StoreVariables(
    credentials="AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_KEY (AZURE_SKIP_SIGNATURE=true for a public container)",
    endpoint="AZURE_STORAGE_ENDPOINT",
    plain_http="AZURE_ALLOW_HTTP",
    given=(
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_FABRIC_SESSION_TOKEN",
        "AZURE_MSI_ENDPOINT",
        "AZURE_IDENTITY_ENDPOINT",
        "IDENTITY_ENDPOINT",
        "AZURE_USE_AZURE_CLI",
        "AZURE_STORAGE_USE_EMULATOR",
        "AZURE_SKIP_SIGNATURE",
    ),
    metadata=MetadataService(
        method="GET",
        path="/metadata/instance?api-version=2021-02-01",
        headers=(("Metadata", "true"),),
    ),
)
_HDFS = StoreVariables(
    credentials="HADOOP_USER_NAME, or a Kerberos ticket (`kinit`)",
    endpoint="the name node's host and port in the URL, and HADOOP_CONF_DIR",
)
_WEBHDFS = StoreVariables(
    credentials="FEATSTORE_HDFS_TOKEN (a delegation token), a Kerberos ticket (`kinit`) with the "
    "package featstore-pipeline[hdfs-kerberos], or HADOOP_USER_NAME",
    endpoint="the name node's host and HTTP port in the URL, or HADOOP_CONF_DIR for a name service",
)
_LOCAL = StoreVariables(
    credentials="the path's permissions",
    endpoint="the path",
    denied="check the owner and the permissions of the path",
)
_HTTP = StoreVariables(
    credentials="nothing: http is read without credentials",
    endpoint="the host and the port in the URL",
    denied="http is read without credentials: let the server allow it, or use another store",
)
_ICEBERG = StoreVariables(
    credentials="the catalog's credentials in pyiceberg's configuration",
    endpoint="the catalog's uri in pyiceberg's configuration",
)
_OTHER = StoreVariables(
    credentials="the user and the password in the URL",
    endpoint="the host and the port in the URL",
)
_BY_SCHEME = {
    "file": _LOCAL,
    "iceberg": _ICEBERG,
    "http": _HTTP,
    "https": _HTTP,
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "az": _AZURE,
    "azure": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hdfs": _HDFS,
    "viewfs": _HDFS,
    "webhdfs": _WEBHDFS,
    "swebhdfs": _WEBHDFS,
}


# The remote client follows redirects, and drops only the `Authorization` header when the host
# changes. The session token of S3, which has a header of its own, and the signature of Azure, which
# is in the query and hence in `Referer`, would be sent along. Redirects cannot be switched off, but
# a proxy can be set, with hosts that bypass it. A dead proxy that only the store's own hosts bypass
# ends such a redirect before anything is sent.
#
# The dead proxy: nothing listens on port 9 (discard).
DEAD_PROXY = "127.0.0.1:9"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# The services that give credentials to machines and containers.
_METADATA_HOSTS = (
    _METADATA_ADDRESS,
    "169.254.170.2",
    "169.254.170.23",
    "fd00:ec2::254",
    "fd00:ec2::23",
)
_DOMAINS: dict[str, tuple[str, ...]] = {
    "s3": ("amazonaws.com", "amazonaws.com.cn", "api.aws", *_METADATA_HOSTS),
    "az": ("windows.net", "microsoftonline.com", "fabric.microsoft.com", *_METADATA_HOSTS),
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
_AZURE_ALIASES = {"abfs": "az", "abfss": "az"}
_EMULATOR = ("127.0.0.1", "localhost")


def variables_of(scheme: str) -> StoreVariables:
    """The environment variables of the client for a URL scheme."""
    return _BY_SCHEME.get(scheme, _OTHER)


def s3_endpoint(environment: Mapping[str, str]) -> str:
    """The endpoint of S3 from the variables, or by default that of AWS in the region."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if environment.get(name):
            return environment[name]
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return f"https://s3.{region}.amazonaws.com"


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
    scheme = _AZURE_ALIASES.get(scheme, scheme)
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


def require_credentials(url: str, scheme: str, environment: Mapping[str, str]) -> None:
    """Checks that a client of the store will find credentials. Takes twice `METADATA_S` at most.

    Args:
        url: The URL, for the error message.
        scheme: Its scheme.
        environment: The environment variables.

    Raises:
        AccessError: There are no credentials.
    """
    known = variables_of(scheme)
    # Whether they are valid is for the store to say.
    has_file = known.file and exists(Path(environment.get("HOME", "/"), known.file))
    is_given = any(environment.get(name) for name in known.given)
    if known.metadata is None or has_file or is_given:
        return
    if not _answers(known.metadata, environment):
        raise AccessError(f"{redact(url)}: no credentials: set {known.credentials}")


# The services that have answered. Threads may add the same one twice, which is harmless.
_answered: set[tuple[MetadataService, str]] = set()


def _answers(metadata: MetadataService, environment: Mapping[str, str]) -> bool:
    """Whether the service answers, and the environment lets it be asked. After the first answer it
    is not asked again.
    """
    if metadata.disabled and environment.get(metadata.disabled, "").lower() == "true":
        return False
    given = (environment[name] for name in metadata.variables if environment.get(name))
    address = next(given, _METADATA_ADDRESS)
    if (metadata, address) not in _answered and _request_succeeds(metadata, address):
        _answered.add((metadata, address))
    return (metadata, address) in _answered


def _request_succeeds(metadata: MetadataService, address: str) -> bool:
    try:
        url = urlsplit(address if "://" in address else f"http://{address}")
        with closing(
            http.client.HTTPConnection(url.hostname or "", url.port, timeout=METADATA_S)
        ) as connection:
            connection.request(metadata.method, metadata.path, headers=dict(metadata.headers))
            return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, ValueError, http.client.HTTPException):
        return False
