"""Finds what looks like a secret in plain data that is about to be written where others read it. Pure.

It is the last of several nets: modules mask their secrets themselves. It goes by names (``api-key``, ``HF_TOKEN``), by
lines ``name: value`` and ``name=value`` inside texts, by ``--name value`` in argument lists, by bearer headers and by
passwords in URLs. A secret under an innocent name is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_TOKEN_WORDS = frozenset({"token", "tokens"})
_SECRET_WORDS = frozenset(
    {
        "apikey", "apikeys", "authorization", "bearer", "credential", "credentials", "passphrase", "passwd",
        "password", "passwords", "secret", "secrets",
    }
)  # fmt: skip
#: A ``key`` alone is a name or an identifier; after one of these words it is a secret.
_KEY_OWNERS = frozenset({"access", "api", "master", "private", "salt", "signing"})
#: ``api_key_file`` says where a secret lies, and is none.
_PLACES = frozenset({"dir", "directory", "file", "path"})
_DIGEST_ENDINGS = ("digest", "sha256")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_DIGEST = re.compile(r"sha256:[0-9a-f]{8,64}")
_BARE_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{8,64}")
#: What stands for a value: an empty one, a YAML constant, or words in brackets such as "(to be generated)".
_STAND_IN = re.compile(r"|null|none|~|true|false|yes|no|\([a-z ]+\)", re.IGNORECASE)
_LINE = re.compile(r"""^[ \t]*(?:- +)?["']?-{0,2}([A-Za-z][\w.-]*)["']?[ \t]*[:=][ \t]*(\S.*?)[ \t]*$""", re.MULTILINE)
_BEARER = re.compile(r"\bBearer +(?!sha256:)([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")


@dataclass(frozen=True)
class Leak:
    """A value that looks secret: ``where`` it stands, for the message, and the value, to be masked everywhere."""

    where: str
    value: str


def words_of(name: str) -> list[str]:
    """``HF_TOKEN``, ``hf-token`` and ``hfToken`` are all ``hf token``."""
    return [word.lower() for word in _WORD.findall(name)]


def looks_secret(name: str) -> bool:
    """Whether a value under this name should be a secret: ``api-key`` and ``hf_token``, not ``tokenizer``."""
    words = words_of(name)
    if not words or words[-1] in _PLACES:
        return False
    return _has_secret_word(words) or not _TOKEN_WORDS.isdisjoint(words)


def _has_secret_word(words: Sequence[str]) -> bool:
    owned_key = any(first in _KEY_OWNERS and second in {"key", "keys"} for first, second in pairwise(words))
    return owned_key or not _SECRET_WORDS.isdisjoint(words)


def may_stand_under(name: str, value: Any) -> bool:
    """Whether this leaf may be shown under a name that looks secret: a digest, a stand-in, a count of tokens."""
    if value is None or isinstance(value, bool):
        return True
    text = str(value)
    words = words_of(name)
    digest = _BARE_DIGEST if name.lower().endswith(_DIGEST_ENDINGS) else _DIGEST
    if digest.fullmatch(text) or _STAND_IN.fullmatch(text):
        return True
    # max-num-batched-tokens and long-prefill-token-threshold are counts; hf-token is none, whatever it is made of.
    counts = words[-1] != "token" and not _has_secret_word(words)
    return counts and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) is not None


def find_leaks(value: Any, where: str = "") -> Iterator[Leak]:
    """Every value in ``value`` (nested dicts, lists, leaves) that looks secret."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            place = f"{where}.{key}" if where else str(key)
            yield from _below(str(key), inner, place) if looks_secret(str(key)) else find_leaks(inner, place)
        yield from _named_change(value, where)
    elif isinstance(value, str):
        yield from _in_text(value, where)
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from find_leaks(inner, f"{where}[{index}]")
            follower = value[index + 1] if index + 1 < len(value) else None
            if _is_option(inner) and looks_secret(inner) and not _is_option(follower):
                yield from _below(inner, follower, f"{where}[{index + 1}]")


def _below(name: str, value: Any, where: str) -> Iterator[Leak]:
    """The leaves below a name that looks secret."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _below(name, inner, f"{where}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from _below(name, inner, f"{where}[{index}]")
    elif not may_stand_under(name, value):
        yield Leak(where, str(value))


def _named_change(change: Mapping[str, Any], where: str) -> Iterator[Leak]:
    """A change names its value beside it: ``{flag: api-key, before: ..., after: ...}``."""
    names = [change.get(field) for field in ("flag", "name", "what", "why")]
    for name in names:
        # One or two words that end in a secret's name; a sentence that mentions a token is no name.
        if isinstance(name, str) and len(name.split()) <= 2 and looks_secret(name) and looks_secret(_tail(name)):
            for field in ("before", "after", "value"):
                yield from _below(name, change.get(field), f"{where}.{field}" if where else field)


def _tail(name: str) -> str:
    words = words_of(name)
    return " ".join(words[-2:] if words[-1] in {"key", "keys"} else words[-1:])


def _in_text(text: str, where: str) -> Iterator[Leak]:
    for name, value in _LINE.findall(text):
        bare = value.strip("\"'")
        if looks_secret(name) and not may_stand_under(name, bare):
            yield Leak(f"{where} ({name})", bare)
    for pattern, what in ((_BEARER, "a bearer header"), (_URL_PASSWORD, "a password in a URL")):
        for found in pattern.findall(text):
            yield Leak(f"{where} ({what})", found)


def _is_option(item: Any) -> bool:
    return isinstance(item, str) and item.startswith("--") and "=" not in item
