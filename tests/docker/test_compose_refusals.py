"""Bad input gets an error that names the thing and the fix, the same in both modes, and nothing is changed."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker_project import IMAGE_LABELS, PREFIX, SECRET, Project, free_port, projects
from tests.support.tiny_registry import serving


def refused(project: Project, *parts: str, **changes: Any) -> str:
    """The message, which has all ``parts``, in check mode and for real; nothing was changed by either."""
    before = project.state()
    messages = {project.fail(check=check, **changes)["msg"] for check in (True, False)}
    assert project.state() == before
    (message,) = messages
    assert [part for part in (*parts, project.name, "Nothing was changed") if part not in message] == [], message
    assert SECRET not in message
    return message


@pytest.fixture
def stranger(api: Any, project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Another project that runs."""
    for other in projects(api, tmp_path_factory.mktemp("stranger")):
        other.run()
        yield other


def container_of(project: Project) -> str:
    """The name Compose gives its container."""
    return f"{project.name}-engine-1"


def test_no_socket(project: Project) -> None:
    message = project.fail(docker_host="unix:///nonexistent/docker.sock")["msg"]
    assert "no Docker socket at /nonexistent/docker.sock: install and start Docker" in message
    assert not project.directory.exists()


def test_no_compose(project: Project) -> None:
    refused(project, "`docker no-such-plugin`", "Install the Compose plugin", compose=["docker", "no-such-plugin"])
    refused(project, "/nonexistent/compose: No such file", compose=["/nonexistent/compose"])


def test_an_image_that_is_missing_and_may_not_be_pulled(project: Project) -> None:
    project.service["image"] = f"{PREFIX}:none"
    refused(project, f"image {PREFIX}:none is not on this host", "pull is never", "docker load", pull="never")


def test_an_image_that_cannot_be_pulled(project: Project) -> None:
    image = f"127.0.0.1:{free_port()}/voices/engine:1"
    project.service["image"] = image
    refused(project, f"image {image} is not on this host and cannot be pulled", "connection refused", pull="missing")


def test_an_image_that_the_registry_does_not_have(project: Project) -> None:
    with serving(IMAGE_LABELS) as registry:
        image = f"127.0.0.1:{registry.port}/voices-test:none"
        project.service["image"] = image
        refused(project, f"image {image} is not on this host and cannot be pulled: ", "docker login", pull="missing")


def test_a_running_seat_is_left_alone_by_a_bad_image(running: Project) -> None:
    running.service["image"] = f"{PREFIX}:none"
    refused(running, "is not on this host")
    assert running.one()["State"]["Running"]


def test_a_mount_source_is_missing(project: Project) -> None:
    gone = project.root / "gone"
    project.service["volumes"].append(project.mount(gone, "/gone"))
    refused(project, f"mount /gone of service engine: {gone} does not exist on this host")


def test_a_mount_source_that_an_earlier_step_makes(project: Project) -> None:
    store = project.root / "store"
    project.service["volumes"].append(project.mount(store / "lv-x", "/voice"))
    assert project.run(check=True, expected_paths=[str(store)])["will_start"]
    message = project.fail(expected_paths=[str(store)])["msg"]
    assert f"{store}/lv-x does not exist" in message, "in a real run the step before has made it, or failed"


def test_a_secret_file_and_a_device_are_missing(project: Project) -> None:
    project.definition["secrets"] = {"key": {"file": "/nonexistent/api_key"}}
    project.service.update(secrets=["key"], devices=["/dev/no-such-device"])
    refused(
        project,
        "secret /run/secrets/key of service engine: /nonexistent/api_key does not exist",
        "device /dev/no-such-device of service engine: /dev/no-such-device does not exist",
    )


def test_a_port_is_taken_by_a_process(project: Project) -> None:
    with socket.create_server(("127.0.0.1", project.port)):
        message = refused(project, f"port 127.0.0.1:{project.port} of service engine is taken by pid ", "another port")
    assert Path(sys.executable).name in message or "pytest" in message


def test_a_port_is_taken_by_another_container(project: Project, stranger: Project) -> None:
    project.service["ports"] = [f"{stranger.port}:8000"]
    refused(
        project,
        f"port {stranger.port} of service engine is taken by container {container_of(stranger)} "
        f"(project {stranger.name})",
    )


def test_a_port_that_was_taken_while_the_container_was_stopped(running: Project) -> None:
    running.api.stop(running.one()["Id"], timeout=3)
    with socket.create_server(("0.0.0.0", running.port)):  # noqa: S104 - the wildcard is what is tested
        refused(running, f"port 127.0.0.1:{running.port} of service engine is taken by pid ")


