"""What real Composes and a real engine said, replayed as the plan's inputs (see record_compose)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.voices.compose import Plan, Remote, plan_present
from ansible.module_utils.voices.compose_config import Desired, parse_desired
from ansible.module_utils.voices.compose_secrets import Secrets
from ansible.module_utils.voices.compose_state import Actual, Container, parse_container, parse_image

DIRECTORY = Path(__file__).resolve().parent.parent / "fixtures/compose"
VERSIONS = sorted(path.stem for path in DIRECTORY.glob("*.json"))
PROJECT = "voices-tiny"
PLACE = "/srv/voices/seats/tiny/compose"


class Recorded:
    """One recording of one service: ``engine`` or ``rich``."""

    def __init__(self, version: str = "2.40.3", service: str = "engine") -> None:
        self.service = service
        self.data: dict[str, Any] = json.loads((DIRECTORY / f"{version}.json").read_text())[service]
        self.config: dict[str, Any] = json.loads(self.data["config"])
        self.hashes: str = self.data["hashes"]
        self.inspect: dict[str, Any] = copy.deepcopy(self.data["container"])
        self.image_inspect: dict[str, Any] = copy.deepcopy(self.data["image"])
        self.networks: dict[str, Any] = {one["Name"]: one for one in copy.deepcopy(self.data["networks"])}
        self.content: str = self.data["content"]

    @property
    def definition(self) -> dict[str, Any]:
        """The service in what Compose printed, to be changed in place."""
        return self.config["services"][self.service]

    def edit(self, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change the definition; with it goes the hash, and the text is another."""
        change(self.definition)
        self.new_hash()

    def new_hash(self) -> None:
        """As if anything in the definition had changed."""
        self.hashes = f"{self.service} {'f' * 64}\n"
        self.content += "# changed\n"

    def desired(self) -> Desired:
        """The project as wanted."""
        return parse_desired(PROJECT, self.content, json.dumps(self.config), self.hashes)

    def container(self, **changes: Any) -> Container:
        """The container as it is."""
        return replace(parse_container(self.inspect, parse_image(self.image_inspect)), **changes)

    def actual(self, *containers: Container, **changes: Any) -> Actual:
        """The project as it is: by default one container, and the file as it was recorded."""
        image = parse_image(self.image_inspect)
        actual = Actual(
            containers=containers or (self.container(),),
            images={"voices-test:one": image},
            networks=self.networks,
            text=self.data["content"],
        )
        return replace(actual, **changes)

    def plan(self, actual: Actual | None = None, pull: str = "missing", **remote: Remote) -> Plan:
        """The plan from ``actual`` (default: as recorded) to the definition."""
        answers = {key.replace("__", ":").replace("_", "-"): value for key, value in remote.items()}
        return plan_present(self.desired(), actual or self.actual(), self.secrets(), pull, answers)

    def secrets(self) -> Secrets:
        """The secrets of the definition."""
        return Secrets().with_environment(next(iter(self.desired().services.values())).config["environment"])


def steps(plan: Plan) -> list[tuple[str, str, str]]:
    """(do, what, why) of each action."""
    return [(action.do, action.what, action.why) for action in plan.actions]


def changes(plan: Plan) -> list[tuple[str, Any, Any]]:
    """(why, before, after) of each action on a service."""
    return [(action.why, action.before, action.after) for action in plan.actions if action.do == "recreate"]
