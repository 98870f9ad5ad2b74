#!/usr/bin/python
"""Ansible module: one long-running process under its own supervisord."""

from __future__ import annotations

DOCUMENTATION = r"""
module: supervised_service
short_description: Keep one long-running process up under its own supervisord
description:
  - Starts a process under a supervisord (PyPI C(supervisor)) of its own, as the user who runs the module. The process
    survives the play, is restarted when it dies, and everything it left behind is ended before it is started again.
  - It survives C(kill -9) of its wrapper and of supervisord. The next run then takes it over without a restart. So it
    does with a process that was started by hand and runs as wanted.
  - The process is restarted only when its argv, its environment or its configuration (as it was read at its start)
    differs from the wanted one. Everything else (time limits, log sizes, supervisord.conf, the wrapper) is taken up
    while the process runs on; for supervisord.conf and the wrapper, supervisord is replaced around it.
  - Healthy means that I(health_url) answers 200 and that the only listener on I(listen_port) is a process of this
    service.
  - Signals reach only processes whose pid and start time are those on record.
attributes:
  check_mode:
    description: Can run in check mode and return the same actions without changing anything.
    support: full
  diff_mode:
    description: Returns what changes, in both modes.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
options:
  name:
    description: Name of the service; it is supervisord's name for the program, too.
    type: str
    required: true
  dir:
    description:
      - Directory of the service, owned by the module, mode 0700. Holds C(supervisord.conf), C(run/) and C(log/).
    type: path
    required: true
  state:
    description:
      - V(started) means running and healthy.
      - V(stopped) means that no process of the service runs, supervisord included.
      - V(absent) is V(stopped), and the directory is removed.
    type: str
    choices: [started, stopped, absent]
    default: started
  argv:
    description: Command line; the first element is an absolute path. Required for V(started).
    type: list
    elements: str
    default: []
  environment:
    description:
      - Environment of the process, besides E(PATH), E(HOME), E(LANG), E(USER) and E(TMPDIR) where the module has them.
      - Values are texts or numbers. Those of keys with KEY, TOKEN, PASSWORD or SECRET in their name are never printed.
    type: dict
    default: {}
  config_file:
    description: Configuration file that the process reads at its start.
    type: path
  config:
    description:
      - Wanted content of I(config_file) with its secrets masked, compared key by key with what the process has read.
      - Without it, any change of the file's bytes is a reason for a restart.
    type: dict
  config_ignore:
    description: Keys of the configuration whose change needs no restart.
    type: list
    elements: str
    default: []
  health_url:
    description: An C(http://) URL that answers 200 once the service is healthy. Without it, running counts as healthy.
    type: str
    default: ""
  listen_host:
    description: Address on which the process listens.
    type: str
    default: 127.0.0.1
  listen_port:
    description: TCP port on which the process listens; 0 for none.
    type: int
    default: 0
  health_timeout_s:
    description: Longest wait for health, in seconds.
    type: float
    default: 180
  start_seconds:
    description:
      - The process must stay up for this many seconds to count as started; must exceed the time in which it would fail.
    type: int
    default: 30
  start_retries:
    description: How often a process that ends before I(start_seconds) is started again before supervisord gives up.
    type: int
    default: 3
  stop_seconds:
    description: Seconds from SIGTERM to SIGKILL.
    type: int
    default: 20
  supervisord:
    description: Path of the supervisord executable. Required for V(started).
    type: path
  python:
    description: Path of a Python 3.11 or later for the wrapper; it needs no packages. Required for V(started).
    type: path
  wrapper:
    description:
      - Text of the wrapper (the role's C(files/service_run.py)), which is written into I(dir).
      - V(started) needs this or I(wrapper_source).
    type: str
  wrapper_source:
    description: Path of that file on the host, instead of its text.
    type: path
  adopt_environment:
    description: Keys of I(environment) that must be the same in a process started by hand for it to be taken over.
    type: list
    elements: str
    default: []
  log_max_mib:
    description: Size at which the log of the process is rotated, in MiB.
    type: int
    default: 10
  log_backups:
    description: Number of rotated logs that are kept.
    type: int
    default: 3
author:
  - The voices project
"""

