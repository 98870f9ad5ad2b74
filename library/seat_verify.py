#!/usr/bin/python
"""Ask each model of a seat one question."""

from __future__ import annotations

DOCUMENTATION = r"""
module: seat_verify
short_description: Ask the base and each voice of a seat one question, and hold the voices against the base
description:
  - Holds the wanted models against C(/v1/models), asks each through C(/v1/chat/completions) at temperature 0, compares
    each voice's log-probabilities of a fixed text with the base's, and fails naming every model that is not served,
    does not answer, or is a voice that cannot be told from the base.
  - It changes nothing.
options:
  base_url:
    description: Where the seat listens, such as C(http://127.0.0.1:8100).
    type: str
    required: true
  api_key_file:
    description: File with the seat's key. A file that is not there means no key.
    type: path
  models:
    description: Names to ask, the base model among them if wanted.
    type: list
    elements: str
    required: true
  prompt:
    description: The question.
    type: str
    default: Tell me about the weather today.
  max_tokens:
    description: Length of an answer in tokens.
    type: int
    default: 24
  base_model:
    description: Name under which the server serves its base model.
    type: str
    default: voices-base
  silent:
    description: What to do with a voice that cannot be told from the base. V(ignore) does not compare.
    type: str
    choices: [fail, warn, ignore]
    default: fail
  timeout_s:
    description: Seconds to wait for one answer.
    type: float
    default: 60
attributes:
  check_mode:
    description: Asks nothing, because planned voices are not live yet, and reports no answers.
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
- name: Ask the base and a voice
  seat_verify:
    base_url: http://127.0.0.1:8100
    api_key_file: /srv/voices/seats/tiny/secrets/api_key
    models: [voices-base, lv-austen]
"""

RETURN = r"""
answers:
  description: Text by model that answered.
  type: dict
  returned: always
timings_s:
  description: Seconds by model that answered.
  type: dict
  returned: always
speech:
  description: For each voice that answered, C(difference) from the base and C(floor), the base's own from itself, in
    nats, C(rounds), and C(verdict), V(speaks) or V(silent).
  type: dict
  returned: always
failed_models:
  description: Reason by model that did not answer, or is a voice that is silent.
  type: dict
  returned: always
actions:
  description: Always empty.
  type: list
  elements: dict
  returned: always
"""

import traceback
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.module_main import errors_reported, require

try:
    import requests  # noqa: F401 - the next imports need both; a host without them gets a message and no traceback
    import yaml  # noqa: F401
except ImportError:
    IMPORT_ERROR: str | None = traceback.format_exc()
else:
    IMPORT_ERROR = None
    from ansible.module_utils.voices.seat_access import open_seat
    from ansible.module_utils.voices.verify import Verdict, ask_all, listen

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "base_url": {"type": "str", "required": True},
    "api_key_file": {"type": "path", "no_log": False},
    "models": {"type": "list", "elements": "str", "required": True},
    "prompt": {"type": "str", "default": "Tell me about the weather today."},
    "max_tokens": {"type": "int", "default": 24, "no_log": False},
    "base_model": {"type": "str", "default": "voices-base"},
    "silent": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "fail"},
    "timeout_s": {"type": "float", "default": 60},
}


def ask(params: dict[str, Any]) -> Verdict:
    """Ask the seat. Raises VoicesError when it cannot be asked at all."""
    seat = open_seat(params)
    verdict = ask_all(seat, params["models"], params["prompt"], params["max_tokens"])
    listen(seat, params["base_model"], verdict, params["silent"])
    return verdict


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    require(module, "requests and PyYAML", IMPORT_ERROR)
    with errors_reported(module):
        verdict = Verdict() if module.check_mode else ask(module.params)
    result = {
        "changed": False,
        "actions": [],
        "diff": [],
        "answers": verdict.answers,
        "timings_s": verdict.timings_s,
        "speech": verdict.speech,
        "failed_models": verdict.failed,
    }
    for warning in verdict.warnings:
        module.warn(warning)
    if verdict.failed:
        module.fail_json(msg=verdict.message(len(set(module.params["models"]))), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