def test_a_name_is_taken_by_another_project(project: Project, stranger: Project) -> None:
    project.service["container_name"] = container_of(stranger)
    refused(
        project,
        f"service engine is to be container {container_of(stranger)}, and that name is taken by "
        f"container {container_of(stranger)} (project {stranger.name})",
    )
    assert stranger.one()["State"]["Running"]


def test_a_name_is_taken_by_a_container_that_compose_did_not_make(api: Any, project: Project) -> None:
    name = f"{project.name}-mine"
    made = api.create_container(f"{PREFIX}:one", command=["sleep", "1"], name=name)
    try:
        project.service["container_name"] = name
        refused(project, f"name is taken by container {name} (not made by Compose)", "remove or rename")
    finally:
        api.remove_container(made["Id"], force=True)


def test_a_project_of_this_name_from_another_directory(running: Project) -> None:
    other = running.root / "elsewhere"
    for state in ("present", "stopped", "absent"):
        refused(running, f"was made from {running.directory} and not from {other}", directory=str(other), state=state)
    assert running.one()["State"]["Running"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("services: {engine: {image: x, no_such_key: 1}}", "no_such_key"),
        ("services: [", "yaml"),
        ("services: {engine: {environment: {A: b}}}", "neither an image nor a build"),
        ("services: {}", "no service"),
        ("services: {engine: {image: x, build: .}}", "service engine has build"),
        ("services: {engine: {image: x, scale: 2}}", "asks for 2 containers"),
        ("services: {engine: {image: x, network_mode: 'service:b'}, b: {image: x}}", "shares network_mode"),
        (
            "services: {a: {image: x, depends_on: {b: {condition: service_started, restart: true}}}, b: {image: x}}",
            "restart",
        ),
        (f"services: {{engine: {{image: x, environment: {{MY_TOKEN: {SECRET}}}, no_such_key: 1}}}}", "no_such_key"),
    ],
)
def test_a_content_that_is_no_project(project: Project, content: str, says: str) -> None:
    message = project.fail(content=content)["msg"]
    assert says in message
    assert SECRET not in message
    assert not project.directory.exists()


def test_compose_yaml_that_a_hand_has_broken_is_put_right(running: Project) -> None:
    (running.directory / "compose.yaml").write_text("services: [\n")
    result = running.run()
    assert [action["why"] for action in result["actions"]] == ["edited by hand"]
    assert (running.directory / "compose.yaml").read_text() == running.content


def test_no_nvidia_runtime(api: Any, project: Project) -> None:
    if "nvidia" in (api.info()["Runtimes"] or {}):
        pytest.skip("this engine has an NVIDIA runtime")
    device = {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    project.service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    refused(project, "service engine reserves NVIDIA devices", "it has io.containerd", "nvidia-container-toolkit")


def test_a_network_of_another_project(project: Project, stranger: Project) -> None:
    project.definition["networks"] = {"default": {"name": f"{stranger.name}_default"}}
    refused(project, f"network {stranger.name}_default belongs to project {stranger.name}", "declare it external")


def test_an_external_network_and_volume_are_missing(project: Project) -> None:
    project.definition |= {
        "networks": {"default": {"name": f"{project.name}-nowhere", "external": True}},
        "volumes": {"cache": {"name": f"{project.name}-cache", "external": True}},
    }
    project.service["volumes"].append("cache:/cache")
    refused(
        project,
        f"the external network {project.name}-nowhere does not exist",
        f"the external volume {project.name}-cache does not exist",
    )


def test_a_network_with_a_guest_is_not_taken_away(api: Any, running: Project) -> None:
    network = f"{running.name}_default"
    guest = api.create_container(
        f"{PREFIX}:one",
        command=["sleep", "100"],
        name=f"{running.name}-guest",
        host_config=api.create_host_config(network_mode=network),
    )
    try:
        api.start(guest["Id"])
        refused(
            running, f"network {network} has to go and is in use", f"container {running.name}-guest", state="absent"
        )
    finally:
        api.remove_container(guest["Id"], force=True)


def test_all_that_stands_in_the_way_comes_at_once(project: Project) -> None:
    project.service["image"] = f"{PREFIX}:none"
    project.service["volumes"].append(project.mount(project.root / "gone", "/gone"))
    with socket.create_server(("127.0.0.1", project.port)):
        refused(project, "is not on this host", "does not exist on this host", "is taken by pid")
