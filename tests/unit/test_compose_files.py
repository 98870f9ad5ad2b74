"""The files of a Compose project: what is kept, who may read it, and what a kill leaves."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from ansible.module_utils.voices import compose_files
from ansible.module_utils.voices import files as core_files
from ansible.module_utils.voices.compose_files import ProjectFiles
from ansible.module_utils.voices.compose_state import sha256
from ansible.module_utils.voices.plan import VoicesError


@pytest.fixture
def files(tmp_path: Path) -> ProjectFiles:
    return ProjectFiles("voices-tiny", str(tmp_path / "compose"))


def write(files: ProjectFiles, text: str, *, keep_previous: bool = False, private: bool = False) -> None:
    files.write(text, keep_previous=keep_previous, private=private)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nothing_is_there(files: ProjectFiles) -> None:
    assert (files.text(), files.previous_text(), files.written(), files.known_healthy()) == (None, None, (), "")
    assert not files.leftover()


def test_the_last_two_texts_are_ours(files: ProjectFiles) -> None:
    for text in ("one", "two", "three"):
        write(files, text)
    assert files.text() == "three"
    assert files.written() == (sha256("two"), sha256("three"))


@pytest.mark.parametrize("kills", [1, 2])
def test_a_kill_before_the_text_is_written_makes_no_edit_by_hand(
    files: ProjectFiles, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    write(files, "one")
    real = compose_files.write_text

    def killed(path: Path, *rest: object) -> None:
        if path.name == "compose.yaml":
            raise KeyboardInterrupt
        real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compose_files, "write_text", killed)
    for attempt in range(kills):
        with pytest.raises(KeyboardInterrupt):
            write(files, f"two {attempt}")
    assert files.text() == "one"
    assert sha256("one") in files.written()


def test_an_edit_by_hand_is_never_ours(files: ProjectFiles) -> None:
    write(files, "one")
    files.file.write_text("by hand")
    write(files, "two")
    assert sha256("by hand") not in files.written()


def test_the_previous_text_is_kept_when_told_to(files: ProjectFiles) -> None:
    write(files, "one", keep_previous=True)
    assert files.previous_text() is None
    write(files, "two", keep_previous=True)
    assert files.previous_text() == "one"
    write(files, "three")
    assert files.previous_text() == "one"


def test_who_may_read_them(files: ProjectFiles) -> None:
    write(files, "one", private=True)
    assert mode(files.file) == 0o600
    write(files, "two", keep_previous=True)
    assert (mode(files.file), mode(files.previous)) == (0o644, 0o600)


def test_what_was_healthy(files: ProjectFiles) -> None:
    write(files, "one")
    files.note_healthy("one")
    before = (files.directory / ".healthy").stat().st_ino
    files.note_healthy("one")
    assert files.known_healthy() == sha256("one")
    assert (files.directory / ".healthy").stat().st_ino == before, "a second note writes nothing"


def test_remove_leaves_only_what_others_made(files: ProjectFiles) -> None:
    write(files, "one", keep_previous=True)
    write(files, "two", keep_previous=True)
    files.note_healthy("two")
    (files.directory / ".compose.yaml.x8s_").write_text("half")
    with files.lock(1):
        files.remove()
    assert not files.directory.exists()
    write(files, "one")
    (files.directory / "notes").write_text("mine")
    files.remove()
    assert [path.name for path in files.directory.iterdir()] == ["notes"]


def test_the_lock_excludes_and_says_so(files: ProjectFiles) -> None:
    with files.lock(1), pytest.raises(VoicesError, match=r"another run has held .*\.lock for 0.2 s"), files.lock(0.2):
        raise AssertionError("two hold the lock")


def test_a_lock_on_a_file_that_was_removed_guards_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with open(path, "w") as held:
        assert core_files._try_lock(held.fileno(), path)
    with open(path, "w") as held:
        path.unlink()
        assert not core_files._try_lock(held.fileno(), path)
        path.touch()
        assert not core_files._try_lock(held.fileno(), path)


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(files: ProjectFiles) -> None:
    """The holder removes the project; who waited must not go on with a lock on a file that is gone."""
    entered = threading.Event()

    def wait_for_it() -> None:
        with files.lock(10) as handle:
            assert handle
            entered.set()
            assert (files.directory / ".lock").exists()

    with files.lock(1):
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        assert not entered.wait(0.3)
        files.remove()
    waiting.join(10)
    assert entered.is_set()
