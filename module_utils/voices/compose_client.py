"""Reads a Compose project, plans, checks and carries the plan out, for ``compose_project``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .compose import FILE, Plan, Remote, images_to_look_up, keepers, plan_absent, plan_present, plan_stopped
from .compose_checks import check, check_down, questions
from .compose_cli import Compose, UpResult
from .compose_config import Desired, project_name_error
from .compose_engine import Engine
from .compose_failure import failure_message
from .compose_files import ProjectFiles
from .compose_secrets import MaskedText, Secrets, check_named
from .compose_state import Actual, Container, sha256
from .plan import BringUpError, VoicesError, as_dicts, as_diff, text_diff

_SPARE_S = 60.0  # what Compose may take beyond waiting for health and stopping, before it is ended


@dataclass(frozen=True)
class Spec:
    """The module's parameters. Times are in seconds; ``directory`` is absolute and resolved."""

    project: str
    directory: str
    content: str = ""
    state: str = "present"
    docker_host: str = "unix:///var/run/docker.sock"
    compose: tuple[str, ...] = ("docker", "compose")
    wait_timeout_s: float = 300.0
    pull: str = "missing"
    expected_paths: tuple[str, ...] = ()
    secret_environment: tuple[str, ...] = ()
    stop_seconds: int = 20


@dataclass(frozen=True)
class Prepared:
    """A plan and what it was made from; ``desired`` is None when the project is not to run."""

    plan: Plan
    actual: Actual
    desired: Desired | None
    secrets: Secrets
    remote: Mapping[str, Remote]