EXAMPLES = r"""
- name: Keep the seat's engine up
  supervised_service:
    name: voices-tiny
    dir: /srv/voices/seats/tiny/service
    argv: [/srv/voices/engine/bin/vllm, serve, --config, /srv/voices/seats/tiny/engine/engine.yaml]
    environment:
      VLLM_ALLOW_RUNTIME_LORA_UPDATING: "1"
    config_file: /srv/voices/seats/tiny/engine/engine.yaml
    config: "{{ engine.flags }}"
    config_ignore: [lora-modules]
    health_url: http://127.0.0.1:8027/health
    listen_port: 8027
    start_seconds: 40
    supervisord: /srv/voices/supervisor/bin/supervisord
    python: /usr/bin/python3
    wrapper: "{{ lookup('ansible.builtin.file', 'service_run.py', rstrip=false) }}"

- name: Stop it
  supervised_service:
    name: voices-tiny
    dir: /srv/voices/seats/tiny/service
    state: stopped
"""

RETURN = r"""
actions:
  description: What is done (or would be, in check mode), in order.
  returned: always
  type: list
  elements: dict
reasons:
  description: Why the service is started, restarted, taken over or rewritten; empty when nothing is to do.
  returned: always
  type: list
  elements: str
will_start:
  description: Whether the process is started or restarted, so that its runtime state is lost. The same in both modes.
  returned: always
  type: bool
adopted:
  description: Whether the process that runs (or would) was taken over rather than started by this module.
  returned: always
  type: bool
pid:
  description: The pid of the process; 0 when none runs. In check mode, the one before the run.
  returned: always
  type: int
log:
  description: Path of the log of the process.
  returned: always
  type: str
seconds:
  description: How long the process took to be healthy, in seconds.
  returned: always
  type: float
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.voices.masking import secret_values, shown_environment
from ansible.module_utils.voices.plan import BringUpError, VoicesError, as_dicts, as_diff, text_diff
from ansible.module_utils.voices.service import Actual, Plan, Spec, check_spec, environment_texts
from ansible.module_utils.voices.service_apply import ServiceApply
from ansible.module_utils.voices.service_client import ServiceClient
from ansible.module_utils.voices.service_health import ServiceHealth
from ansible.module_utils.voices.service_plan import plan_service

try:
    import yaml

    HAS_YAML = True
except ImportError:
    HAS_YAML = False

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "dir": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
    "argv": {"type": "list", "elements": "str", "default": []},
    # no_log keeps it out of syslog; main() then narrows what is masked in the result to the secret values.
    "environment": {"type": "dict", "default": {}, "no_log": True},
    "config_file": {"type": "path"},
    "config": {"type": "dict"},
    "config_ignore": {"type": "list", "elements": "str", "default": []},
    "health_url": {"type": "str", "default": ""},
    "listen_host": {"type": "str", "default": "127.0.0.1"},
    "listen_port": {"type": "int", "default": 0},
    "health_timeout_s": {"type": "float", "default": 180},
    "start_seconds": {"type": "int", "default": 30},
    "start_retries": {"type": "int", "default": 3},
    "stop_seconds": {"type": "int", "default": 20},
    "supervisord": {"type": "path"},
    "python": {"type": "path"},
    "wrapper": {"type": "str"},
    "wrapper_source": {"type": "path"},
    "adopt_environment": {"type": "list", "elements": "str", "default": []},
    "log_max_mib": {"type": "int", "default": 10},
    "log_backups": {"type": "int", "default": 3},
}
REQUIRED_IF = [
    ("state", "started", ("argv", "supervisord", "python")),
    ("state", "started", ("wrapper", "wrapper_source"), True),
]


def make_spec(params: dict[str, Any]) -> Spec:
    """The service as wanted, from the module's parameters."""
    return Spec(
        name=params["name"],
        directory=os.path.realpath(params["dir"]),
        argv=tuple(params["argv"]),
        environment=environment_texts(params["environment"]),
        config_file=params["config_file"] or "",
        config=params["config"],
        config_ignore=tuple(params["config_ignore"]),
        health_url=params["health_url"],
        listen_host=params["listen_host"],
        listen_port=params["listen_port"],
        health_timeout_s=params["health_timeout_s"],
        start_seconds=params["start_seconds"],
        start_retries=params["start_retries"],
        stop_seconds=params["stop_seconds"],
        supervisord=params["supervisord"] or "",
        python=params["python"] or "",
        state=params["state"],
        adopt_environment=tuple(params["adopt_environment"]),
        log_max_mib=params["log_max_mib"],
        log_backups=params["log_backups"],
    )


