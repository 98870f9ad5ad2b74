#!/usr/bin/python
"""Ansible module: one Docker Compose project, planned before it is touched."""

from __future__ import annotations

DOCUMENTATION = r"""
module: compose_project
short_description: Make a Docker Compose project equal a compose.yaml, with a plan that says why
description:
  - Reads what the file asks for from Compose itself (C(config), with its hashes) and what runs from the Docker engine,
    and plans from the two. Check mode shows that plan and starts no Compose command that can write.
  - A service is recreated when its definition, its image or its network differs; the plan names each field with before
    and after. It is started when it was stopped by hand. Containers of services that left the file are removed.
  - Writes C(compose.yaml) into O(directory) and keeps the previous one as C(compose.yaml.previous) if the project was
    healthy under it.
  - A run that was killed at any instant is put right by the next one.
  - Touches nothing outside the project. A name, port or network that belongs to others is refused before anything is
    changed, and so are a missing image, mount source, device, NVIDIA runtime, Docker socket or Compose.
  - Needs the Python package C(docker) and PyYAML on the host, and Compose 2.20 or later there.
attributes:
  check_mode:
    description: Returns the same actions as a real run would, and changes nothing.
    support: full
  diff_mode:
    description: Shows the plan and the change of compose.yaml, secrets masked, in both modes.
    support: full
  idempotent:
    description: A second run changes nothing and starts no Compose command that can write.
    support: full
options:
  project:
    description: Name of the project.
    type: str
    required: true
  directory:
    description: Directory of the project on the host. Made when missing.
    type: path
    required: true
  content:
    description:
      - Text of the whole compose.yaml. Required for V(present). Compose sees of the environment only E(PATH), E(HOME)
        and the like, so that the text means the same whoever runs the play.
      - Refused are C(build), more than one container a service, C(volumes_from), namespaces of another service, and
        C(depends_on) with C(restart), because what follows from them cannot be told beforehand.
    type: str
  state:
    description:
      - V(present) means that every service runs and is healthy; one without a health check is when it runs.
      - V(stopped) means that no container runs. Containers, networks and files stay.
      - V(absent) means that containers, networks and compose.yaml are gone. Named volumes stay.
    type: str
    choices: [present, stopped, absent]
    default: present
  docker_host:
    description: Socket of the engine, V(unix:///PATH).
    type: str
    default: unix:///var/run/docker.sock
  compose:
    description: The command that is Compose.
    type: list
    elements: str
    default: [docker, compose]
  wait_timeout_s:
    description: Longest wait for health, in seconds.
    type: float
    default: 300
  pull:
    description:
      - V(missing) pulls images that are not on the host, V(always) those that are newer in their registry, too. Both
        ask the registry beforehand, in check mode, too.
    type: str
    choices: [missing, never, always]
    default: missing
  expected_paths:
    description: Paths that earlier steps make. In check mode, a mount from one or from below one is not missing.
    type: list
    elements: path
    default: []
  secret_environment:
    description:
      - Environment keys whose values are masked, besides those with KEY, TOKEN, PASSWORD or SECRET in their name. A key
        that ends in _FILE, _PATH or _DIR names a place and is not masked by its name.
    type: list
    elements: str
    default: []
  stop_seconds:
    description: Seconds from SIGTERM to SIGKILL for a container that is stopped, recreated or removed.
    type: int
    default: 20
author:
  - The voices project
"""

EXAMPLES = r"""
- name: Run the seat's engine
  compose_project:
    project: voices-tiny
    directory: /srv/voices/seats/tiny/compose
    content: "{{ lookup('ansible.builtin.template', 'compose.yaml.j2') }}"

- name: Take it away
  compose_project:
    project: voices-tiny
    directory: /srv/voices/seats/tiny/compose
    state: absent
"""

