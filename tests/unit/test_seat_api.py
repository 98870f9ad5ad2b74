"""The HTTP client against a small server that replays what engines were seen to answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.seat_api import (
    SeatApi,
    SeatError,
    SeatUnauthorized,
    SeatUnreachable,
    error_text,
)

KEY = "a-key-that-is-long-enough-0001"
BASE = {"id": "voices-base", "root": "/carriers/tiny", "parent": None}
AUSTEN = {"id": "lv-austen", "root": "/store/lv-austen@0a", "parent": "voices-base"}

# Recorded: vLLM 0.32.0 (nested) and the flat form of older versions.
NESTED_LOADED = {
    "error": {
        "message": "The lora adapter 'lv-austen' has already been loaded. If you want to load the adapter in place, "
        "set 'load_inplace' to True.",
        "type": "InvalidUserInput",
        "param": None,
        "code": 400,
    }
}
FLAT_LOADED = {
    "object": "error",
    "message": "The lora adapter 'lv-austen' has already been loaded.",
    "type": "InvalidUserInput",
    "param": None,
    "code": 400,
}
NESTED_UNKNOWN = {
    "error": {
        "message": "The lora adapter 'lv-austen' cannot be found.",
        "type": "NotFoundError",
        "param": None,
        "code": 404,
    }
}
FLAT_UNKNOWN = {
    "object": "error",
    "message": "The lora adapter 'lv-austen' cannot be found.",
    "type": "InvalidUserInput",
    "param": None,
    "code": 400,
}


class Replay(ThreadingHTTPServer):
    """Answers each (method, path) from a list, the last answer for ever; keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Any]] = {}
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, *answers: Any) -> None:
        """Each answer is (status, body as text or data) or a function of the handler."""
        self.answers[method, path] = list(answers)

    def count(self, method: str, path: str) -> int:
        return sum(1 for asked in self.asked if asked[:2] == (method, path))


class Handler(BaseHTTPRequestHandler):
    server: Replay

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body, dict(self.headers)))
        answers = self.server.answers.get((self.command, self.path)) or [(404, {"detail": "Not Found"})]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer(self)
            return
        status, data = answer[:2]
        text = data if isinstance(data, str) else json.dumps(data)
        self.send_response(status)
        for name, value in (answer[2] if len(answer) > 2 else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_DELETE = _serve

    def log_message(self, *args: Any) -> None:
        pass


def break_off(handler: Handler) -> None:
    """Close the connection without an answer."""
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def slow(seconds: float) -> Callable[[Handler], None]:
    def wait(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return wait


@pytest.fixture
def server() -> Iterator[Replay]:
    replay = Replay()
    thread = threading.Thread(target=replay.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield replay
    replay.shutdown()
    thread.join(5)
    replay.server_close()


def api(server: Replay, **others: Any) -> SeatApi:
    return SeatApi(server.url, **{"key": KEY, "key_source": "/secrets/api_key", "timeout_s": 5, **others})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (json.dumps(NESTED_LOADED), NESTED_LOADED["error"]["message"]),
        (json.dumps(FLAT_LOADED), FLAT_LOADED["message"]),
        ('{"error": "Unauthorized"}', "Unauthorized"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["body"], "msg": "Field required"}]}', '[{"loc": ["body"], "msg": "Field required"}]'),
        ("Internal\n Server   Error", "Internal Server Error"),
        ('{"error": null}', '{"error": null}'),
        ("[1, 2]", "[1, 2]"),
        ("x" * 1000, "x" * 400 + "…"),
        ("", ""),
    ],
)
def test_the_message_is_found_in_every_known_shape(body: str, text: str) -> None:
    assert error_text(body) == text


def test_models_and_adapters(server: Replay) -> None:
    server.answer("GET", "/v1/models", (200, {"object": "list", "data": [BASE, AUSTEN]}))
    assert api(server).adapters("voices-base") == {"lv-austen": "/store/lv-austen@0a"}
    assert server.asked[0][3]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(SeatError, match="serves lv-austen, voices-base and no other-base"):
        api(server).adapters("other-base")


@pytest.mark.parametrize("body", ["[]", "{}", '{"data": 3}', '{"data": [{"root": "/x"}]}', "<html>", '{"data": [7]}'])
def test_another_server_is_told_from_a_seat(server: Replay, body: str) -> None:
    server.answer("GET", "/v1/models", (200, body))
    with pytest.raises(SeatError, match="is this a voices seat"):
        api(server).models()


def test_load_and_unload_send_what_the_engine_wants_and_never_load_in_place(server: Replay) -> None:
    server.answer("POST", "/v1/load_lora_adapter", (200, "Success: LoRA adapter 'lv-austen' added successfully."))
    server.answer("POST", "/v1/unload_lora_adapter", (200, "Success"))
    api(server).load("lv-austen", "/store/a")
    api(server).unload("lv-austen")
    assert [asked[2] for asked in server.asked] == [
        {"lora_name": "lv-austen", "lora_path": "/store/a"},
        {"lora_name": "lv-austen"},
    ]


@pytest.mark.parametrize(
    ("status", "body"), [(400, NESTED_LOADED), (400, FLAT_LOADED), (404, NESTED_UNKNOWN), (400, FLAT_UNKNOWN)]
)
def test_errors_carry_their_status_and_message_and_are_sent_once(server: Replay, status: int, body: Any) -> None:
    server.answer("POST", "/v1/load_lora_adapter", (status, body))
    with pytest.raises(SeatError, match=f"HTTP {status} The lora adapter 'lv-austen'") as caught:
        api(server).load("lv-austen", "/store/a")
    assert caught.value.status == status
    assert server.count("POST", "/v1/load_lora_adapter") == 1


