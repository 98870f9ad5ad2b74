"""The supervisord of a service: the text of its configuration, and where it listens. Pure."""

from __future__ import annotations

import hashlib
import re
import shlex

from .service import Spec

_LONGEST_SOCKET = 95  # sun_path holds 107 bytes (unix(7)); supervisord binds to "<path>.<pid>" first


def socket_path(directory: str, uid: int, temporary: str, recorded: str = "") -> str:
    """Where supervisord listens: ``run/supervisord.sock``, or a short path when that is too long for a socket.

    ``recorded`` is the path in the present supervisord.conf; a short one in use is kept, so that another TMPDIR does
    not move it.
    """
    usual = f"{directory}/run/supervisord.sock"
    if len(usual.encode()) <= _LONGEST_SOCKET:
        return usual
    digest = hashlib.sha256(directory.encode()).hexdigest()[:12]
    leaf = f"voices-{uid}-{digest}/supervisord.sock"
    return recorded if recorded.endswith("/" + leaf) else f"{temporary.rstrip('/')}/{leaf}"


def recorded_socket(conf: str | None) -> str:
    """The socket path in the text of a supervisord.conf, or an empty text."""
    found = re.search(r"^\[unix_http_server\]\nfile=(.+)$", conf or "", re.MULTILINE)
    return found.group(1).replace("%%", "%") if found else ""


def render_supervisord_conf(spec: Spec, socket: str, as_root: bool = False) -> str:
    """The text of supervisord.conf. It holds no secret and nothing about the process: that is in launch.json.

    The process's output does not pass through supervisord: a pipe would break, and with it the process, whenever
    supervisord or the wrapper is killed. Hence ``stdout_logfile`` is only what the wrapper says before it has
    opened the service's log. ``stopwaitsecs`` leaves the wrapper the time to kill what does not stop.
    """

    def text(value: str) -> str:
        return value.replace("%", "%%")

    command = " ".join(shlex.quote(part) for part in (spec.python, "-I", spec.path("service_run.py"), spec.directory))
    return f"""\
; Written by supervised_service; edits are overwritten.
; supervisord: {spec.supervisord}
[unix_http_server]
file={text(socket)}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{text(socket)}

[supervisord]
identifier={spec.name}
nodaemon=false
umask=077
nocleanup=true
directory={text(spec.path("run"))}
pidfile={text(spec.path("run", "supervisord.pid"))}
logfile={text(spec.path("log", "supervisord.log"))}
logfile_maxbytes=1MB
logfile_backups=1
{"user=root" if as_root else "; not root"}

[program:{spec.name}]
command={text(command)}
directory={text(spec.path("run"))}
autostart=true
autorestart=true
startsecs={spec.start_seconds}
startretries={spec.start_retries}
stopsignal=TERM
stopwaitsecs={spec.stop_seconds + 15}
redirect_stderr=true
stdout_logfile={text(text(spec.path("log", "wrapper.log")))}
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=1
"""
