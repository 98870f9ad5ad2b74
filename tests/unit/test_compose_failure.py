"""What a failed bring-up says."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.voices.compose_failure import failure_message
from ansible.module_utils.voices.compose_secrets import Secrets
from ansible.module_utils.voices.compose_state import parse_container

from tests.support.compose_fixture import Recorded

TOKEN = "hf_a-token-that-no-one-may-see"
LOG = "\n".join(
    [
        "INFO starting",
        *(f"INFO step {number}" for number in range(40)),
        "\x1b[31mERROR engine: out of memory\x1b[0m",
        f"ValueError: the token {TOKEN} is wrong",
        "INFO bye",
    ]
)


def said(state: dict[str, Any], log: str = LOG, previous: str = "/srv/compose.yaml.previous", restarts: int = 0) -> str:
    inspect = Recorded().inspect
    inspect["State"] |= state
    inspect["RestartCount"] = restarts
    secrets = Secrets().with_environment({"HF_TOKEN": TOKEN})
    return failure_message("voices-tiny", "engine not healthy", [(parse_container(inspect), log)], previous, secrets)


def test_an_ended_container() -> None:
    text = said({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, restarts=3)
    lines = text.splitlines()
    assert lines[0] == "project voices-tiny: engine not healthy"
    assert lines[1] == (
        "service engine: container voices-tiny-engine-1 is exited, health healthy, exit code 137, restarted 3 times, "
        "killed for its memory (OOM)"
    )
    assert "    ValueError: the token sha256:" in text
    assert TOKEN not in text and "\x1b" not in text
    assert lines[-1] == "the compose.yaml that was last healthy is kept: /srv/compose.yaml.previous"
    tail = text.partition("last lines of its log:\n")[2].splitlines()[:-1]
    assert len(tail) == 15 and tail[-1] == "    INFO bye"


def test_an_unhealthy_container() -> None:
    health = {
        "Status": "unhealthy",
        "Log": [{"ExitCode": 0, "Output": "old"}, {"ExitCode": 7, "Output": "curl: (7)\n no"}],
    }
    text = said({"Health": health}, log="", previous="")
    assert "is running, health unhealthy\n" in text
    assert "last health check ended with 7: curl: (7) no" in text
    assert text.endswith("its log is empty")
    assert "exit code" not in text and "kept" not in text


def test_what_the_engine_says() -> None:
    assert "the engine says: no such device" in said({"Status": "created", "Error": "no such device"})
