"""Close every path of a voices seat that the seat does not need.

vLLM's own key covers /v1, /v2, /inference and /cohere only: without it, ``POST /adapters`` loads any directory the
server can read and ``POST /invocations`` answers with text. This ASGI class stands outside vLLM's authentication
(``middleware:`` entries of engine.yaml wrap it) and answers 404 to all but the pairs of method and path below; vLLM
still asks for the key on what passes. Standard library only: the engine imports this file from beside engine.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_READ = frozenset({"GET", "HEAD"})
_POST = frozenset({"POST"})
OPEN = {
    "/health": _READ,
    "/metrics": _READ,
    "/ping": _READ,
    "/version": _READ,
    "/v1/models": frozenset({"GET"}),
    "/v1/completions": _POST,
    "/v1/chat/completions": _POST,
    "/v1/load_lora_adapter": _POST,
    "/v1/unload_lora_adapter": _POST,
}
"""Path -> methods that pass. The first four need no key, the rest do when the seat has one."""

POLICY_VIOLATION = 1008
"""WebSocket close code; before the handshake is accepted the server turns it into HTTP 403."""


def is_open(scope: Scope) -> bool:
    """Whether an HTTP request passes: its decoded path and its method stand in OPEN, letter by letter.

    No path is normalised, so trailing and double slashes and dot segments do not match. Under a root path the router
    would look at another string than this one, so nothing passes then.
    """
    return not scope.get("root_path") and scope["method"] in OPEN.get(scope["path"], ())


def not_found(method: str) -> bytes:
    """The body of a refusal, in the shape of an OpenAI error. It does not repeat what was asked."""
    message = f"This seat does not serve this path with {method}."
    return json.dumps({"error": {"message": message, "type": "NotFoundError", "param": None, "code": 404}}).encode()


class SeatGuard:
    """ASGI middleware: HTTP by ``is_open``, no websockets, the lifespan protocol untouched."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan" or (kind == "http" and is_open(scope)):
            await self.app(scope, receive, send)
        elif kind == "http":
            await _refuse(scope["method"], send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            raise ValueError(f"the seat guard knows no ASGI scope of type {kind!r}")


async def _refuse(method: str, send: Send) -> None:
    body = not_found(method if method.isalpha() and len(method) < 16 else "this method")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
