#!/usr/bin/python
"""Ansible module: copy LoRA adapters into an immutable, content-addressed store."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.plan import as_dicts, as_diff
from ansible.module_utils.voices.store_client import StoreClient
from ansible.module_utils.voices.store_converge import NOTHING_AROUND, Around, converge, drift
from ansible.module_utils.voices.store_desired import desired_from

try:
    import yaml  # noqa: F401 - the next import needs it; a host without it gets a message and no traceback
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices.store_seats import persisted_elsewhere

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
  - Where the source's weights are those of the entry and other files beside them changed, such as a README or a gate
    record, the entry gets these files (C(refresh)). The weights are not touched, and nothing has to be loaded again.
  - With O(seat) the store notes in C(.uses.json) who uses which entry since when. That is bookkeeping and no change.
author:
  - Voices project
attributes:
  check_mode:
    description:
      - Reads and verifies the same, plans the same, writes nothing. The store need not exist.
      - Besides, it reads every entry of the voices in O(prune) and the source of every pinned voice, and returns and
        warns of the C(drift) that no run puts right by itself.
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
  seat:
    description: The seat that this is for. Its O(voices) are noted as held, so that no other seat's run prunes them.
    type: str
    default: ""
  serves:
    description: The paths of all that O(seat) serves now, trials too. The store notes since when.
    type: list
    elements: path
  keep:
    description:
      - How many entries of each voice in O(prune) stay, the newest by when they were last in use or stored.
      - Entries in use stay whatever their number, and count. Those are O(in_use), O(serves), O(pinned), the entries of
        O(voices), what another seat holds by the notes, and what the engine.yaml of a seat in O(seats_dir) names.
      - 0 prunes nothing.
    type: int
    default: 0
  prune:
    description: The voices whose entries beyond O(keep) are removed.
    type: list
    elements: str
    default: []
  pinned:
    description: Entries, as C(voice@digest), that an inventory pins. They stay.
    type: list
    elements: str
    default: []
  seats_dir:
    description: The directory of all seats that share the store. Where one of their engine.yaml cannot be read, nothing
      is pruned.
    type: path
  lock_wait_s:
    description: Seconds to wait for another run that writes into the store. The error then names that run.
    type: float
    default: 60
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

- name: After loading, note what is served and keep three entries of each voice
  adapter_store:
    store: /srv/voices/store
    seat: tiny
    seats_dir: /srv/voices/seats
    serves: "{{ live_paths }}"
    prune: [lv-austen, lv-bronte]
    keep: 3

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
drift:
  description: In check mode, what differs and is put right by no run, each with C(what) and C(why). Else empty.
  returned: success
  type: list
  elements: dict
  sample:
    - what: lv-austen@0a1b2c3d4e5f
      why: "it no longer matches its digest: it holds ffeeddccbbaa..."
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
    "seat": {"type": "str", "default": ""},
    "serves": {"type": "list", "elements": "path"},
    "keep": {"type": "int", "default": 0},
    "prune": {"type": "list", "elements": "str", "default": []},
    "pinned": {"type": "list", "elements": "str", "default": []},
    "seats_dir": {"type": "path"},
    "lock_wait_s": {"type": "float", "default": 60},
}


HISTORY = ("keep", "prune", "pinned", "seat", "serves")


def look_around(module: AnsibleModule) -> Around:
    """The host's other seats, where they are asked about."""
    if not module.params["seats_dir"]:
        return NOTHING_AROUND
    require(module, "PyYAML", IMPORT_ERROR)
    return Around(module.params["seats_dir"], persisted_elsewhere)


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    given = module.params
    client = StoreClient(Path(given["store"]).absolute(), given["lock_wait_s"])
    around = look_around(module)
    with errors_reported(module, given["store"]):
        try:
            desired = desired_from(
                given["voices"],
                given["absent"],
                given["in_use"],
                given["max_lora_rank"],
                **{key: given[key] for key in HISTORY},
            )
            made = converge(desired, client, check=module.check_mode, around=around)
            drifted = drift(desired, client) if module.check_mode else []
        finally:
            for warning in client.warnings:
                module.warn(warning)
    for found in drifted:
        module.warn(f"{found['what']}: {found['why']}")
    module.exit_json(
        changed=bool(made.steps),
        actions=as_dicts(made.actions),
        diff=as_diff(made.actions),
        drift=drifted,
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
