"""What of a compose.yaml nobody may read in a diff, a plan or a message. Pure.

A value is secret by its key: KEY, TOKEN, PASSWORD or SECRET in it, or named by the inventory. A key that ends in FILE,
PATH or DIR says where a secret lies, and is none. Each secret is shown as a short digest, so that a change shows.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .masking import looks_secret, shown_argv
from .plan import VoicesError

_PLACE = re.compile(r"_(FILE|PATH|DIR)$", re.IGNORECASE)
_SHORTEST = 6  # a shorter value would blank ordinary words wherever they stand; it is masked behind its key only
# Behind | and > the value stands on the next lines.
_LINE = r"(?<![A-Za-z0-9_]){key}[\"']?\s*[:=][ \t]*(?=[^\s|>])"
_ANY_KEY = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)[\"']?\s*[:=][ \t]*(?=\S)")


def is_secret_key(key: str, named: Collection[str] = ()) -> bool:
    """Whether the value behind this key is a secret; ``named``: further keys that are."""
    return key in named or (looks_secret(key) and not _PLACE.search(key))


@dataclass(frozen=True)
class Secrets:
    """The secrets of one run: ``named`` keys, and the ``values`` that were found."""

    named: frozenset[str] = frozenset()
    values: frozenset[str] = field(default=frozenset(), repr=False)

    def shown(self, what: str, value: str | None) -> str | None:
        """A field's value as it may be printed; ``what`` is ``environment KEY``, ``command`` or any other field."""
        if not value:
            return value
        if what.startswith("environment ") and is_secret_key(what.partition(" ")[2], self.named):
            return digest(value)
        return self.conceal(_without_options(value) if what in ("command", "entrypoint") else value)

    def conceal(self, text: str) -> str:
        """``text`` with every known secret in it replaced by its digest."""
        for value in sorted(self.values, key=len, reverse=True):
            text = text.replace(value, digest(value))
        return text

    def with_environment(self, environment: Mapping[str, str | None]) -> Secrets:
        """These, and the secrets of an environment."""
        found = {value for key, value in environment.items() if value and is_secret_key(key, self.named)}
        return Secrets(self.named, self.values | {value for value in found if len(value) >= _SHORTEST})


def digest(value: str) -> str:
    """A secret as it is shown."""
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def _without_options(command: str) -> str:
    try:
        return shown_argv(shlex.split(command))
    except ValueError:  # not a command line that a shell would take
        return command


class MaskedText:
    """A compose.yaml as it may be shown, and the secrets that stand in it."""

    def __init__(self, text: str, named: Collection[str], parse: Callable[[str], Any]) -> None:
        """``parse`` reads YAML and raises ValueError for what is none: then every line is masked by its key alone."""
        self.named = named
        try:
            pairs = list(_scalars(parse(text)))
        except ValueError:
            pairs = [(found[1], "") for line in text.splitlines() for found in _ANY_KEY.finditer(line)]
        secret = [(key, value) for key, value in pairs if is_secret_key(key, named)]
        self.keys = {key for key, _ in secret}
        lines = {line.strip() for _, value in secret for line in value.splitlines()}
        self.values = {line for line in lines if len(line) >= _SHORTEST}
        self.text = "".join(self._masked(line) for line in text.splitlines(keepends=True))

    def _masked(self, line: str) -> str:
        body = line.rstrip("\n")
        for key in self.keys:
            found = re.search(_LINE.format(key=re.escape(key)), body)
            if found:
                body = body[: found.end()] + digest(body[found.end() :])
        for value in sorted(self.values, key=len, reverse=True):
            body = body.replace(value, digest(value))
        return body + line[len(line.rstrip("\n")) :]


def _scalars(data: Any) -> Iterator[tuple[str, str]]:
    """(key, value) of every scalar behind a key, and of every ``KEY=value`` in a list."""
    if isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, dict | list):
                yield from _scalars(value)
            elif value is not None:
                yield str(key), str(value)
    elif isinstance(data, list):
        for value in data:
            if isinstance(value, str) and "=" in value:
                key, _, text = value.partition("=")
                yield key, text
            elif isinstance(value, dict | list):
                yield from _scalars(value)


def check_named(named: Collection[str]) -> None:
    """Refuse a name that can be no environment key."""
    wrong = [name for name in named if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]
    if wrong:
        raise VoicesError(f"secret_environment {', '.join(map(repr, wrong))}: names of environment keys are needed")
