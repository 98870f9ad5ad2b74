"""Which files may define a host's variables, as Ansible's own inventory and host_group_vars plugins look for them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import inventory_pin as core
from .files import sync_directory
from .plan import VoicesError

_VARIABLE_FILES = ("", ".yml", ".yaml", ".json")
_NO_INVENTORY = (".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg", ".retry")
_VAULT = "$ANSIBLE_VAULT"


@dataclass
class Found:
    """Every definition of ``voices_seats`` for the host, and the files that could not be looked into."""

    places: list[core.Place] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def look(sources: Sequence[str], playbook_dir: str, host: str, groups: Collection[str]) -> Found:
    """Look through the inventory ``sources`` and the variable files beside them and beside the playbook."""
    found = Found()
    roots = [Path(playbook_dir)] if playbook_dir else []
    for source in dict.fromkeys(sources):
        path = Path(source)
        if not path.exists():
            continue  # a list of hosts, "a,b,": it defines no variables
        roots.append(path if path.is_dir() else path.parent)
        for file in _inventory_files(path):
            document = _document(file, found)
            found.places += core.places_in_inventory(document, host, groups) if document else []
    for root in dict.fromkeys(os.path.realpath(root) for root in roots):
        for folder, names in (("host_vars", [host]), ("group_vars", sorted(groups))):
            for name in names:
                for file in _variable_files(Path(root) / folder, name):
                    document = _document(file, found)
                    group = name if folder == "group_vars" else ""
                    found.places += core.places_in_variables(document, group) if document else []
    return found


def _inventory_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if (
            child.name.startswith(".")
            or child.name.endswith(_NO_INVENTORY)
            or child.name in ("host_vars", "group_vars")
        ):
            continue
        yield from _inventory_files(child) if child.is_dir() else [child]


def _variable_files(folder: Path, name: str) -> Iterator[Path]:
    for ending in _VARIABLE_FILES:
        path = folder / f"{name}{ending}"
        if path.is_dir() and not ending:
            for parent, folders, files in os.walk(path):
                folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
                for file in sorted(files):
                    if not file.startswith(".") and not file.endswith("~") and Path(file).suffix in _VARIABLE_FILES:
                        yield Path(parent) / file
        elif path.is_file():
            yield path


def _document(path: Path, found: Found) -> core.Document | None:
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        text = None
    document = core.read(str(path), text) if text and not text.startswith(_VAULT) else None
    # An empty file, or one of comments, defines nothing; a vaulted one, a script or an INI file may.
    if document is None and (text is None or any(_says_something(line) for line in text.splitlines())):
        found.closed.append(str(path))
    return document


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("#", "---"))


def only_place(found: Found, host: str, shared: Mapping[str, Collection[str]]) -> core.Place:
    """The one definition. Raises VoicesError when there is none, or several, or one that other hosts have too."""
    if not found.places:
        more = f"; not looked into: {', '.join(found.closed)}" if found.closed else ""
        raise VoicesError(f"no file that can be read defines {core.SEATS} for {host}{more}")
    if len(found.places) > 1:
        raise VoicesError(f"{core.SEATS} is defined for {host} in several places: {_listed(found.places)}")
    place = found.places[0]
    others = sorted({*shared.get(place.group, ())} - {host}) if place.group else []
    if others:
        raise VoicesError(f"{place.where} is of the group {place.group}, and would pin {', '.join(others)} too")
    return place


def _listed(places: Sequence[core.Place]) -> str:
    return ", ".join(place.where for place in places)


def replace_text(path: str, before: str, after: str) -> None:
    """Replace a file's text atomically, byte for byte, with its mode and owner; a link's target, not the link.

    Raises VoicesError when the file is no longer ``before``.
    """
    real = os.path.realpath(path)
    if Path(real).read_bytes() != before.encode():
        raise VoicesError(f"{path} was changed by somebody meanwhile; nothing was written: run again")
    state = os.stat(real)
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(real)}.", suffix="~", dir=os.path.dirname(real))
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), stat.S_IMODE(state.st_mode))
            if (state.st_uid, state.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), state.st_uid, state.st_gid)
            stream.write(after.encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, real)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(Path(real).parent)
