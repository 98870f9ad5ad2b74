#!/usr/bin/python
"""Write the engine file of a voices seat."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_file
short_description: Write engine.yaml, the guard and the key files of a voices seat
description:
  - Makes C(engine.yaml), which vLLM reads with C(--config), equal to the wanted flags. It touches no process.
  - The list of voices in it (C(lora-modules)) is kept as it is. M(vllm_lora_adapters) writes it, after a load has
    worked. Only when a flag changes, and the engine so starts anew, are retired voices dropped, and voices whose
    directory holds no adapter, because one such entry stops the whole engine.
  - Files are replaced atomically, with mode 0600, in an order that leaves a file to start from after a kill at any
    point.
  - When flags change and the present file is the one noted as last healthy, it is kept as C(engine.yaml.previous).
options:
  path:
    description: The engine file. The guard is written beside it; the directory is the engine's PYTHONPATH.
    type: path
    required: true
  flags:
    description:
      - vLLM's serve flags in kebab-case. A flag that is null counts as not given.
      - Refused are those with an owner elsewhere (C(lora-modules), C(api-key), C(middleware), C(max-loras),
        C(max-cpu-loras)), and C(config), C(root-path) and C(hf-token).
    type: dict
    required: true
  voices:
    description: Names of the voices that are present in the inventory.
    type: list
    elements: str
    default: []
  gone:
    description: Names of the voices with state retired or absent. A deployed voice that is in neither list is an error.
    type: list
    elements: str
    default: []
  stored:
    description:
      - Adapter paths that the store holds, or will hold once its plan is carried out. They are not looked for, so that
        check mode plans the same as a run in which M(adapter_store) has put a lost entry right.
    type: list
    elements: str
    default: []
  max_loras:
    description:
      - Adapters that one batch may use. Fewer than the voices is refused.
      - Unset, the value in the file is kept while the voices fit, else it is the number of voices plus one.
    type: int
  max_cpu_loras:
    description: Adapters kept in memory. At least O(max_loras); unset, the value in the file is kept while it is
      enough.
    type: int
  api_key:
    description: The seat's key, at least 24 characters. Unset, the one in O(api_key_file) stays.
    type: str
  api_key_file:
    description: Where the key lies, one line, mode 0600. C(auth.header) beside it holds it as a header, for curl.
    type: path
    required: true
  generate_api_key:
    description: Make a key when none is given and O(api_key_file) is not there.
    type: bool
    default: false
  guard:
    description: Text of the ASGI module with the class SeatGuard, which closes the paths that a seat does not need.
    type: str
    required: true
  owner:
    description: Who C(engine.yaml) belongs to, C(uid:gid), when the engine runs as another user. Needs root.
    type: str
    default: ""
  carrier:
    description:
      - The carrier's directory on this host. One without a C(config.json) is refused, before a flag change restarts an
        engine that then cannot find its model.
    type: path
attributes:
  check_mode:
    description: Reports the same actions and writes nothing.
    support: full
  diff_mode:
    description: Shows engine.yaml before and after, with the key masked.
    support: full
  idempotent:
    description: A second run with the same parameters changes nothing.
    support: full
author: the voices seat maintainers
"""

EXAMPLES = r"""
- name: Write the engine file
  engine_file:
    path: /srv/voices/seats/tiny/engine/engine.yaml
    flags:
      model: /srv/voices/carriers/tiny
      served-model-name: voices-base
      host: 127.0.0.1
      port: 8100
      enable-lora: true
      max-lora-rank: 16
    voices: [lv-austen, lv-bronte]
    gone: [lv-homer]
    api_key_file: /srv/voices/seats/tiny/secrets/api_key
    generate_api_key: true
    guard: "{{ lookup('ansible.builtin.file', 'voices_guard.py', rstrip=false) }}"
"""

RETURN = r"""
flags:
  description: The wanted flags without C(lora-modules), the key as C(sha256:<12 hex>).
  type: dict
  returned: success
flags_before:
  description: The flags that were there, masked likewise; empty when there was no file.
  type: dict
  returned: success
voices_before:
  description: Name to path of the voices that were in the file.
  type: dict
  returned: success
boot_voices:
  description: Name to path of the voices in the file after this task, which an engine that starts now would load.
  type: dict
  returned: success
reasons:
  description: The flags that differ from the file that was there, each with C(flag), C(before) and C(after).
  type: list
  elements: dict
  returned: success
previous:
  description: Path of the last healthy engine file, empty when there is none.
  type: str
  returned: success
kept_previous:
  description: Whether this task put the present file there, because it was healthy and its flags change.
  type: bool
  returned: success
path:
  description: The engine file.
  type: str
  returned: success
actions:
  description: The plan, the same in check mode and in a real run.
  type: list
  elements: dict
  returned: success
"""

import traceback
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.plan import as_dicts

try:
    import yaml  # noqa: F401 - the next imports need it; a host without it gets a message and no traceback
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices.api_key import mask
    from ansible.module_utils.voices.engine_directory import EngineDirectory, check_carrier
    from ansible.module_utils.voices.engine_file import Desired, plan

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "flags": {"type": "dict", "required": True},
    "voices": {"type": "list", "elements": "str", "default": []},
    "gone": {"type": "list", "elements": "str", "default": []},
    "stored": {"type": "list", "elements": "str", "default": []},
    "max_loras": {"type": "int"},
    "max_cpu_loras": {"type": "int"},
    "api_key": {"type": "str", "no_log": True},
    "api_key_file": {"type": "path", "required": True, "no_log": False},
    "generate_api_key": {"type": "bool", "default": False, "no_log": False},
    "guard": {"type": "str", "required": True},
    "owner": {"type": "str", "default": ""},
    "carrier": {"type": "path"},
}


def run(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """The module's result. Raises VoicesError for a refusal and OSError for a file that cannot be read or written."""
    desired = Desired(
        flags=params["flags"],
        guard=params["guard"],
        voices=tuple(params["voices"]),
        gone=tuple(params["gone"]),
        max_loras=params["max_loras"],
        max_cpu_loras=params["max_cpu_loras"],
        api_key=params["api_key"] or None,
        generate_api_key=params["generate_api_key"],
        owner=params["owner"],
    )
    check_carrier(params["carrier"])
    directory = EngineDirectory(params["path"], params["api_key_file"])
    names = {"path": params["path"], "api_key_file": params["api_key_file"]}
    present = directory.read(params["stored"])
    made = plan(desired, present, **names)
    flags = made.flags
    if made.actions and not check_mode:
        with directory.lock():
            made = plan(desired, directory.read(params["stored"]), **names)  # vllm_lora_adapters may have written since
            flags = directory.apply(made, params["guard"], params["owner"])
    return {
        "changed": bool(made.actions),
        "actions": as_dicts(made.actions),
        "diff": list(made.diff),
        "flags": mask(flags),
        "flags_before": mask(present.flags or {}),
        "voices_before": dict(present.voices),
        "boot_voices": dict(made.voices),
        "reasons": list(made.reasons),
        "kept_previous": made.keep_previous,
        "previous": str(directory.previous) if made.has_previous else "",
        "path": params["path"],
    }


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    require(module, "PyYAML", IMPORT_ERROR)
    with errors_reported(module, module.params["path"]):
        result = run(module.params, module.check_mode)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