class ComposeProject:
    """One project. Raises VoicesError for refusals and ``compose_engine.ERRORS`` for a failing engine."""

    def __init__(self, spec: Spec, parse_yaml: Callable[[str], Any]) -> None:
        problem = project_name_error(spec.project)
        if problem:
            raise VoicesError(problem)
        check_named(spec.secret_environment)
        self.spec = spec
        self.parse_yaml = parse_yaml
        self.files = ProjectFiles(spec.project, spec.directory)
        self.compose = Compose(spec.compose, spec.docker_host, spec.project, spec.directory)
        self.engine = Engine(spec.docker_host)
        self.warnings: list[str] = []

    def close(self) -> None:
        """Give the engine's connections back."""
        self.engine.close()

    def run(self, check_mode: bool) -> dict[str, Any]:
        """Plan and, unless in check mode, apply; returns the module's result."""
        if check_mode:
            return self._result(self._prepare(self.spec.expected_paths))
        if not os.path.isdir(self.spec.directory):
            prepared = self._prepare()  # a refusal leaves nothing behind, not even the lock's directory
            if self.spec.state != "present":
                return self._down(prepared)
        wait_s = self.spec.wait_timeout_s + self.spec.stop_seconds + _SPARE_S
        with self.files.lock(wait_s) as lock:
            prepared = self._prepare()
            if prepared.desired is None:
                return self._down(prepared)
            return self._up(prepared, prepared.desired, lock)

    # -------------------------------------------------------------------------------------------------------- read

    def _prepare(self, expected_paths: Collection[str] = ()) -> Prepared:
        """Read everything, plan, and refuse what cannot be. Reads only."""
        spec = self.spec
        named = frozenset(spec.secret_environment)
        if spec.state != "present":
            actual = self._read()
            plan = plan_stopped(actual) if spec.state == "stopped" else plan_absent(actual)
            check_down(spec.project, actual, plan, spec.directory)
            return Prepared(plan, actual, None, Secrets(named), {})
        secrets = Secrets(named, frozenset(MaskedText(spec.content, named, self.parse_yaml).values))
        try:
            desired = self.compose.desired(spec.content)
        except VoicesError as error:
            raise VoicesError(secrets.conceal(str(error))) from None
        actual = self._read(desired)
        for service in desired.services.values():
            secrets = secrets.with_environment(service.config["environment"])
        for container in actual.containers:
            secrets = secrets.with_environment(_environment(container))
        asked = images_to_look_up(desired, actual, spec.pull)
        remote = {image: self.engine.look_up(image) for image in asked}
        plan = plan_present(desired, actual, secrets, spec.pull, remote)
        check(
            desired,
            actual,
            plan,
            self.engine.answer(questions(desired, actual, plan)),
            directory=spec.directory,
            pull=spec.pull,
            remote=remote,
            expected_paths=expected_paths,
        )
        return Prepared(plan, actual, desired, secrets, remote)

    def _read(self, desired: Desired | None = None) -> Actual:
        images = [service.image for service in desired.services.values()] if desired else []
        networks = [network.name for network in desired.networks.values()] if desired else []
        actual = self.engine.read(self.spec.project, images, networks)
        text = self.files.text()
        differs = desired is not None and text is not None and text != desired.content
        return replace(
            actual,
            text=text,
            previous=self.files.previous_text(),
            text_hashes=self.compose.hashes(text) if differs and text is not None else {},
            written=self.files.written(),
            known_healthy=self.files.known_healthy(),
            leftover_files=self.files.leftover(),
        )

    # ------------------------------------------------------------------------------------------------------ change

    def _up(self, prepared: Prepared, desired: Desired, lock: int) -> dict[str, Any]:
        plan, actual = prepared.plan, prepared.actual
        began = time.monotonic()
        self.files.sweep()
        if plan.write:
            self.files.write(desired.content, keep_previous=plan.keep_previous, private=self._private(desired))
        for container_id, name in plan.rename:
            self.engine.api.rename(container_id, name)
        for container_id in plan.resume:
            self.engine.api.unpause(container_id)
        for container_id in plan.remove:
            self.engine.stop(container_id, self.spec.stop_seconds)
            self.engine.remove(container_id)
        for network in plan.remove_networks:
            self.engine.remove_network(network)
        up = UpResult(0, "")
        if plan.up:
            up = self.compose.up(
                str(self.files.file),
                wait_s=self.spec.wait_timeout_s if desired.all_can_be_waited_for else None,
                stop_s=self.spec.stop_seconds,
                pull=self.spec.pull if plan.pull or self.spec.pull == "never" else "missing",
                limit_s=None if plan.pull else self.spec.wait_timeout_s + self.spec.stop_seconds + _SPARE_S,
                lock=lock,
            )
        now = self._read(desired)
        left_s = max(0.0, self.spec.wait_timeout_s - up.seconds) if up.rc == 0 else 0.0
        late = self.engine.wait_healthy([c.id for c in keepers(desired, now).values()], left_s)
        seconds = time.monotonic() - began
        now = self._read(desired)
        result = self._result(prepared, now, seconds)
        if up.rc != 0 or late:
            raise BringUpError(self._failure(prepared, up, late, seconds, result["previous"]), result)
        again = plan_present(desired, now, prepared.secrets)
        if again.actions:
            raise BringUpError(
                f"project {desired.project}: Compose ended well, and yet the engine differs from the plan: "
                + prepared.secrets.conceal("; ".join(again.reasons)),
                result,
            )
        self.files.note_healthy(desired.content)
        self._warn_of_unplanned(plan, actual, now, desired)
        return result

    def _private(self, desired: Desired) -> bool:
        """Whether the file holds a secret, so that only its owner may read it."""
        return bool(MaskedText(desired.content, self.spec.secret_environment, self.parse_yaml).keys)

    def _warn_of_unplanned(self, plan: Plan, before: Actual, after: Actual, desired: Desired) -> None:
        then, now = keepers(desired, before), keepers(desired, after)
        for name in sorted(then.keys() & now.keys() - set(plan.touched)):
            if _start_of(then[name]) != _start_of(now[name]):
                self.warnings.append(f"service {name} was started anew while this run did not plan it: see its log")

    def _down(self, prepared: Prepared) -> dict[str, Any]:
        plan = prepared.plan
        began = time.monotonic()
        for container_id in plan.stop:
            self.engine.stop(container_id, self.spec.stop_seconds)
        for container_id in plan.remove:
            self.engine.remove(container_id, with_anonymous_volumes=True)
        for network in plan.remove_networks:
            self.engine.remove_network(network)
        if self.spec.state == "absent" and self.files.directory.is_dir():
            self.files.remove()
        return self._result(prepared, self._read(), time.monotonic() - began)

    # ------------------------------------------------------------------------------------------------------ result

    def _result(self, prepared: Prepared, now: Actual | None = None, seconds: float = 0.0) -> dict[str, Any]:
        """The module's result; ``now`` is the state after a real run."""
        plan = prepared.plan
        return {
            "changed": bool(plan.actions),
            "actions": as_dicts(plan.actions),
            "diff": as_diff(plan.actions) + self._text_diff(prepared),
            "reasons": plan.reasons,
            "will_start": plan.will_start,
            "containers": [_shown_container(c) for c in (now or prepared.actual).containers],
            "previous": self._previous(prepared),
            "seconds": round(seconds, 2),
        }

    def _text_diff(self, prepared: Prepared) -> list[dict[str, str]]:
        before = prepared.actual.text or ""
        if prepared.plan.write:
            after = self.spec.content
        elif prepared.plan.remove_files:
            after = ""
        else:
            return []
        named = self.spec.secret_environment
        texts = [MaskedText(text, named, self.parse_yaml).text for text in (before, after)]
        return text_diff(FILE, *(prepared.secrets.conceal(text) for text in texts))

    def _previous(self, prepared: Prepared) -> str:
        """Where the last healthy compose.yaml lies, or will after this run; empty when that is the wanted one."""
        if self.spec.state != "present" or sha256(self.spec.content) == prepared.actual.known_healthy:
            return ""
        text = prepared.actual.text if prepared.plan.keep_previous else prepared.actual.previous
        return str(self.files.previous) if text is not None and text != self.spec.content else ""

    def _failure(self, prepared: Prepared, up: UpResult, late: list[Container], seconds: float, previous: str) -> str:
        limit = f"(limit {self.spec.wait_timeout_s:g} s)"
        if up.timed_out:
            what = f"Compose's up did not end within {up.seconds:.0f} s and was ended {limit}"
        elif up.rc != 0 and not late:
            what = f"Compose's up ended with {up.rc} after {up.seconds:.1f} s"
        else:
            names = ", ".join(container.service for container in late)
            what = f"{names} not healthy after {seconds:.1f} s {limit}"
        if up.errors:
            what += "\nCompose says: " + "\n  ".join(up.errors.splitlines())
        logs = [(container, self.engine.log(container.id)) for container in late]
        return failure_message(self.spec.project, what, logs, previous, prepared.secrets)


def _environment(container: Container) -> dict[str, str | None]:
    entries = (container.inspect.get("Config") or {}).get("Env") or []
    return {key: value for key, _, value in (entry.partition("=") for entry in entries)}


def _start_of(container: Container) -> tuple[str, str]:
    return container.id, str((container.inspect.get("State") or {}).get("StartedAt"))


def _shown_container(container: Container) -> dict[str, str]:
    return {
        "service": container.service,
        "name": container.name,
        "id": container.id,
        "image": str((container.inspect.get("Config") or {}).get("Image", "")),
        "state": container.state,
        "health": container.health,
    }
