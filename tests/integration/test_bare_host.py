"""What --check says of a host without the modules' tools and without Docker: all that it lacks; it makes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from tests.support.play import Play, run_play


def test_a_plan_of_a_bare_host_names_its_tools_and_its_docker(tmp_path: Path) -> None:
    seats = {"t": {"carrier": "/models/c", "port": 8123, "image": "engine:1", "voices": {}}}
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(tmp_path / "ansible"),
        "docker_host_manage": True,
        "docker_host_become": False,
        "docker_host_socket": str(tmp_path / "docker.sock"),
        "docker_host_compose_path": str(tmp_path / "docker-compose"),
        "host_tools_venv": str(tmp_path / "made/venv"),
        "voices_seat_root": str(tmp_path / "made"),
        "voices_seat_generate_api_key": True,
        "voices_seats": seats,
    }
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"children": {"voices_hosts": {"hosts": {"seat-host": host}}}}}))
    plan = run_play(inventory, check=True)
    assert plan.rc == 0, plan.output
    said = messages(plan)
    assert any(f"host tools would be made in {tmp_path}/made/venv" in text for text in said)
    assert any("start Docker" in text for text in said)
    assert said[-1].startswith("The seats of seat-host cannot be planned before the host has its tools and Docker with")
    assert not (tmp_path / "made").exists()
    assert plan.changed == ["host_tools : Say what happens to the host's tools", "docker_host : " + SAYS_DOCKER]


SAYS_DOCKER = "Say what happens to the host's Docker"


def messages(play: Play) -> list[str]:
    """What the play says, in order."""
    return [str(task["msg"]) for task in play.tasks if task["module"] == "ansible.builtin.debug"]
