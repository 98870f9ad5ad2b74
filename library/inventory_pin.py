#!/usr/bin/python
"""Set the digest that an inventory pins for one voice, and change nothing else in its file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_pin
short_description: Pin one voice to a digest in the inventory's own file
description:
  - Finds the one place in the inventory that defines C(voices_seats) for a host and sets C(digest) of one voice there.
    Comments, quotes, order and every other byte stay as they are. It runs where the inventory lies.
  - Looked through are the YAML files of O(sources), and C(host_vars) and C(group_vars) beside them and beside the
    playbook.
  - It is refused, with the line to set by hand, where the place is not plain, which is when it is defined several times
    or for several hosts, lies in a vaulted or generated file, or has an anchor, an alias, a merge key or a template on
    the way to the digest. When O(options) has the digest already, no file is looked for.
options:
  host:
    description: The host whose seat it is, by its inventory name.
    type: str
    required: true
  groups:
    description: The host's groups, C(all) too, each with the list of its hosts.
    type: dict
    default: {}
  sources:
    description: The inventory's files and directories, as in C(ansible_inventory_sources).
    type: list
    elements: path
    required: true
  playbook_dir:
    description: The directory of the playbook that runs.
    type: path
  seat:
    description: The seat.
    type: str
    required: true
  voice:
    description: The voice.
    type: str
    required: true
  digest:
    description: The digest, 12 to 64 hex digits.
    type: str
    required: true
  options:
    description: The voice's options as Ansible sees them. The place that is found must say the same.
    type: dict
    required: true
attributes:
  check_mode:
    description: Plans the same, refuses the same, and writes nothing.
    support: full
  diff_mode:
    description: Shows the voice's own lines, and nothing else of the file.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
author: the voices seat maintainers
"""

EXAMPLES = r"""
- name: Pin a voice of this host
  inventory_pin:
    host: "{{ inventory_hostname }}"
    sources: "{{ ansible_inventory_sources }}"
    seat: tiny
    voice: lv-austen
    digest: 0a1b2c3d4e5f
    options: "{{ voices_seats.tiny.voices['lv-austen'] }}"
  delegate_to: localhost
"""

RETURN = r"""
file:
  description: The file that has the pin, or empty where none was looked for.
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
from ansible.module_utils.voices.names import seat_name_error, voice_name_error
from ansible.module_utils.voices.plan import Action, VoicesError, as_dicts, text_diff

try:
    import yaml  # noqa: F401 - the next imports need it; a machine without it gets a message and no traceback
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices import inventory_pin as core
    from ansible.module_utils.voices import inventory_pin_files as files

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "host": {"type": "str", "required": True},
    "groups": {"type": "dict", "default": {}},
    "sources": {"type": "list", "elements": "path", "required": True},
    "playbook_dir": {"type": "path"},
    "seat": {"type": "str", "required": True},
    "voice": {"type": "str", "required": True},
    "digest": {"type": "str", "required": True},
    "options": {"type": "dict", "required": True},
}


def by_hand(params: dict[str, Any], why: object) -> VoicesError:
    """The refusal that says what to set, so that the next run finds the inventory in agreement."""
    return VoicesError(
        f"the pin of {params['voice']} is not set by this run: {why}. Nothing was changed. Set it yourself, in "
        f'voices_seats: {params["seat"]}: voices: {params["voice"]}:\n    digest: "{params["digest"]}"\n'
        "and run this again; it goes on when the inventory agrees"
    )


def run(module: AnsibleModule) -> dict[str, Any]:
    """The module's result. Raises VoicesError for a refusal."""
    params = module.params
    voice, digest = params["voice"], params["digest"]
    wrong = voice_name_error(voice) or seat_name_error(params["seat"])
    if not wrong and not (12 <= len(digest) <= 64 and set(digest) <= set("0123456789abcdef")):
        wrong = f"digest {digest!r:.80} is no sha256; give its first 12 to 64 hexadecimal digits"
    if wrong:
        raise VoicesError(wrong)
    pinned = str(params["options"].get(core.KEY) or "")
    if pinned and (pinned.startswith(digest) or digest.startswith(pinned)):
        return {"changed": False, "file": "", "actions": [], "diff": []}
    try:
        found = files.look(params["sources"], params["playbook_dir"] or "", params["host"], params["groups"])
        place = files.only_place(found, params["host"], params["groups"])
        edit = core.edit(place, params["seat"], voice, digest, params["options"])
    except VoicesError as error:
        raise by_hand(params, error) from error
    path = place.document.path
    if edit is None:
        return {"changed": False, "file": path, "actions": [], "diff": []}
    if not module.check_mode:
        files.replace_text(path, place.document.text, edit.text)
    action = Action("pin", voice, why=f"digest in {path}:{edit.line}", before=pinned or None, after=digest)
    diff = text_diff(f"{path}:{edit.line}", edit.before, edit.after)
    return {"changed": True, "file": path, "actions": as_dicts([action]), "diff": diff}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    require(module, "PyYAML", IMPORT_ERROR)
    with errors_reported(module):
        result = run(module)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
