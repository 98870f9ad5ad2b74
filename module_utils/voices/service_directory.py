"""A service's directory: its files, its lock, and who may look into it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .files import locked_within, read_text, write_text
from .plan import VoicesError
from .processes import user_name
from .service import Spec
from .supervisord_conf import recorded_socket, socket_path


def content_of(path: str) -> bytes | None:
    """The bytes of a file, or None when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


class ServiceDirectory:
    """What a service has on disk. ``socket_file`` is where its supervisord listens, as a rule in the same place."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        conf = self.text("supervisord.conf")
        self.socket_file = socket_path(spec.directory, os.geteuid(), _system_temporary(), recorded_socket(conf))

    def text(self, name: str) -> str | None:
        """The text of a file, or None when it is not there."""
        return read_text(Path(self.spec.path(name)))

    def state(self, name: str) -> dict[str, Any] | None:
        """The JSON object in a file of ``run``, or None when there is none."""
        try:
            data = json.loads(self.text(f"run/{name}") or "null")
        except ValueError:
            return None
        return data if isinstance(data, dict) else None

    def write(self, name: str, text: str) -> None:
        """Make a file hold ``text``; one that does already is left alone."""
        if self.text(name) != text:
            write_text(Path(self.spec.path(name)), text)

    @contextlib.contextmanager
    def lock(self, wait_s: float) -> Iterator[None]:
        """Be the only run that changes this service. Makes nothing when there is no directory and none is wanted."""
        directory = Path(self.spec.directory)
        if self.spec.state != "started" and not directory.exists():
            yield
            return
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked_within(directory / ".lock", wait_s, lambda: self._make_private(directory)))
            except TimeoutError:
                raise VoicesError(
                    f"service {self.spec.name}: another run has held {directory}/.lock for {wait_s:g} s; "
                    "wait for it to end, or end it"
                ) from None
            yield

    def prepare(self) -> None:
        """Make the directories for the files, the log and the socket. Raises VoicesError when one is not ours."""
        for path in (self.spec.directory, self.spec.path("run"), self.spec.path("log")):
            self._make_private(Path(path))
        parent = self._socket_directory()
        if parent is not None:
            self._check_socket_directory(parent)

    def remove(self) -> None:
        """Remove the directory, and the socket's if that is another."""
        parent = self._socket_directory()
        if parent is not None and parent.is_dir() and not parent.is_symlink():
            shutil.rmtree(parent)
        shutil.rmtree(self.spec.directory)

    def _make_private(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise VoicesError(
                f"service {self.spec.name}: {directory} belongs to {user_name(status.st_uid)} and not to "
                f"{user_name(os.geteuid())}: run as its owner, or choose another dir"
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            directory.chmod(0o700)

    def _socket_directory(self) -> Path | None:
        """The socket's directory when it is not ``run``, whose path is too long for a socket then."""
        parent = Path(self.socket_file).parent
        return None if parent == Path(self.spec.path("run")) else parent

    def _check_socket_directory(self, parent: Path) -> None:
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
        status = parent.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise VoicesError(
                f"service {self.spec.name}: {parent} must be a directory of {user_name(os.geteuid())} with "
                f"mode 0700, but it is {stat.S_IMODE(status.st_mode):04o} of {user_name(status.st_uid)}: "
                "somebody else may have put it there; remove it, or choose a shorter dir"
            )


def _system_temporary() -> str:
    return "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()  # noqa: S108 - a short path
