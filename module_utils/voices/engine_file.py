"""What shall stand in a seat's engine directory, and the plan that brings it there. Pure.

Two modules write engine.yaml. ``engine_file`` owns every flag; ``vllm_lora_adapters`` owns ``lora-modules``, because a
voice stands there only after the engine has really loaded it: one entry that does not load aborts vLLM's whole start.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .api_key import TO_BE_GENERATED, key_actions, key_error, mask
from .engine_slots import slots
from .engine_yaml import LORA_MODULES, normalise, render, same
from .flags import flags_sha256
from .names import voice_name_error
from .plan import Action, VoicesError, text_diff

OWNED_FLAGS = {
    LORA_MODULES: "voices are loaded first and then written there by vllm_lora_adapters",
    "api-key": "give the key as api_key or in api_key_file",
    "middleware": "the seat's guard stands there",
    "max-loras": "set max_loras",
    "max-cpu-loras": "set max_cpu_loras",
}
REFUSED_FLAGS = {
    "config": "engine.yaml is that file",
    "root-path": "the guard compares whole paths and would close everything",
    "hf-token": "a secret; set HF_TOKEN in the engine's environment",
}

_FLAG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_GUARD_FILE = re.compile(r"voices_guard_[0-9a-f]{8}\.py")


@dataclass(frozen=True)
class Desired:
    """What the inventory wants. ``guard`` is the text of the guard module, ``api_key`` a given key, ``owner`` the
    uid:gid that the engine runs as, when it is another than ours."""

    flags: Mapping[str, Any]
    guard: str
    voices: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    api_key: str | None = None
    generate_api_key: bool = False
    owner: str = ""


@dataclass(frozen=True)
class Present:
    """What lies on disk. ``flags`` without lora-modules, None when there is no file; ``missing`` are the voices whose
    directory holds no adapter; ``guards`` the guard files by name; ``healthy`` the digest of the flags last healthy;
    ``modes`` the permission bits of the files that must be 0600, by what they are called in actions; ``owner`` the
    uid:gid of engine.yaml."""

    flags: Mapping[str, Any] | None = None
    voices: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    guards: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = None
    auth_header: str | None = None
    healthy: str = ""
    previous_guards: tuple[str, ...] | None = None
    modes: Mapping[str, int] = field(default_factory=dict)
    owner: str = ""


@dataclass(frozen=True)
class Plan:
    """What to write. ``flags`` hold the key in the clear (or TO_BE_GENERATED): show ``api_key.mask`` of them."""

    actions: tuple[Action, ...]
    flags: Mapping[str, Any]
    voices: Mapping[str, str]
    reasons: tuple[dict[str, Any], ...]
    guard_file: str
    stale_guards: tuple[str, ...]
    keep_previous: bool
    has_previous: bool
    diff: tuple[dict[str, str], ...]
    write_file: bool


def guard_module(guard: str) -> str:
    """The module name of a guard text: content in the name, so that a running engine's guard is never written over."""
    return f"voices_guard_{hashlib.sha256(guard.encode()).hexdigest()[:8]}"


