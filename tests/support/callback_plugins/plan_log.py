"""Write what every task returned to the file named by VOICES_PLAN_LOG, one JSON object a line, for the tests."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: plan_log
type: notification
short_description: Logs task results for the tests
description: [Writes one JSON object for each task result to the file in VOICES_PLAN_LOG.]
requirements: [Set it in ANSIBLE_CALLBACKS_ENABLED.]
"""


class CallbackModule(CallbackBase):
    """Kept small: the tests read module results, not screen output."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "plan_log"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, result: Any, status: str) -> None:
        task = getattr(result, "task", None) or result._task
        data = getattr(result, "result", None) or result._result
        entry = {
            "task": task.get_name(),
            "module": task.action,
            "status": status,
            "changed": bool(data.get("changed")),
            "actions": data.get("actions"),
            "msg": data.get("msg"),
            "result": {key: value for key, value in data.items() if key not in {"invocation", "actions", "msg"}},
        }
        with open(os.environ["VOICES_PLAN_LOG"], "a") as log:
            log.write(json.dumps(entry, default=str) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task ended well."""
        self._write(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._write(result, "failed")
