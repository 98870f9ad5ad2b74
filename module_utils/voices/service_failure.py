"""What a start that failed says, for a person: the errors in its log, secrets masked. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .masking import mask_text
from .service import Spec

_LAUNCH_LINE = "service_run: launch {launch_id} "
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Failure)\b: \S")
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|\b(error|Error|fatal):")
_HARMLESS = re.compile(r"\b(DEBUG|INFO|WARNING)\b|Warning: ")


def log_of_launch(text: str, launch_id: str) -> str:
    """The part of a log that the latest start of a launch wrote and that says something.

    The wrapper puts one line before each start. A start that has only just begun says nothing about why the one
    before it ended, so the last one with an error wins, else the last one with any text.
    """
    if not launch_id:
        return text
    parts = text.split(_LAUNCH_LINE.format(launch_id=launch_id))[1:]
    starts = [part.partition("\n")[2] for part in parts]
    for wanted in (lambda part: _EXCEPTION.search(part) or _ERROR.search(part), str.strip):
        for part in reversed(starts):
            if wanted(part):
                return part
    return ""


def error_lines(text: str, secrets: Iterable[str] = (), tail: int = 15) -> tuple[list[str], list[str]]:
    """(errors, last lines) of a log: plain text, secrets masked, long lines cut.

    Errors are the distinct lines that end a traceback (``SomeError: why``) or are logged as errors: the first four
    and the last four, because the root cause comes first and the summary last.
    """
    lines = [mask_text(_ANSI.sub("", line), secrets).rstrip() for line in text.splitlines()]
    lines = [line if len(line) <= 400 else line[:397] + "..." for line in lines if line.strip()]
    raised = _distinct(line for line in lines if _EXCEPTION.search(line) and not _HARMLESS.search(line))
    errors = raised or _distinct(line for line in lines if _ERROR.search(line))
    if len(errors) > 8:
        errors = [*errors[:4], *errors[-4:]]
    return errors, lines[-tail:]


def _distinct(lines: Iterable[str]) -> list[str]:
    seen: dict[str, str] = {}
    for line in lines:
        # vLLM logs one exception several times, each under another prefix: "(EngineCore pid=1) ERROR [x.py:1] ".
        found = _EXCEPTION.search(line)
        seen.setdefault(line[found.start() :] if found else line, line)
    return list(seen.values())


def failure_message(
    spec: Spec, seconds: float, what: str, state: str, log_text: str, secrets: Iterable[str], previous: str
) -> str:
    """Why a service did not get healthy, for a person. ``previous`` is the kept last healthy configuration, or ''."""
    known = set(secrets)
    lines = [
        f"service {spec.name} is not healthy after {seconds:.1f} s (limit {spec.health_timeout_s:g} s): {what}",
        f"supervisord says {state or 'nothing'}; log: {spec.log}",
    ]
    errors, last = error_lines(log_text, known)
    if errors:
        lines += ["errors of this start:", *(f"  {line}" for line in errors)]
    if last:
        lines += ["last lines of this start:", *(f"  {line}" for line in last)]
    else:
        lines.append("this start wrote nothing into the log")
    if previous:
        lines.append(f"the configuration that was last healthy is kept: {previous}")
    return mask_text("\n".join(lines), known)