@pytest.mark.parametrize("body", [{"detail": "Not Found"}, {"error": {"message": "Not Found", "code": 404}}])
def test_an_engine_without_runtime_loading_is_told_apart(server: Replay, body: Any) -> None:
    server.answer("POST", "/v1/unload_lora_adapter", (404, body))
    with pytest.raises(SeatError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        api(server).unload("lv-austen")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_its_file_and_is_never_shown(server: Replay, status: int) -> None:
    server.answer("GET", "/v1/models", (status, {"error": f"no such key {KEY}"}))
    with pytest.raises(SeatUnauthorized, match="the key in api_key_file /secrets/api_key") as caught:
        api(server).models()
    assert KEY not in str(caught.value) and "***" in str(caught.value)
    assert server.count("GET", "/v1/models") == 1
    with pytest.raises(SeatUnauthorized, match=r"a request without a key \(api_key_file /gone\)"):
        api(server, key=None, key_source="/gone").models()


def test_redirects_are_not_followed(server: Replay) -> None:
    elsewhere = f"{server.url}/elsewhere"
    server.answer("GET", "/v1/models", (307, "", {"Location": elsewhere}))
    server.answer("POST", "/v1/load_lora_adapter", (307, "", {"Location": elsewhere}))
    with pytest.raises(SeatError, match=r"redirected to .*/elsewhere; not followed"):
        api(server).models()
    with pytest.raises(SeatError, match="not followed"):
        api(server).load("lv-austen", "/store/a")
    assert all(asked[1] != "/elsewhere" for asked in server.asked)


def test_proxies_and_netrc_of_the_environment_are_ignored(
    server: Replay, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password not-the-key\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.answer("GET", "/v1/models", (200, {"data": [BASE]}))
    assert list(api(server).models()) == ["voices-base"]
    assert server.asked[0][3]["Authorization"] == f"Bearer {KEY}"


def test_a_get_is_tried_again_and_a_post_is_not(server: Replay) -> None:
    good = (200, {"data": [BASE]})
    server.answer("GET", "/v1/models", break_off, (503, "not yet"), good)
    assert list(api(server).models()) == ["voices-base"]
    assert server.count("GET", "/v1/models") == 3
    server.answer("GET", "/v1/models", (500, {"error": {"message": "broken"}}), good)
    with pytest.raises(SeatError, match="HTTP 500 broken"):
        api(server).models()
    server.answer("POST", "/v1/load_lora_adapter", break_off, (200, "Success"))
    with pytest.raises(SeatError, match="connection broke before a whole answer") as caught:
        api(server).load("lv-austen", "/store/a")
    assert caught.value.status == 0 and not isinstance(caught.value, SeatUnreachable)
    assert server.count("POST", "/v1/load_lora_adapter") == 1


def test_a_get_gives_up_after_three(server: Replay) -> None:
    server.answer("GET", "/v1/models", (503, "not yet"))
    with pytest.raises(SeatError, match="HTTP 503 not yet"):
        api(server).models()
    assert server.count("GET", "/v1/models") == 3


def test_a_slow_answer_is_a_timeout_and_not_an_unreachable_seat(server: Replay) -> None:
    server.answer("POST", "/v1/load_lora_adapter", slow(0.6))
    with pytest.raises(SeatError, match=r"no answer within 0\.2 s \(timeout_s\)") as caught:
        api(server, timeout_s=0.2).load("lv-austen", "/store/a")
    assert not isinstance(caught.value, SeatUnreachable)


def test_nothing_listening_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(SeatUnreachable, match=f"{url}/v1/models: nothing answers there .connection refused."):
            SeatApi(url).models()
        assert time.monotonic() - started < 0.2, "a refused connection is not tried again"
        assert SeatApi(url).healthy() is False


def test_health(server: Replay) -> None:
    server.answer("GET", "/health", (200, ""))
    assert api(server).healthy() is True
    server.answer("GET", "/health", (500, ""))
    assert api(server).healthy() is False


def test_chat_and_completion(server: Replay) -> None:
    server.answer(
        "POST", "/v1/chat/completions", (200, {"choices": [{"message": {"role": "assistant", "content": "Rain."}}]})
    )
    assert api(server).chat("lv-austen", "Weather?", 8) == "Rain."
    assert server.asked[-1][2] == {
        "model": "lv-austen",
        "messages": [{"role": "user", "content": "Weather?"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    server.answer(
        "POST", "/v1/chat/completions", (200, {"choices": [{"message": {"content": None, "reasoning": "Hm."}}]})
    )
    assert api(server).chat("lv-austen", "Weather?", 8) == "Hm."
    server.answer("POST", "/v1/chat/completions", (200, {"choices": [{"message": {"content": None}}]}))
    assert api(server).chat("lv-austen", "Weather?", 8) == ""
    server.answer("POST", "/v1/completions", (200, {"choices": [{"text": " and sun"}]}))
    assert api(server).complete("lv-austen", "Rain", 8) == " and sun"
    server.answer("POST", "/v1/completions", (200, {"choices": []}))
    with pytest.raises(SeatError, match="no choices"):
        api(server).complete("lv-austen", "Rain", 8)


@pytest.mark.parametrize("url", ["127.0.0.1:8100", "ftp://host", "http://", "/v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(VoicesError, match="is not http://host:port"):
        SeatApi(url)


def test_credentials_in_the_address_are_refused_without_being_shown() -> None:
    with pytest.raises(VoicesError) as caught:
        SeatApi("http://me:hidden@host:1")
    assert "hidden" not in str(caught.value)
