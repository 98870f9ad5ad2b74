#!/usr/bin/python
"""Which entries of the store a voice has, and to which of them a rollback goes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: adapter_history
short_description: Choose the store entry that a voice goes back to
description:
  - Reads what the store holds of a voice, what the seat has used since when, and which entry its engine.yaml names, and
    chooses the entry that a rollback goes to. The chosen entry is read whole, and refused when its weights are not
    those of its digest. It changes nothing.
  - Without O(to) it is the entry in use before the present one. Where O(pin) is another than the present entry, it is
    the pin, because a run that pinned and was killed is finished by the next. Where the present entry is older than
    another that served, the voice is back already and stays.
options:
  store:
    description: The store's directory, as for M(adapter_store).
    type: path
    required: true
  seat:
    description: The seat.
    type: str
    required: true
  voice:
    description: The voice.
    type: str
    required: true
  engine_file:
    description: The seat's engine.yaml, which says what is served lastingly.
    type: path
    required: true
  pin:
    description: The digest that the inventory pins, if any.
    type: str
    default: ""
  to:
    description: The digest of the wanted entry, or its first 8 digits or more.
    type: str
    default: ""
attributes:
  check_mode:
    description: The same, because it only reads.
    support: full
  diff_mode:
    description: There is never a difference to show.
    support: full
  idempotent:
    description: It changes nothing.
    support: full
author: the voices seat maintainers
"""

EXAMPLES = r"""
- name: Choose where a voice goes back to
  adapter_history:
    store: /srv/voices/store
    seat: tiny
    voice: lv-austen
    engine_file: /srv/voices/seats/tiny/engine/engine.yaml
"""

RETURN = r"""
entry:
  description: The chosen entry's name.
  type: str
  returned: success
path:
  description: Its path.
  type: str
  returned: success
digest:
  description: Its digest, 64 hex digits.
  type: str
  returned: success
why:
  description: Why it is this one.
  type: str
  returned: success
present:
  description: The entry that engine.yaml names, or empty.
  type: str
  returned: success
stored:
  description: All entries of the voice in the store.
  type: list
  elements: str
  returned: success
actions:
  description: Always empty.
  type: list
  elements: dict
  returned: success
"""

import traceback
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.store_client import StoreClient
from ansible.module_utils.voices.store_desired import voice_of
from ansible.module_utils.voices.store_notes import Notes
from ansible.module_utils.voices.store_prune import History, choose, verified

try:
    import yaml  # noqa: F401 - the next import needs it; a host without it gets a message and no traceback
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices.engine_directory import EngineDirectory

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "store": {"type": "path", "required": True},
    "seat": {"type": "str", "required": True},
    "voice": {"type": "str", "required": True},
    "engine_file": {"type": "path", "required": True},
    "pin": {"type": "str", "default": ""},
    "to": {"type": "str", "default": ""},
}


def read(client: StoreClient, params: dict[str, Any]) -> History:
    """The voice's history. Raises VoicesError for a file that cannot be understood."""
    voice = params["voice"]
    entries = [name for name in client.names() if voice_of(name) == voice]
    found = EngineDirectory(params["engine_file"]).read_engine_file()
    served = found[1].get(voice, "") if found else ""
    present = next(iter(client.used([served])), "") if served else ""
    noted = client.notes()
    # An entry of a time before the notes is as old as the file system says.
    notes = Notes({**{name: client.stored_at(name) for name in entries}, **noted.stored}, noted.uses)
    return History(voice, params["seat"], entries, present, notes, params["pin"])


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    require(module, "PyYAML", IMPORT_ERROR)
    client = StoreClient(Path(module.params["store"]).absolute())
    with errors_reported(module, module.params["store"]):
        history = read(client, module.params)
        choice = choose(history, module.params["to"])
        adapter = verified(choice, client.entry(choice.entry), module.params["to"])
    module.exit_json(
        changed=False,
        actions=[],
        diff=[],
        entry=choice.entry,
        path=str(client.store / choice.entry),
        digest=adapter.digest,
        why=choice.why,
        present=history.present,
        stored=list(history.entries),
    )


if __name__ == "__main__":
    main()
