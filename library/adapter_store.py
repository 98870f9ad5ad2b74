#!/usr/bin/python
"""Ansible module: copy LoRA adapters into an immutable, content-addressed store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported
from ansible.module_utils.voices.plan import as_dicts, as_diff
from ansible.module_utils.voices.store import desired_from
from ansible.module_utils.voices.store_client import StoreClient, converge

DOCUMENTATION = r"""
---
module: adapter_store
short_description: Keep LoRA adapters in an immutable, content-addressed store
description:
  - Copies each voice's adapter from its source directory to C(<store>/<voice>@<first 12 hex digits of its digest>/).
  - The digest is the sha256 over C(adapter_config.json) and every C(*.safetensors) file. Other files are copied along
    and are no part of it. A file or directory whose name begins with a dot, and what a trainer leaves to go on training
    (C(training_args.bin), C(optimizer.pt), C(checkpoint-N/) and the like), is neither read nor copied.
  - An entry is never modified. One that is there is read and verified by every run; a damaged one is replaced by a copy
    of its source if that still holds the same digest, and is an error otherwise.
  - A source is refused when it is missing, has no valid C(adapter_config.json), has no whole safetensors file, holds
    pickled weights, links that leave it or files that are no regular files. The errors of all voices come in one
    message, before anything is copied.
  - A copy is safe against a kill and a full disk. What a dead run left is cleared by the next one.
author:
  - Voices project
attributes:
  check_mode:
    description: Reads and verifies the same, plans the same, writes nothing. The store need not exist.
    support: full
  diff_mode:
    description: Prints the plan, one line an action.
    support: full
  idempotent:
    description: A second run with the same sources has no actions.
    support: full
options:
  store:
    description: The store's directory. It is made when there is something to store.
    type: path
    required: true
  voices:
    description:
      - The voices that shall have an entry, as a map of the name to a map with C(source), the absolute path of the
        adapter's directory, and optionally C(digest), a pin of 12 to 64 hex digits (in quotes).
      - With a pin whose entry is in the store the source is not read and may be gone. Otherwise the source must have
        that digest.
    type: dict
    default: {}
  absent:
    description: Names of voices all of whose entries are removed.
    type: list
    elements: str
    default: []
  in_use:
    description: Paths of entries that an engine has loaded. Such an entry is never removed; asking for it is an error.
    type: list
    elements: str
    default: []
  max_lora_rank:
    description: The engine's max_lora_rank. An adapter of a higher rank is refused. 0 checks nothing.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Store the adapters of two voices, one of them pinned
  adapter_store:
    store: /srv/voices/store
    max_lora_rank: 32
    voices:
      lv-austen:
        source: /tank/adapters/lv-austen
      lv-bronte:
        source: /tank/adapters/lv-bronte
        digest: "3f2a9c0d41be"

- name: Remove the entries of a voice that is no longer served
  adapter_store:
    store: /srv/voices/store
    absent: [lv-homer]
    in_use: "{{ live_paths }}"
"""

RETURN = r"""
entries:
  description: For each voice the entry it has after this task (in check mode, the one it would have).
  returned: success
  type: dict
  contains:
    path:
      description: The entry's directory.
      type: str
    digest:
      description: The sha256, 64 hex digits.
      type: str
    rank:
      description: The largest of C(r) and C(rank_pattern).
      type: int
    bytes:
      description: Bytes of the files that the digest covers.
      type: int
  sample:
    lv-austen:
      path: /srv/voices/store/lv-austen@3f2a9c0d41be
      digest: 3f2a9c0d41be5d0e7a1c7b8f0e6d5c4b3a29180716253443524150607f8e9dac
      rank: 8
      bytes: 605441
actions:
  description: The plan, the same in check mode and in the real run.
  returned: success
  type: list
  elements: dict
  sample:
    - do: store
      what: lv-austen
      why: new
      before:
      after: lv-austen@3f2a9c0d41be
diff:
  description: The plan as text, for C(--diff).
  returned: success
  type: list
  elements: dict
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "store": {"type": "path", "required": True},
    "voices": {"type": "dict", "default": {}},
    "absent": {"type": "list", "elements": "str", "default": []},
    "in_use": {"type": "list", "elements": "str", "default": []},
    "max_lora_rank": {"type": "int", "default": 0},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    given = module.params
    client = StoreClient(Path(given["store"]).absolute())
    with errors_reported(module, given["store"]):
        try:
            desired = desired_from(given["voices"], given["absent"], given["in_use"], given["max_lora_rank"])
            made = converge(desired, client, check=module.check_mode)
        finally:
            for warning in client.warnings:
                module.warn(warning)
    module.exit_json(
        changed=bool(made.steps),
        actions=as_dicts(made.actions),
        diff=as_diff(made.actions),
        entries={
            name: {
                "path": str(client.store / entry),
                "digest": adapter.digest,
                "rank": adapter.rank,
                "bytes": adapter.bytes,
            }
            for name, (entry, adapter) in made.entries.items()
        },
    )


if __name__ == "__main__":
    main()
