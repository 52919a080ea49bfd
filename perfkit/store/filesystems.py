"""Which file system a URI means, and what to tell the user when it does not answer.

    open_filesystem("s3://bucket/traces?endpoint_override=http://minio:9000") -> (file system, path inside it)
    explain(error)      -> (reason, next step)      one line of what a storage library says in three
    is_transient(error) -> bool                     whether trying again can help

pyarrow.fs first (s3, gs, hdfs, file), fsspec for what it does not know. An S3 endpoint other than Amazon's comes
from the URI (`endpoint_override`, `scheme`, `region`) or from AWS_ENDPOINT_URL; credentials only from where the AWS
libraries look (environment, profile, role of the machine), never from the URI, which ends up in reports and logs.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from perfkit.errors import StoreError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A request without a byte for so long is given up, and tried again."""
ATTEMPTS = 5
"""Of one request, by the S3 client itself, with growing pauses."""

_S3_OPTIONS = {"endpoint_override", "scheme", "region"}
_EXPLAINED = (
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist",
        "there is no such bucket",
        "check its name and the endpoint (AWS_ENDPOINT_URL, or ?endpoint_override= in the URI)",
    ),
    (
        r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|INVALID_CLIENT_TOKEN"
        r"|InvalidClientTokenId|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|ExpiredToken|InvalidToken|HTTP status 401",
        "the credentials are wrong or have expired",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    (
        r"ACCESS_DENIED|AccessDenied|HTTP status 403|\bForbidden\b",
        "access is denied",
        "check the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE) and that they may list, read and write there",
    ),
    (
        r"NETWORK_CONNECTION|curlCode: (?:5|6|7|28|35)\b|Could ?n.t (?:connect|resolve)|Could not resolve|timed? ?out",
        "the storage does not answer",
        "check the network and the endpoint (AWS_ENDPOINT_URL, or ?endpoint_override= in the URI)",
    ),
    (
        r"SLOW_DOWN|SlowDown|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|InternalError|HTTP status 5\d\d",
        "the storage fails again and again",
        "run the same command again later; what is done stays done",
    ),
)
_FOR_GOOD = re.compile("|".join(pattern for pattern, *_ in _EXPLAINED[:3]))


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Say whether a path is a URI."""
    return "://" in os.fspath(path)


def open_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, and the path in it; nothing is asked of the storage yet."""
    if uri.startswith("s3://"):
        return _open_s3(uri)
    import pyarrow.fs as pafs  # here and below: a local trace does without

    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return _open_fsspec(uri, error)
    return filesystem, path.rstrip("/")


def _open_s3(uri: str) -> tuple[pafs.FileSystem, str]:
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    if "@" in parts.netloc or set(options) - _S3_OPTIONS:
        refused = "credentials" if "@" in parts.netloc else ", ".join(sorted(set(options) - _S3_OPTIONS))
        raise StoreError(
            f"{_without_credentials(uri)}: {refused} cannot stand in the URI",
            next_step=f"it may have {', '.join(sorted(_S3_OPTIONS))}; credentials come from the environment",
        )
    if not parts.netloc:
        raise StoreError(f"{uri}: the bucket is missing", next_step="write s3://bucket/path")
    endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    scheme = options.get("scheme")
    if endpoint and "://" in endpoint:
        scheme, endpoint = endpoint.rstrip("/").split("://", 1)
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        region = "us-east-1" if endpoint else _region_of(parts.netloc)
    identity = tuple(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"))
    return _s3_client(region, endpoint, scheme or "https", identity), (parts.netloc + parts.path).rstrip("/")


@cache
def _s3_client(
    region: str | None, endpoint: str | None, scheme: str, identity: tuple[str | None, ...]
) -> pafs.S3FileSystem:
    """Return the one client for an endpoint: its connections are kept open between requests."""
    import pyarrow.fs as pafs

    return pafs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        scheme=scheme,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=SILENCE_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # a small object is one PUT instead of an upload of three requests
    )


@cache
def _region_of(bucket: str) -> str | None:
    """Ask Amazon where a bucket is; whoever cannot be asked is heard of when the bucket is used."""
    import pyarrow.fs as pafs

    try:
        return str(pafs.resolve_s3_region(bucket))
    except (OSError, pa.ArrowException):
        return None


def _open_fsspec(uri: str, error: Exception) -> tuple[pafs.FileSystem, str]:
    import pyarrow.fs as pafs

    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(uri)
        return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), str(path).rstrip("/")
    except (ImportError, ValueError) as unknown:
        why = str(error).splitlines()[0] if "Protocol not known" in str(unknown) else str(unknown).splitlines()[0]
        raise StoreError(
            f"{_without_credentials(uri)}: {why}", next_step="use a local folder, or a URI such as s3://bucket/path"
        ) from None


def _without_credentials(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", uri)


def explain(error: BaseException) -> tuple[str, str | None]:
    """Say in a line what an error of a storage library means, and what to do."""
    text = str(error)
    for pattern, reason, step in _EXPLAINED:
        if re.search(pattern, text):
            return reason, step
    code = getattr(error, "errno", None)
    return (os.strerror(code) if code else (text.splitlines() or [type(error).__name__])[0]), None


def is_transient(error: BaseException) -> bool:
    """Say whether it is worth trying again: a network, or a server that fails; not a name or a permission."""
    return not isinstance(error, FileNotFoundError) and not _FOR_GOOD.search(str(error))
