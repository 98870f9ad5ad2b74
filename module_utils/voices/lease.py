"""One operator a seat: a lease in a file, which ends when it is freed, when its play dies, or when its time is up.

Everybody may read the file, so that a second operator sees who holds the seat; of the token it has the digest only.

Time: a lease ends by CLOCK_BOOTTIME, which counts suspended time and which no clock step moves, as long as it is read
under the boot that wrote it. After a restart its play is gone anyhow. Only where neither can be known (another host
that shares the directory, a lease without an anchor after a restart, no Linux) does the wall clock decide.

A pid means something in its own pid namespace only. Seen from another container or host an anchor cannot be judged, and
the lease ends by time.

Pure: clocks, processes and the file are in lease_file.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .anchor import SSHD, Anchor
from .plan import VoicesError
from .times import epoch_of, iso_utc

SCHEMA = "voices/seat-lease/1"
MAX_TTL_S = 7 * 24 * 3600
MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class Here:
    """Where and when a lease is looked at. Empty strings and None where the host does not say."""

    host: str
    boot_id: str
    pid_namespace: str
    wall_s: float
    boot_s: float | None


@dataclass(frozen=True)
class Lease:
    """A lease as its file says it. Instants in seconds since the epoch, ``expires_boot_s`` since that boot."""

    seat: str
    holder: str
    token_sha256: str
    since_s: float
    expires_s: float
    host: str
    boot_id: str
    pid_namespace: str
    expires_boot_s: float | None
    anchor: Anchor | None

    def public(self) -> dict[str, Any]:
        """What a module returns of it."""
        return {
            "holder": self.holder,
            "pid": self.anchor.pid if self.anchor else 0,
            "anchor": self.anchor.command if self.anchor else "",
            "since": iso_utc(self.since_s),
            "expires": iso_utc(self.expires_s),
        }


NOBODY: dict[str, Any] = {"holder": "", "pid": 0, "anchor": "", "since": "", "expires": ""}


@dataclass(frozen=True)
class Request:
    """What a play asks for. ``wait_s`` and ``ttl_s`` in seconds; an empty token asks for a new one."""

    holder: str
    token: str = ""
    ttl_s: int = 3600
    wait_s: int = 0
    anchored: bool = True


@dataclass(frozen=True)
class Outcome:
    """What came of it. ``lease`` is the one that stands now, None when the seat is free; ``warning`` is for people."""

    lease: Lease | None
    token: str = ""
    took_over: str = ""
    waited_s: float = 0.0
    warning: str = ""

    @property
    def public(self) -> dict[str, Any]:
        """The standing lease as a module returns it."""
        return self.lease.public() if self.lease else dict(NOBODY)


def digest(token: str) -> str:
    """The token's sha256, in hex. Tokens are long random strings, so their digest can be public."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def check_request(request: Request) -> None:
    """Raises VoicesError on a holder, a token or a time outside the rules."""
    holder, token = request.holder, request.token
    if not holder or not holder.isprintable() or len(holder) > 128 or holder != holder.strip():
        raise VoicesError(f"holder {holder!r} is no name: one line of 1 to 128 printable characters, such as ann@host")
    if not 1 <= request.ttl_s <= MAX_TTL_S:
        raise VoicesError(f"ttl_s is {request.ttl_s}; a lease lasts 1 to {MAX_TTL_S} seconds (7 days)")
    if request.wait_s < 0:
        raise VoicesError(f"wait_s is {request.wait_s}; it is 0 (do not wait) or more seconds")
    check_token(token)


def check_token(token: str) -> None:
    """Raises VoicesError on a token that cannot be one. An empty one passes. The message never holds the token."""
    if token == "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER":  # noqa: S105 - Ansible's mask, the very thing to refuse
        raise VoicesError(
            "the token is Ansible's mask VALUE_SPECIFIED_IN_NO_LOG_PARAMETER: it was read from the result of a task"
            " that was itself given the token; keep the token of the first result, or the variable it came from"
        )
    if token and len(token) < MIN_TOKEN_LENGTH:
        raise VoicesError(
            f"the token has {len(token)} characters, at least {MIN_TOKEN_LENGTH} are needed, as its digest is public;"
            " leave it out at first and keep the one that the module returns"
        )


# --- the file's text


