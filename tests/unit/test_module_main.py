"""What every module's main() does alike: refusals, file errors and missing libraries fail without a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible.module_utils.voices.module_main import errors_reported, require
from ansible.module_utils.voices.plan import VoicesError


def failure(capsys: pytest.CaptureFixture[str], main: Callable[[AnsibleModule], None]) -> dict[str, Any]:
    """The result of a module that must fail."""
    with patch_module_args({}), pytest.raises(SystemExit):
        main(AnsibleModule({}))
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["failed"] is True
    return result


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (VoicesError("no voice lv-x"), "no voice lv-x"),
        (PermissionError(13, "Permission denied", "/srv/key"), "/srv/key: Permission denied"),
        (OSError(5, "Input/output error"), "/srv/engine.yaml: Input/output error"),
        (OSError("said in words"), "/srv/engine.yaml: said in words"),
    ],
)
def test_an_error_is_a_message(capsys: pytest.CaptureFixture[str], error: Exception, message: str) -> None:
    def main(module: AnsibleModule) -> None:
        with errors_reported(module, "/srv/engine.yaml"):
            raise error

    assert failure(capsys, main)["msg"] == message


def test_no_error_and_a_mistake_of_ours_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with patch_module_args({}):
        module = AnsibleModule({})
    with errors_reported(module):
        pass
    with pytest.raises(ZeroDivisionError), errors_reported(module):
        raise ZeroDivisionError
    assert capsys.readouterr().out == ""


def test_a_missing_library_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    result = failure(capsys, lambda module: require(module, "requests and PyYAML", "Traceback: no module named yaml"))
    assert "requests and PyYAML" in result["msg"]