def guard_files(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """The guard files that ``flags`` refer to."""
    entries = flags.get("middleware") or []
    names = [f"{str(entry).partition('.')[0]}.py" for entry in (entries if isinstance(entries, list) else [entries])]
    return tuple(name for name in names if is_guard_file(name))


def is_guard_file(name: str) -> bool:
    """Whether a file beside engine.yaml is one of ours to remove."""
    return _GUARD_FILE.fullmatch(name) is not None


def _flag_error(flag: Any) -> str | None:
    if not isinstance(flag, str) or not _FLAG.fullmatch(flag):
        return f"flag {flag!r} is not written in kebab-case (max-model-len, not max_model_len)"
    if flag in REFUSED_FLAGS:
        return f"flag {flag} is refused: {REFUSED_FLAGS[flag]}"
    for owned, instead in OWNED_FLAGS.items():
        if owned.startswith(flag):  # vLLM's parser takes abbreviations
            return f"flag {flag} is not yours to set: {instead}"
    return None


def check(desired: Desired, present: Present, path: str, api_key_file: str) -> None:
    """Refuse what cannot be written; raises one VoicesError with every complaint."""
    errors = [_flag_error(flag) for flag in desired.flags]
    errors += [voice_name_error(name) for name in (*desired.voices, *desired.gone)]
    errors += [f"voice {name} is both present and gone" for name in sorted({*desired.voices} & {*desired.gone})]
    errors += [
        f"deployed voice {name} left the inventory (it stands in {path}): set state: retired or absent"
        for name in sorted(set(present.voices) - {*desired.voices} - {*desired.gone})
    ]
    if desired.api_key:
        errors.append(key_error(desired.api_key, "api_key"))
    elif present.api_key is not None:
        errors.append(key_error(present.api_key, f"the key in {api_key_file}"))
    found = [error for error in errors if error]
    if found:
        raise VoicesError("; ".join(found))


def _wanted_flags(desired: Desired, present: Present) -> dict[str, Any]:
    flags = {flag: normalise(value) for flag, value in desired.flags.items() if value is not None}
    flags["max-loras"], flags["max-cpu-loras"] = slots(
        len(desired.voices), desired.max_loras, desired.max_cpu_loras, present.flags or {}
    )
    flags["middleware"] = [f"{guard_module(desired.guard)}.SeatGuard"]
    # A lost key file is written again from engine.yaml: a new key would restart the seat and lock its clients out.
    key = desired.api_key or present.api_key or (present.flags or {}).get("api-key")
    key = key or (TO_BE_GENERATED if desired.generate_api_key else None)
    if key:
        flags["api-key"] = key
    return flags


def plan(desired: Desired, present: Present, *, path: str, api_key_file: str) -> Plan:
    """Desired x present -> what to write. Raises VoicesError for what is refused (see ``check`` and ``slots``)."""
    check(desired, present, path, api_key_file)
    flags = _wanted_flags(desired, present)
    before, after = mask(present.flags or {}), mask(flags)
    changed = [flag for flag in sorted({*before, *after}) if not same(before.get(flag), after.get(flag))]
    new_file = present.flags is None
    reasons = [] if new_file else [{"flag": f, "before": before.get(f), "after": after.get(f)} for f in changed]
    dropped = _dropped(desired.gone if reasons else (), present)
    voices = {name: adapter for name, adapter in present.voices.items() if name not in dropped}

    guard_file = f"{guard_module(desired.guard)}.py"
    keep_previous = bool(reasons) and present.healthy == flags_sha256(mask(present.flags or {}))
    stale = _stale_guards(present, {guard_file}, keep_previous) if reasons else ()

    actions = [
        *_guard_actions(desired, present, guard_file),
        *key_actions(flags.get("api-key"), present.api_key, present.auth_header),
    ]
    if new_file:
        actions.append(Action("create", "engine.yaml"))
    actions += [
        Action("write", "engine.yaml", why=str(r["flag"]), before=r["before"], after=r["after"]) for r in reasons
    ]
    actions += [Action("drop", name, why=why, before=present.voices[name]) for name, why in dropped.items()]
    actions += [
        Action("write", what, why="mode", before=f"{mode:04o}", after="0600")
        for what, mode in sorted(present.modes.items())
        if mode != 0o600 and not any(action.what == what for action in actions)
        if what == "engine.yaml" or "api-key" in flags  # without a key, its files are not ours to write
    ]
    if desired.owner and present.owner and desired.owner != present.owner:
        actions.append(Action("write", "engine.yaml", why="owner", before=present.owner, after=desired.owner))
    actions += [Action("remove", "guard", why="nothing refers to it", before=name) for name in stale]

    old_text = "" if new_file else render(before, present.voices)
    new_text = render(after, voices)
    return Plan(
        actions=tuple(actions),
        flags=flags,
        voices=voices,
        reasons=tuple(reasons),
        guard_file=guard_file,
        stale_guards=stale,
        keep_previous=keep_previous,
        has_previous=keep_previous or present.previous_guards is not None,
        # A file that only differs in comments or order is left alone, and so is its diff.
        diff=tuple(text_diff(path, old_text, new_text)) if new_file or reasons or dropped else (),
        write_file=new_file or bool(reasons or dropped) or any(action.what == "engine.yaml" for action in actions),
    )


def _dropped(gone: Collection[str], present: Present) -> dict[str, str]:
    """Voices that must not stand in a file that an engine is about to start from, and why."""
    reasons: dict[str, str] = {}
    for name in sorted(present.voices):
        if name in gone:
            reasons[name] = "retired or absent"
        elif name in present.missing:
            reasons[name] = "its directory holds no adapter, which would stop the engine at its start"
    return reasons


def _stale_guards(present: Present, wanted: set[str], keep_previous: bool) -> tuple[str, ...]:
    now = set(guard_files(present.flags or {}))  # the running engine's
    previous = now if keep_previous else set(present.previous_guards or ())
    return tuple(sorted(set(present.guards) - wanted - now - previous))


def _guard_actions(desired: Desired, present: Present, guard_file: str) -> list[Action]:
    if present.guards.get(guard_file) == desired.guard:
        return []
    if guard_file in present.guards:
        return [Action("write", "guard", why="its content is not what its name says", after=guard_file)]
    old = guard_files(present.flags or {})
    return [Action("write" if old else "create", "guard", before=old[0] if old else None, after=guard_file)]
