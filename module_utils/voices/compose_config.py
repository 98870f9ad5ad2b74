"""What a compose.yaml asks for, read from what Compose itself makes of it. Pure.

The input is the output of ``compose config --format json`` and ``compose config --hash '*'``. Some versions of Compose
(2.24.7) print the short forms that the file has (a command as one text, an environment as a list), others (2.20.1,
2.40.3) the canonical ones: both become the canonical form here. In that output ``$$`` stands for ``$``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .plan import VoicesError

PROJECT_RULE = "lower-case letters, digits, hyphens and underscores, a letter or digit first"

_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_HASH_LINE = re.compile(r"(\S+) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Port:
    """A published port. ``address`` is empty for every address of the host."""

    address: str
    port: int
    protocol: str = "tcp"

    def __str__(self) -> str:
        suffix = "" if self.protocol == "tcp" else f"/{self.protocol}"
        return f"{self.address}:{self.port}{suffix}" if self.address else f"{self.port}{suffix}"


@dataclass(frozen=True)
class Service:
    """One service as wanted. ``hash`` is what Compose puts into the container's label ``config-hash``."""

    name: str
    container_name: str
    image: str
    hash: str
    config: Mapping[str, Any]

    @property
    def ports(self) -> list[Port]:
        """The ports that it publishes under fixed numbers; a range is left to the engine."""
        return [
            Port(entry.get("host_ip", ""), int(entry["published"]), entry.get("protocol", "tcp"))
            for entry in self.config.get("ports", [])
            if str(entry.get("published", "")).isdigit()
        ]

    @property
    def networks(self) -> list[str]:
        """The keys of its networks in the file, in order."""
        return list(self.config.get("networks") or {})

    @property
    def device_requests(self) -> list[Mapping[str, Any]]:
        """The devices that it reserves through a driver (GPUs)."""
        resources = (self.config.get("deploy") or {}).get("resources") or {}
        reserved = list((resources.get("reservations") or {}).get("devices") or [])
        return reserved + [
            {"driver": "nvidia", **gpu} for gpu in self.config.get("gpus") or [] if isinstance(gpu, dict)
        ]


@dataclass(frozen=True)
class Network:
    """A network that a service uses. ``external``: somebody else makes it."""

    key: str
    name: str
    external: bool
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Desired:
    """A project as wanted. ``volumes``: key to the engine's name of it; ``config``: all that Compose printed."""

    project: str
    content: str
    services: Mapping[str, Service]
    networks: Mapping[str, Network] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    external_volumes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_can_be_waited_for(self) -> bool:
        """Whether ``up --wait`` works: Compose 2.40.3 fails on a service whose health check is switched off."""
        return not any((s.config.get("healthcheck") or {}).get("disable") for s in self.services.values())


def project_name_error(project: str) -> str | None:
    """Why Compose takes no project of this name, or None."""
    if _PROJECT.fullmatch(project):
        return None
    return f"project {project!r}: {PROJECT_RULE}"


def parse_hashes(text: str) -> dict[str, str]:
    """Service to hash, from the output of ``config --hash '*'``."""
    return {found[1]: found[2] for line in text.splitlines() if (found := _HASH_LINE.fullmatch(line.strip()))}


def parse_desired(project: str, content: str, config_json: str, hashes_text: str) -> Desired:
    """The project from Compose's two outputs. Raises VoicesError for a file without a service or with the unsupported.

    A service that is missing among the hashes belongs to a profile that is off.
    """
    try:
        config = json.loads(config_json)
    except ValueError as error:
        raise VoicesError(f"project {project}: Compose's `config --format json` printed no JSON: {error}") from error
    config = _unescaped(config)
    hashes = parse_hashes(hashes_text)
    services = {}
    for name, raw in sorted((config.get("services") or {}).items()):
        if name in hashes:
            cfg = canonical_service(raw)
            container_name = cfg.get("container_name") or f"{project}-{name}-1"
            services[name] = Service(name, container_name, cfg.get("image", ""), hashes[name], cfg)
    if not services:
        raise VoicesError(f"project {project}: the content has no service: state: absent takes a project away")
    problems = [problem for service in services.values() for problem in _unsupported(service)]
    if problems:
        raise VoicesError(
            f"project {project}: compose_project cannot tell beforehand what follows: {'; '.join(problems)}"
        )
    used = {key for service in services.values() for key in service.networks}
    volumes = config.get("volumes") or {}
    return Desired(
        project=project,
        content=content,
        services=services,
        networks={
            key: Network(key, (entry or {}).get("name") or f"{project}_{key}", _is_external(entry), entry or {})
            for key, entry in sorted((config.get("networks") or {}).items())
            if key in used
        },
        volumes={key: (entry or {}).get("name") or f"{project}_{key}" for key, entry in volumes.items()},
        external_volumes=tuple(sorted((e or {}).get("name") or k for k, e in volumes.items() if _is_external(e))),
        config=config,
    )


