"""The names of running containers, from Docker where this user may ask it. Needs the package ``docker``; optional."""

from __future__ import annotations

from collections.abc import Mapping

_TIMEOUT_S = 5


def container_names(docker_host: str) -> Mapping[str, str]:
    """Name by full id; empty where there is no Docker, no right to ask it, or no answer: a name is for people only."""
    try:
        import docker
    except ImportError:
        return {}
    try:
        client = docker.APIClient(base_url=docker_host, version="auto", timeout=_TIMEOUT_S)
        try:
            listed = client.containers()
        finally:
            client.close()
    except Exception:  # the SDK lets errors of four libraries through, and none of them changes the verdict
        return {}
    return {one["Id"]: one["Names"][0].lstrip("/") for one in listed if one.get("Id") and one.get("Names")}
