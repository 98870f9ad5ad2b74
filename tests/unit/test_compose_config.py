"""Compose's output, sizes, durations, and what cannot be told beforehand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.voices.compose_config import (
    canonical_service,
    host_paths,
    parse_desired,
    parse_hashes,
    project_name_error,
)
from ansible.module_utils.voices.compose_values import bytes_of, nanoseconds, shown_duration, shown_size
from ansible.module_utils.voices.plan import VoicesError

from tests.support.compose_fixture import VERSIONS, Recorded

HASH = "0" * 64


def desired(**service: Any) -> Any:
    config = {"services": {"a": {"image": "x", **service}}}
    return parse_desired("p", "text", json.dumps(config), f"a {HASH}")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_compose_says_the_same(version: str) -> None:
    """The short forms of one version are the canonical ones of another."""
    one, other = Recorded(version, "rich").desired(), Recorded("2.40.3", "rich").desired()
    service, expected = one.services["rich"], other.services["rich"]
    for key in ("command", "entrypoint", "environment", "labels", "tmpfs", "secrets", "configs", "devices"):
        assert service.config[key] == expected.config[key], key
    assert service.ports == expected.ports
    assert host_paths(one, service) == host_paths(other, expected)
    assert one.networks.keys() == other.networks.keys() == {"back", "default"}
    assert list(one.services) == ["rich"], "the other one's profile is off"


def test_dollars_are_read_back() -> None:
    service = Recorded(service="rich").desired().services["rich"]
    assert service.config["environment"]["B"] == "x=$y"
    assert service.config["labels"]["l"] == "abc$d"


def test_ports_that_are_fixed() -> None:
    service = Recorded(service="rich").desired().services["rich"]
    assert sorted(map(str, service.ports)) == ["127.0.0.1:28472", "127.0.0.1:28473", "28471/udp"]
    assert desired(ports=[{"target": 1, "published": "8000-8010"}]).services["a"].ports == []


def test_environment_values_are_texts() -> None:
    raw = {"environment": {"A": 1, "B": True, "C": None, "D": 1.5}, "labels": ["x=1", "y"]}
    service = canonical_service(raw)
    assert service["environment"] == {"A": "1", "B": "true", "C": None, "D": "1.5"}
    assert service["labels"] == {"x": "1", "y": ""}


def test_container_names() -> None:
    assert desired().services["a"].container_name == "p-a-1"
    assert desired(container_name="mine").services["a"].container_name == "mine"


def test_gpus_in_their_short_form() -> None:
    (request,) = desired(gpus=[{"count": -1}]).services["a"].device_requests
    assert request == {"driver": "nvidia", "count": -1}


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ({"build": {"context": "."}}, "has build"),
        ({"image": ""}, "names no image"),
        ({"scale": 2}, "asks for 2 containers"),
        ({"deploy": {"replicas": 0}}, "asks for 0 containers"),
        ({"network_mode": "service:b"}, "shares network_mode"),
        ({"ipc": "service:b"}, "shares ipc"),
        ({"pid": "service:b"}, "shares pid"),
        ({"volumes_from": ["b"]}, "has volumes_from"),
        ({"depends_on": {"b": {"restart": True}}}, "restarts with another service"),
    ],
)
def test_what_cannot_be_told_beforehand(service: dict[str, Any], says: str) -> None:
    with pytest.raises(VoicesError, match=f"project p: .*service a {says}"):
        desired(**service)


def test_no_service_and_no_json() -> None:
    with pytest.raises(VoicesError, match="project p: the content has no service"):
        parse_desired("p", "", '{"services": {}}', "")
    with pytest.raises(VoicesError, match="printed no JSON"):
        parse_desired("p", "", "panic: runtime error", "")


def test_hashes() -> None:
    assert parse_hashes(f"a {HASH}\nwarning: x\nb {'f' * 64}\n") == {"a": HASH, "b": "f" * 64}


@pytest.mark.parametrize(
    ("name", "fine"), [("voices-tiny", True), ("1_a", True), ("Voices", False), ("-a", False), ("", False)]
)
def test_project_names(name: str, fine: bool) -> None:
    assert (project_name_error(name) is None) is fine


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90e9), ("1m30s", 90e9), ("1h", 3600e9), ("300ms", 3e8), ("1.5s", 15e8), ("7", 7), ("2d", 172800e9)],
)
def test_durations(text: str, expected: float) -> None:
    assert nanoseconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("256m", 2**28),
        ("268435456", 2**28),
        (268435456, 2**28),
        ("8g", 2**33),
        ("1gb", 2**30),
        ("0.5g", 2**29),
        ("64k", 65536),
    ],
)
def test_sizes(text: Any, expected: int) -> None:
    assert bytes_of(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1 minute", "-5s", "5"])
def test_no_duration_or_size(text: str) -> None:
    if text != "5":
        with pytest.raises(VoicesError, match="is no duration"):
            nanoseconds(text)
    with pytest.raises(VoicesError, match="is no size"):
        bytes_of(f"{text}x")


def test_how_they_are_shown() -> None:
    assert (shown_duration(1_500_000_000), shown_size(2**28)) == ("1.5s", "256 MiB")
