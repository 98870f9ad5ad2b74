"""A service for tests of supervised_service: a small HTTP server with the manners and vices of an engine.

python tiny_service.py --config FILE [--KEY VALUE ...]

Keys (FILE is YAML, options win): ``port``; ``child`` (start a process that outlives a killed parent); ``stubborn``
(ignore SIGTERM, the child too); ``delay`` (seconds before it listens); ``die-after`` (seconds until it ends with a
traceback that prints ``api-key``); ``answer`` (status of /health). Every request writes a line to standard output, as
an engine does.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import yaml


def settings(arguments: list[str]) -> dict[str, Any]:
    """The options, on top of those of the configuration file."""
    given = dict(zip((name.removeprefix("--") for name in arguments[::2]), arguments[1::2], strict=True))
    config = {}
    if "config" in given:
        with open(given.pop("config")) as stream:
            config = yaml.safe_load(stream)
    return {**config, **given}


def die(key: str) -> None:
    """What a broken engine leaves in its log."""
    print("\x1b[31mTraceback (most recent call last):\x1b[0m", flush=True)
    print(f"ValueError: the key {key} does not fit 3 < 4", flush=True)
    os._exit(3)


class Handler(http.server.BaseHTTPRequestHandler):
    """/health and /about."""

    answer = 200

    def do_GET(self) -> None:
        status = self.answer if self.path == "/health" else 200
        body = json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        print("INFO", format % args, flush=True)


def main() -> None:
    """Serve until killed."""
    given = settings(sys.argv[1:])
    if given.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.get("child"):
        subprocess.Popen(["sleep", "1000"])
    if "die-after" in given:
        threading.Timer(float(given["die-after"]), die, [str(given.get("api-key"))]).start()
    time.sleep(float(given.get("delay", 0)))
    Handler.answer = int(given.get("answer", 200))
    http.server.ThreadingHTTPServer(("127.0.0.1", int(given["port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
