#!/usr/bin/python
"""Make the adapters of a live seat equal the wanted set, and lasting."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_lora_adapters
short_description: Make the LoRA adapters of a running vLLM server equal the wanted set
description:
  - Loads missing voices, unloads retired ones, and replaces those whose path differs by unloading and loading from
    the new path, never in place. The engine keeps running.
  - With O(engine_file), what is live is also written to its C(lora-modules), so that a restart brings it back. Loads
    are live first and then written; removals are written first and then unloaded.
  - A voice that fails leaves the others as they are, and the task fails naming each. When a replacement does not
    load, the previous adapter is loaded again.
  - Adapters that are live, unasked for and not in O(engine_file) are trials. They are reported and left alone.
options:
  base_url:
    description: Where the seat listens, such as C(http://127.0.0.1:8100).
    type: str
    required: true
  api_key_file:
    description: File with the seat's key. A file that is not there means no key.
    type: path
  voices:
    description: Name to absolute path of the adapters to be live.
    type: dict
    default: {}
  absent:
    description: Names that are not to be live.
    type: list
    elements: str
    default: []
  engine_file:
    description: The seat's engine.yaml. Unset, nothing is made lasting.
    type: path
  persist:
    description: Whether O(engine_file) follows. With V(false) it is only read, to tell trials from voices.
    type: bool
    default: true
  prune_trials:
    description: Unload trials. Needs O(engine_file).
    type: bool
    default: false
  engine_starts:
    description: In check mode, plan as if the engine had just started with the voices in O(assume_live).
    type: bool
    default: false
  assume_live:
    description: Name to path, as M(engine_file) returns in C(boot_voices).
    type: dict
    default: {}
  trials_only:
    description:
      - Only report which trials the engine that runs serves, before a restart loses them. Nothing else is planned.
      - It is asked with the port and the key of the engine file that was last healthy, because O(engine_file) may
        already hold those of the next start. One that does not answer as it should is a warning. Needs O(engine_file).
    type: bool
    default: false
  base_model:
    description: Name under which the server serves its base model. A server without it is not touched.
    type: str
    default: voices-base
  silent:
    description:
      - What to do with an adapter that cannot be told from the base. Before it takes its voice's name, it is loaded
        under a private name, C(voices-rehearsal-<voice>), and its log-probabilities of a fixed text are compared with
        the base's; a difference no larger than that of the base from itself is silence.
      - With V(fail) the voice fails, and what is served stays. With V(warn) it is served all the same. With V(ignore)
        nobody listens.
    type: str
    choices: [fail, warn, ignore]
    default: fail
  timeout_s:
    description: Seconds to wait for one answer. A load that takes longer is looked up afterwards, not sent twice.
    type: float
    default: 60
attributes:
  check_mode:
    description: Reports the same actions and changes nothing. When no seat answers, it plans for one that has started.
    support: full
  diff_mode:
    description: Shows one line an action.
    support: full
  idempotent:
    description: A second run with the same parameters changes nothing.
    support: full
author: the voices seat maintainers
"""

EXAMPLES = r"""
- name: Make two voices live and lasting and retire one
  vllm_lora_adapters:
    base_url: http://127.0.0.1:8100
    api_key_file: /srv/voices/seats/tiny/secrets/api_key
    engine_file: /srv/voices/seats/tiny/engine/engine.yaml
    voices:
      lv-austen: /srv/voices/store/lv-austen@0a1b2c3d4e5f
      lv-bronte: /srv/voices/store/lv-bronte@5f4e3d2c1b0a
    absent: [lv-homer]
"""

RETURN = r"""
actions:
  description: The plan, the same in check mode and in a real run.
  type: list
  elements: dict
  returned: always
live:
  description: Name to path of the live adapters after the task (in check mode, as it would be).
  type: dict
  returned: always
trials:
  description: Live adapters that a restart would lose, name to path. Without O(engine_file), all that were not asked
    for.
  type: dict
  returned: always
timings:
  description: Seconds by voice, C(load_s), C(unload_s), C(rehearsal_s), and C(gap_s), the longest time for which a
    replaced voice was missing.
  type: dict
  returned: always
speech:
  description: For each voice that was loaded and heard, C(difference) from the base and C(floor), the base's own from
    itself, in nats, C(rounds), and C(verdict), V(speaks) or V(silent).
  type: dict
  returned: always
failed_voices:
  description: The voices that failed, each with C(voice) and C(why).
  type: list
  elements: dict
  returned: always
"""

import traceback
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.plan import VoicesError, as_dicts, as_diff

