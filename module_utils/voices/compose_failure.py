"""Why a Compose project did not come up, for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .compose_secrets import Secrets
from .compose_state import Container
from .service_failure import error_lines

_LINES = 15


def failure_message(
    project: str,
    what: str,
    containers: Sequence[tuple[Container, str]],
    previous: str,
    secrets: Secrets,
) -> str:
    """``what`` went wrong, then each container that is not healthy with its log, then the way back.

    ``containers``: those that are not healthy, each with the end of its log. ``previous``: path of the last healthy
    compose.yaml, or empty.
    """
    lines = [f"project {project}: {what}"]
    for container, log in containers:
        lines += _container_lines(container, log)
    if previous:
        lines.append(f"the compose.yaml that was last healthy is kept: {previous}")
    return secrets.conceal("\n".join(lines))


def _container_lines(container: Container, log: str) -> Iterable[str]:
    state: Mapping[str, object] = container.inspect.get("State") or {}
    health = f", health {container.health}" if container.health else ""
    restarts = container.inspect.get("RestartCount") or 0
    ended = container.state in ("exited", "dead", "restarting")
    yield (
        f"service {container.service}: container {container.name} is {container.state}{health}"
        + (f", exit code {state.get('ExitCode')}" if ended else "")
        + (f", restarted {restarts} times" if restarts else "")
        + (", killed for its memory (OOM)" if state.get("OOMKilled") else "")
    )
    if state.get("Error"):
        yield f"  the engine says: {state['Error']}"
    checks = ((container.inspect.get("State") or {}).get("Health") or {}).get("Log") or []
    if checks:
        last = checks[-1]
        yield f"  last health check ended with {last.get('ExitCode')}: {_one_line(last.get('Output', ''))}"
    errors, tail = error_lines(log, (), _LINES)
    if errors:
        yield "  errors in its log:"
        yield from (f"    {line}" for line in errors)
    if tail:
        yield "  last lines of its log:"
        yield from (f"    {line}" for line in tail)
    else:
        yield "  its log is empty"


def _one_line(text: str) -> str:
    words = " ".join(str(text).split())
    return words[:400] or "no output"
