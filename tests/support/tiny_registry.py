"""A registry with one image, for tests of pulls: as much of the distribution API (v2) as an engine asks for."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(content: bytes) -> str:
    """As the API names content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """Serves ``127.0.0.1:<port>/voices-test:<tag>``; ``asked`` is every request that it got.

    Every image gets ``labels``, by which it can be found and removed afterwards.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.blobs: dict[str, bytes] = {}
        self.tags: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.port = 0

    def push(self, tag: str, layer: bytes, **config: Any) -> str:
        """Put an image of one layer (a tar archive) there; returns the name to pull it by."""
        described = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], **config, "Labels": {**self.labels, **config.get("Labels", {})}},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
        packed, about = gzip.compress(layer, mtime=0), json.dumps(described).encode()
        self.blobs |= {digest(packed): packed, digest(about): about}
        self.tags[tag] = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.docker.container.image.v1+json",
                    "size": len(about),
                    "digest": digest(about),
                },
                "layers": [
                    {
                        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                        "size": len(packed),
                        "digest": digest(packed),
                    }
                ],
            }
        ).encode()
        return f"127.0.0.1:{self.port}/voices-test:{tag}"

    def find(self, path: str) -> tuple[str, bytes] | None:
        """(media type, content) of a path, or None."""
        kind, reference = path.rstrip("/").split("/")[-2:]
        if path.rstrip("/") == "/v2":
            return "application/json", b"{}"
        if kind == "manifests":
            by_digest = {digest(manifest): manifest for manifest in self.tags.values()}
            found = self.tags.get(reference) or by_digest.get(reference)
            return (MANIFEST, found) if found else None
        blob = self.blobs.get(reference)
        return ("application/octet-stream", blob) if kind == "blobs" and blob else None


@contextlib.contextmanager
def serving(labels: dict[str, str]) -> Iterator[Registry]:
    """A registry that answers on a free port."""
    registry = Registry(labels)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            registry.asked.append(f"{self.command} {self.path}")
            kind, content = registry.find(self.path) or (
                "application/json",
                b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}',
            )
            self.send_response(200 if registry.find(self.path) else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", digest(content))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """The test's output is not the place."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield registry
        server.shutdown()