try:
    import requests  # noqa: F401 - the next imports need both; a host without them gets a message and no traceback
    import yaml  # noqa: F401
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices import adapters as core
    from ansible.module_utils.voices.adapters_runner import Outcome, Runner, failures
    from ansible.module_utils.voices.engine_directory import EngineDirectory, has_adapter
    from ansible.module_utils.voices.seat_access import open_seat
    from ansible.module_utils.voices.seat_api import SeatApi, SeatError, SeatUnreachable
    from ansible.module_utils.voices.trials import live_trials

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "base_url": {"type": "str", "required": True},
    "api_key_file": {"type": "path", "no_log": False},
    "voices": {"type": "dict", "default": {}},
    "absent": {"type": "list", "elements": "str", "default": []},
    "engine_file": {"type": "path"},
    "persist": {"type": "bool", "default": True},
    "prune_trials": {"type": "bool", "default": False},
    "engine_starts": {"type": "bool", "default": False},
    "assume_live": {"type": "dict", "default": {}},
    "trials_only": {"type": "bool", "default": False},
    "base_model": {"type": "str", "default": "voices-base"},
    "silent": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "fail"},
    "timeout_s": {"type": "float", "default": 60},
}


def read_persisted(directory: EngineDirectory | None, must_exist: bool) -> dict[str, str] | None:
    """The voices in engine.yaml, None without an engine_file. Raises VoicesError when one that must exist does not."""
    if directory is None:
        return None
    found = directory.read_engine_file()
    if found is None and must_exist:
        raise VoicesError(f"engine_file {directory.path} is not there: the module engine_file writes it first")
    return found[1] if found else {}


def read_actual(
    params: dict[str, Any], seat: SeatApi, persisted: dict[str, str] | None, check_mode: bool
) -> core.Actual:
    """What is live and lasting; in check mode, what would be once the seat has started."""
    if check_mode and params["engine_starts"]:
        boot = dict(params["assume_live"])
        return core.Actual(boot, boot if persisted is not None else None)
    try:
        return core.Actual(seat.adapters(params["base_model"]), persisted)
    except SeatUnreachable:
        if not check_mode:
            raise
    boot = {name: path for name, path in (persisted or {}).items() if has_adapter(path)}
    return core.Actual(boot, boot if persisted is not None else None)


def run(module: AnsibleModule) -> dict[str, Any]:
    """The module's result. Raises VoicesError for a refusal and OSError for a file that cannot be read."""
    params = module.params
    directory = EngineDirectory(params["engine_file"]) if params["engine_file"] else None
    seat = open_seat(params)
    persists = directory is not None and params["persist"]
    wanted = core.Wanted(params["voices"], params["absent"], params["persist"], params["prune_trials"])
    persisted = read_persisted(directory, must_exist=persists and not module.check_mode)
    actual = read_actual(params, seat, persisted, module.check_mode)
    actions = core.plan(wanted, actual)
    live, outcome = core.after(actions, actual.live), Outcome()
    if actions and not module.check_mode:
        change_voices = directory.change_voices if directory and persists else None
        outcome = Runner(seat, params["base_model"], change_voices, params["silent"]).run(actions)
        for warning in outcome.warnings:
            module.warn(warning)
        live = live_after(seat, params["base_model"], live, outcome)
    return {
        "changed": bool(actions),
        "actions": as_dicts(actions),
        "diff": as_diff(actions),
        "live": live,
        "trials": left_trials(wanted, live, persisted),
        "timings": outcome.timings,
        "speech": outcome.speech,
        "failed_voices": failures(outcome),
    }


def look(module: AnsibleModule) -> dict[str, Any]:
    """The result of a run that only reports trials. Raises VoicesError for an unreadable engine.yaml."""
    params = module.params
    trials, why = live_trials(
        params["base_url"],
        params["base_model"],
        EngineDirectory(params["engine_file"]),
        params["voices"],
        params["absent"],
        params["timeout_s"],
    )
    if why:
        module.warn(f"which trials the restart loses cannot be seen: {why}")
    nothing = {"changed": False, "actions": [], "diff": [], "timings": {}, "speech": {}, "failed_voices": []}
    return {**nothing, "live": {}, "trials": trials}


def live_after(seat: SeatApi, base_model: str, planned: dict[str, str], outcome: Outcome) -> dict[str, str]:
    """What is live after a run; as planned when all went well, which the run has proven."""
    if not outcome.failed:
        return planned
    try:
        return seat.adapters(base_model)
    except SeatError:
        return {}


def left_trials(wanted: core.Wanted, live: dict[str, str], persisted: dict[str, str] | None) -> dict[str, str]:
    """The trials that are live after the run; a voice that is loaded without being made lasting is one of them."""
    asked = core.Wanted({} if persisted is not None and not wanted.persist else wanted.voices, wanted.absent)
    return core.trials(asked, core.Actual(live, persisted))


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_if=[("trials_only", True, ["engine_file"])],
    )
    require(module, "requests and PyYAML", IMPORT_ERROR)
    with errors_reported(module, module.params["engine_file"]):
        result = look(module) if module.params["trials_only"] else run(module)
    for name, path in result["trials"].items():
        if module.params["engine_file"] and name not in module.params["voices"]:
            module.warn(
                f"trial {name} is served from {path} and a restart will lose it; put it into the inventory to keep it, "
                "or unload it (voice_try with state=absent, or prune_trials)"
            )
    if result["failed_voices"]:
        reasons = "; ".join(f"{item['voice']}: {item['why']}" for item in result["failed_voices"])
        count = len(result["failed_voices"])
        module.fail_json(msg=f"{count} voice(s) failed, the others are as planned: {reasons}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
