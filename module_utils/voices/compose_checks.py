"""What must hold before a Compose project is changed. Pure: ``compose_client`` answers the questions.

All refusals come at once, in check mode too, and before anything is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from .compose import Plan, Remote
from .compose_config import Desired, Port, host_paths
from .compose_state import LABEL, Actual
from .plan import VoicesError

_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound


@dataclass(frozen=True)
class Questions:
    """What the host is asked: who holds these ports, which of these paths are missing, what the engine offers."""

    ports: tuple[Port, ...] = ()
    paths: tuple[str, ...] = ()
    devices: bool = False
    volumes: bool = False


@dataclass(frozen=True)
class Answers:
    """``holders``: port to the process that listens there. ``cdi``: device names by CDI, None where it is unknown."""

    holders: Mapping[Port, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    runtimes: frozenset[str] = frozenset()
    cdi: tuple[str, ...] | None = None
    volumes: frozenset[str] = frozenset()


def questions(desired: Desired, actual: Actual, plan: Plan) -> Questions:
    """What has to be known of the host before this plan."""
    touched = [desired.services[name] for name in plan.touched]
    # What our own containers publish is theirs to give up: they are recreated, removed, or it is that very service.
    ours = {port for container in actual.containers for port in container.published}
    ports = [port for service in touched for port in service.ports if not any(_collide(port, one) for one in ours)]
    return Questions(
        ports=tuple(dict.fromkeys(ports)),
        paths=tuple(dict.fromkeys(path for service in touched for _, path in host_paths(desired, service))),
        devices=any(service.device_requests or service.config.get("runtime") for service in touched),
        volumes=bool(desired.external_volumes),
    )


def check(
    desired: Desired,
    actual: Actual,
    plan: Plan,
    answers: Answers,
    *,
    directory: str,
    pull: str,
    remote: Mapping[str, Remote],
    expected_paths: Collection[str] = (),
) -> None:
    """Raise VoicesError with everything that stands in the plan's way."""
    _raise(
        desired.project,
        [
            *directory_problems(actual, directory),
            *_name_problems(desired, actual),
            *_port_problems(desired, actual, plan, answers),
            *_path_problems(desired, plan, answers, expected_paths),
            *_image_problems(desired, actual, plan, pull, remote),
            *_device_problems(desired, plan, answers),
            *_network_problems(desired, actual, plan),
            *(
                f"the external volume {name} does not exist: make it (docker volume create {name})"
                for name in desired.external_volumes
                if name not in answers.volumes
            ),
        ],
    )


def check_down(project: str, actual: Actual, plan: Plan, directory: str) -> None:
    """Raise VoicesError with everything that stands in the way of stopping or removing the project."""
    _raise(project, [*directory_problems(actual, directory), *_guests(actual, plan)])


def _raise(project: str, problems: list[str]) -> None:
    if problems:
        raise VoicesError(f"project {project}: {'; '.join(problems)}. Nothing was changed")


def directory_problems(actual: Actual, directory: str) -> Iterator[str]:
    """Containers of this project's name that were made from another directory: they are somebody else's."""
    others = sorted({(c.directory, c.name) for c in actual.containers if c.directory not in ("", directory)})
    for place, name in others:
        yield (
            f"container {name} carries this project's name, but was made from {place} and not from {directory}: take "
            "that project away there, or choose another project name"
        )


def _name_problems(desired: Desired, actual: Actual) -> Iterator[str]:
    neighbours = {neighbour.name: neighbour for neighbour in actual.neighbours}
    for service in desired.services.values():
        if taken := neighbours.get(service.container_name):
            yield (
                f"service {service.name} is to be container {service.container_name}, and that name is taken by "
                f"{taken}: remove or rename that container, or choose another container_name"
            )