RETURN = r"""
actions:
  description:
    - The plan, the same in check mode and in a real run. C(do) is pull, create, write, recreate, start, resume, rename,
      stop or remove; C(what) is a service, an image, compose.yaml, or C(network NAME) and C(container NAME).
    - A container that is not healthy yet and is as wanted is no action. The real run waits for it.
  returned: always
  type: list
  elements: dict
reasons:
  description: The plan in words, one line an action.
  returned: always
  type: list
  elements: str
will_start:
  description: Whether a container is created, recreated or started, so that its runtime state is lost.
  returned: always
  type: bool
containers:
  description: The project's containers after the run, in check mode before it.
  returned: always
  type: list
  elements: dict
  contains:
    service:
      description: Its service.
      type: str
    name:
      description: Its name.
      type: str
    id:
      description: Its id.
      type: str
    image:
      description: The image's name.
      type: str
    state:
      description: The engine's word for it, such as C(running).
      type: str
    health:
      description: C(healthy), C(unhealthy), C(starting), or empty without a health check.
      type: str
previous:
  description: Path of the last healthy compose.yaml, if there is one and it is not the wanted one; else empty.
  returned: always
  type: str
seconds:
  description: How long the changes and the wait for health took. 0 in check mode.
  returned: always
  type: float
"""

import os
import traceback
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.voices.plan import BringUpError, VoicesError

try:
    import docker  # noqa: F401 - the next imports need these; a host without them gets a message and no traceback
    import requests  # noqa: F401
    import yaml
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices.compose_client import ComposeProject, Spec
    from ansible.module_utils.voices.compose_engine import ERRORS, explain
    from ansible.module_utils.voices.compose_secrets import MaskedText

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "project": {"type": "str", "required": True},
    "directory": {"type": "path", "required": True},
    # no_log keeps it out of syslog; main() then narrows what is masked in the result to the secret values.
    "content": {"type": "str", "no_log": True},
    "state": {"type": "str", "choices": ["present", "stopped", "absent"], "default": "present"},
    "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
    "compose": {"type": "list", "elements": "str", "default": ["docker", "compose"]},
    "wait_timeout_s": {"type": "float", "default": 300},
    "pull": {"type": "str", "choices": ["missing", "never", "always"], "default": "missing"},
    "expected_paths": {"type": "list", "elements": "path", "default": []},
    "secret_environment": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "stop_seconds": {"type": "int", "default": 20},
}
REQUIRED_IF = [("state", "present", ("content",))]


def parse_yaml(text: str) -> Any:
    """The data in a YAML text; ValueError when it is none."""
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def make_spec(params: dict[str, Any]) -> Spec:
    """The project as wanted, from the module's parameters."""
    return Spec(
        project=params["project"],
        directory=os.path.realpath(params["directory"]),
        content=params["content"] or "",
        state=params["state"],
        docker_host=params["docker_host"],
        compose=tuple(params["compose"]),
        wait_timeout_s=params["wait_timeout_s"],
        pull=params["pull"],
        expected_paths=tuple(params["expected_paths"]),
        secret_environment=tuple(params["secret_environment"]),
        stop_seconds=params["stop_seconds"],
    )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True, required_if=REQUIRED_IF)
    if IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("docker, requests and PyYAML"), exception=IMPORT_ERROR)
    params = module.params
    echoed = {"module_args": {**params, "content": "(text)" if params["content"] else None}}
    # Masking the whole text would leave nothing of a diff; only the secrets in it are masked.
    module.no_log_values.clear()
    module.no_log_values.update(MaskedText(params["content"] or "", params["secret_environment"], parse_yaml).values)
    try:
        project = ComposeProject(make_spec(params), parse_yaml)
        try:
            result = project.run(module.check_mode)
        finally:
            project.close()
    except BringUpError as error:
        module.fail_json(msg=str(error), **error.result, invocation=echoed)
    except VoicesError as error:
        module.fail_json(msg=str(error), invocation=echoed)
    except ERRORS as error:
        module.fail_json(
            msg=f"project {params['project']}: the Docker engine says: {explain(error)}", invocation=echoed
        )
    except OSError as error:
        place = error.filename or params["directory"]
        module.fail_json(msg=f"project {params['project']}: {place}: {error.strerror or error}", invocation=echoed)
    for warning in project.warnings:
        module.warn(warning)
    module.exit_json(**result, invocation=echoed)


if __name__ == "__main__":
    main()
