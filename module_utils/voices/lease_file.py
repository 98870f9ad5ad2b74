"""A seat's lease on its host: the file, the clocks, the processes, and what the module does with them."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .anchor import Anchor, find_anchor, is_running
from .files import locked, read_text, write_text
from .lease import (
    Here,
    Lease,
    Outcome,
    Request,
    as_text,
    check_request,
    check_token,
    ended_because,
    from_text,
    held_message,
    new_lease,
    owned_by,
)
from .plan import VoicesError
from .times import iso_utc

POLL_S = 0.5


class Host:
    """The machine the module runs on: clocks and processes."""

    def here(self) -> Here:
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            namespace = os.readlink("/proc/self/ns/pid")
            boot_s: float | None = time.clock_gettime(time.CLOCK_BOOTTIME)
        except (OSError, AttributeError):
            # No Linux, or a sandbox that hides one of them: without all three the wall clock decides.
            boot_id, namespace, boot_s = "", "", None
        return Here(os.uname().nodename, boot_id, namespace, time.time(), boot_s)

    def anchor(self) -> Anchor | None:
        return find_anchor()

    def running(self, anchor: Anchor) -> bool:
        return is_running(anchor)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class LeaseFile:
    """A seat's lease file, ``<seat>.json``, and the lock beside it that makes read and write one step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seat = path.stem

    def read(self) -> Lease | None:
        """The lease in the file; None without a file.

        Raises:
            VoicesError: the file cannot be read or holds no lease. Such a file is not taken for a free seat: writes
                are atomic, so a person or another version made it, perhaps to keep others out, and a wrong guess lets
                two plays change one seat.
        """
        try:
            text = read_text(self.path)
            return None if text is None else from_text(text)
        except OSError as error:
            raise VoicesError(f"lease of seat {self.seat}: {self._denied(error)}") from error
        except ValueError as error:
            raise VoicesError(
                f"lease file {self.path} of seat {self.seat} cannot be understood: {error}; nothing was changed."
                f" If no other run works on the seat, remove the file: rm {self.path}"
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else reads and writes meanwhile."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path.with_name(f".{self.path.name}.lock")))
            except OSError as error:
                raise VoicesError(f"lease of seat {self.seat}: {self._denied(error)}{self._holder()}") from error
            yield

    def write(self, lease: Lease) -> None:
        try:
            write_text(self.path, as_text(lease), mode=0o644)
        except OSError as error:
            raise VoicesError(f"lease of seat {self.seat}: {self._denied(error)}") from error

    def remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise VoicesError(f"lease of seat {self.seat}: {self._denied(error)}") from error

    def _denied(self, error: OSError) -> str:
        """What could not be done to which file, whose it is, who asked, and the fix."""
        named = error.filename if isinstance(error.filename, str) else str(self.path)
        if not isinstance(error, PermissionError):
            return f"{named}: {error.strerror or error}"
        owned = Path(named)
        while not _visible(owned) and owned != owned.parent:
            owned = owned.parent
        status = owned.stat()
        owner = _user(status.st_uid)
        return (
            f"{named}: permission denied to {_user(os.geteuid())}; {owned} belongs to {owner}, mode"
            f" {status.st_mode & 0o7777:04o}. Run as {owner} (become_user), whose seat this is"
        )

    def _holder(self) -> str:
        """Who holds the seat, when that can still be read beside the error at hand."""
        try:
            lease = self.read()
        except VoicesError:
            return ""
        return f" (the last lease is {lease.holder}'s, since {iso_utc(lease.since_s)})" if lease else ""


def _visible(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


# --- what the module does


def report(file: LeaseFile, host: Host) -> Outcome:
    """Who holds the seat. Reads only, and needs no lock: a lease file is replaced whole."""
    lease = file.read()
    return Outcome(None if lease is None or ended_because(lease, host.here(), host.running) else lease)


def foresee(file: LeaseFile, request: Request, host: Host) -> Outcome:
    """Check mode's ``take``: who holds the seat, with a warning where taking the lease would wait or fail.

    Raises:
        VoicesError: a bad request, or a lease file that ``take`` would refuse.
    """
    check_request(request)
    found = report(file, host)
    if found.lease is None or owned_by(found.lease, request.token):
        return found
    refusal = held_message(found.lease, host.here(), file.path, 0.0, host.anchor())
    return replace(found, warning=f"check mode takes no lease; a real run would wait for it or fail: {refusal}")


def take(file: LeaseFile, request: Request, host: Host) -> Outcome:
    """Take the lease, or renew it with its token, waiting up to ``wait_s`` seconds while another play holds it.

    Raises:
        VoicesError: a bad request, another holder at the end of the wait, or a file that cannot be used.
    """
    check_request(request)
    own = host.anchor() if request.anchored else None
    token = request.token or secrets.token_urlsafe(24)
    began_s = host.monotonic_s()
    while True:
        with file.locked():
            here = host.here()
            waited_s = host.monotonic_s() - began_s
            present = file.read()
            mine = present is not None and owned_by(present, token)
            ended = "" if present is None or mine else ended_because(present, here, host.running)
            if present is None or mine or ended:
                if own and not host.running(own):
                    # The play was killed and left its module behind: a lease taken now would serve nobody.
                    raise VoicesError(f"the play that asked for the lease of seat {file.seat} (pid {own.pid}) is gone")
                since_s = present.since_s if present is not None and mine else here.wall_s
                lease = new_lease(file.seat, request, token, here, own, since_s)
                file.write(lease)
                took_over = f"took over the lease of {present.holder}: {ended}" if present and ended else ""
                return Outcome(lease, token, took_over, waited_s, warning=took_over)
        if waited_s >= request.wait_s:
            raise VoicesError(held_message(present, here, file.path, waited_s if request.wait_s else 0.0, own))
        host.pause(min(POLL_S, request.wait_s - waited_s))


def free(file: LeaseFile, token: str, host: Host) -> Outcome:
    """End the lease that ``token`` holds. A lease that is not there, or that has ended, is free already.

    Raises:
        VoicesError: no token, a token that does not hold the live lease, or a file that cannot be used.
    """
    check_token(token)
    if not token:
        raise VoicesError(f"freeing the lease of seat {file.seat} needs the token that taking it returned")
    if file.read() is None:
        # Nothing to free, and not even a directory to put a lock into, perhaps.
        return Outcome(None)
    with file.locked():
        present = file.read()
        if present is not None and owned_by(present, token):
            file.remove()
        elif present is not None:
            here = host.here()
            if not ended_because(present, here, host.running):
                raise VoicesError(
                    f"this token does not hold the lease of seat {file.seat}, so nothing was freed: "
                    + held_message(present, here, file.path, 0.0, None)
                )
    return Outcome(None)