def _port_problems(desired: Desired, actual: Actual, plan: Plan, answers: Answers) -> Iterator[str]:
    asked = questions(desired, actual, plan).ports
    taken: dict[Port, str] = {}
    for name in desired.services:
        for port in desired.services[name].ports:
            for other, owner in taken.items():
                if _collide(port, other) and owner != name:
                    yield f"services {owner} and {name} both publish port {port}: give one another port"
            taken[port] = name
    for name in plan.touched:
        for port in desired.services[name].ports:
            if port not in asked:
                continue
            fix = f"stop it, or give service {name} another port"
            holder = next((n for n in actual.neighbours if any(_collide(port, one) for one in n.published)), None)
            if holder is not None:
                yield f"port {port} of service {name} is taken by {holder}: {fix}"
            elif port in answers.holders:
                yield f"port {port} of service {name} is taken by {answers.holders[port]}: {fix}"


def _collide(one: Port, other: Port) -> bool:
    everywhere = one.address in _EVERY_ADDRESS or other.address in _EVERY_ADDRESS
    return (one.port, one.protocol) == (other.port, other.protocol) and (everywhere or one.address == other.address)


def _path_problems(desired: Desired, plan: Plan, answers: Answers, expected: Collection[str]) -> Iterator[str]:
    for name in plan.touched:
        for what, path in host_paths(desired, desired.services[name]):
            if path in answers.missing and not any(_below(path, parent) for parent in expected):
                yield f"{what} of service {name}: {path} does not exist on this host: make it, or correct the path"


def _below(path: str, parent: str) -> bool:
    parent = parent.rstrip("/")
    return path.rstrip("/") == parent or path.startswith(f"{parent}/")


def _image_problems(
    desired: Desired, actual: Actual, plan: Plan, pull: str, remote: Mapping[str, Remote]
) -> Iterator[str]:
    needed = {desired.services[name].image for name in plan.touched}
    if pull == "always":
        needed = {service.image for service in desired.services.values()}
    for image in sorted(needed):
        answer = remote.get(image)
        if answer is not None and answer.error:
            here = "is not on this host and" if image not in actual.images else "is to be pulled and"
            yield (
                f"image {image} {here} cannot be pulled: {answer.error}: correct the name, log in to its registry "
                "(docker login), or load it (docker load) and use pull: missing"
            )
        elif pull == "never" and image not in actual.images:
            yield f"image {image} is not on this host, and pull is never: load it (docker load), or use pull: missing"


def _device_problems(desired: Desired, plan: Plan, answers: Answers) -> Iterator[str]:
    by_cdi = any(name.startswith("nvidia.com/gpu") for name in answers.cdi or ())
    for name in plan.touched:
        service = desired.services[name]
        wants = any(request.get("driver") == "nvidia" for request in service.device_requests)
        runtime = service.config.get("runtime")
        if (wants and "nvidia" not in answers.runtimes and not by_cdi) or (
            runtime == "nvidia" and runtime not in answers.runtimes
        ):
            known = ", ".join(sorted(answers.runtimes)) or "none"
            yield (
                f"service {name} reserves NVIDIA devices, and this engine has no NVIDIA runtime (it has {known}): "
                "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart Docker"
            )


def _network_problems(desired: Desired, actual: Actual, plan: Plan) -> Iterator[str]:
    for network in desired.networks.values():
        there = actual.networks.get(network.name)
        if network.external:
            if there is None:
                yield (
                    f"the external network {network.name} does not exist: make it "
                    f"(docker network create {network.name})"
                )
            continue
        owner = ((there or {}).get("Labels") or {}).get(f"{LABEL}project", "")
        if there is not None and owner != desired.project:
            whose = f"belongs to project {owner}" if owner else "was not made by Compose"
            yield f"network {network.name} {whose}: choose another name, or declare it external"
    yield from _guests(actual, plan)


def _guests(actual: Actual, plan: Plan) -> Iterator[str]:
    """Containers of others on a network that is to be removed."""
    ours = {container.id for container in actual.containers}
    for name in plan.remove_networks:
        attached = (actual.networks[name].get("Containers") or {}).items()
        guests = sorted(entry.get("Name", key[:12]) for key, entry in attached if key not in ours)
        if guests:
            yield (
                f"network {name} has to go and is in use outside the project by container {', '.join(guests)}: "
                f"disconnect it (docker network disconnect {name} {guests[0]})"
            )
