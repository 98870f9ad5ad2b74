"""Run one of the project's modules in this process, as Ansible would call it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from types import ModuleType
from typing import Any
from unittest.mock import patch

from ansible.module_utils import _internal
from ansible.module_utils.common import warnings as ansible_warnings
from ansible.module_utils.testing import patch_module_args


def _load(name: str) -> ModuleType:
    return sys.modules.get(name) or importlib.import_module(name)


def run_module(name: str, args: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """The result of module ``name`` (a file in library/), failed or not; ``failed`` says which."""
    module = _load(name)
    output = io.StringIO()
    for store in ("_global_warnings", "_global_deprecations"):  # kept for a process, and a module is one process
        getattr(ansible_warnings, store, {}).clear()
    # A test that imports a filter makes this process a controller, whose warnings are printed and not returned.
    as_on_a_host = patch.object(_internal, "is_controller", False)
    with as_on_a_host, patch_module_args({**args, "_ansible_check_mode": check, "_ansible_diff": True}):
        try:
            with contextlib.redirect_stdout(output):
                module.main()
        except SystemExit:
            pass
        else:
            raise AssertionError(f"module {name} returned without exit_json or fail_json")
    return json.loads(output.getvalue().strip().splitlines()[-1])
