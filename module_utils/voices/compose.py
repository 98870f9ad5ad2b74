"""The plan of ``compose_project``: from a project as the engine has it to the project as wanted. Pure.

``compose_client`` reads an ``Actual`` and carries a ``Plan`` out. Compose itself creates, recreates and starts; what
has to go away first (orphans, what an interrupted run left) is removed by id, so that exactly what the plan says goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .compose_config import Desired, Network, Service
from .compose_fields import differences, wanted_networks
from .compose_secrets import Secrets
from .compose_state import RUNNING, Actual, Container, Image, sha256
from .plan import Action

FILE = "compose.yaml"
_STARTS = ("create", "recreate", "start")
_INTERRUPTED = "left by an interrupted run"


@dataclass(frozen=True)
class Remote:
    """What a registry says of an image: its manifest ``digest``, or the ``error``."""

    digest: str = ""
    error: str = ""


@dataclass(frozen=True)
class Plan:
    """What to do. ``actions`` say it to people, the rest to ``compose_client``; containers are given by id.

    ``touched`` are the services that are created, recreated or started; ``stop`` goes before ``remove``.
    """

    actions: tuple[Action, ...] = ()
    write: bool = False
    keep_previous: bool = False
    stop: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    resume: tuple[str, ...] = ()
    remove_networks: tuple[str, ...] = ()
    remove_files: bool = False
    pull: bool = False
    touched: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Whether Compose has anything to do."""
        return bool(self.touched or self.pull)

    @property
    def will_start(self) -> bool:
        """Whether a container is created, recreated or started, so that its runtime state is lost."""
        return bool(self.touched)

    @property
    def reasons(self) -> list[str]:
        """The plan in words, one line an action."""
        return [action.line() for action in self.actions]


# ------------------------------------------------------------------------------------------------------------- present


def plan_present(
    desired: Desired,
    actual: Actual,
    secrets: Secrets,
    pull: str = "missing",
    remote: Mapping[str, Remote] | None = None,
) -> Plan:
    """The plan for a project that is to run. ``remote`` answers for ``images_to_look_up``."""
    kept, left_over, renames = _kept(desired, actual)
    pulled = {ref: found for ref, found in (remote or {}).items() if _is_news(actual.images.get(ref), found)}
    networks, replaced = _network_actions(desired, actual)
    services: list[Action] = []
    forced: list[str] = []
    touched: list[str] = []
    resume: list[str] = []
    for name, service in desired.services.items():
        container = kept.get(name)
        news = pulled.get(service.image)
        if container is None:
            steps = [Action("create", name)]
        else:
            unsure = pull == "always" or container.state not in RUNNING
            steps, must_go = _service_steps(service, desired, actual, container, secrets, news, replaced, unsure)
            forced += [container.id] if must_go else []
            if container.state == "paused":
                steps = steps or [Action("resume", name, why="paused")]
                resume.append(container.id)
        services += steps
        if any(step.do in _STARTS for step in steps):
            touched.append(name)
    needed = {desired.services[name].image for name in touched}
    pulls = [ref for ref in sorted(pulled) if pull == "always" or ref in needed]
    file = _file_action(desired, actual)
    orphans = [c for c in actual.containers if not c.oneoff and c.service not in desired.services]
    names = _labels(orphans)
    actions = [
        *(Action("pull", ref, *_pull_detail(actual.images.get(ref), pulled[ref])) for ref in pulls),
        *file,
        *(Action("remove", names[c.id], why="orphan") for c in orphans),
        *(Action("remove", f"container {c.name}", why=_INTERRUPTED) for c in left_over),
        *(Action("rename", name, before=before, after=after) for name, _, before, after in renames),
        *networks,
        *services,
    ]
    return Plan(
        actions=tuple(actions),
        write=bool(file),
        keep_previous=bool(file) and _healthy_under_text(actual),
        remove=tuple([c.id for c in orphans] + [c.id for c in left_over] + forced),
        rename=tuple((container_id, after) for _, container_id, _, after in renames),
        resume=tuple(resume),
        remove_networks=tuple(sorted(replaced)),
        pull=bool(pulls),
        touched=tuple(touched),
    )


