#!/usr/bin/python
"""Ansible module: write one dated record of a run that changed something."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.record import RecordDirectory, Run, SecretError, as_text, build_record

DOCUMENTATION = r"""
---
module: deploy_record
short_description: Write one dated JSON file for a run that changed a seat
description:
  - Writes what was done to a seat, why, what was before and is now, by whom, from which commit and how long it took.
  - The file is C(<dir>/<UTC time of writing>-<seat>.json), such as C(20261130T200944Z-tiny.json), and names sort by
    time. A second record of the same second is C(20261130T200944Z.001-tiny.json). Earlier records are never touched.
  - A run without O(actions) changed nothing and gets no record.
  - A record is readable by everybody (mode 0644), so a value that looks like a secret is refused, and nothing is
    written. That is one under a name with api-key, token, password, secret and the like, or inside a text a line
    C(name=value) with such a name, a bearer header or a URL with a password. A digest (C(sha256:) and hex digits), an
    empty value, words in brackets, the path under C(api_key_file) and counts such as C(max-num-batched-tokens) pass.
  - The schema C(voices/deploy-record/1) is a JSON object with sorted keys. C(schema), C(seat), C(runtime), C(operator)
    are strings. C(commit) is a string or null, C(dirty) a boolean. C(started) (or null) and C(finished) are instants in
    UTC, ISO 8601 with milliseconds. C(outcome) is C(ok) or C(failed), C(error) a string or null.
  - C(durations_s) is an object of seconds. C(actions) is a list of objects with C(do),
    C(what), C(why), C(before), C(after). C(reasons) is a list. C(before) and C(after) are objects. Within this schema
    fields are added, never renamed.
options:
  dir:
    description: Absolute path of the directory for records. It is made when there is something to record.
    type: path
    required: true
  seat:
    description: The seat's name.
    type: str
    required: true
  runtime:
    description: What the seat runs under, such as C(supervisor) or C(compose).
    type: str
    required: true
  actions:
    description: What was done, as the RV(ignore:actions) of the modules that did it, in their order.
    type: list
    elements: dict
    required: true
  reasons:
    description: Why, as the modules' C(reasons), texts or maps of flag, before and after.
    type: list
    elements: raw
    default: []
  before:
    description: The seat before the run, secrets as digests.
    type: dict
    default: {}
  after:
    description: The seat after the run, secrets as digests.
    type: dict
    default: {}
  commit:
    description: Commit of the repository that was run. C(-dirty) at its end sets RV(ignore:dirty). Empty or C(unknown)
      without one.
    type: str
    default: ""
  dirty:
    description: Whether the repository had changes that were not committed.
    type: bool
    default: false
  operator:
    description: Who ran it, such as C(ann@desk).
    type: str
    required: true
  started:
    description: When the run began, ISO 8601. Without an offset it is UTC. Empty when not known.
    type: str
    default: ""
  durations:
    description: Seconds by name of what was measured. Maps may nest.
    type: dict
    default: {}
  error:
    description: What a run that failed half-way said; empty for one that ended well.
    type: str
    default: ""
attributes:
  check_mode:
    description: Checks everything, writes nothing, and returns the directory that a real run would write to.
    support: full
  diff_mode:
    description: A record is no change of the seat, so the diff is always empty.
    support: full
  idempotent:
    description: RV(changed) is always false. Each run that changed something gets a record of its own.
    support: full
author:
  - Voices project
"""

EXAMPLES = r"""
- name: Record what the run did
  deploy_record:
    dir: /srv/voices/records
    seat: tiny
    runtime: supervisor
    actions: "{{ engine_result.actions + voices_result.actions }}"
    reasons: "{{ engine_result.reasons }}"
    before: {voices: [lv-austen]}
    after: {voices: [lv-austen, lv-bronte]}
    commit: 4f0c2b7d9e61-dirty
    operator: ann@desk
    started: "2026-11-30T20:09:44Z"
    durations: {engine: 24.1, voices: {lv-bronte: 0.24}}
"""

RETURN = r"""
path:
  description: The record's path. Empty in check mode and when there was nothing to record.
  returned: success
  type: str
  sample: /srv/voices/records/20261130T200944Z-tiny.json
directory:
  description: The directory where the record is, or would be in check mode.
  returned: success
  type: str
  sample: /srv/voices/records
actions:
  description: Always empty, as a record is no change of the seat.
  returned: success
  type: list
  elements: dict
  sample: []
diff:
  description: Always empty, as a record is no change of the seat.
  returned: success
  type: list
  elements: dict
  sample: []
"""

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "dir": {"type": "path", "required": True},
    "seat": {"type": "str", "required": True},
    "runtime": {"type": "str", "required": True},
    "actions": {"type": "list", "elements": "dict", "required": True},
    "reasons": {"type": "list", "elements": "raw", "default": []},
    "before": {"type": "dict", "default": {}},
    "after": {"type": "dict", "default": {}},
    "commit": {"type": "str", "default": ""},
    "dirty": {"type": "bool", "default": False},
    "operator": {"type": "str", "required": True},
    "started": {"type": "str", "default": ""},
    "durations": {"type": "dict", "default": {}},
    "error": {"type": "str", "default": ""},
}


def write(params: dict[str, Any], check_mode: bool) -> str:
    """Write the record; return its path, or an empty string when none is due."""
    directory = Path(params["dir"])
    if not directory.is_absolute():
        raise VoicesError(f"dir {str(directory)!r} is relative; records need an absolute directory")
    run = Run(**{name: value for name, value in params.items() if name != "dir"})
    if not run.actions:
        return ""
    finished_s = time.time()
    text = as_text(build_record(run, finished_s))
    if check_mode:
        return ""
    return str(RecordDirectory(directory).add(run.seat, finished_s, text))


def main() -> None:
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    with errors_reported(module):
        try:
            path = write(module.params, module.check_mode)
        except SecretError as error:
            # Ansible repeats a failed module's parameters at -vvv: mask there what must not be in the record either.
            # Not the shortest ones, which would blot out letters of the message.
            module.no_log_values.update(leak.value for leak in error.leaks if len(leak.value) > 3)
            raise
    module.exit_json(changed=False, actions=[], diff=[], path=path, directory=module.params["dir"])


if __name__ == "__main__":
    main()
