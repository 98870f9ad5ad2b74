#!/usr/bin/python
"""Ansible module: would these LoRA adapters speak on this carrier?"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

YAML_ERROR = None
try:
    import yaml  # noqa: F401 - carrier_client needs it
except ImportError:
    YAML_ERROR = traceback.format_exc()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.adapter_check import Checked, Seat, check_adapter, wishes_from
from ansible.module_utils.voices.adapter_check_client import read_source
from ansible.module_utils.voices.adapter_findings import INFO
from ansible.module_utils.voices.carrier_tensors import CarrierModules
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.plan import VoicesError

if YAML_ERROR is None:
    from ansible.module_utils.voices.carrier_tensors_client import read_carrier_modules

DOCUMENTATION = r"""
---
module: lora_adapter_check
short_description: Check LoRA adapters against a carrier before they are served
version_added: "0.1.0"
description:
  - Reads each adapter's C(adapter_config.json) and the header of its C(adapter_model.safetensors), and compares names,
    shapes and settings with the carrier's own modules. vLLM loads many adapters that do not fit, answers 200, and
    speaks as the base; others it refuses or fails on.
  - Every finding has a code, a severity, the tensor, numbers and a fix. The codes and what vLLM does with each are in
    docs/decisions/0004-adapter-checks.md.
  - With O(read_weights) the weights are read as well, in pieces of one MiB, for values that are not finite and for
    modules that are all zero. Neither torch nor numpy is needed.
author:
  - Voices project
attributes:
  check_mode:
    description: It reads only, so that both modes are the same.
    support: full
  diff_mode:
    description: There is never a difference to show.
    support: full
  idempotent:
    description: It changes nothing.
    support: full
options:
  adapters:
    description:
      - The adapters by voice, as a map of the name to a map with C(source), the absolute path of the adapter's
        directory, and optionally C(allow), a list of codes whose errors become warnings for this voice.
      - What makes a file unsafe or unreadable (a pickle, a link that leaves, a truncated file) cannot be allowed.
    type: dict
    required: true
  carrier:
    description:
      - The carrier's directory, with C(config.json) and, where they are there, its safetensors.
      - Left out, names and shapes are not compared, and each voice gets a warning that says so.
    type: path
  max_lora_rank:
    description: The seat's max_lora_rank. 0 checks no rank against it.
    type: int
    default: 0
  support:
    description:
      - What the engine's source says of the carrier's architecture, as a map with C(packed_modules) and
        C(embedding_modules). Left out, what is known of the architecture is used, and a LoRA on the embeddings of any
        other is a warning.
    type: dict
    default: {}
  base_models:
    description: More names that C(base_model_name_or_path) may have, for a carrier that was moved or renamed.
    type: list
    elements: str
    default: []
  read_weights:
    description: Read the weights too.
    type: bool
    default: true
  strict:
    description: Fail when an adapter has an error. V(false) reports it.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Check two adapters before they are stored
  lora_adapter_check:
    carrier: /tank/models/Qwen3-4B-Instruct
    max_lora_rank: 32
    base_models: [qwen3-4b-instruct-copy]
    adapters:
      lv-austen:
        source: /tank/adapters/lv-austen
      lv-bronte:
        source: /tank/adapters/lv-bronte
        allow: [bias]
"""

RETURN = r"""
findings:
  description: For each voice its findings, errors first. Of each code three are listed and the rest is counted.
  returned: always
  type: dict
  sample:
    lv-austen:
      - code: rank-above-seat
        severity: error
        tensor: ""
        message: rank 64, max_lora_rank is 32 (vLLM allows 1, 8, 16, 32, 64, 128, 256, 320, 512)
        fix: set max_lora_rank to 64
checked:
  description: For each voice what was looked at.
  returned: always
  type: dict
  contains:
    rank: {description: The largest rank of the configuration and of the tensors., type: int}
    tensors: {description: How many tensors there are., type: int}
    modules: {description: How many modules they belong to., type: int}
    bytes: {description: Bytes of the weight file., type: int}
    weights_read: {description: Whether the weights were read., type: bool}
failed_voices:
  description: The voices with at least one error.
  returned: always
  type: list
  elements: str
actions:
  description: Always empty, as it only looks.
  returned: always
  type: list
  elements: dict
  sample: []
"""

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "adapters": {"type": "dict", "required": True},
    "carrier": {"type": "path"},
    "max_lora_rank": {"type": "int", "default": 0},
    "support": {"type": "dict", "default": {}},
    "base_models": {"type": "list", "elements": "str", "default": []},
    "read_weights": {"type": "bool", "default": True},
    "strict": {"type": "bool", "default": True},
}


def look(params: Mapping[str, Any]) -> dict[str, Checked]:
    """The verdict on every voice. Raises VoicesError for options that are wrong and a carrier that cannot be read."""
    wishes = wishes_from(params["adapters"])
    if params["max_lora_rank"] < 0:
        raise VoicesError(f"max_lora_rank is {params['max_lora_rank']}: set a rank, or 0 for no check")
    support = {key: params["support"].get(key) for key in ("packed_modules", "embedding_modules")}
    for key, value in support.items():
        if value is not None and not isinstance(value, Mapping):
            raise VoicesError(f"support.{key} is {value!r:.80}, not a map: give what vllm_lora_support returned")
    carrier = CarrierModules(known=False, why_unknown="no carrier was given")
    if params["carrier"]:
        carrier = read_carrier_modules(Path(params["carrier"]), support["embedding_modules"])
    packed = {key: value for key, value in (support["packed_modules"] or {}).items() if isinstance(value, list)}
    seat = Seat(carrier, params["max_lora_rank"], packed, tuple(params["base_models"]))
    return {
        wish.voice: check_adapter(read_source(wish.source, read_weights=params["read_weights"]), seat, wish.allow)
        for wish in wishes
    }


def failure(checked: Mapping[str, Checked]) -> str:
    """Every voice that failed with every error, for a person."""
    lines = []
    for voice, one in checked.items():
        lines += [f"- voice {voice}: {finding.line()}" for finding in one.errors]
    failed = sum(bool(one.errors) for one in checked.values())
    return f"{failed} of {len(checked)} adapters would not speak as they should:\n" + "\n".join(lines)


def main() -> None:
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    require(module, "PyYAML", YAML_ERROR)
    checked: dict[str, Checked] = {}
    with errors_reported(module):
        checked = look(module.params)
    failed = [voice for voice, one in checked.items() if one.errors]
    result = {
        "changed": False,
        "actions": [],
        "findings": {voice: [finding.as_dict() for finding in one.findings] for voice, one in checked.items()},
        "checked": {voice: one.facts() for voice, one in checked.items()},
        "failed_voices": failed,
    }
    for voice, one in checked.items():
        for finding in one.findings:
            failing = module.params["strict"] and finding in one.errors
            if finding.severity != INFO and not failing:
                module.warn(f"voice {voice}: {finding.line()}")
    if failed and module.params["strict"]:
        module.fail_json(msg=failure(checked), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
