"""Reads an engine's source and a carrier's config and gives the answers, from the cache where nothing changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .carrier_client import read_config
from .engine_source import Source, directory_source, engine_platform, engine_version, python_source
from .lora_support import UNKNOWN, judge
from .lora_support_cache import Cache, file_digest
from .lora_support_carrier import Carrier, carrier_from
from .lora_support_engine import Engine
from .lora_support_flags import Options, UnknownFlag, unknown_flags
from .plan import VoicesError
from .source_tree import collection_paused


@dataclass(frozen=True)
class Place:
    """Where the engine's source is: one of the three. ``docker_host`` is asked for an image."""

    directory: str = ""
    python: str = ""
    image: str = ""
    docker_host: str = "unix:///var/run/docker.sock"


def read_carrier_facts(directory: Path) -> Carrier:
    """What config.json says. Raises VoicesError when it cannot be read."""
    path = directory / "config.json"
    try:
        config = read_config(directory)
    except FileNotFoundError:
        raise VoicesError(f"{path} is not there: carrier must be the directory of a model") from None
    except ValueError as error:
        raise VoicesError(f"{directory}: {error}") from None
    return carrier_from(config, str(path))


@contextlib.contextmanager
def opened(place: Place) -> Iterator[tuple[Source, str]]:
    """(source, an id that changes with any byte of it or ""). Raises VoicesError without vLLM there."""
    if place.image:
        from .engine_source_image import image_source

        with image_source(place.image, place.docker_host) as source:
            yield source, source.digest
    elif place.python:
        yield python_source(Path(place.python)), ""
    else:
        yield directory_source(Path(place.directory)), ""


def ask(
    place: Place, carrier: Carrier, flags: Sequence[str], *, platform: str = "", cache: Path | None = None, write: bool
) -> dict[str, Any]:
    """The verdict, ``unknown_flags`` and ``cached``. Raises VoicesError for what cannot be read."""
    with opened(place) as (source, image_id), collection_paused():
        version = "" if image_id else engine_version(source)
        known_by = image_id or f"{source.where} {version} {engine_platform(source, version)}"
        keeper = Cache(cache, known_by, write=write)
        digests = (lambda path: "") if image_id else file_digest(source)
        engines: list[Engine] = []

        def engine() -> Engine:
            if not engines:
                engines.append(Engine(source, platform))
            return engines[0]

        def used() -> dict[str, str]:
            return {} if image_id else dict(engine().tree.used)

        questions = 1 + bool(flags)
        answer = keeper.answer(
            {"lora": carrier.facts(), "platform": platform},
            digests,
            lambda: (judge(engine(), carrier).as_dict(), used()),
        )
        found: list[dict[str, str]] = []
        if flags:
            found = keeper.answer(
                {"flags": sorted(flags)},
                digests,
                lambda: ([asdict(one) for one in unknown_flags(Options(engine()), sorted(flags))], used()),
            )
        unknown = [UnknownFlag(**one) for one in found]
        shown = [{**asdict(one), "message": one.line()} for one in unknown]
        return {**answer, "unknown_flags": shown, "cached": keeper.hits == questions}


def message(answer: Mapping[str, Any], engine: str) -> str:
    """The verdict in words."""
    name = f"vLLM {answer['engine_version'] or 'of unknown version'} ({engine})"
    what = answer["architecture"]
    at = f" ({answer['file']}:{answer['line']})" if answer["file"] else ""
    if answer["supported"]:
        through = " through the Transformers backend" if answer["backend"] == "transformers" else ""
        return f"{name} takes LoRA on {what}{through}: {answer['reason']}{at}"
    if answer["verdict"] == UNKNOWN:
        return (
            f"whether {name} takes LoRA on {what} cannot be read from its source: {answer['reason']}. Start a seat "
            "without voices to find out, and set strict: false if it does"
        )
    return (
        f"{name} takes no LoRA on {what}: {answer['reason']}{at}. No voice can speak there: choose another carrier, or "
        "a version of vLLM whose class of it derives from SupportsLoRA"
    )
