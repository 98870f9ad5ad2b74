#!/usr/bin/python
"""Ansible module: does this engine take LoRA on this carrier, and does it know these flags?"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

YAML_ERROR = DOCKER_ERROR = None
try:
    import yaml  # noqa: F401 - carrier_client needs it
except ImportError:
    YAML_ERROR = traceback.format_exc()
try:
    import docker  # noqa: F401 - engine_source_image needs it
except ImportError:
    DOCKER_ERROR = traceback.format_exc()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported, require

if YAML_ERROR is None:
    from ansible.module_utils.voices.lora_support_client import Place, ask, message, read_carrier_facts
if DOCKER_ERROR is None and YAML_ERROR is None:
    from ansible.module_utils.voices import engine_source_image  # noqa: F401 - so that Ansible ships it

DOCUMENTATION = r"""
---
module: vllm_lora_support
short_description: Does this engine take LoRA on this carrier
version_added: "0.1.0"
description:
  - Reads the engine's own source as syntax trees, runs none of it, and says whether the class that would serve the
    carrier takes LoRA, which modules it packs, and on which embeddings a LoRA may lie. No table of verdicts is shipped.
  - An architecture that the registry does not name is followed to the Transformers backend, where this version has one.
  - With O(flags) it says which keys of an engine.yaml this engine does not know under that very name.
  - How it reads, and what it cannot tell, is in docs/decisions/0006-lora-support.md.
author:
  - Voices project
attributes:
  check_mode:
    description: It says the same, and keeps no answer in O(cache).
    support: full
  diff_mode:
    description: There is never a difference to show.
    support: full
  idempotent:
    description: It changes nothing but O(cache), which is no change to the host.
    support: full
options:
  directory:
    description: The directory in which the engine's C(vllm/) lies, such as a checkout or an unpacked wheel; or a wheel.
    type: path
  python:
    description: The interpreter of the virtual environment in which the engine is installed. It is not started.
    type: path
  image:
    description:
      - The engine's container image, which must be on the host. A container is made from it, read and removed; it is
        never started. One that a killed run left has the label C(voices.source-reading) and is removed by a later run.
    type: str
  docker_host:
    description: The socket of the Docker engine that has O(image).
    type: str
    default: unix:///var/run/docker.sock
  carrier:
    description: The carrier's directory, with its C(config.json).
    type: path
    required: true
  flags:
    description: Keys of the seat's engine.yaml.
    type: list
    elements: str
    default: []
  platform:
    description:
      - What the engine runs on, as some architectures are another class on each. V(auto) is what the build's version or
        the name of its distribution says, CUDA where they say nothing.
    type: str
    choices: [auto, cuda, rocm, cpu, xpu, tpu]
    default: auto
  cache:
    description:
      - A directory for answers. One is used again while the image's id, or every file that it rests on, is the same.
    type: path
  strict:
    description: Fail when the carrier takes no LoRA or a flag is not known. V(false) reports it.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Refuse a carrier on which no voice could speak
  vllm_lora_support:
    python: /opt/voices/venv/bin/python
    carrier: /tank/models/Qwen3-4B-Instruct
    flags: [max-model-len, kv-cache-memory-bytes]
    cache: /opt/voices/cache/lora-support

- name: Ask a new image before a seat is moved to it
  vllm_lora_support:
    image: vllm/vllm-openai:v0.26.0
    carrier: /tank/models/Qwen3-30B-A3B
    strict: false
  register: support
"""

RETURN = r"""
supported:
  description: Whether the engine takes LoRA on this carrier.
  returned: always
  type: bool
verdict:
  description: V(yes), V(no), V(through the Transformers backend), or V(unknown) where the source does not tell.
  returned: always
  type: str
reason:
  description: Why, in a few words.
  returned: always
  type: str
message:
  description: The verdict in words.
  returned: always
  type: str
  sample: >-
    vLLM 0.32.0 (/opt/voices/venv/bin/python) takes LoRA on Qwen3ForCausalLM: Qwen3ForCausalLM derives from SupportsLoRA
    (vllm/model_executor/models/qwen3.py:291)
architecture:
  description: The carrier's first architecture.
  returned: always
  type: str
class:
  description: The class that serves it.
  returned: always
  type: str
file:
  description: The file of the class, below the directory that holds C(vllm/).
  returned: always
  type: str
line:
  description: The line on which the class begins.
  returned: always
  type: int
evidence:
  description: What the verdict rests on, each with file and line.
  returned: always
  type: list
  elements: str
declared:
  description: C(packed_modules_mapping), C(embedding_modules) and C(is_3d_moe_weight) as the class itself has them.
  returned: always
  type: dict
packed_modules:
  description: For each module that the engine packs, those that it is made of, as an adapter names them.
  returned: always
  type: dict
  sample: {qkv_proj: [q_proj, k_proj, v_proj]}
embedding_modules:
  description: The embeddings on which a LoRA may lie, and what each is.
  returned: always
  type: dict
  sample: {embed_tokens: input_embeddings, lm_head: output_embeddings}
is_3d_moe_weight:
  description: Whether the weights of all experts of a layer are one tensor.
  returned: always
  type: bool
backend:
  description: V(native), or V(transformers) for the Transformers backend.
  returned: always
  type: str
engine_version:
  description: The engine's version, empty where its source names none.
  returned: always
  type: str
unreadable:
  description: What the source does not tell, each with the reason.
  returned: always
  type: list
  elements: str
unknown_flags:
  description: The keys of O(flags) that are no option of this engine, or only an abbreviation of one.
  returned: always
  type: list
  elements: dict
  contains:
    flag: {description: The key., type: str}
    why: {description: V(unknown) or V(abbreviation)., type: str}
    nearest: {description: The option that is most like it. Empty when none is., type: str}
    message: {description: All that in words., type: str}
cached:
  description: Whether the answer comes from O(cache).
  returned: always
  type: bool
actions:
  description: Always empty, as it only looks.
  returned: always
  type: list
  elements: dict
  sample: []
"""

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "directory": {"type": "path"},
    "python": {"type": "path"},
    "image": {"type": "str"},
    "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
    "carrier": {"type": "path", "required": True},
    "flags": {"type": "list", "elements": "str", "default": []},
    "platform": {"type": "str", "choices": ["auto", "cuda", "rocm", "cpu", "xpu", "tpu"], "default": "auto"},
    "cache": {"type": "path"},
    "strict": {"type": "bool", "default": True},
}
SOURCES = ("directory", "python", "image")


def main() -> None:
    module = AnsibleModule(
        ARGUMENT_SPEC, supports_check_mode=True, mutually_exclusive=[SOURCES], required_one_of=[SOURCES]
    )
    require(module, "PyYAML", YAML_ERROR)
    given = module.params
    if given["image"]:
        require(module, "docker", DOCKER_ERROR)
    result: dict[str, Any] = {"changed": False, "actions": []}
    with errors_reported(module):
        result |= ask(
            Place(**{name: given[name] or "" for name in SOURCES}, docker_host=given["docker_host"]),
            read_carrier_facts(Path(given["carrier"])),
            given["flags"],
            platform="" if given["platform"] == "auto" else given["platform"],
            cache=Path(given["cache"]) if given["cache"] else None,
            write=not module.check_mode,
        )
        result["message"] = message(result, next(given[name] for name in SOURCES if given[name]))
    problems = [] if result["supported"] else [result["message"]]
    problems += [f"flags: {one['message']}" for one in result["unknown_flags"]]
    if problems and given["strict"]:
        module.fail_json(msg="\n".join(problems), **result)
    for problem in problems:
        module.warn(problem)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
