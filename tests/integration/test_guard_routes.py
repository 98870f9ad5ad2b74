"""Every route that the real engine registers, asked with and without the key: only what a seat needs is open."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible.module_utils.voices.names import BASE_MODEL

from tests.support.live_engine import LiveEngine, engine_python, error_message

KEYLESS = ("/health", "/metrics", "/ping", "/version")
KEYED = {
    "/v1/models": "GET",
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
    "/v1/load_lora_adapter": "POST",
    "/v1/unload_lora_adapter": "POST",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
REFUSAL = "This seat does not serve this path"


def registered(engine: LiveEngine) -> dict[str, set[str]]:
    """Path -> methods as the running engine lists them in its log at its start."""
    routes: dict[str, set[str]] = {}
    for path, methods in re.findall(r"Route: (/\S*), Methods: ([A-Z, ]+)", engine.log.read_text()):
        routes.setdefault(path, set()).update(re.split(r",\s*", methods.strip()))
    return routes


def declared() -> dict[str, set[str]]:
    """Path -> methods of every route decorator in vLLM's source: also those of other tasks and of developer mode."""
    found: dict[str, set[str]] = {}
    sources = [path for path in engine_python().parent.parent.glob("lib/python3*/site-packages/vllm/entrypoints")]
    assert sources, "vLLM's source is not where it was"
    decorator = re.compile(r'@\w*(?:router|app)\.(get|post|put|delete|patch|websocket)\(\s*"(/[^"]*)"')
    for file in sources[0].rglob("*.py"):
        for method, path in decorator.findall(file.read_text()):
            found.setdefault(path, set()).add("GET" if method == "websocket" else method.upper())
    return found


def filled(path: str) -> str:
    """A path with its parameters put in."""
    return re.sub(r"\{[^}]*\}", "lv-austen", path)


def expected(path: str, method: str, with_key: bool) -> set[int]:
    if path in KEYLESS and method == "GET":
        return {200}
    if path in KEYLESS and method == "HEAD":
        return {200, 405}  # vLLM has no HEAD of its own for most
    if KEYED.get(path) == method:
        return {200, 400, 422} if with_key else {401}  # an empty body is no valid request
    return {404}


def ask(engine: LiveEngine, path: str, method: str, with_key: bool) -> str | None:
    """What is wrong with the answer, None when nothing."""
    status, body = engine.request(method, filled(path), key=engine.key if with_key else None)
    allowed = expected(path, method, with_key)
    if status not in allowed:
        return f"{method} {path} with{'' if with_key else 'out'} key: {status}, expected {sorted(allowed)}"
    if allowed == {404} and method != "HEAD" and REFUSAL not in error_message(body):
        return f"{method} {path} with{'' if with_key else 'out'} key: 404 from behind the guard: {body[:100]!r}"
    return None


def test_the_engine_lists_the_routes_that_need_closing(engine: LiveEngine) -> None:
    routes = registered(engine)
    assert len(routes) > 30, sorted(routes)
    assert {"/adapters", "/adapters/{adapter_name}", "/invocations", "/tokenize", "/load", "/docs"} <= set(routes)
    assert {*KEYLESS, *KEYED} <= set(routes)


@pytest.mark.parametrize("with_key", [False, True], ids=["without key", "with key"])
def test_only_what_a_seat_needs_is_open(engine: LiveEngine, with_key: bool) -> None:
    routes = {**declared(), **registered(engine)}
    assert len(routes) > 60, sorted(routes)
    wrong = [ask(engine, path, method, with_key) for path in sorted(routes) for method in METHODS]
    assert [problem for problem in wrong if problem] == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/",
        "//v1/models",
        "/v1//models",
        "/v1/./models",
        "/health/",
        "/healthz",
        "/metrics/",
        "/metricsx",
        "/metrics/../adapters",
        "/health/../adapters",
        "/health%2f..%2fadapters",
        "/%61dapters",
        "/adapters%00",
        "/adapters;/health",
        "/adapters?path=/health",
        "/V1/models",
        "/static/x",
    ],
)
def test_no_other_spelling_gets_through(engine: LiveEngine, path: str) -> None:
    for method in ("GET", "POST"):
        status, body = engine.request(method, path, key=engine.key)
        assert (status, REFUSAL in error_message(body)) == (404, True), (method, path, status, body[:200])


def test_an_absolute_address_reaches_no_more(engine: LiveEngine) -> None:
    status, _ = engine.request("POST", f"{engine.base_url}/adapters", key=engine.key)
    assert status in (400, 404)


def test_a_websocket_is_not_accepted(engine: LiveEngine) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for path in ("/v1/realtime", "/v1/models", "/health"):
        status, _ = engine.request("GET", path, key=engine.key, headers=upgrade)
        assert status == 403, (path, status)


def test_an_adapter_cannot_be_loaded_around_the_key(engine: LiveEngine) -> None:
    """What the unguarded engine does: POST /adapters {"name", "src"} loads any directory without the key."""
    import http.client

    path = engine.adapter("lv-austen", "v1")
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=30)
    body = json.dumps({"name": "lv-intruder", "src": path})
    connection.request("POST", "/adapters", body=body, headers={"Content-Type": "application/json"})
    assert connection.getresponse().status == 404
    connection.close()
    assert engine.api().adapters(BASE_MODEL) == {}


def test_the_key_is_in_no_log_command_line_or_environment(engine: LiveEngine) -> None:
    assert engine.key not in engine.log.read_text()
    for name in ("cmdline", "environ"):
        assert engine.key.encode() not in Path(f"/proc/{engine.pid}/{name}").read_bytes()