def images_to_look_up(desired: Desired, actual: Actual, pull: str) -> list[str]:
    """The images that a registry must be asked for: those that are missing here, with ``always`` all."""
    if pull == "never":
        return []
    return sorted({s.image for s in desired.services.values() if pull == "always" or s.image not in actual.images})


def keepers(desired: Desired, actual: Actual) -> dict[str, Container]:
    """The container of each service: what stays when all that was left over is gone."""
    return _kept(desired, actual)[0]


def _kept(
    desired: Desired, actual: Actual
) -> tuple[dict[str, Container], list[Container], list[tuple[str, str, str, str]]]:
    """(service to its container, what is left over, renames as (service, id, before, after)).

    Compose recreates by making ``<12 hex>_<name>``, removing the old container and renaming. Killed in between, it
    leaves two, and its own next run fails on the name. Whatever does not have the service's name goes, unless it is
    the only one and runs: that was renamed by hand, and gets its name back.
    """
    kept: dict[str, Container] = {}
    left_over: list[Container] = []
    renames: list[tuple[str, str, str, str]] = []
    for name, service in desired.services.items():
        found = [c for c in actual.containers if c.service == name and not c.oneoff]
        named = [c for c in found if c.name == service.container_name]
        alive = [c for c in found if c.state in RUNNING]
        keep = named[0] if named else alive[0] if alive else None
        if keep is not None:
            kept[name] = keep
            if not named:
                renames.append((name, keep.id, keep.name, service.container_name))
        left_over += [c for c in found if c is not keep]
    return kept, left_over, renames


def _service_steps(
    service: Service,
    desired: Desired,
    actual: Actual,
    container: Container,
    secrets: Secrets,
    news: Remote | None,
    replaced: set[str],
    unsure: bool,
) -> tuple[list[Action], bool]:
    """(steps, whether the container must be removed first because Compose alone would keep it).

    ``unsure``: an image that is pulled because it is missing here may differ from the one the container was made from.
    """
    reasons: list[tuple[str, Any, Any]] = []
    image = actual.images.get(service.image)
    if container.hash != service.hash:
        reasons = list(differences(service, desired, container, secrets))
    lost = sorted(replaced & set(container.networks))
    attached = ", ".join(container.networks) or None
    if lost:
        reasons.append(("network", ", ".join(lost), "made anew"))
    elif not reasons and attached != wanted_networks(service, desired):
        reasons.append(("network", attached, wanted_networks(service, desired)))
    must_go = bool(reasons) and reasons[-1][0] == "network"
    same_reference = not any(field == "image" for field, _, _ in reasons)
    if same_reference and news is not None and (image is not None or unsure):
        reasons.append(("image digest", _known_digest(image), _short(news.digest)))
        must_go = must_go or image is None
    elif same_reference and image is not None and image.id not in container.image_ids:
        reasons.append(("image id", _short(container.image_ids[0]) if container.image_ids else None, _short(image.id)))
    if container.state in ("dead", "removing"):
        reasons.append(("state", container.state, "running"))
        must_go = True
    if reasons:
        return [Action("recreate", service.name, *reason) for reason in reasons], must_go
    if container.state in ("exited", "created"):
        return [Action("start", service.name, why=container.state)], False
    return [], False


def _file_action(desired: Desired, actual: Actual) -> list[Action]:
    if actual.text is None:
        return [Action("create", FILE)]
    if actual.text == desired.content:
        return []
    by_hand = bool(actual.written) and sha256(actual.text) not in actual.written
    return [Action("write", FILE, why="edited by hand" if by_hand else "")]


def _healthy_under_text(actual: Actual) -> bool:
    """Whether a run saw the project healthy under the compose.yaml on disk, or every service is, as that file says."""
    if actual.text is not None and sha256(actual.text) == actual.known_healthy:
        return True
    running = {(c.service, c.hash) for c in actual.containers if c.healthy and not c.oneoff}
    return bool(actual.text_hashes) and set(actual.text_hashes.items()) <= running


# -------------------------------------------------------------------------------------------------- images, networks


def _is_news(image: Image | None, remote: Remote) -> bool:
    return not remote.error and (image is None or remote.digest not in image.digests)


