"""The host_tools role's own programs: what they see on a host, and that the tools change in one step or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "roles/host_tools/files"
# Not the interpreter of the tests' own environment: an environment made from one would lie in its shadow.
BASE = getattr(sys, "_base_executable", sys.executable)


def look(venv: Path, lock: str, named: str = "") -> dict[str, str]:
    """What look.sh prints, as the role calls it."""
    sha256 = hashlib.sha256(lock.encode()).hexdigest()
    text = f"set -- '{venv}' {sha256} '{named}'\n{(FILES / 'look.sh').read_text()}"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def maker(venv: Path, lock: str) -> subprocess.Popen[str]:
    """make_venv.py, started as the role starts it, in a process group of its own."""
    process = subprocess.Popen(
        [BASE, "-I", "-c", (FILES / "make_venv.py").read_text()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin
    process.stdin.write(json.dumps({"venv": str(venv), "lock": lock}))
    process.stdin.close()
    process.stdin = None
    return process


def make(venv: Path, lock: str) -> tuple[int, str, str]:
    """Run make_venv.py to its end: exit status, standard output and error."""
    process = maker(venv, lock)
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def lock(tmp_path: Path) -> str:
    """A lock of one built package on this disk, so that pip needs no index."""
    wheel = tmp_path / "tiny_tool-1.0-py3-none-any.whl"
    about = "tiny_tool-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_tool.py", "ANSWER = 42\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-tool\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"tiny-tool @ {wheel.as_uri()} --hash=sha256:{sha256}\n"


def directories(venv: Path) -> set[str]:
    return {path.name for path in venv.parent.iterdir() if path.is_dir() and not path.is_symlink()}


def works(venv: Path) -> bool:
    code = "import tiny_tool; assert tiny_tool.ANSWER == 42"
    return subprocess.run([venv / "bin/python", "-I", "-c", code], capture_output=True, check=False).returncode == 0


def test_made_kept_and_changed_in_one_step(tmp_path: Path, lock: str) -> None:
    venv = tmp_path / "venv/host"
    assert look(venv, lock, BASE)["state"] == "missing"

    rc, out, err = make(venv, lock)
    assert (rc, out[:5], err) == (0, "made ", "")
    assert venv.is_symlink()
    assert works(venv)
    assert look(venv, lock) == {"state": "ready", "why": "", "usable": "yes"}
    assert look(venv, lock, BASE)["state"] == "ready"
    first = directories(venv)
    assert len(first) == 1

    # Another run made the same meanwhile.
    assert make(venv, lock)[1].startswith("kept ")
    assert directories(venv) == first

    # A wrong hash: what is there stays, and nothing half-made does.
    wrong = lock[:-3] + ("00" if lock[-3:-1] != "00" else "11") + "\n"
    assert look(venv, wrong)["state"] == "outdated"
    rc, out, err = make(venv, wrong)
    assert (rc, out) == (1, "")
    assert "HASHES" in err
    assert directories(venv) == first
    assert works(venv)

    # A new lock while a process runs from the old tools: they stay until nobody does.
    old = venv.resolve()
    running = subprocess.Popen([old / "bin/python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        newer = f"# newer\n{lock}"
        assert make(venv, newer)[0] == 0
        assert look(venv, newer)["state"] == "ready"
        assert directories(venv) == {old.name, venv.resolve().name}
    finally:
        running.kill()
        running.wait()
    assert make(venv, lock)[0] == 0
    assert directories(venv) == {venv.resolve().name}


def test_killed_half_way_leaves_the_link_alone_and_is_cleared_up(tmp_path: Path, lock: str) -> None:
    venv = tmp_path / "host"
    process = maker(venv, lock)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("host.*/bin")) and time.monotonic() < deadline:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    left = directories(venv)
    assert len(left) == 1
    assert look(venv, lock)["state"] == "missing"

    assert make(venv, lock)[0] == 0
    assert works(venv)
    assert directories(venv) == {venv.resolve().name}
    assert not left & directories(venv)


def link_to_fake(tmp_path: Path, stamp: str | None, version: str = "3.11") -> Path:
    """An environment whose Python only says its version."""
    made = tmp_path / "host.abcdefgh"
    (made / "bin").mkdir(parents=True)
    program(made / "bin/python", f"echo {version}")
    if stamp is not None:
        (made / ".made-from").write_text(stamp)
    (tmp_path / "host").symlink_to(made.name)
    return tmp_path / "host"


SHA256 = hashlib.sha256(b"lock").hexdigest()


@pytest.mark.parametrize(
    ("stamp", "version", "state", "usable"),
    [
        (f"{SHA256}\n/usr/bin/python3\n3.11\n", "3.11", "ready", "yes"),
        (f"{'0' * 64}\n/usr/bin/python3\n3.11\n", "3.11", "outdated", "yes"),
        # The host was upgraded: the new Python runs but does not see what was installed.
        (f"{SHA256}\n/usr/bin/python3\n3.11\n", "3.13", "broken", "no"),
        (None, "3.11", "broken", "yes"),
        ("", "3.11", "broken", "no"),
    ],
)
def test_what_the_stamp_says(tmp_path: Path, stamp: str | None, version: str, state: str, usable: str) -> None:
    found = look(link_to_fake(tmp_path, stamp, version), "lock")
    assert (found["state"], found["usable"]) == (state, usable)
    assert (found["why"] == "") == (state == "ready")


def test_a_python_that_does_not_run_is_broken(tmp_path: Path) -> None:
    venv = link_to_fake(tmp_path, f"{SHA256}\n/usr/bin/python3\n3.11\n")
    (venv / "bin/python").unlink()
    found = look(venv, "lock")
    assert (found["state"], found["usable"]) == ("broken", "no")


def test_a_directory_of_somebody_else_is_no_link_of_the_role(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    assert look(tmp_path / "host", "lock")["state"] == "foreign"
    rc, _, err = make(tmp_path / "host", "")
    assert rc == 1
    assert "is no link that the role made" in err


@pytest.mark.parametrize(
    ("answer", "able", "lacks"),
    [
        ("/x/python3 3.12 yes", "yes", ""),
        ("/x/python3 3.12 no", "no", "without venv or ensurepip"),
        ("/x/python3 3.10 yes", "no", "is Python 3.10"),
        ("/x/python3 4.0 yes", "no", "is Python 4.0"),
        (None, "no", "does not run"),
    ],
)
def test_which_python_could_make_the_tools(tmp_path: Path, answer: str | None, able: str, lacks: str) -> None:
    python = program(tmp_path / "python", f"echo {answer}" if answer else "exit 127")
    found = look(tmp_path / "host", "lock", str(python))
    assert found["able"] == able
    assert lacks in found["lacks"]
    assert (found["python"], found["version"]) == (("/x/python3", "3.12") if able == "yes" else ("", ""))


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert look(tmp_path / "host", "lock", "/nonexistent")["lacks"] == "/nonexistent is not there"


def test_another_named_python_makes_the_tools_anew(tmp_path: Path) -> None:
    venv = link_to_fake(tmp_path, f"{SHA256}\n{BASE}\n3.11\n")
    assert look(venv, "lock", BASE)["state"] == "ready"
    other = program(tmp_path / "other", "echo /x/python3 3.12 yes")
    found = look(venv, "lock", str(other))
    assert (found["state"], found["python"]) == ("outdated", "/x/python3")
