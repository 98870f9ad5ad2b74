"""In which fields a container differs from the service it should be. Pure.

It is asked only for a container whose ``config-hash`` differs, so a field that it does not know costs a reason and
never a recreate: such a change is reported as ``service definition``. A container also has what its image brings; that
counts as unset here.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

from .compose_config import Desired, Service
from .compose_secrets import Secrets
from .compose_state import LABEL, Container
from .compose_texts import (
    actual_device_text,
    actual_log_text,
    actual_request_text,
    capability,
    device_text,
    joined,
    listed,
    log_text,
    mount_text,
    port_text,
    request_text,
    security_option,
    tmpfs_text,
    yes,
)
from .compose_values import bytes_of, nanoseconds, shown_duration, shown_size

Fields = dict[str, str | None]
Found = dict[str, tuple[str | None, str | None]]
"""Field to (what the container has, what it would have had the service said nothing)."""

_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
_DEFAULT_SHM = shown_size(64 * 1024 * 1024)


def differences(
    service: Service, desired: Desired, container: Container, secrets: Secrets
) -> list[tuple[str, str | None, str | None]]:
    """(field, before, after) for each field that differs, secrets masked; never empty."""
    wanted, found = wanted_fields(service, desired), actual_fields(service, container)
    changed = []
    for field in dict.fromkeys([*wanted, *found]):
        before, unset = found.get(field, (None, None))
        after = wanted.get(field, unset)
        if before != after:
            changed.append((field, secrets.shown(field, before), secrets.shown(field, after)))
    return changed or [("service definition", container.hash[:12] or None, service.hash[:12])]


# ------------------------------------------------------------------------------------------------------------- wanted


def wanted_fields(service: Service, desired: Desired) -> Fields:
    """What the service says, field by field; a field that it does not mention is missing."""
    config = service.config
    fields: Fields = {"image": service.image}
    for key in ("command", "entrypoint"):
        if key in config:
            fields[key] = shlex.join(config[key])
    fields |= {f"environment {key}": config["environment"][key] for key in sorted(config["environment"])}
    fields |= _wanted_mounts(service, desired)
    fields |= {f"labels {key}": config["labels"][key] for key in sorted(config["labels"])}
    fields["ports"] = listed(_wanted_port(entry) for entry in config.get("ports", []))
    for key in ("user", "working_dir", "stop_signal", "hostname", "ipc", "pid", "runtime", "restart", "network_mode"):
        if key in config:
            fields[key] = str(config[key])
    for key in ("read_only", "privileged", "init"):
        if key in config:
            fields[key] = yes(config[key])
    fields["cap_add"] = listed(capability(one) for one in config.get("cap_add", []))
    fields["cap_drop"] = listed(capability(one) for one in config.get("cap_drop", []))
    fields["security_opt"] = listed(security_option(one) for one in config.get("security_opt", []))
    fields["group_add"] = listed(map(str, config.get("group_add", [])))
    fields["devices"] = listed([*map(device_text, config["devices"]), *map(request_text, service.device_requests)])
    fields |= _wanted_health(config.get("healthcheck") or {})
    fields |= _wanted_limits(config)
    if config.get("logging"):
        fields["logging"] = log_text(config["logging"].get("driver", ""), config["logging"].get("options"))
    fields["networks"] = wanted_networks(service, desired)
    return fields


def wanted_networks(service: Service, desired: Desired) -> str | None:
    """The names of the networks that the service is to be attached to."""
    return listed(desired.networks[key].name for key in service.networks if key in desired.networks)


def _wanted_mounts(service: Service, desired: Desired) -> Fields:
    config = service.config
    mounts: Fields = {}
    for entry in config.get("volumes", []):
        kind, source = entry.get("type"), entry.get("source", "")
        if kind == "volume":
            text = f"volume {desired.volumes.get(source, source)}" if source else "anonymous volume"
        elif kind == "tmpfs":
            text = tmpfs_text(f"size={bytes_of(size)}" if (size := (entry.get("tmpfs") or {}).get("size")) else "")
        else:
            text = posixpath.normpath(source) if kind == "bind" else f"{kind} {source}"
        mounts[f"mounts {entry['target']}"] = mount_text(text, bool(entry.get("read_only")))
    for one in config.get("tmpfs", []):
        target, _, options = one.partition(":")
        mounts[f"mounts {target}"] = tmpfs_text(options)
    for kind in ("secrets", "configs"):
        for reference in config[kind]:
            path = ((desired.config.get(kind) or {}).get(reference["source"]) or {}).get("file")
            if path:
                mounts[f"mounts {reference['target']}"] = mount_text(posixpath.normpath(path), True)
    return dict(sorted(mounts.items()))


def _wanted_port(entry: Mapping[str, Any]) -> str:
    return port_text(
        str(entry.get("host_ip", "")),
        str(entry.get("published", "")),
        f"{entry['target']}/{entry.get('protocol', 'tcp')}",
    )


def _wanted_health(check: Mapping[str, Any]) -> Fields:
    if check.get("disable"):
        return {"healthcheck test": "NONE"}
    fields: Fields = {}
    if check.get("test"):
        fields["healthcheck test"] = shlex.join(check["test"])
    for key in ("interval", "timeout", "start_period", "start_interval"):
        if check.get(key):
            fields[f"healthcheck {key}"] = shown_duration(nanoseconds(check[key]))
    if check.get("retries"):
        fields["healthcheck retries"] = str(check["retries"])
    return fields


def _wanted_limits(config: Mapping[str, Any]) -> Fields:
    limits = ((config.get("deploy") or {}).get("resources") or {}).get("limits") or {}
    fields: Fields = {}
    if memory := config.get("mem_limit") or limits.get("memory"):
        fields["mem_limit"] = shown_size(bytes_of(memory))
    if cpus := config.get("cpus") or limits.get("cpus"):
        fields["cpus"] = f"{float(cpus):g}"
    if config.get("shm_size"):
        fields["shm_size"] = shown_size(bytes_of(config["shm_size"]))
    if config.get("stop_grace_period"):
        fields["stop_grace_period"] = f"{nanoseconds(config['stop_grace_period']) // 10**9}s"
    for name, limit in sorted((config.get("ulimits") or {}).items()):
        pair = limit if isinstance(limit, dict) else {"soft": limit, "hard": limit}
        single = pair.get("single")
        fields[f"ulimits {name}"] = f"{pair.get('soft', single)}:{pair.get('hard', single)}"
    return fields


# ------------------------------------------------------------------------------------------------------------- actual


def actual_fields(service: Service, container: Container) -> Found:
    """What the container has, each with what it would have if the service did not mention the field."""
    config = container.inspect.get("Config") or {}
    host = container.inspect.get("HostConfig") or {}
    # Of an image that is gone, nothing is known: what the container has may all have come from it.
    image = container.image.config if container.image else config
    found: Found = {"image": (config.get("Image"), None)}
    command, entrypoint = joined(config.get("Cmd")), joined(config.get("Entrypoint"))
    # An entrypoint of its own drops the image's command.
    default_command = None if "entrypoint" in service.config and container.image else joined(image.get("Cmd"))
    found["command"] = (command, default_command)
    found["entrypoint"] = (entrypoint, joined(image.get("Entrypoint")))
    found |= _actual_environment(service, config, image)
    found |= _actual_mounts(container, image)
    image_labels = image.get("Labels") or {}
    for key, value in sorted((config.get("Labels") or {}).items()):
        if not key.startswith(LABEL):
            found[f"labels {key}"] = (value, image_labels.get(key))
    found["ports"] = (
        listed(
            port_text(one.get("HostIp", ""), one.get("HostPort", ""), target)
            for target, entries in (host.get("PortBindings") or {}).items()
            for one in entries or []
        ),
        None,
    )
    for key, name in (("user", "User"), ("working_dir", "WorkingDir"), ("stop_signal", "StopSignal")):
        found[key] = (config.get(name) or None, image.get(name) or None)
    found |= _actual_host(service, host, container)
    found |= _actual_health(config.get("Healthcheck") or {}, image.get("Healthcheck") or {})
    if (timeout := config.get("StopTimeout")) is not None:
        found["stop_grace_period"] = (f"{timeout}s", None)
    hostname = config.get("Hostname")
    found["hostname"] = (hostname, hostname)
    return found


def _actual_environment(service: Service, config: Mapping[str, Any], image: Mapping[str, Any]) -> Found:
    there, inherited = _environment(config), _environment(image)
    # What an env_file adds is not among the service's keys with every Compose.
    from_files = there if service.config.get("env_file") else {}
    return {
        f"environment {key}": (value, from_files.get(key, inherited.get(key))) for key, value in sorted(there.items())
    }


def _environment(config: Mapping[str, Any]) -> dict[str, str | None]:
    pairs = (entry.partition("=") for entry in config.get("Env") or [])
    return {key: value if equals else None for key, equals, value in pairs}


def _actual_mounts(container: Container, image: Mapping[str, Any]) -> Found:
    host = container.inspect.get("HostConfig") or {}
    sizes = {
        entry["Target"]: (entry.get("TmpfsOptions") or {}).get("SizeBytes")
        for entry in host.get("Mounts") or []
        if entry.get("Type") == "tmpfs"
    }
    found: Found = {}
    for entry in container.inspect.get("Mounts") or []:
        target, kind = entry["Destination"], entry.get("Type")
        unset = None
        if kind == "volume":
            anonymous = bool(_ANONYMOUS.fullmatch(entry.get("Name", "")))
            text = "anonymous volume" if anonymous else f"volume {entry['Name']}"
            unset = text if anonymous and target in (image.get("Volumes") or {}) else None
        elif kind == "tmpfs":
            text = tmpfs_text(f"size={sizes[target]}" if sizes.get(target) else "")
        else:
            text = (
                posixpath.normpath(entry.get("Source", "")) if kind == "bind" else f"{kind} {entry.get('Source', '')}"
            )
        found[f"mounts {target}"] = (mount_text(text, not entry.get("RW", True)), unset)
    for target, options in (host.get("Tmpfs") or {}).items():
        found[f"mounts {target}"] = (tmpfs_text(options), None)
    return dict(sorted(found.items()))


def _actual_host(service: Service, host: Mapping[str, Any], container: Container) -> Found:
    policy = host.get("RestartPolicy") or {}
    restart = policy.get("Name") or "no"
    if policy.get("MaximumRetryCount"):
        restart += f":{policy['MaximumRetryCount']}"
    by_deploy = (service.config.get("deploy") or {}).get("restart_policy")
    found: Found = {"restart": (restart, restart if by_deploy else "no")}
    for key, name in (("read_only", "ReadonlyRootfs"), ("privileged", "Privileged"), ("init", "Init")):
        found[key] = (yes(host.get(name)), "false")
    found["cap_add"] = (listed(capability(one) for one in host.get("CapAdd") or []), None)
    found["cap_drop"] = (listed(capability(one) for one in host.get("CapDrop") or []), None)
    # The engine adds label=disable to a container that shares a namespace of the host.
    asked = [security_option(one) for one in service.config.get("security_opt", [])]
    options = [security_option(one) for one in host.get("SecurityOpt") or []]
    found["security_opt"] = (listed(one for one in options if one != "label:disable" or one in asked), None)
    found["group_add"] = (listed(host.get("GroupAdd") or []), None)
    found["devices"] = (
        listed(
            [
                *map(actual_device_text, host.get("Devices") or []),
                *map(actual_request_text, host.get("DeviceRequests") or []),
            ]
        ),
        None,
    )
    # The engine's own defaults differ between engines: only a value that no engine has by itself counts as set.
    for key, name, own in (
        ("ipc", "IpcMode", ("", "private", "shareable")),
        ("pid", "PidMode", ("",)),
    ):
        value = host.get(name) or ""
        found[key] = (value or None, value or None if value in own else None)
    mode = host.get("NetworkMode") or ""
    found["network_mode"] = (mode, None if mode in ("host", "none") else mode)
    for key, value in (
        ("runtime", host.get("Runtime")),
        ("logging", actual_log_text(host.get("LogConfig") or {})),
    ):
        found[key] = (value, value)
    found["mem_limit"] = (shown_size(host["Memory"]) if host.get("Memory") else None, None)
    found["cpus"] = (f"{host['NanoCpus'] / 10**9:g}" if host.get("NanoCpus") else None, None)
    found["shm_size"] = (shown_size(host.get("ShmSize") or 0), _DEFAULT_SHM)
    for one in sorted(host.get("Ulimits") or [], key=lambda limit: str(limit["Name"])):
        found[f"ulimits {one['Name']}"] = (f"{one['Soft']}:{one['Hard']}", None)
    found["networks"] = (listed(container.networks), None)
    return found


def _actual_health(check: Mapping[str, Any], image: Mapping[str, Any]) -> Found:
    found: Found = {"healthcheck test": (joined(check.get("Test")), joined(image.get("Test")))}
    for key, name in (
        ("interval", "Interval"),
        ("timeout", "Timeout"),
        ("start_period", "StartPeriod"),
        ("start_interval", "StartInterval"),
    ):
        there, inherited = check.get(name), image.get(name)
        found[f"healthcheck {key}"] = (
            shown_duration(there) if there else None,
            shown_duration(inherited) if inherited else None,
        )
    retries, inherited = check.get("Retries"), image.get("Retries")
    found["healthcheck retries"] = (str(retries) if retries else None, str(inherited) if inherited else None)
    return found
