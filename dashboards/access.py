"""Who asks: a name and password, or a name that a known proxy vouches for. Without it, everybody may see everything.

    access = Access("users.json", header="X-Forwarded-User", proxies=["10.0.0.5"])
    protect(server, access, source, prefix)  -> the source of whoever asks, to be used in place of `source`

The file names the users, and what each may see (grants.py). It is read again when it changes:

    {"users": {"ada":   {"password": "scrypt$...", "see": ["*"]},
               "grace": {"password": "scrypt$...", "see": ["prod-a", "prod-b/nlp-*"]}},
     "others": {"see": ["prod-b"]}}             whom the proxy vouches for and the list does not name; optional

The check stands before every route there is or will be, and lets only `<prefix>health` through. The header counts only
in requests that come from a proxy's address itself. Passwords are kept as scrypt hashes, and a password that was right
is remembered as a keyed hash, so that a page of twenty requests costs one scrypt and not twenty.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flask
from werkzeug.local import LocalProxy

from perfkit.errors import UsageError

from .data import Source
from .grants import Scope
from .limits import Limits, too_many

SCRYPT = {"n": 2**14, "r": 8, "p": 1}
FAILURES_PER_MINUTE = 20
"""Wrong passwords from one address, each of which costs an scrypt."""
REREAD_S = 1.0
REMEMBERED = 1024
_NOBODY = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
"""Compared with where there is no such user, so that the time does not say who is one."""


def hash_password(password: str) -> str:
    """Return what the file of users holds in place of a password."""
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(password.encode(), salt=salt, dklen=32, **SCRYPT)
    numbers = "$".join(str(SCRYPT[name]) for name in ("n", "r", "p"))
    return f"scrypt${numbers}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def check_password(password: str, held: str) -> bool:
    """Whether a password is the one behind a hash; a hash that makes no sense is of none."""
    try:
        kind, n, r, p, salt, digest = held.split("$")
        wanted = base64.b64decode(digest, validate=True)
        found = hashlib.scrypt(
            password.encode(), salt=base64.b64decode(salt, validate=True), n=int(n), r=int(r), p=int(p), dklen=32,
            maxmem=128 << 20,
        )  # fmt: skip
    except ValueError:
        return False
    return kind == "scrypt" and hmac.compare_digest(found, wanted)


@dataclass(frozen=True)
class User:
    """A line of the file."""

    name: str
    password: str | None
    scope: Scope


@dataclass(frozen=True)
class Users:
    """The file."""

    by_name: dict[str, User]
    others: Scope | None
    version: tuple[int, int]


def read_users(path: Path) -> Users:
    """Read the file; say what is wrong with it."""
    step = "see the example in docs/dashboard.md; `perfkit dashboard --hash-password` makes a hash"
    try:
        stat, document = path.stat(), json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", next_step=step) from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", next_step=step) from None
    listed = document.get("users") if isinstance(document, dict) else None
    if not isinstance(listed, dict) or not isinstance(document.get("others", {}), dict):
        raise UsageError(f'{path} has no {{"users": {{"name": {{…}}}}}}', next_step=step)
    users = {name: User(name, _password(path, name, one), _scope(path, name, one)) for name, one in listed.items()}
    others = _scope(path, "others", document["others"]) if "others" in document else None
    return Users(users, others, (stat.st_mtime_ns, stat.st_size))


def _password(path: Path, name: str, entry: Any) -> str | None:
    held = entry.get("password") if isinstance(entry, dict) else None
    if held is not None and (not isinstance(held, str) or held.count("$") != 5 or not held.startswith("scrypt$")):
        raise UsageError(
            f"{path}: the password of {name!r} is not a hash",
            next_step="put there what `perfkit dashboard --hash-password` prints",
        )
    return held


def _scope(path: Path, name: str, entry: Any) -> Scope:
    see = entry.get("see") if isinstance(entry, dict) else None
    if not isinstance(see, list) or not all(isinstance(one, str) for one in see):
        raise UsageError(
            f'{path}: {name!r} has no list "see" of what may be seen',
            next_step='add "see": ["*"], or for example ["cluster", "cluster/run-*"]',
        )
    return Scope.of(see)


class Access:
    """Answers who sends a request."""

    def __init__(self, path: str | os.PathLike[str], *, header: str | None = None, proxies: Sequence[str] = ()) -> None:
        if bool(header) != bool(proxies):
            raise UsageError(
                "--trust-header and --trust-proxy go together: which header is trusted, and whose",
                next_step="add `--trust-proxy ADDRESS`" if header else "add `--trust-header NAME`",
            )
        self._path = Path(path)
        self._users = read_users(self._path)
        self._looked = time.monotonic()
        self._header = header
        try:
            self._proxies = [ipaddress.ip_network(one, strict=False) for one in proxies]
        except ValueError as error:
            raise UsageError(f"--trust-proxy: {error}", next_step="give an address or a network, 10.0.0.0/24") from None
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        self._failures = Limits(FAILURES_PER_MINUTE, burst=FAILURES_PER_MINUTE)
        self._lock = threading.Lock()

    def users(self) -> Users:
        """Return the file as it is now; one that was damaged since counts as it was."""
        if time.monotonic() - self._looked > REREAD_S:
            self._looked = time.monotonic()
            try:
                stat = self._path.stat()
                if (stat.st_mtime_ns, stat.st_size) != self._users.version:
                    self._users = read_users(self._path)
            except (OSError, UsageError):
                pass
        return self._users

    def user_of(self, request: flask.Request) -> User:
        """Return who sends a request; end it with 401, 403 or 429 if that is nobody who may."""
        vouched = self._vouched(request)
        if vouched is not None:
            return vouched
        given = request.authorization
        if given is None or given.type != "basic" or given.username is None or given.password is None:
            flask.abort(_challenge("A name and a password are needed."))
        user = self._with_password(given.username, given.password, request.remote_addr or "")
        if user is None:
            flask.abort(_challenge("The name or the password is wrong."))
        return user

    def _vouched(self, request: flask.Request) -> User | None:
        name = request.headers.get(self._header) if self._header else None
        if not name or not self._is_proxy(request.remote_addr):
            return None
        users = self.users()
        if name in users.by_name:
            return users.by_name[name]
        if users.others is None:
            flask.abort(flask.Response(f"{name} may see nothing here.\n", 403, mimetype="text/plain"))
        return User(name, None, users.others)

    def _is_proxy(self, address: str | None) -> bool:
        try:
            found = ipaddress.ip_address(address or "")
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._proxies)

    def _with_password(self, name: str, password: str, address: str) -> User | None:
        user = self.users().by_name.get(name)
        held = user.password if user else None
        proof = hmac.digest(self._key, f"{name}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        with self._lock:
            if held and self._right.get(proof) == (name, held):
                return user
        wait = self._failures.take(address)
        if wait:
            flask.abort(too_many(wait, "too many passwords were tried"))
        if not check_password(password, held or _NOBODY) or not held:
            return None
        self._failures.take(address, -1)  # a right one is no failure
        with self._lock:
            self._right[proof] = (name, held)
            while len(self._right) > REMEMBERED:
                self._right.popitem(last=False)
        return user


def _challenge(text: str) -> flask.Response:
    answer = flask.Response(f"{text}\n", 401, mimetype="text/plain")
    answer.headers["WWW-Authenticate"] = 'Basic realm="perfkit", charset="UTF-8"'
    return answer


def protect(server: flask.Flask, access: Access, source: Source, prefix: str) -> Source:
    """Ask every request who sends it, and return a stand-in for the source that shows each their own."""
    scopes: dict[str, Source] = {}
    lock = threading.Lock()

    def ask() -> None:
        if flask.request.path == f"{prefix}health" and flask.request.method in ("GET", "HEAD"):
            return
        user = access.user_of(flask.request)
        with lock:
            mine = scopes.get(user.scope.name)
            if mine is None:
                mine = scopes[user.scope.name] = source.within(user.scope)
        flask.g.perfkit_user, flask.g.perfkit_source = user.name, mine

    server.before_request_funcs.setdefault(None, []).insert(0, ask)

    def of_request() -> Source:
        mine: Source | None = flask.g.get("perfkit_source") if flask.has_request_context() else None
        if mine is None:
            raise RuntimeError("data was asked for by nobody")  # never everything by mistake
        return mine

    return LocalProxy(of_request)  # type: ignore[return-value]
