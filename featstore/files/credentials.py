"""Which variables tell a store's client who asks, and where; and that none are missing.

A client without credentials asks the metadata service of the cloud's machines for some. On any
other machine nobody answers there, and the client waits for a minute or for ever. So the service
is tried here first, once and briefly.
"""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from featstore.errors import AccessError
from featstore.redaction import redact

METADATA_S = 1.0
"""How long the metadata service may take to connect, and again to answer. It is a neighbour, which
answers in a few milliseconds; botocore waits as long."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A request that a cloud's metadata service answers with 200 on its machines alone. The first
    of `variables` that is set says where it is, `disabled` set to `true` that nobody may ask it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    variables: tuple[str, ...] = ()
    disabled: str = ""
    address: str = "169.254.169.254"


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The environment of a store's client: what to set for credentials, and for its place.

    `plain_http` allows an endpoint without TLS; `denied` says what to do where access is refused.
    One of `given`, or `file` below the home directory, gives credentials; where none does, the
    client asks `metadata`.
    """

    credentials: str
    endpoint: str
    plain_http: str = ""
    denied: str = ""
    given: tuple[str, ...] = ()
    file: str = ""
    metadata: Metadata | None = None

    @property
    def to_fill_in(self) -> dict[str, str]:
        """What a message may say of them."""
        denied = f"check {self.credentials}, and that they may read and write there"
        return {
            "credentials": self.credentials,
            "endpoint": self.endpoint,
            "plain_http": self.plain_http,
            "denied": self.denied or denied,
        }


_S3 = Variables(
    credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN for temporary "
    "ones; AWS_SKIP_SIGNATURE=true for a public bucket)",
    endpoint="AWS_ENDPOINT_URL and AWS_REGION",
    plain_http="AWS_ALLOW_HTTP",
    given=(
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_IMDSV1_FALLBACK",  # the service need not give tokens, which it is asked for here
        "AWS_SKIP_SIGNATURE",
    ),
    metadata=Metadata(
        method="PUT",
        path="/latest/api/token",
        headers=(("X-aws-ec2-metadata-token-ttl-seconds", "60"),),
        variables=("AWS_METADATA_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        disabled="AWS_EC2_METADATA_DISABLED",
    ),
)
_GCS = Variables(
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
    metadata=Metadata(
        method="GET",
        path="/computeMetadata/v1/instance/id",
        headers=(("Metadata-Flavor", "Google"),),
        variables=("GCE_METADATA_HOST",),
    ),
)
_AZURE = Variables(
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
    metadata=Metadata(
        method="GET",
        path="/metadata/instance?api-version=2021-02-01",
        headers=(("Metadata", "true"),),
    ),
)
_HDFS = Variables(
    credentials="HADOOP_USER_NAME, or a Kerberos ticket (`kinit`)",
    endpoint="the name node's host and port in the URL, and HADOOP_CONF_DIR",
)
_LOCAL = Variables(
    credentials="the path's permissions",
    endpoint="the path",
    denied="check the owner and the permissions of the path",
)
_HTTP = Variables(
    credentials="nothing: http is read without credentials",
    endpoint="the host and the port in the URL",
    denied="http is read without credentials: let the server allow it, or use another store",
)
_OTHER = Variables(
    credentials="the user and the password in the URL",
    endpoint="the host and the port in the URL",
)
_BY_SCHEME = {
    "file": _LOCAL,
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
}


def variables_of(scheme: str) -> Variables:
    """What the client of a URL's scheme reads of the environment."""
    return _BY_SCHEME.get(scheme, _OTHER)


def s3_endpoint(environment: Mapping[str, str]) -> str:
    """The URL of S3: that of the variables, or else that of AWS in the region."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if environment.get(name):
            return environment[name]
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return f"https://s3.{region}.amazonaws.com"


def require_credentials(url: str, scheme: str, environment: Mapping[str, str]) -> None:
    """AccessError, within METADATA_S twice at most, where a client of the store would find no
    credentials. `scheme` is that of `url`."""
    known = variables_of(scheme)
    if known.metadata is None or _are_given(known, environment):
        return
    if not _answers(known.metadata, _address(known.metadata, environment)):
        raise AccessError(f"{redact(url)}: no credentials: set {known.credentials}")


def _are_given(known: Variables, environment: Mapping[str, str]) -> bool:
    if known.file and Path(environment.get("HOME", "/"), known.file).exists():
        return True
    return any(environment.get(name) for name in known.given)


def _address(metadata: Metadata, environment: Mapping[str, str]) -> str | None:
    """Where the service is; None where the environment says that it must not be asked."""
    if metadata.disabled and environment.get(metadata.disabled, "").lower() == "true":
        return None
    given = (environment[name] for name in metadata.variables if environment.get(name))
    return next(given, metadata.address)


_answered: set[tuple[Metadata, str]] = set()


def _answers(metadata: Metadata, address: str | None) -> bool:
    """Whether the service is there. Once it was it is not asked again."""
    if address is None:
        return False
    if (metadata, address) not in _answered and _is_there(metadata, address):
        _answered.add((metadata, address))
    return (metadata, address) in _answered


def _is_there(metadata: Metadata, address: str) -> bool:
    try:
        place = urlsplit(address if "://" in address else f"http://{address}")
        host = place.hostname or ""
        connection = http.client.HTTPConnection(host, place.port, timeout=METADATA_S)
        try:
            connection.request(metadata.method, metadata.path, headers=dict(metadata.headers))
            return connection.getresponse().status == http.HTTPStatus.OK
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return False
