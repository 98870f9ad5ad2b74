"""The set-up: which Python is taken, when an environment is made again, and what a failure tells a person."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import installer
import interpreters
import pytest
import venvs
from interpreters import Interpreter, NoInterpreter, Search, Wish

REPOSITORY = Path(__file__).resolve().parents[2]


def program(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def answering(path: Path, version: tuple[int, int], *, able: bool = True) -> Path:
    """A program that answers the probe as an interpreter of ``version`` at its own path would."""
    answer = {"path": str(path), "version": version, "able": able, "library": str(path)}
    return program(path, f"echo '{json.dumps(answer)}'")


def test_a_shim_that_does_not_run_is_passed_over_for_the_same_name_later_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = program(tmp_path / "shims/python3.13", "echo 'python3.13: command not found' >&2; exit 127")
    old = answering(tmp_path / "shims/python3.12", (3, 9))
    bare = answering(tmp_path / "shims/python3.11", (3, 11), able=False)
    good = answering(tmp_path / "bin/python3.13", (3, 13))
    answering(tmp_path / "var/venv/dev/bin/python3.14", (3, 14))
    monkeypatch.setattr(interpreters, "EXTRA_DIRECTORIES", ())
    monkeypatch.setenv("PATH", f"{tmp_path}/var/venv/dev/bin:{tmp_path}/shims:{tmp_path}/bin")
    search = Search(tmp_path)
    assert search.best("dev", Wish()).path == str(good)
    assert search.rejected == {
        str(shim): "does not run (python3.13: command not found)",
        str(old): "is Python 3.9",
        str(bare): "has no venv and ensurepip (Debian, Ubuntu: apt install python3.11-venv)",
    }
    with pytest.raises(NoInterpreter) as refusal:
        search.best("engine-cpu", Wish(((3, 11), (3, 12))))
    assert "needs Python 3.11, 3.12" in str(refusal.value)
    assert f"{shim} does not run" in str(refusal.value)
    assert f"{good} is Python 3.13" in str(refusal.value)
    assert "make ENGINE_PYTHON=" in str(refusal.value)


def test_the_newest_is_taken_unless_an_order_is_wished() -> None:
    found = [Interpreter(f"/{minor}", (3, minor), shared=True) for minor in (11, 14, 12)]
    assert min(found, key=lambda one: Wish().rank(one, as_root=False)).path == "/14"
    ordered = Wish(((3, 12), (3, 11)))
    assert [one.path for one in found if ordered.takes(one)] == ["/11", "/12"]
    assert min(found[::2], key=lambda one: ordered.rank(one, as_root=False)).path == "/12"


def test_root_takes_what_a_service_user_can_run_before_what_is_newer() -> None:
    private, public = Interpreter("/root/3.13", (3, 13), shared=False), Interpreter("/usr/3.11", (3, 11), shared=True)

    def best(wish: Wish, as_root: bool) -> Interpreter:
        return min((private, public), key=lambda one: wish.rank(one, as_root))

    assert best(Wish(shared=True), as_root=True) is public
    assert best(Wish(shared=True), as_root=False) is private
    assert best(Wish(), as_root=True) is private


def test_an_interpreter_below_a_private_directory_is_not_shared(tmp_path: Path) -> None:
    private = answering(tmp_path / "python3.12", (3, 12))
    tmp_path.chmod(0o700)
    answer = {"path": "/bin/sh", "version": (3, 12), "able": True, "library": "/bin/sh"}
    public = program(tmp_path / "public", f"echo '{json.dumps(answer)}'")
    assert interpreters.probe(str(private)) == Interpreter(str(private), (3, 12), shared=False)
    assert interpreters.probe(str(public)) == Interpreter("/bin/sh", (3, 12), shared=True)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> venvs.Environment:
    """An environment that looks made: an interpreter, a lock and the stamp for both."""
    monkeypatch.setattr(venvs, "ROOT", tmp_path)
    monkeypatch.setattr(venvs, "VAR", tmp_path / "var")
    for name in ("PYTHON", "ENGINE_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    environment = venvs.Environment("controller", 0)
    environment.lock.parent.mkdir()
    environment.lock.write_text("a==1\n")
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    version = "{}.{}".format(*sys.version_info[:2])
    environment.stamp.write_text(json.dumps(venvs.stamp_of(environment, sys.executable, version)))
    return environment


def test_an_environment_that_agrees_with_its_stamp_is_left(made: venvs.Environment) -> None:
    assert venvs.outdated(made) is None
    assert json.loads(made.stamp.read_text())["lock"] == hashlib.sha256(b"a==1\n").hexdigest()


def test_an_environment_is_made_again_when_its_lock_changed(made: venvs.Environment) -> None:
    made.lock.write_text("a==2\n")
    assert venvs.outdated(made) == "its lock changed"


def test_an_environment_is_made_again_after_a_killed_installation(made: venvs.Environment) -> None:
    made.stamp.unlink()
    assert venvs.outdated(made) == "an installation was not finished"


def test_an_environment_is_made_again_when_its_python_is_gone(made: venvs.Environment) -> None:
    made.python.unlink()
    made.python.symlink_to("/nonexistent/python3")
    assert "is gone or another" in str(venvs.outdated(made))


def test_an_environment_is_made_again_when_the_clone_moved(made: venvs.Environment) -> None:
    stamp = json.loads(made.stamp.read_text())
    made.stamp.write_text(json.dumps({**stamp, "directory": "/elsewhere/var/venv/controller"}))
    assert venvs.outdated(made) == "it was made for /elsewhere/var/venv/controller"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"python": 3}'])
def test_an_environment_with_a_broken_stamp_is_made_again(made: venvs.Environment, text: str) -> None:
    made.stamp.write_text(text)
    assert venvs.outdated(made) == "its stamp is unreadable"


def test_naming_another_python_makes_the_environment_again(
    made: venvs.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = answering(tmp_path / "bin/python3.13", (3, 13))
    monkeypatch.setenv("PYTHON", str(other))
    assert venvs.outdated(made) == f"PYTHON={other} is {other}"
    monkeypatch.setenv("PYTHON", str(answering(tmp_path / "bin/python3.9", (3, 9))))
    with pytest.raises(venvs.SetupError, match=r"PYTHON=.*/python3\.9 is Python 3\.9"):
        venvs.outdated(made)


def test_too_little_space_is_refused_before_anything_is_removed(made: venvs.Environment) -> None:
    greedy = venvs.Environment("controller", 99999 * venvs.GIB)
    with pytest.raises(venvs.SetupError, match=r"GiB are free at .*/var, it needs 99999 GiB"):
        venvs.make(greedy, "new", Search(venvs.ROOT), -1)
    assert made.stamp.exists()


def test_what_a_link_points_to_is_never_emptied(made: venvs.Environment, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    made.directory.rename(elsewhere)
    made.directory.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(venvs.SetupError, match=r"controller is a link to .*/elsewhere, which the set-up would empty"):
        venvs.make(made, "new", Search(venvs.ROOT), -1)
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("linked", [True, False])
def test_clean_removes_var_with_read_only_entries_but_nothing_behind_a_link(tmp_path: Path, linked: bool) -> None:
    script = tmp_path / "clone/tools/clean.sh"
    script.parent.mkdir(parents=True)
    script.write_text((REPOSITORY / "tools/clean.sh").read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").touch()
    var = tmp_path / "clone/var"
    if linked:
        var.symlink_to(elsewhere)
    else:
        (var / "store/lv-x@0/sub").mkdir(parents=True)
        (var / "store/lv-x@0/sub/weights").touch()
        (var / "store/lv-x@0/sub").chmod(0o555)
        (var / "linked").symlink_to(elsewhere)
    run = subprocess.run(["/bin/sh", str(script)], capture_output=True, text=True, check=False)
    assert (run.returncode == 0, var.exists()) == ((False, True) if linked else (True, False)), run.stderr
    assert (elsewhere / "theirs").exists()
    assert ("is a link to" in run.stderr) is linked


@pytest.mark.parametrize("path", ["/home/ann/my voices", "/srv/100%", "/srv/a:b", "/srv/{{ x }}", "/srv/it's"])
def test_a_path_that_breaks_things_later_is_refused_at_once(path: str) -> None:
    with pytest.raises(venvs.SetupError, match="move it elsewhere"):
        venvs.refuse_path(Path(path))


def test_usual_paths_are_taken() -> None:
    venvs.refuse_path(Path("/home/josé/src/voices-1.2_x+y@z~"))


def test_the_lock_is_held_until_an_orphan_of_the_installation_has_ended(
    made: venvs.Environment, tmp_path: Path
) -> None:
    orphan = "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
    with venvs.alone() as handle, installer.child([sys.executable, "-c", orphan], tmp_path, handle) as process:
        pid = int((process.stdout or sys.stdin).read())
    with open(venvs.VAR / ".setup.lock") as stream:
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.kill(pid, signal.SIGKILL)
        fcntl.flock(stream, fcntl.LOCK_EX)


def test_a_failed_installation_ends_what_it_started(made: venvs.Environment, tmp_path: Path) -> None:
    with (
        venvs.alone() as handle,
        pytest.raises(RuntimeError),
        installer.child(["sh", "-c", "sleep 60; true"], tmp_path, handle) as process,
    ):
        raise RuntimeError
    assert process.wait(timeout=10) == -signal.SIGTERM
    with open(venvs.VAR / ".setup.lock") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


PIP_OUTPUT = """\
Collecting idna==3.20 (from -r requirements/host.txt (line 40))
  Downloading idna-3.20-py3-none-any.whl (66 kB)
