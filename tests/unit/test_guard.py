"""The guard alone, as an ASGI application around one that says yes to everything."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GUARD = Path(__file__).resolve().parents[2] / "roles/voices_seat/files/voices_guard.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("voices_guard", GUARD)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guard = load()


def run(scope: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """(what was sent, whether the application inside was reached)."""
    sent: list[dict[str, Any]] = []
    reached = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    async def receive() -> dict[str, Any]:
        raise AssertionError("the guard reads no body")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(guard.SeatGuard(inside)(scope, receive, send))
    return sent, bool(reached)


def http(method: str, path: str, **others: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": [], **others}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[(method, path) for path in ("/health", "/metrics", "/ping", "/version") for method in ("GET", "HEAD")],
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
    ],
)
def test_what_a_seat_needs_passes(method: str, path: str) -> None:
    assert run(http(method, path)) == ([], True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/adapters"),
        ("DELETE", "/adapters/lv-austen"),
        ("POST", "/invocations"),
        ("POST", "/tokenize"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/load"),
        ("GET", "/"),
        ("GET", ""),
        ("POST", "/v1/responses"),
        ("POST", "/v1/embeddings"),
        # methods
        ("POST", "/ping"),
        ("POST", "/health"),
        ("POST", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/load_lora_adapter"),
        ("OPTIONS", "/health"),
        ("OPTIONS", "/v1/chat/completions"),
        ("TRACE", "/health"),
        ("get", "/health"),
        # spellings
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/./health"),
        ("GET", "/health/../health"),
        ("GET", "/v1//models"),
        ("GET", "/V1/models"),
        ("GET", "/v1/models\x00"),
        ("GET", " /health"),
        ("GET", "/metricsx"),
        ("GET", "health"),
        ("GET", "/health?x"),
    ],
)
def test_everything_else_is_not_found(method: str, path: str) -> None:
    sent, reached = run(http(method, path))
    assert not reached
    start, body = sent
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (404, b"application/json")
    if method == "HEAD":
        assert body["body"] == b""
    else:
        assert len(body["body"]) == int(dict(start["headers"])[b"content-length"])
        error = json.loads(body["body"])["error"]
        assert (error["type"], error["code"], error["param"]) == ("NotFoundError", 404, None)
        assert path in ("", "/") or path not in error["message"]


def test_nothing_passes_under_a_root_path() -> None:
    """The router strips it before it matches, so the guard would compare another string."""
    for path in ("/health", "/x/health"):
        assert run(http("GET", path, root_path="/x"))[1] is False


def test_the_method_is_only_repeated_when_it_is_a_word() -> None:
    sent, _ = run(http('<"x">', "/adapters"))
    assert b"<" not in sent[1]["body"]


def test_websockets_are_closed_before_they_are_accepted() -> None:
    sent, reached = run({"type": "websocket", "path": "/v1/models", "root_path": ""})
    assert (sent, reached) == ([{"type": "websocket.close", "code": 1008}], False)


def test_the_lifespan_passes_and_an_unknown_protocol_does_not() -> None:
    assert run({"type": "lifespan"}) == ([], True)
    with pytest.raises(ValueError, match="no ASGI scope of type 'quic'"):
        run({"type": "quic", "path": "/health", "method": "GET"})


def test_it_imports_the_standard_library_only() -> None:
    """The engine imports it beside vLLM, and a unit test without any of vLLM's packages must see the same thing."""
    imports = {
        line.split()[1].split(".")[0]
        for line in GUARD.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imports == {"__future__", "json", "collections", "typing"}
