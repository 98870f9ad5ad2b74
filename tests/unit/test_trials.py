"""The engine that runs is asked for its trials with what it was started with, not with what engine.yaml says next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from ansible.module_utils.voices.api_key import mask
from ansible.module_utils.voices.engine_directory import EngineDirectory
from ansible.module_utils.voices.flags import flags_sha256
from ansible.module_utils.voices.trials import live_trials, running_url

OLD_KEY, NEW_KEY = "the-key-that-the-engine-has", "the-key-of-the-next-start"


class Seat(BaseHTTPRequestHandler):
    """A seat that takes the old key alone and serves a voice and a trial."""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == f"Bearer {OLD_KEY}"
        cards = [
            {"id": "voices-base"},
            *({"id": n, "root": f"/{n}", "parent": "voices-base"} for n in ("lv-a", "lv-t")),
        ]
        body = json.dumps({"data": cards} if allowed else {"error": "Unauthorized"}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Seat)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def directory(root: Path, now: dict[str, Any], previous: dict[str, Any], healthy: dict[str, Any]) -> EngineDirectory:
    """A seat's engine directory with these flags, and a note that says which of them were healthy."""
    made = EngineDirectory(str(root / "engine/engine.yaml"))
    made.path.parent.mkdir()
    made.healthy.parent.mkdir(parents=True)
    made.path.write_text(yaml.safe_dump({**now, "lora-modules": ["lv-a=/lv-a"]}))
    if previous:
        made.previous.write_text(yaml.safe_dump(previous))
    if healthy:
        made.healthy.write_text(json.dumps({"config_sha256": flags_sha256(mask(healthy))}))
    return made


def test_the_running_flags_are_those_that_were_healthy(tmp_path: Path) -> None:
    now, previous = {"port": 2, "api-key": NEW_KEY}, {"port": 1, "api-key": OLD_KEY}
    for number, (noted, expected) in enumerate([(previous, previous), (now, now), ({}, now), ({"port": 9}, now)]):
        root = tmp_path / str(number)
        root.mkdir()
        assert directory(root, now, previous, noted).running_flags() == expected


def test_without_files_there_are_no_flags_and_a_torn_previous_file_is_none(tmp_path: Path) -> None:
    empty = EngineDirectory(str(tmp_path / "engine/engine.yaml"))
    assert empty.running_flags() == {}
    made = directory(tmp_path, {"port": 2}, {}, {})
    made.previous.write_text("[]")
    assert made.running_flags() == {"port": 2}


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://127.0.0.1:8027", "http://127.0.0.1:8028"), ("http://[::1]:8027", "http://[::1]:8028")],
)
def test_the_running_engine_is_asked_on_its_own_port(url: str, expected: str) -> None:
    assert running_url(url, {"port": 8028}) == expected
    assert running_url(url, {}) == url


def test_a_trial_is_seen_while_engine_yaml_has_the_next_port_and_key(port: int, tmp_path: Path) -> None:
    old = {"port": port, "api-key": OLD_KEY}
    made = directory(tmp_path, {"port": 1, "api-key": NEW_KEY}, old, old)
    assert live_trials("http://127.0.0.1:1", "voices-base", made, {}, [], 5) == ({"lv-t": "/lv-t"}, "")


def test_a_seat_that_takes_no_known_key_is_no_error_and_keys_are_not_shown(port: int, tmp_path: Path) -> None:
    made = directory(tmp_path, {"port": port, "api-key": NEW_KEY}, {}, {})
    found, why = live_trials("http://127.0.0.1:1", "voices-base", made, {}, [], 5)
    assert found == {}
    assert "401" in why
    assert NEW_KEY not in why


def test_a_seat_that_does_not_run_has_no_trials(tmp_path: Path) -> None:
    made = directory(tmp_path, {"port": 1}, {}, {})
    assert live_trials("http://127.0.0.1:1", "voices-base", made, {}, [], 5) == ({}, "")
