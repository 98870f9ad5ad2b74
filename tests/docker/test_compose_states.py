"""Bring-ups that fail, the way back, pulls, stopping, removing, and what an interrupted run leaves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.docker.test_compose_edits import predicted, steps
from tests.support.docker_project import IMAGE_LABELS, PREFIX, SECRET, Project, root_archive
from tests.support.tiny_registry import serving

BROKEN = f"echo 'ValueError: rank 99 is too high for {SECRET}'; exit 3"


def break_command(project: Project) -> None:
    """A definition whose container ends at once."""
    project.service["command"] = ["sh", "-c", BROKEN]
    project.service["restart"] = "no"


def test_a_bring_up_that_fails_says_why_and_keeps_the_way_back(running: Project) -> None:
    healthy = running.content
    break_command(running)
    checked = running.run(check=True)
    result = running.fail()
    previous = running.directory / "compose.yaml.previous"
    assert result["actions"] == checked["actions"]
    assert result["previous"] == checked["previous"] == str(previous)
    assert previous.read_text() == healthy
    assert result["changed"] and result["will_start"]
    assert result["containers"][0]["state"] == "exited"
    for part in (
        f"project {running.name}: engine not healthy after ",
        "(limit 30 s)",
        "is exited",
        "exit code 3",
        "ValueError: rank 99 is too high",
        f"the compose.yaml that was last healthy is kept: {previous}",
    ):
        assert part in result["msg"], result["msg"]
    assert SECRET not in str(result)

    back = running.run(content=previous.read_text())
    assert running.one()["State"]["Health"]["Status"] == "healthy"
    assert [action["do"] for action in back["actions"]] == ["write", *["recreate"] * (len(back["actions"]) - 1)]
    assert back["previous"] == "", "there is nothing to go back to from the way back"
    assert running.run(check=True, content=healthy)["actions"] == []


def test_health_that_does_not_come(running: Project) -> None:
    running.service["healthcheck"]["test"] = ["CMD", "sh", "-c", "echo 'connection refused'; exit 1"]
    result = running.fail()
    for part in (
        "health unhealthy",
        "last health check ended with 1: connection refused",
        "last lines of its log",
        "up",
    ):
        assert part in result["msg"], result["msg"]
    # Nothing is to be done now, and still a run does not call this well.
    again = running.fail(wait_timeout_s=1)
    assert again["actions"] == []
    assert "engine not healthy after 1." in again["msg"]
    assert running.run(check=True)["actions"] == []


def test_a_first_bring_up_that_fails_has_nothing_to_go_back_to(project: Project) -> None:
    break_command(project)
    result = project.fail()
    assert result["previous"] == ""
    assert "is kept" not in result["msg"]


def test_a_restarted_healthy_file_is_not_gone_back_from(running: Project) -> None:
    """A container that was healthy under this very file and does not come back is no reason for an older file."""
    running.service["labels"]["voices.flags"] = "bbb"
    running.run()
    running.service["healthcheck"]["test"] = ["CMD", "sh", "-c", "exit 1"]
    broken = running.content
    assert running.fail(content=broken)["previous"] != ""
    running.service["healthcheck"]["test"] = ["CMD", "sh", "-c", "echo looked; test -d /tmp"]
    running.run()
    assert running.run(check=True)["previous"] == ""


def test_an_engine_that_refuses_the_container(running: Project) -> None:
    running.service["command"] = ["/no/such/program"]
    result = running.fail()
    assert "Compose says: " in result["msg"]
    assert "/no/such/program" in result["msg"]
    assert Path(result["previous"]).exists()


def test_a_kept_file_is_the_last_healthy_one_over_several_failures(running: Project) -> None:
    healthy = running.content
    for attempt in (1, 2):
        break_command(running)
        running.service["labels"]["attempt"] = str(attempt)
        result = running.fail()
        assert Path(result["previous"]).read_text() == healthy


def test_an_edit_while_the_container_is_stopped_keeps_what_was_healthy(running: Project) -> None:
    healthy = running.content
    running.run(state="stopped")
    break_command(running)
    assert Path(running.fail()["previous"]).read_text() == healthy


def test_a_file_with_a_secret_is_its_owners_alone(running: Project) -> None:
    file = running.directory / "compose.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    del running.service["environment"]["HF_TOKEN"]
    running.run()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE((running.directory / "compose.yaml.previous").stat().st_mode) == 0o600


# --------------------------------------------------------------------------------------------------------------- pulls


@pytest.mark.parametrize("pull", ["missing", "always"])
def test_a_missing_image_is_pulled(project: Project, pull: str) -> None:
    with serving(IMAGE_LABELS) as registry:
        project.service["image"] = registry.push("one", root_archive())
        result = predicted(project, pull=pull)
        assert steps(result)[0] == ("pull", project.service["image"], "missing")
        assert ("create", "engine", "") in steps(result)
        assert any(request.startswith("GET ") and "/blobs/" in request for request in registry.asked)


def test_a_newer_image_is_pulled_when_told_to(project: Project) -> None:
    with serving(IMAGE_LABELS) as registry:
        project.service["image"] = registry.push("one", root_archive())
        project.run(pull="always")
        assert project.run(pull="always")["actions"] == []
        registry.push("one", root_archive(), Labels={"voices.build": "2"})
        assert project.run(pull="missing")["actions"] == []
        result = predicted(project, pull="always")
        assert steps(result) == [
            ("pull", project.service["image"], "newer in the registry"),
            ("recreate", "engine", "image digest"),
        ]
        assert project.one()["Config"]["Labels"]["voices.build"] == "2"


# ----------------------------------------------------------------------------------------------------- stop and remove


def test_stopped_and_started_again(running: Project) -> None:
    before = running.one()["Id"]
    result = predicted(running, state="stopped")
    assert steps(result) == [("stop", "engine", "")]
    assert running.one()["State"]["Status"] == "exited"
    assert running.one()["State"]["ExitCode"] == 0, "it was asked, not killed"
    result = predicted(running)
    assert steps(result) == [("start", "engine", "exited")]
    assert running.one()["Id"] == before


def test_stopped_also_when_paused(running: Project) -> None:
    running.api.pause(running.one()["Id"])
    predicted(running, state="stopped")
    assert running.one()["State"]["Status"] == "exited"


def test_absent_leaves_nothing(running: Project) -> None:
    running.service["labels"]["voices.flags"] = "bbb"
    running.run()
    network = f"network {running.name}_default"
    result = predicted(running, state="absent", content=None)
    assert steps(result) == [
        ("stop", "engine", ""),
        ("remove", "engine", ""),
        ("remove", network, ""),
        ("remove", "compose.yaml", ""),
    ]
    assert running.containers() == []
    assert running.api.networks(names=[running.name]) == []
    assert [path.name for path in running.root.iterdir()] == ["data"]


def test_absent_needs_no_compose_and_no_readable_file(running: Project) -> None:
    (running.directory / "compose.yaml").write_text("services: [")
    running.run(state="absent", content=None, compose=["/nonexistent"])
    assert running.containers() == []
    assert not running.directory.exists()


def test_absent_leaves_what_others_put_into_the_directory(running: Project) -> None:
    (running.directory / "notes.txt").write_text("mine")
    running.run(state="absent", content=None)
    assert [path.name for path in running.directory.iterdir()] == ["notes.txt"]


def test_absent_and_stopped_of_what_never_was(project: Project) -> None:
    for state in ("absent", "stopped"):
        assert predicted(project, state=state, content=None)["changed"] is False
    assert not project.directory.exists()


def test_a_container_that_a_person_ran_in_the_project_stays(running: Project) -> None:
    file = str(running.directory / "compose.yaml")
    running.compose("-f", file, "run", "--detach", "--name", f"{running.name}-shell", "engine", "sleep", "1000")
    running.service["labels"]["voices.flags"] = "bbb"
    predicted(running)
    assert f"/{running.name}-shell" in [one["Name"] for one in running.containers()]
    predicted(running, state="absent", content=None)
    assert running.containers() == []


# ------------------------------------------------------------------------------------------------------- interrupted


def test_what_an_interrupted_recreate_leaves_is_cleared(running: Project) -> None:
    """Compose makes ``<12 hex>_<name>`` first; killed then, its own next run fails on the name."""
    old = running.one()
    config = dict(old["Config"]["Labels"])
    made = running.api.create_container(
        f"{PREFIX}:one",
        command=["sleep", "1000"],
        name=f"{old['Id'][:12]}_{running.name}-engine-1",
        labels={**config, "com.docker.compose.config-hash": "0" * 64},
    )
    result = predicted(running)
    leftover = f"container {old['Id'][:12]}_{running.name}-engine-1"
    assert steps(result) == [("remove", leftover, "left by an interrupted run")]
    assert running.one()["Id"] == old["Id"] != made["Id"]
    assert running.one()["State"]["StartedAt"] == old["State"]["StartedAt"]


def test_only_the_new_container_of_an_interrupted_recreate_is_there(running: Project) -> None:
    old = running.one()
    running.api.remove_container(old["Id"], force=True)
    running.api.create_container(
        f"{PREFIX}:one",
        command=["sleep", "1000"],
        name=f"{old['Id'][:12]}_{running.name}-engine-1",
        labels=old["Config"]["Labels"],
    )
    result = predicted(running)
    assert [do for do, _, _ in steps(result)] == ["remove", "create"]
    assert running.one()["Name"] == old["Name"]


def test_temporary_files_of_a_killed_run_are_swept(running: Project) -> None:
    for name in (".compose.yaml.x1", ".compose.yaml.previous.x2", "..written.x3"):
        (running.directory / name).write_text("half")
    running.service["labels"]["voices.flags"] = "bbb"
    running.run()
    assert sorted(os.listdir(running.directory)) == [
        ".healthy",
        ".lock",
        ".written",
        "compose.yaml",
        "compose.yaml.previous",
    ]


def test_a_port_of_our_own_container_is_not_taken(running: Project) -> None:
    """A service that is renamed keeps its port: the old container gives it up first."""
    running.definition["services"] = {"seat": running.service}
    result = predicted(running)
    assert steps(result)[1:] == [("remove", "engine", "orphan"), ("create", "seat", "")]
    assert running.one()["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostPort"] == str(running.port)
