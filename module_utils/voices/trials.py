"""Which trials an engine serves that is about to be restarted. Reads only.

By then engine.yaml may hold the port and the key of the next start. The engine that runs has those of the file that was
last healthy, and it is asked with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from . import adapters as core
from .engine_directory import EngineDirectory
from .seat_api import SeatApi, SeatError, SeatUnreachable


def running_url(base_url: str, flags: Mapping[str, Any]) -> str:
    """``base_url`` with the port that the running engine's ``flags`` name."""
    parts = urlsplit(base_url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(netloc=f"{host}:{flags.get('port', parts.port)}").geturl()


def live_trials(
    base_url: str,
    base_model: str,
    directory: EngineDirectory,
    voices: Mapping[str, str],
    absent: Collection[str],
    timeout_s: float,
) -> tuple[dict[str, str], str]:
    """(trials by name with their paths, why they cannot be seen).

    Nothing answers: nothing runs, and there is nothing to lose. Raises VoicesError for an unreadable engine.yaml.
    """
    flags = directory.running_flags()
    key = flags.get("api-key")
    source = f"the engine file that was last healthy, in {directory.path.parent}"
    seat = SeatApi(running_url(base_url, flags), str(key) if key else None, key_source=source, timeout_s=timeout_s)
    try:
        live = seat.adapters(base_model)
    except SeatUnreachable:
        return {}, ""
    except SeatError as error:
        return {}, str(error)
    finally:
        seat.close()
    found = directory.read_engine_file()
    wanted = core.Wanted(voices, tuple(absent))
    return core.trials(wanted, core.Actual(live, found[1] if found else {})), ""
