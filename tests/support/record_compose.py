"""Record what a real engine and a real Compose say of two services, for the unit tests of compose_project's plan.

python -m tests.support.record_compose tests/fixtures/compose     (VOICES_TEST_COMPOSE names another Compose)

Writes <version>.json: of the services ``engine`` (as a seat's) and ``rich`` (every field that the plan knows) the
output of ``config``, the hashes, and the descriptions of the container, its image and its networks. The project's
name and directory are replaced, so that two recordings differ only where Compose or the engine do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import docker

from tests.support.docker_project import DOCKER_HOST, PREFIX, Project, compose_command, make_image, remove_images

NAME, ROOT = "voices-tiny", "/srv/voices/seats/tiny"


def rich(secret_file: str) -> dict[str, Any]:
    """A definition with every field that the plan knows, most of them in their short form."""
    return {
        "services": {
            "rich": {
                "image": f"{PREFIX}:one",
                "entrypoint": ["sh"],
                "command": '-c "while :; do sleep 1; done"',
                "environment": ["A=1", "B=x=$$y", "EMPTY="],
                "labels": ["l=abc$$d"],
                "ports": ["28471:81/udp", "127.0.0.1:28472-28473:82-83", "9000"],
                "ulimits": {"nofile": {"soft": 512, "hard": 1024}, "nproc": 200},
                "cap_add": ["SYS_PTRACE"],
                "devices": ["/dev/null:/dev/nul2", "/dev/zero"],
                "extra_hosts": ["other:127.0.0.1"],
                "group_add": ["44"],
                "ipc": "host",
                "hostname": "rich",
                "working_dir": "/bin",
                "mem_limit": "64m",
                "cpus": "0.5",
                "stop_signal": "SIGKILL",
                "stop_grace_period": "1m30s",
                "tmpfs": "/run:size=1m,mode=755",
                "volumes": [
                    "./:/project:ro",
                    "vol:/vol",
                    "/anonymous",
                    {"type": "tmpfs", "target": "/t", "tmpfs": {"size": 1048576}},
                ],
                "secrets": ["key", {"source": "key", "target": "/etc/key"}],
                "configs": [{"source": "setting", "target": "/etc/setting"}],
                "healthcheck": {"test": "test -d /tmp", "interval": "1s500ms", "start_period": "1m30s"},
                "security_opt": ["no-new-privileges"],
                "restart": "on-failure:3",
                "networks": ["default", "back"],
                "init": True,
            },
            "off": {"image": f"{PREFIX}:one", "profiles": ["other"]},
        },
        "volumes": {"vol": {}},
        "networks": {"back": {"internal": True, "labels": {"a": "b"}}, "unused": {}},
        "secrets": {"key": {"file": secret_file}},
        "configs": {"setting": {"file": secret_file}},
    }


def record(api: Any, project: Project) -> dict[str, Any]:
    """All that Compose and the engine say of a project that runs."""
    printed = []
    for arguments in (["--format", "json"], ["--hash", "*"]):
        command = [*compose_command(), "-p", project.name, "--project-directory", str(project.directory)]
        done = subprocess.run(
            [*command, "-f", "-", "config", *arguments],
            input=project.content,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.append(done.stdout)
    project.run()
    container = project.one()
    networks = [api.inspect_network(one["Id"]) for one in api.networks(names=[project.name])]
    found = {
        "content": project.content,
        "config": printed[0],
        "hashes": printed[1],
        "container": container,
        "image": api.inspect_image(container["Image"]),
        "networks": networks,
        "summary": next(one for one in api.containers(all=True) if one["Id"] == container["Id"]),
    }
    text = json.dumps(found).replace(project.name, NAME).replace(str(project.root), ROOT).replace(PREFIX, "voices-test")
    return dict(json.loads(text))


def main() -> None:
    """Record into the directory that is named."""
    api = docker.APIClient(base_url=DOCKER_HOST, version="auto")
    make_image(api, "one", env="EXTRA=1")
    version = subprocess.run([*compose_command(), "version", "--short"], capture_output=True, text=True, check=True)
    result: dict[str, Any] = {"compose": version.stdout.strip(), "engine": api.version()["Version"]}
    for name in ("engine", "rich"):
        with tempfile.TemporaryDirectory(prefix="voices-") as directory:
            project = Project(api, Path(directory))
            if name == "rich":
                project.directory.mkdir()
                (project.root / "secret").write_text("x")
                project.definition = rich(str(project.root / "secret"))
            try:
                result[name] = record(api, project)
            finally:
                project.destroy()
    remove_images(api)
    path = Path(sys.argv[1]) / f"{result['compose'].lstrip('v')}.json"
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    import tests.conftest  # noqa: F401 - makes library/ and the core importable

    main()