def _is_external(entry: Mapping[str, Any] | None) -> bool:
    return bool((entry or {}).get("external"))


def _unescaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$$", "$")
    if isinstance(value, list):
        return [_unescaped(item) for item in value]
    if isinstance(value, dict):
        return {key: _unescaped(item) for key, item in value.items()}
    return value


# ------------------------------------------------------------------------------------------------------ canonical form


def canonical_service(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A service's definition with every short form spelled out."""
    config = {key: value for key, value in raw.items() if value is not None}
    for key in ("command", "entrypoint"):
        if isinstance(config.get(key), str):
            config[key] = shlex.split(config[key])
    for key in ("environment", "labels"):
        if isinstance(config.get(key), list):
            config[key] = dict(_pair(entry) for entry in config[key])
    config["environment"] = {key: _text(value) for key, value in (config.get("environment") or {}).items()}
    config["labels"] = {key: _text(value) or "" for key, value in (config.get("labels") or {}).items()}
    if isinstance(config.get("networks"), list):
        config["networks"] = dict.fromkeys(config["networks"])
    if isinstance(config.get("tmpfs"), str):
        config["tmpfs"] = [config["tmpfs"]]
    if isinstance((config.get("healthcheck") or {}).get("test"), str):
        config["healthcheck"] = {**config["healthcheck"], "test": ["CMD-SHELL", config["healthcheck"]["test"]]}
    for key, folder in (("secrets", "/run/secrets/"), ("configs", "/")):
        config[key] = [_file_reference(entry, folder) for entry in config.get(key) or []]
    config["devices"] = [_device(entry) for entry in config.get("devices") or []]
    return config


def _pair(entry: str) -> tuple[str, str | None]:
    key, equals, value = str(entry).partition("=")
    return key, value if equals else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _file_reference(entry: Any, folder: str) -> dict[str, Any]:
    reference = {"source": entry} if isinstance(entry, str) else dict(entry)
    target = reference.get("target") or reference["source"]
    return {**reference, "target": target if target.startswith("/") else f"{folder}{target}"}


def _device(entry: Any) -> dict[str, str]:
    if isinstance(entry, dict):
        return {"permissions": "rwm", **entry}
    source, _, rest = str(entry).partition(":")
    target, _, permissions = rest.partition(":")
    return {"source": source, "target": target or source, "permissions": permissions or "rwm"}


# ----------------------------------------------------------------------------------------------------- what is refused


def _unsupported(service: Service) -> Iterator[str]:
    config, who = service.config, f"service {service.name}"
    if "build" in config:
        yield f"{who} has build: name an image that is built elsewhere"
    elif not service.image:
        yield f"{who} names no image"
    copies = config.get("scale", (config.get("deploy") or {}).get("replicas", 1))
    if copies != 1:
        yield f"{who} asks for {copies} containers: one service is one container"
    for key in ("network_mode", "ipc", "pid"):
        if str(config.get(key, "")).startswith("service:"):
            yield f"{who} shares {key} with another service: give each its own"
    if config.get("volumes_from"):
        yield f"{who} has volumes_from: mount the volumes by name"
    wants = config.get("depends_on") or {}
    if isinstance(wants, dict) and any((entry or {}).get("restart") for entry in wants.values()):
        yield f"{who} restarts with another service (depends_on restart): leave that to its restart policy"


def host_paths(desired: Desired, service: Service) -> list[tuple[str, str]]:
    """(what for, host path) of everything that a service takes from the host."""
    found = [
        (f"mount {entry['target']}", entry["source"])
        for entry in service.config.get("volumes", [])
        if isinstance(entry, dict) and entry.get("type") == "bind"
    ]
    for kind in ("secrets", "configs"):
        for reference in service.config[kind]:
            path = ((desired.config.get(kind) or {}).get(reference["source"]) or {}).get("file")
            if path:
                found.append((f"{kind[:-1]} {reference['target']}", path))
    found += [(f"device {entry['target']}", entry["source"]) for entry in service.config["devices"]]
    return [(what, path) for what, path in found if path.startswith("/")]