Collecting torch==2.13.0+cpu (from -r requirements/engine-cpu.txt (line 541))
  Downloading torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (191.8 MB)
Installing collected packages: torch, idna
Successfully installed idna-3.20 torch-2.13.0+cpu
"""


def test_progress_is_read_off_pips_output() -> None:
    progress = installer.Progress(total=9)
    shown = []
    for line in PIP_OUTPUT.splitlines():
        progress.take(line)
        shown.append(progress.text(installed=1))
    assert shown == [
        "fetching, package 1 of at most 9: idna==3.20",
        "fetching, package 1 of at most 9: idna-3.20-py3-none-any.whl (66 kB)",
        "fetching, package 2 of at most 9: torch==2.13.0+cpu",
        "fetching, package 2 of at most 9: torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (191.8 MB)",
        "installing, 1 of 2 packages",
        "installing, 1 of 2 packages",
    ]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "The disk is full"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "did not reach its package index"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PIP_EXTRA_INDEX_URL at PyTorch's CPU wheel"),
        ("ERROR: Cannot install torch==2.13.0+cpu because these ...", "PIP_EXTRA_INDEX_URL at PyTorch's CPU wheel"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "do not remove the hash"),
        ("ERROR: No matching distribution found for numpy==2.4.6", "ENGINE_PYTHON=... for the engine"),
        ("ERROR: something new", "See the log"),
    ],
)
def test_a_failure_shows_pips_words_its_log_and_the_fix(line: str, advice: str) -> None:
    text = installer.failure_message("x", ["Collecting x", line], Path("/c/var/log/pip-x.log"), Path("/c"), 1)
    assert text.startswith("x: pip failed (exit status 1)\n")
    assert line in text
    assert "/c/var/log/pip-x.log" in text
    assert advice in text


def test_a_persons_pip_settings_cannot_put_packages_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "mirror")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = installer.pip_environment(tmp_path)
    assert {"PIP_TARGET", "PYTHONPATH"} & found.keys() == set()
    assert found["PIP_INDEX_URL"] == "mirror"
    assert found["TMPDIR"] == str(tmp_path)


def test_tools_start_with_a_python_that_runs(tmp_path: Path) -> None:
    script = tmp_path / "tools/python.sh"
    script.parent.mkdir()
    script.write_text((REPOSITORY / "tools/python.sh").read_text())
    for name in ("python3.14", "python3.13", "python3.12", "python3.11"):
        program(tmp_path / "shims" / name, "exit 127")
    (tmp_path / "shims/python3").symlink_to(os.path.realpath(sys.executable))
    run = subprocess.run(
        ["/bin/sh", str(script), "-c", "import sys; print(sys.version_info >= (3, 11), sys.argv[1:])", "a b"],
        env={"PATH": f"{tmp_path}/shims:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "True ['a b']\n"), run.stderr