def as_text(lease: Lease) -> str:
    """The lease file's text."""
    document = {
        "schema": SCHEMA,
        "seat": lease.seat,
        "holder": lease.holder,
        "token_sha256": lease.token_sha256,
        "since": iso_utc(lease.since_s),
        "expires": iso_utc(lease.expires_s),
        "host": lease.host,
        "boot_id": lease.boot_id,
        "pid_namespace": lease.pid_namespace,
        "expires_boot_s": lease.expires_boot_s,
        "anchor": asdict(lease.anchor) if lease.anchor else None,
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def from_text(text: str) -> Lease:
    """The lease in a lease file's text.

    Raises:
        ValueError: the text is no lease of this schema; the message says what is wrong.
    """
    if not text.strip():
        raise ValueError("it is empty")
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        said = found.get("schema") if isinstance(found, dict) else None
        raise ValueError(f"its schema is {said!r}, not {SCHEMA!r}")

    def field(name: str, kind: type | tuple[type, ...]) -> Any:
        value = found.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"its {name} is {value!r}")
        return value

    def instant(name: str) -> float:
        try:
            return epoch_of(field(name, str))
        except ValueError as error:
            raise ValueError(f"its {name} is {found.get(name)!r}, no ISO 8601 instant") from error

    anchor = field("anchor", (dict, type(None)))
    try:
        anchored = Anchor(int(anchor["pid"]), int(anchor["start_ticks"]), str(anchor["command"])) if anchor else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its anchor is {anchor!r}") from error
    boot_s = field("expires_boot_s", (int, float, type(None)))
    return Lease(
        seat=field("seat", str),
        holder=field("holder", str),
        token_sha256=field("token_sha256", str),
        since_s=instant("since"),
        expires_s=instant("expires"),
        host=field("host", str),
        boot_id=field("boot_id", str),
        pid_namespace=field("pid_namespace", str),
        expires_boot_s=None if boot_s is None else float(boot_s),
        anchor=anchored,
    )


# --- the rules


def owned_by(lease: Lease, token: str) -> bool:
    """Whether ``token`` holds the lease, live or not."""
    return bool(token) and hmac.compare_digest(lease.token_sha256, digest(token))


def judgeable(lease: Lease, here: Here) -> bool:
    """Whether the lease's pid means from here what it meant where it was written."""
    return bool(lease.boot_id) and lease.boot_id == here.boot_id and lease.pid_namespace == here.pid_namespace


def remaining_s(lease: Lease, here: Here) -> float:
    """Seconds until the lease ends by time; zero or less when it has."""
    same_boot = bool(lease.boot_id) and lease.boot_id == here.boot_id
    if same_boot and lease.expires_boot_s is not None and here.boot_s is not None:
        return lease.expires_boot_s - here.boot_s
    return lease.expires_s - here.wall_s


def ended_because(lease: Lease, here: Here, running: Callable[[Anchor], bool]) -> str:
    """Why the lease holds no longer, or an empty string while it does. ``running`` tells a live process."""
    if lease.anchor and judgeable(lease, here) and not running(lease.anchor):
        return f"{_what(lease.anchor)} is gone"
    restarted = bool(lease.boot_id and here.boot_id) and lease.boot_id != here.boot_id and lease.host == here.host
    if lease.anchor and restarted:
        return f"host {lease.host} was restarted since, so its play's process there is gone"
    left_s = remaining_s(lease, here)
    if left_s <= 0:
        playing = f", although {_what(lease.anchor)} is still there" if lease.anchor and judgeable(lease, here) else ""
        return f"it expired {-left_s:.0f} s ago{playing}"
    return ""


def held_message(lease: Lease, here: Here, path: Path, waited_s: float, own: Anchor | None) -> str:
    """The refusal for a second operator: who, since when, until when, and what to do."""
    until_s = here.wall_s + remaining_s(lease, here)
    anchor = lease.anchor
    process = f"pid {anchor.pid}" if anchor else "no process to watch"
    if anchor and not judgeable(lease, here):
        process += f" of {lease.host}, out of sight from here"
        anchor = None
    if anchor is None:
        fix = f"wait (wait_s), or if that play is known to be gone, remove {path}"
    elif anchor.command == SSHD:
        # ssh keeps connections open for the next task or run, and so they outlive a killed play: the same person's
        # next play, on the same controller, even uses the same one.
        shared = "its ssh connection, which this run shares" if anchor == own else "its ssh connection"
        process += f", {shared}"
        fix = f"wait (wait_s), or if that play is known to be gone, remove {path} or end pid {anchor.pid}"
    elif anchor == own:
        fix = "that is this very play: give it the token that its first lease returned"
    else:
        fix = f"wait (wait_s), or if that play hangs, end pid {anchor.pid}: the lease ends with it"
    waited = f" after {waited_s:.0f} s of waiting" if waited_s else ""
    return (
        f"seat {lease.seat} is{' still' if waited else ''} held by {lease.holder} since {_clock(lease.since_s, here)},"
        f" until {_clock(until_s, here)} UTC ({process}){waited}; {fix}"
    )


def _what(anchor: Anchor) -> str:
    """``its play (pid 4242)``."""
    return f"its {'ssh connection' if anchor.command == SSHD else 'play'} (pid {anchor.pid})"


def _clock(instant_s: float, here: Here) -> str:
    """HH:MM:SS in UTC, with the date where it is not today's."""
    date, _, clock = iso_utc(instant_s)[:19].partition("T")
    return clock if date == iso_utc(here.wall_s)[:10] else f"{date} {clock}"


def new_lease(seat: str, request: Request, token: str, here: Here, own: Anchor | None, since_s: float) -> Lease:
    """The lease to write. It lasts ``ttl_s`` from now, also when it renews one."""
    return Lease(
        seat=seat,
        holder=request.holder,
        token_sha256=digest(token),
        since_s=since_s,
        expires_s=here.wall_s + request.ttl_s,
        host=here.host,
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        expires_boot_s=None if here.boot_s is None else round(here.boot_s + request.ttl_s, 3),
        anchor=own,
    )
