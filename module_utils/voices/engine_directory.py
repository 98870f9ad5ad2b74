"""The client for a seat's engine directory and secrets: the only code that reads or writes engine.yaml."""

from __future__ import annotations

import contextlib
import json
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from . import engine_file as core
from .api_key import TO_BE_GENERATED, auth_header, key_error, mask
from .engine_yaml import parse, render
from .files import locked, read_text, write_text
from .flags import flags_sha256
from .plan import VoicesError


def has_adapter(path: str) -> bool:
    """Whether ``path`` is a directory with an adapter in it."""
    return (Path(path) / "adapter_config.json").is_file()


def carrier_problem(path: str) -> str:
    """Why there is no carrier at ``path``, and the fix; "" when there is one."""
    if (Path(path) / "config.json").is_file():
        return ""
    what = "holds no config.json" if Path(path).is_dir() else "does not exist"
    return f"carrier {path} {what}: correct the path, or bring its mount back"


def check_carrier(path: str | None) -> None:
    """Refuse a carrier that is not there; raises VoicesError. Without a path nothing is looked for."""
    if path and (problem := carrier_problem(path)):
        raise VoicesError(f"{problem}; nothing was changed")


def read_key(path: Path) -> str | None:
    """The key in ``path``, None when there is no file. Raises VoicesError when the file is not one line of text."""
    text = _read(path)
    if text is None:
        return None
    lines = text.split()
    if len(lines) != 1:
        raise VoicesError(f"{path} should hold one key on one line and holds {len(lines)} words: mend or remove it")
    return lines[0]


def _read(path: Path) -> str | None:
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise VoicesError(f"{path} is no text (byte {error.start}): mend it, or move it away") from None


class EngineDirectory:
    """``path`` is engine.yaml; guard files and engine.yaml.previous lie beside it."""

    def __init__(self, path: str, api_key_file: str | None = None) -> None:
        self.path = Path(path)
        self.key_file = Path(api_key_file) if api_key_file else None
        self.previous = self.path.with_name(f"{self.path.name}.previous")
        self.healthy = self.path.parent.parent / "service" / "run" / "healthy.json"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One writer at a time; both modules that write engine.yaml take it."""
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            yield

    def read_engine_file(self) -> tuple[dict[str, Any], dict[str, str]] | None:
        """(flags, voices) of engine.yaml, None when there is none. Raises VoicesError when it cannot be read so."""
        text = _read(self.path)
        return None if text is None else parse(text, str(self.path))

    def running_flags(self) -> dict[str, Any]:
        """The flags that a running engine was started with: those of the file that is noted as healthy.

        Without a note they are engine.yaml's, empty when there is none. Raises VoicesError when that cannot be read.
        """
        healthy = self._healthy_digest()
        found = self.read_engine_file()
        now = found[0] if found else {}
        previous = self._previous_flags()
        if previous and flags_sha256(mask(previous)) == healthy != flags_sha256(mask(now)):
            return previous
        return now

    def read(self, stored: Collection[str] = ()) -> core.Present:
        """What the plan of ``engine_file`` needs to know. ``stored`` are adapter paths that are or will be there."""
        flags, voices = self.read_engine_file() or (None, {})
        key_file, header = self.key_file, self.key_file and self.key_file.with_name("auth.header")
        private = {"engine.yaml": self.path, "api key": key_file, "auth header": header}
        return core.Present(
            flags=flags,
            voices=voices,
            missing=frozenset(name for name, at in voices.items() if at not in stored and not has_adapter(at)),
            guards=self._guards(),
            api_key=read_key(key_file) if key_file else None,
            auth_header=_read(header) if header else None,
            healthy=self._healthy_digest(),
            previous_guards=self._previous_guards(),
            owner=self._owner(),
            modes={what: stat.S_IMODE(file.stat().st_mode) for what, file in private.items() if file and file.exists()},
        )

    def _owner(self) -> str:
        if not self.path.exists():
            return ""
        status = self.path.stat()
        return f"{status.st_uid}:{status.st_gid}"

    def _guards(self) -> dict[str, str]:
        if not self.path.parent.is_dir():
            return {}
        files = [file for file in self.path.parent.iterdir() if core.is_guard_file(file.name)]
        return {file.name: file.read_text(errors="replace") for file in files}

    def _healthy_digest(self) -> str:
        try:
            noted = json.loads(_read(self.healthy) or "{}")
        except ValueError:
            return ""  # a torn note says nothing about health
        return str(noted.get("config_sha256", "")) if isinstance(noted, dict) else ""

    def _previous_guards(self) -> tuple[str, ...] | None:
        flags = self._previous_flags()
        return None if flags is None else core.guard_files(flags)

    def _previous_flags(self) -> dict[str, Any] | None:
        """The flags of engine.yaml.previous; none in a file that a person has edited into something else."""
        text = _read(self.previous)
        if text is None:
            return None
        try:
            return parse(text, str(self.previous))[0]
        except VoicesError:
            return {}

    def apply(self, plan: core.Plan, guard: str, owner: str = "") -> dict[str, Any]:
        """Write what ``plan`` asks for and return the flags as written.

        What engine.yaml refers to is written before it, so that a kill at any point leaves a file to start from.
        """
        flags = dict(plan.flags)
        uid_gid = _uid_gid(owner)
        if uid_gid and not self.path.parent.is_dir():
            self.path.parent.mkdir(parents=True)
            self.path.parent.chmod(0o755)  # another user's engine reads the guard here, whatever our umask
        if flags.get("api-key") == TO_BE_GENERATED:
            flags["api-key"] = _new_key()
        done = {(action.do, action.what) for action in plan.actions}
        whats = {what for _, what in done}
        if "guard" in whats:
            write_text(self.path.with_name(plan.guard_file), guard, mode=0o644)
        self._write_secrets(flags.get("api-key"), whats)
        if plan.keep_previous:
            write_text(self.previous, _read(self.path) or "")
        if plan.write_file:
            write_text(self.path, render(flags, plan.voices), owner=uid_gid)
        for name in plan.stale_guards:
            self.path.with_name(name).unlink(missing_ok=True)
        return flags

    def _write_secrets(self, key: str | None, whats: set[str]) -> None:
        if self.key_file is None:
            return
        if not self.key_file.parent.is_dir():
            self.key_file.parent.mkdir(parents=True, mode=0o700)
        if key and "api key" in whats:
            write_text(self.key_file, f"{key}\n")
        if key and "auth header" in whats:
            write_text(self.key_file.with_name("auth.header"), auth_header(key))

    def change_voices(self, change: Callable[[dict[str, str]], None]) -> None:
        """Read engine.yaml, let ``change`` edit the voices {name: path}, write it back when they differ.

        Raises VoicesError when there is no engine.yaml.
        """
        with self.lock():
            found = self.read_engine_file()
            if found is None:
                raise VoicesError(
                    f"{self.path} is not there, so no voice can be made lasting: engine_file writes it first"
                )
            flags, voices = found
            wanted = dict(voices)
            change(wanted)
            if wanted != voices:
                write_text(self.path, render(flags, wanted))


def _uid_gid(owner: str) -> tuple[int, int] | None:
    uid, _, gid = owner.partition(":")
    return (int(uid), int(gid)) if owner else None


def _new_key() -> str:
    while key_error(key := secrets.token_urlsafe(32), "the key made here"):
        pass  # one in 64 begins with a dash
    return key
