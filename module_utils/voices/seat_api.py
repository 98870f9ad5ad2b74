"""The client for a running seat: health, models, load, unload, chat and completions over HTTP.

Errors come in several shapes, seen on vLLM 0.32 and read in older ones: nested (``{"error": {"message": …}}``), flat
(``{"message": …}``), a bare ``{"error": "Unauthorized"}``, FastAPI's ``{"detail": …}``, or plain text. Unloading an
unknown name is 404 or 400.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import NewConnectionError

from .plan import VoicesError

CONNECT_TIMEOUT_S = 5.0
GET_ATTEMPTS = 3
GET_PAUSE_S = 0.2
_RETRIED_STATUS = (502, 503, 504)
_MAX_SHOWN = 400


class SeatError(VoicesError):
    """The seat answered with an error; ``status`` is the HTTP status, 0 when there was no whole answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class SeatUnreachable(SeatError):
    """Nothing answers at the address."""


class SeatUnauthorized(SeatError):
    """The seat does not take the key."""


@dataclass(frozen=True)
class Model:
    """One entry of /v1/models: ``root`` is an adapter's directory, ``parent`` its base model ("" for the base)."""

    name: str
    root: str
    parent: str


def error_text(body: str) -> str:
    """The message in an error ``body`` of any known shape, at most 400 characters."""
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    found: Any = body
    if isinstance(data, Mapping):
        inner = data.get("error")
        found = inner.get("message") if isinstance(inner, Mapping) else inner
        found = found or data.get("message") or data.get("detail") or body
    text = " ".join((found if isinstance(found, str) else json.dumps(found)).split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


class SeatApi:
    """A seat at ``base_url`` (scheme, host and port). ``key_source`` is the file that the key came from, for messages.

    GETs are tried three times when nothing whole came back; a POST is sent once, because whether a broken one took
    effect is not known: callers look at ``models`` again. Redirects are not followed and proxies of the environment
    not used, so the key goes to this address only.
    """

    def __init__(self, base_url: str, key: str | None = None, *, key_source: str = "", timeout_s: float = 60.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise VoicesError(f"base_url {base_url!r} is not http://host:port")
        if parts.username or parts.password:
            raise VoicesError("base_url must hold no user or password, it is printed: use api_key_file")
        self.base_url = base_url.rstrip("/")
        self._key = key
        self._key_source = key_source
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy, and no .netrc in place of the key
        if key:
            self._session.headers["Authorization"] = f"Bearer {key}"

    def close(self) -> None:
        self._session.close()

    def healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            self._get("/health")
        except SeatError:
            return False
        return True

    def models(self) -> dict[str, Model]:
        """What the seat serves, by name."""
        data = _json(self._get("/v1/models")).get("data")
        if not isinstance(data, list) or not all(isinstance(card, Mapping) and card.get("id") for card in data):
            raise SeatError(f"{self.base_url}/v1/models holds no list of models: is this a voices seat?")
        cards = [Model(str(c["id"]), str(c.get("root") or ""), str(c.get("parent") or "")) for c in data]
        return {model.name: model for model in cards}

    def adapters(self, base_model: str) -> dict[str, str]:
        """The live adapters {name: path}. Raises SeatError when the seat does not serve ``base_model``."""
        models = self.models()
        if base_model not in models:
            raise SeatError(
                f"{self.base_url} serves {', '.join(sorted(models)) or 'nothing'} and no {base_model}: another "
                "server, or served-model-name differs"
            )
        return {model.name: model.root for model in models.values() if model.parent}

    def load(self, name: str, path: str) -> None:
        """Load the adapter at ``path`` as ``name``; never in place, which would read the checkpoint on every use."""
        self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def unload(self, name: str) -> None:
        """Take the adapter ``name`` out of service."""
        self._post("/v1/unload_lora_adapter", {"lora_name": name})

    def chat(self, model: str, prompt: str, max_tokens: int) -> str:
        """The answer of ``model`` to ``prompt`` at temperature 0."""
        question = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        message = _first_choice(_json(self._post("/v1/chat/completions", question))).get("message")
        message = message if isinstance(message, Mapping) else {}
        # A carrier that reasons may spend a short answer on reasoning alone.
        parts = [message.get(part) for part in ("content", "reasoning_content", "reasoning")]
        return next((part for part in parts if isinstance(part, str) and part), "")

    def complete(self, model: str, prompt: str, max_tokens: int) -> str:
        """The continuation of ``prompt`` by ``model`` at temperature 0."""
        question = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return str(_first_choice(_json(self._post("/v1/completions", question))).get("text") or "")

    def prompt_logprobs(self, model: str, prompt: str) -> tuple[float, ...]:
        """The log-probability that ``model`` gives each token of ``prompt`` after the first: one prefill, one token."""
        question = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        tokens = _first_choice(_json(self._post("/v1/completions", question))).get("prompt_logprobs")
        if not isinstance(tokens, list) or len(tokens) < 2:
            raise SeatError(f"the answer of {model} holds no prompt_logprobs: does this engine know them?")
        return tuple(_logprob(token) for token in tokens[1:])  # the first token follows nothing

    def _get(self, path: str) -> requests.Response:
        for attempt in range(1, GET_ATTEMPTS + 1):
            try:
                return self._request("GET", path)
            except SeatError as error:
                # A refused connection stays refused; an answer other than "not now" is the answer.
                again = error.status in _RETRIED_STATUS if error.status else not isinstance(error, SeatUnreachable)
                if not again or attempt == GET_ATTEMPTS:
                    raise
            time.sleep(GET_PAUSE_S * attempt)
        raise AssertionError("the loop above returns or raises")

    def _post(self, path: str, body: Mapping[str, Any]) -> requests.Response:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> requests.Response:
        url = f"{self.base_url}{path}"
        timeout = (CONNECT_TIMEOUT_S, self._timeout_s)
        try:
            answer = self._session.request(method, url, json=body, timeout=timeout, allow_redirects=False)
        except requests.ConnectTimeout:
            raise SeatUnreachable(f"{url}: no connection within {CONNECT_TIMEOUT_S:g} s: is the seat up?") from None
        except requests.Timeout:
            raise SeatError(f"{method} {url}: no answer within {self._timeout_s:g} s (timeout_s)") from None
        except requests.RequestException as error:
            raise self._broken(method, url, error) from None
        if answer.status_code == HTTPStatus.OK:
            return answer
        raise self._refusal(method, path, url, answer)

    def _broken(self, method: str, url: str, error: requests.RequestException) -> SeatError:
        for cause in _causes(error):
            if isinstance(cause, NewConnectionError):
                refused = any(isinstance(item, ConnectionRefusedError) for item in _causes(cause))
                why = "connection refused" if refused else self._shown(str(cause))
                return SeatUnreachable(f"{url}: nothing answers there ({why}): is the seat up?")
        return SeatError(f"{method} {url}: the connection broke before a whole answer ({self._shown(str(error))})")

    def _refusal(self, method: str, path: str, url: str, answer: requests.Response) -> SeatError:
        status = answer.status_code
        said = self._shown(answer.text)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            source = self._key_source or "(none given)"
            what = (
                f"the key in api_key_file {source}" if self._key else f"a request without a key (api_key_file {source})"
            )
            fix = "point api_key_file at the file with this seat's key"
            return SeatUnauthorized(f"{url} refuses {what}: HTTP {status} {said}: {fix}", status)
        if 300 <= status < 400:
            return SeatError(
                f"{method} {url}: redirected to {answer.headers.get('Location', '?')}; not followed", status
            )
        hint = ""
        if status == HTTPStatus.NOT_FOUND and "lora_adapter" in path and said.strip('."').lower() == "not found":
            hint = "; the engine has no such path: it runs without VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        return SeatError(f"HTTP {status} {said}{hint}", status)

    def _shown(self, text: str) -> str:
        shown = error_text(text)
        return shown.replace(self._key, "***") if self._key else shown


def _causes(error: BaseException) -> list[BaseException]:
    """The exceptions that ``error`` wraps, by any of the ways in which requests and urllib3 wrap them."""
    found: list[BaseException] = []
    queue: list[Any] = [error]
    while queue:
        item = queue.pop()
        if isinstance(item, BaseException) and item not in found:
            found.append(item)
            queue += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
    return found


def _json(answer: requests.Response) -> Mapping[str, Any]:
    try:
        data = answer.json()
    except ValueError:
        data = None
    if not isinstance(data, Mapping):
        raise SeatError(f"{answer.url}: the answer is no JSON object: is this a voices seat?")
    return data


def _logprob(token: Any) -> float:
    """Of ``{token id: {"logprob": number, …}}``, the prompt's token alone when no alternatives were asked for."""
    found = next(iter(token.values()), None) if isinstance(token, Mapping) else None
    value = found.get("logprob") if isinstance(found, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SeatError(f"prompt_logprobs holds {str(token)[:80]} in place of a log-probability")
    return float(value)


def _first_choice(data: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise SeatError("the answer holds no choices: is this a voices seat?")
    return choices[0]
