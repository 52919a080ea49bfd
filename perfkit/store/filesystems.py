"""Which file system a URI means, and what to tell the user when it does not answer.

    open_filesystem("s3://bucket/traces?endpoint_override=http://minio:9000") -> (file system, path inside it)
    explain(error)      -> (reason, next step)      one line of what a storage library says in three
    is_transient(error) -> bool                     whether trying again can help
    is_absent(error)    -> bool                     whether it only says that there is nothing of that name

pyarrow.fs first (s3, gs, hdfs, file), fsspec for what it does not know. An endpoint other than the provider's comes
from the URI (`endpoint_override`, `scheme`, `region`) or from AWS_ENDPOINT_URL or STORAGE_EMULATOR_HOST; credentials
only from where the provider's libraries look (environment, profile, role of the machine), never from the URI, which
ends up in reports and logs.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

import pyarrow as pa

from perfkit.errors import StoreError, first_line

if TYPE_CHECKING:
    import pyarrow.fs as pafs

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""A request without a byte for so long is given up, and tried again."""
ATTEMPTS = 5
"""Of one request, by the S3 client itself, with growing pauses."""
GOOGLE_RETRY_SECONDS = 30
"""For so long Google's client repeats one request; by itself it would do so for a quarter of an hour."""

_S3_OPTIONS = {"endpoint_override", "scheme", "region"}
_GS_OPTIONS = {"endpoint_override", "scheme"}


class _Explained(NamedTuple):
    """What the text of an error means."""

    pattern: str
    reason: str
    step: str
    for_good: bool = True
    """Trying again does not help."""