def _known_digest(image: Image | None) -> str | None:
    if image is None:
        return None
    return _short(image.digests[0] if image.digests else image.id)


def _pull_detail(image: Image | None, remote: Remote) -> tuple[str, str | None, str]:
    return ("missing" if image is None else "newer in the registry", _known_digest(image), _short(remote.digest))


def _short(digest: str) -> str:
    return digest.rpartition(":")[2][:12]


def _network_actions(desired: Desired, actual: Actual) -> tuple[list[Action], set[str]]:
    """(actions, names of the networks that are made anew)."""
    actions: list[Action] = []
    replaced: set[str] = set()
    for network in desired.networks.values():
        there = actual.networks.get(network.name)
        if network.external:
            continue
        if there is None:
            actions.append(Action("create", f"network {network.name}"))
            continue
        changed = _network_differences(network, there)
        actions += [Action("recreate", f"network {network.name}", *reason) for reason in changed]
        if changed:
            replaced.add(network.name)
    return actions, replaced


def _network_differences(network: Network, there: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, before, after); subnets and addresses count only where the file gives them."""
    config = network.config
    labels = {
        key: value for key, value in (there.get("Labels") or {}).items() if not key.startswith("com.docker.compose.")
    }
    wanted_labels = config.get("labels") or {}
    if isinstance(wanted_labels, list):
        wanted_labels = dict(label.partition("=")[::2] for label in wanted_labels)
    # An engine may add options of its own to every network: those that the file does not name do not count.
    options = {str(key): str(value) for key, value in (config.get("driver_opts") or {}).items()}
    found_options = {key: value for key, value in (there.get("Options") or {}).items() if key in options}
    pairs: list[tuple[str, Any, Any]] = [
        ("driver", there.get("Driver"), config.get("driver") or "bridge"),
        ("driver_opts", found_options, options),
        ("internal", bool(there.get("Internal")), bool(config.get("internal"))),
        ("attachable", bool(there.get("Attachable")), bool(config.get("attachable"))),
        ("enable_ipv6", bool(there.get("EnableIPv6")), bool(config.get("enable_ipv6"))),
        ("labels", labels, {key: str(value) for key, value in wanted_labels.items()}),
    ]
    subnets = [entry["subnet"] for entry in (config.get("ipam") or {}).get("config") or [] if entry.get("subnet")]
    if subnets:
        found = [entry.get("Subnet") for entry in (there.get("IPAM") or {}).get("Config") or []]
        pairs.append(("subnets", found, subnets))
    return [pair for pair in pairs if pair[1] != pair[2]]


# -------------------------------------------------------------------------------------------------------- stop, remove


def plan_stopped(actual: Actual) -> Plan:
    """The plan for a project of which nothing is to run; containers, networks and files stay."""
    alive = [c for c in actual.containers if c.state in RUNNING]
    names = _labels(alive)
    return Plan(actions=tuple(Action("stop", names[c.id]) for c in alive), stop=tuple(c.id for c in alive))


def plan_absent(actual: Actual) -> Plan:
    """The plan for a project that is to leave nothing but its named volumes."""
    names = _labels(actual.containers)
    alive = [c for c in actual.containers if c.state in RUNNING]
    networks = sorted(actual.networks)
    files = [Action("remove", FILE)] if actual.leftover_files else []
    return Plan(
        actions=(
            *(Action("stop", names[c.id]) for c in alive),
            *(Action("remove", names[c.id]) for c in actual.containers),
            *(Action("remove", f"network {name}") for name in networks),
            *files,
        ),
        stop=tuple(c.id for c in alive),
        remove=tuple(c.id for c in actual.containers),
        remove_networks=tuple(networks),
        remove_files=bool(files),
    )


def _labels(containers: Iterable[Container]) -> dict[str, str]:
    """Container id to what a plan calls it: the service, or the container's name where that says more."""
    containers = list(containers)
    services = [c.service for c in containers if not c.oneoff]
    return {
        c.id: c.service if c.service and services.count(c.service) == 1 and not c.oneoff else f"container {c.name}"
        for c in containers
    }
