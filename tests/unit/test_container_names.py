"""The names of running containers, from a Docker that answers, one that does not, and one that is not there."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.container_names import container_names

ID = "0123456789ab" + "c" * 52


@contextmanager
def docker(path: Path, answers: dict[str, Any]) -> Iterator[str]:
    """A Docker that knows two requests; everything else is an error of the server's."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = next((answers[key] for key in answers if key in self.path), None)
            text = json.dumps(found).encode() if found is not None else b"no"
            self.send_response(500 if found is None else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(path), Answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown()


VERSION = {"/version": {"ApiVersion": "1.47", "MinAPIVersion": "1.24"}}


def test_the_first_name_of_each_container(tmp_path: Path) -> None:
    listed = [{"Id": ID, "Names": ["/cyberprev", "/other/cyberprev"]}, {"Id": "d" * 64, "Names": []}, {"Names": ["/x"]}]
    with docker(tmp_path / "s", {**VERSION, "/containers/json": listed}) as host:
        assert container_names(host) == {ID: "cyberprev"}


@pytest.mark.parametrize("answers", [{}, VERSION])
def test_a_docker_that_does_not_answer_costs_the_names_only(tmp_path: Path, answers: dict[str, Any]) -> None:
    with docker(tmp_path / "s", answers) as host:
        assert container_names(host) == {}


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "nonsense"])
def test_without_a_docker_there_are_no_names(host: str) -> None:
    assert container_names(host) == {}
