"""The parts of the client that need no supervisord: the lock, the health question, reading what is not there."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.service import Actual, Spec
from ansible.module_utils.voices.service_client import ServiceClient
from ansible.module_utils.voices.service_health import ask


def client_of(directory: Path, state: str = "started") -> ServiceClient:
    return ServiceClient(Spec(name="tiny", directory=str(directory), state=state), yaml.safe_load, wrapper="")


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers each path with the status it names."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.strip("/?")))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


def test_only_200_is_health_and_proxies_are_ignored(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ask(f"{server}/200") == ""
    assert ask(f"{server}/503") == f"{server}/503 answers 503"
    assert ask(f"{server}/302") == f"{server}/302 answers 302"
    assert "does not answer" in ask("http://127.0.0.1:1/health")


def test_reading_and_locking_what_does_not_exist_makes_nothing(tmp_path: Path) -> None:
    client = client_of(tmp_path / "service", "stopped")
    with client.directory.lock(0):
        assert client.read() == Actual(files={"supervisord.conf": None, "service_run.py": None})
    assert list(tmp_path.iterdir()) == []


def test_the_lock_excludes_and_says_so(tmp_path: Path) -> None:
    client = client_of(tmp_path / "service")
    refused = pytest.raises(VoicesError, match=r"another run has held .*/service/\.lock for 0\.1 s")
    with client.directory.lock(0), refused, client.directory.lock(0.1):
        pass
    with client.directory.lock(0):
        pass


def test_a_lock_in_a_removed_directory_guards_nothing(tmp_path: Path) -> None:
    client, entered, leave = client_of(tmp_path / "service"), threading.Event(), threading.Event()

    def wait_and_hold() -> None:
        with client.directory.lock(10):
            entered.set()
            leave.wait(10)

    with client.directory.lock(0):
        waiting = threading.Thread(target=wait_and_hold)
        waiting.start()
        assert not entered.wait(0.3)  # it has the old lock file open
        shutil.rmtree(client.spec.directory)
    assert entered.wait(5)
    try:
        with pytest.raises(VoicesError, match="another run"), client.directory.lock(0.1):
            pass
    finally:
        leave.set()
        waiting.join()


def test_a_missing_wrapper_is_named(tmp_path: Path) -> None:
    client = ServiceClient(
        Spec(name="tiny", directory=str(tmp_path)), yaml.safe_load, wrapper_source="/nonexistent/run.py"
    )
    with pytest.raises(VoicesError, match=r"wrapper_source /nonexistent/run\.py does not exist on this host"):
        client.desired_files()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("booted.json", '{"group": "x"}'),
        ("booted.json", '{"argv": 5}'),
        ("booted.json", '{"argv": [1]}'),
        ("booted.json", '{"environment": ["A"]}'),
        ("booted.json", '{"environment": {"A": 1}}'),
        ("booted.json", "[]"),
        ("members.json", '{"members": 5}'),
        ("members.json", '{"members": [[1, 2]]}'),
        ("launch.json", "garbage{"),
    ],
)
def test_a_note_that_the_wrapper_did_not_write_is_no_traceback(tmp_path: Path, name: str, text: str) -> None:
    client = client_of(tmp_path / "service", "stopped")
    (tmp_path / "service/run").mkdir(parents=True)
    note = json.loads(text) if text.endswith("}") and name == "booted.json" else None
    if isinstance(note, dict):  # whole, but for what is spoilt
        text = json.dumps(
            {"pid": 1, "start_time": 1, "boot_id": "b", "argv": [], "environment": {}, "group": 1, **note}
        )
    (tmp_path / "service/run" / name).write_text(text)
    assert client.read().alive is False