_S3_PLACE = "the endpoint (AWS_ENDPOINT_URL, or ?endpoint_override= in the URI)"
_GS_PLACE = "the endpoint (STORAGE_EMULATOR_HOST, or ?endpoint_override= in the URI)"
_EXPLAINED = (
    _Explained(
        r"google::cloud.*\bNOT_FOUND.*function=(?:ListObjects|CreateResumableUpload|InsertObjectMedia)",
        "there is no such bucket",
        f"check its name and {_GS_PLACE}",
    ),
    _Explained(
        r"google::cloud.*(?:OAuth2|UNAUTHENTICATED|HTTP status code: 401)",
        "the credentials are missing, wrong or have expired",
        "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    ),
    _Explained(
        r"google::cloud.*(?:PERMISSION_DENIED|HTTP status code: 403)",
        "access is denied",
        "check that the account (GOOGLE_APPLICATION_CREDENTIALS) may list, read and write there",
    ),
    _Explained(r"google::cloud.*CURL error", "the storage does not answer", f"check the network and {_GS_PLACE}"),
    _Explained(
        r"google::cloud.*(?:UNAVAILABLE|INTERNAL|HTTP status code: (?:429|5\d\d))",
        "the storage fails again and again",
        "run the same command again later; what is done stays done",
    ),
    _Explained(
        r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist",
        "there is no such bucket",
        f"check its name and {_S3_PLACE}",
    ),
    _Explained(
        r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|INVALID_CLIENT_TOKEN"
        r"|InvalidClientTokenId|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|ExpiredToken|InvalidToken|HTTP status 401",
        "the credentials are wrong or have expired",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    _Explained(
        r"ACCESS_DENIED|AccessDenied|HTTP status 403|\bForbidden\b",
        "access is denied",
        "check the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE) and that they may list, read and write there",
    ),
    _Explained(
        r"NETWORK_CONNECTION|curlCode: (?:5|6|7|28|35)\b|Could ?n.t (?:connect|resolve)|Could not resolve|timed? ?out",
        "the storage does not answer",
        f"check the network and {_S3_PLACE}",
        for_good=False,
    ),
    _Explained(
        r"SLOW_DOWN|SlowDown|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|InternalError|HTTP status 5\d\d",
        "the storage fails again and again",
        "run the same command again later; what is done stays done",
        for_good=False,
    ),
)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Say whether a path is a URI."""
    return "://" in os.fspath(path)


def open_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, and the path in it; nothing is asked of the storage yet."""
    if uri.startswith("s3://"):
        return _open_s3(uri)
    if uri.startswith(("gs://", "gcs://")):
        return _open_gs(uri)
    import pyarrow.fs as pafs  # here and below: a local trace does without

    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return _open_fsspec(uri, error)
    return filesystem, path.rstrip("/")


def _options(uri: str, parts: SplitResult, allowed: set[str], user: str = "") -> dict[str, str]:
    """Return the options of a URI; what must not stand in it is refused, and not repeated."""
    options = dict(parse_qsl(parts.query))
    if "@" in parts.netloc and parts.netloc.rpartition("@")[0] != user:
        refused = "credentials"
    else:
        refused = ", ".join(sorted(set(options) - allowed))
    if refused:
        raise StoreError(
            f"{_without_credentials(uri)}: {refused} cannot stand in the URI",
            next_step=f"it may have {', '.join(sorted(allowed))}; credentials come from the environment",
        )
    if not parts.netloc.rpartition("@")[2]:
        raise StoreError(f"{uri}: the bucket is missing", next_step=f"write {parts.scheme}://bucket/path")
    return options


def _endpoint(given: str | None, scheme: str | None) -> tuple[str | None, str]:
    """Tell the scheme from the address of an endpoint."""
    if given and "://" in given:
        scheme, given = given.rstrip("/").split("://", 1)
    return given or None, scheme or "https"


def _open_gs(uri: str) -> tuple[pafs.FileSystem, str]:
    parts = urlsplit(uri)
    options = _options(uri, parts, _GS_OPTIONS, user="anonymous")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")  # as all of Google's own clients
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint, scheme = _endpoint(options.get("endpoint_override") or emulator, options.get("scheme"))
    bucket = parts.netloc.rpartition("@")[2]
    anonymous = bucket != parts.netloc or (bool(emulator) and "endpoint_override" not in options)
    return _gs_client(endpoint, scheme, anonymous), (bucket + parts.path).rstrip("/")


@cache
def _gs_client(endpoint: str | None, scheme: str, anonymous: bool) -> pafs.GcsFileSystem:
    """Return the one client for an endpoint."""
    import pyarrow.fs as pafs

    return pafs.GcsFileSystem(
        anonymous=anonymous,
        endpoint_override=endpoint,
        scheme=scheme,
        retry_time_limit=timedelta(seconds=GOOGLE_RETRY_SECONDS),
    )


def _open_s3(uri: str) -> tuple[pafs.FileSystem, str]:
    parts = urlsplit(uri)
    options = _options(uri, parts, _S3_OPTIONS)
    elsewhere = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint, scheme = _endpoint(options.get("endpoint_override") or elsewhere, options.get("scheme"))
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        region = "us-east-1" if endpoint else _region_of(parts.netloc)
    identity = tuple(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"))
    return _s3_client(region, endpoint, scheme, identity), (parts.netloc + parts.path).rstrip("/")


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
    except ModuleNotFoundError:
        scheme = uri.partition("://")[0]
        raise StoreError(
            f"{_without_credentials(uri)}: {scheme}:// needs fsspec",
            next_step="install it with `pip install 'perfkit[s3]'`, or use a local folder or s3://bucket/path",
        ) from None
    try:
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
    if known := _known(error):
        return known.reason, known.step
    code = getattr(error, "errno", None)
    return (os.strerror(code) if code else first_line(error)), None


def is_transient(error: BaseException) -> bool:
    """Say whether it is worth trying again: a network, or a server that fails; not a name or a permission."""
    known = _known(error)
    return not (known.for_good if known else is_absent(error))


def is_absent(error: BaseException) -> bool:
    """Say whether there is just nothing of that name; pyarrow's Google client has no error type for an empty prefix."""
    if _known(error):
        return False  # it looks so if the whole bucket is missing
    return isinstance(error, FileNotFoundError) or str(error).startswith("No such file or directory")


def _known(error: BaseException) -> _Explained | None:
    text = str(error)
    return next((one for one in _EXPLAINED if re.search(one.pattern, text)), None)