def parse_yaml(content: bytes) -> Any:
    """The data in a YAML text; ValueError when it is none."""
    try:
        return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def result_of(spec: Spec, plan: Plan, actual: Actual, desired: dict[str, str]) -> dict[str, Any]:
    """The part of the result that both modes share."""
    booted = actual.booted
    conf = "supervisord.conf"
    return {
        "changed": bool(plan.actions),
        "actions": as_dicts(plan.actions),
        "diff": as_diff(plan.actions)
        + (text_diff(conf, actual.files.get(conf) or "", desired[conf]) if conf in desired and plan.actions else []),
        "reasons": list(plan.reasons),
        "will_start": plan.will_start,
        "adopted": plan.adopt is not None
        or (not plan.will_start and spec.state == "started" and booted is not None and booted.adopted),
        "pid": booted.leader.pid if booted is not None and actual.alive else 0,
        "log": spec.log,
        "seconds": 0.0,
    }


def run(spec: Spec, client: ServiceClient, check_mode: bool) -> dict[str, Any]:
    """Read, plan and (unless in check mode) apply; returns the module's result. Raises VoicesError."""
    check_spec(spec)
    started = spec.state == "started"
    desired = client.desired_files() if started else {}
    if check_mode:
        actual = client.read()
        return result_of(spec, plan_service(spec, actual, desired), actual, desired)
    service = ServiceApply(client)
    if started and not os.path.exists(spec.directory):
        plan_service(spec, client.read(), desired)  # a refusal leaves nothing behind, not even the lock's directory
        service.check_executables()
    with client.directory.lock(spec.health_timeout_s + spec.stop_seconds + 30):
        actual = client.read()
        plan = plan_service(spec, actual, desired)
        result = result_of(spec, plan, actual, desired)
        service.apply(plan, desired)
        result["pid"] = 0
        if started:
            try:
                result["pid"], seconds = ServiceHealth(client).wait(plan.will_start)
            except VoicesError as error:
                raise BringUpError(str(error), result) from error
            result["seconds"] = round(seconds, 2)
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_if=REQUIRED_IF,
        mutually_exclusive=[("wrapper", "wrapper_source")],
    )
    params = module.params
    # Masking every environment value would blank each "1" in the result; only the secret ones are masked.
    module.no_log_values.clear()
    module.no_log_values.update(secret_values(params["environment"], None, params["argv"]))
    echoed = {"module_args": {**params, "environment": shown_environment(params["environment"]), "wrapper": "(text)"}}
    if not HAS_YAML:
        module.fail_json(msg=missing_required_lib("PyYAML"), invocation=echoed)
    spec = make_spec(params)
    try:
        client = ServiceClient(spec, parse_yaml, params["wrapper"], params["wrapper_source"] or "")
        result = run(spec, client, module.check_mode)
    except BringUpError as error:
        module.fail_json(msg=str(error), invocation=echoed, **error.result)
    except VoicesError as error:
        module.fail_json(msg=str(error), invocation=echoed)
    except OSError as error:
        module.fail_json(msg=f"service {spec.name}: {error}", invocation=echoed)
    module.exit_json(**result, invocation=echoed)


if __name__ == "__main__":
    main()
