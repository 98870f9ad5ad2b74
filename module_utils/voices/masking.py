"""Environments, command lines and texts as they may be printed: without the secrets in them. Pure."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .engine_argv import parse_command
from .flags import SECRET_FLAGS, masked_secret

_SECRET_WORD = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
_SECRET_FLAG = re.compile(r"(^|-)(key|token|password|secret)s?$")
_SHORTEST_MASKED = 6  # masking a shorter value would blank ordinary words out of every message


def looks_secret(key: str) -> bool:
    """Whether an environment key names a secret (KEY, TOKEN, PASSWORD, SECRET)."""
    return bool(_SECRET_WORD.search(key.upper()))


def shown_value(key: str, value: str | None) -> str | None:
    """An environment value as it may be printed."""
    if value is None or not looks_secret(key):
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def shown_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment as it may be printed."""
    return {key: shown_value(key, value) if isinstance(value, str) else value for key, value in environment.items()}


def shown_argv(argv: Sequence[str]) -> str:
    """A command line as it may be printed: the values of secret options are masked."""
    parts: list[str] = []
    hide = False
    for part in argv:
        name, equals, value = part.partition("=")
        secret = part.startswith("-") and _is_secret_flag(name.lstrip("-").replace("_", "-"))
        if secret and equals:
            parts.append(f"{name}={masked_secret(value)}")
        elif hide and not part.startswith("--"):
            parts.append(masked_secret(part))
            continue  # an option may take several values
        else:
            parts.append(part)
        hide = secret and not equals
    return shlex.join(parts)


def secret_values(
    environment: Mapping[str, Any], config: Mapping[str, Any] | None, argv: Sequence[str] = ()
) -> set[str]:
    """The values that no message may hold."""
    found = [value for key, value in environment.items() if looks_secret(key)]
    for flags in (config or {}, parse_command(argv).flags):
        for key, value in flags.items():
            if _is_secret_flag(str(key).replace("_", "-")):
                found += value if isinstance(value, list) else [value]
    return {str(value) for value in found if len(str(value)) >= _SHORTEST_MASKED}


def mask_text(text: str, secrets: Iterable[str]) -> str:
    """``text`` with each secret replaced by ``***``."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _is_secret_flag(name: str) -> bool:
    return name in SECRET_FLAGS or bool(_SECRET_FLAG.search(name))
