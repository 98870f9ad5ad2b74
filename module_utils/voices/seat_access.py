"""How a module reaches a seat: through the options ``base_url``, ``api_key_file`` and ``timeout_s``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .engine_directory import read_key
from .seat_api import SeatApi


def open_seat(params: Mapping[str, Any]) -> SeatApi:
    """The client for the seat that a module's parameters name. A key file that is not there means no key.

    Raises VoicesError for a key file that holds no key, OSError for one that cannot be read.
    """
    key_file = params["api_key_file"] or ""
    key = read_key(Path(key_file)) if key_file else None
    return SeatApi(params["base_url"], key, key_source=key_file, timeout_s=params["timeout_s"])
