"""Cards as data, and whose the processes on them are: from a made-up /proc, and from real processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ansible.module_utils.voices.cards import Card, CardProcess
from ansible.module_utils.voices.gpu_processes import SeatMarks, container_id, seat_of, shown_command, with_owners
from hypothesis import given
from hypothesis import strategies as st

ENGINE_FILE = "/var/lib/voices/seats/qwen3-4b/engine/engine.yaml"
SEAT = SeatMarks("qwen3-4b", ENGINE_FILE, "voices-qwen3-4b")
OTHER = SeatMarks("other", "/var/lib/voices/seats/other/engine/engine.yaml", "voices-other")
ID = "0123456789ab" + "c" * 52


class Proc:
    """A /proc of made-up processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        argv: Sequence[str] = (),
        *,
        parent: int = 1,
        environ: str = "",
        cgroup: str = "0::/\n",
        name: str = "x",
        title: str = "",
    ) -> None:
        directory = self.root / str(pid)
        directory.mkdir()
        fields = f"S {parent} {pid} {pid}" + " 0" * 15 + " 5000"
        (directory / "stat").write_text(f"{pid} ({name}) {fields}\n")
        # setproctitle leaves its title, and blanks over the old command line.
        raw = f"{title}{' ' * 40}\0" if title else "".join(f"{part}\0" for part in argv)
        (directory / "cmdline").write_text(raw)
        (directory / "environ").write_text(environ)
        (directory / "cgroup").write_text(cgroup)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


# Whose it is.


@pytest.mark.parametrize("argv", [["vllm", "--config", ENGINE_FILE], ["vllm", "serve", f"--config={ENGINE_FILE}"]])
def test_a_process_with_the_engine_file_on_its_command_line_is_the_seats(proc: Proc, argv: list[str]) -> None:
    proc.add(10, argv)
    assert seat_of(10, [OTHER, SEAT], proc.root) == "qwen3-4b"


@pytest.mark.parametrize(
    "argv",
    [["cat", ENGINE_FILE + ".old"], ["vllm", "--config", "/other" + ENGINE_FILE], ["vim", f"x={ENGINE_FILE}"], []],
)
def test_a_process_that_only_looks_like_it_is_nobodys(proc: Proc, argv: list[str]) -> None:
    proc.add(10, argv)
    assert seat_of(10, [OTHER, SEAT], proc.root) == ""


def test_the_engine_core_renamed_itself_and_its_parent_did_not(proc: Proc) -> None:
    proc.add(10, ["python3", "-m", "vllm.entrypoints.openai.api_server", "--config", ENGINE_FILE])
    proc.add(11, title="VLLM::EngineCore", parent=10)
    proc.add(12, title="VLLM::Worker_TP0", parent=11)
    assert [seat_of(pid, [OTHER, SEAT], proc.root) for pid in (11, 12)] == ["qwen3-4b", "qwen3-4b"]


def test_an_orphan_is_known_by_its_python_path(proc: Proc) -> None:
    directory = str(Path(ENGINE_FILE).parent)
    proc.add(11, title="VLLM::EngineCore", environ=f"A=1\0PYTHONPATH=/x:{directory}\0")
    proc.add(12, title="VLLM::EngineCore", environ=f"PYTHONPATH={directory}/sub\0")
    assert [seat_of(pid, [OTHER, SEAT], proc.root) for pid in (11, 12)] == ["qwen3-4b", ""]


def test_a_process_in_the_seats_container_is_the_seats_whatever_else_can_be_read(proc: Proc) -> None:
    proc.add(11, title="VLLM::EngineCore", cgroup=f"0::/system.slice/docker-{ID}.scope\n")
    card = Card(0, "u", "n", processes=(CardProcess(11, 5), CardProcess(12, 6)))
    owned = with_owners(card, [OTHER, SEAT], {ID: "voices-qwen3-4b"}, proc.root)
    assert [(one.seat, one.container, one.used_bytes) for one in owned.processes] == [
        ("qwen3-4b", "voices-qwen3-4b", 5),
        ("", "", 6),
    ]
    stranger = with_owners(card, [OTHER, SEAT], {ID: "cyberprev"}, proc.root).processes[0]
    assert (stranger.seat, stranger.container) == ("", "cyberprev")


def test_a_seat_without_a_container_does_not_own_what_has_none(proc: Proc) -> None:
    proc.add(11, ["serve"])
    card = Card(0, "u", "n", processes=(CardProcess(11, 5),))
    assert with_owners(card, [SeatMarks("s", ENGINE_FILE)], {}, proc.root).processes[0].seat == ""


def test_a_process_that_has_gone_is_a_process_without_a_name(proc: Proc) -> None:
    card = Card(0, "u", "n", processes=(CardProcess(4711, 5),))
    assert with_owners(card, [SEAT], {}, proc.root).processes == (CardProcess(4711, 5),)
    assert not card.processes[0].readable


def test_a_loop_of_parents_ends(proc: Proc) -> None:
    proc.add(10, title="VLLM::A", parent=11)
    proc.add(11, title="VLLM::B", parent=10)
    assert seat_of(10, [SEAT], proc.root) == ""
    assert shown_command(10, proc.root) == "VLLM::A"


# Its container.


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{ID}.scope\n",
        f"12:memory:/docker/{ID}\n4:cpuset:/docker/{ID}\n0::/\n",
        f"0::/../{ID}\n",
        f"0::/machine.slice/libpod-{ID}.scope/container\n",
        f"0::/kubepods.slice/kubepods-podf00d_1.slice/cri-containerd-{ID}.scope\n",
        f"0::/kubepods/besteffort/pod12345678-aaaa-bbbb-cccc-1234567890ab/{ID}\n",
    ],
)
def test_a_containers_id_is_found_whoever_made_the_container(cgroup: str) -> None:
    assert container_id(cgroup) == ID


@pytest.mark.parametrize(
    "cgroup", ["", "0::/\n", "0::/user.slice/user-1000.slice\n", f"0::/docker/{ID}0\n", f"0::/a{ID}"]
)
def test_what_is_no_container_has_no_id(cgroup: str) -> None:
    assert container_id(cgroup) == ""


def test_without_docker_a_containers_short_id_is_its_name(proc: Proc) -> None:
    proc.add(11, ["serve"], cgroup=f"0::/docker/{ID}\n")
    card = Card(0, "u", "n", processes=(CardProcess(11, 5),))
    assert with_owners(card, [SEAT], {}, proc.root).processes[0].container == "0123456789ab"


# Its command, as it may be printed.


def test_a_renamed_process_shows_what_started_it(proc: Proc) -> None:
    proc.add(10, ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/gen-small"])
    proc.add(11, title="VLLM::EngineCore", parent=10)
    proc.add(12, title="VLLM::Worker_TP1", parent=11)
    assert shown_command(12, proc.root) == (
        "VLLM::Worker_TP1 of python3 -m vllm.entrypoints.openai.api_server --model /models/gen-small"
    )


def test_a_program_without_arguments_is_not_taken_for_a_renamed_one(proc: Proc) -> None:
    proc.add(10, ["/sbin/init"])
    proc.add(11, ["/opt/bin/server"], parent=10)
    assert shown_command(11, proc.root) == "/opt/bin/server"


def test_a_process_without_a_command_line_shows_its_name(proc: Proc) -> None:
    proc.add(11, name="nvidia-persiste")
    assert shown_command(11, proc.root) == "nvidia-persiste"


@pytest.mark.parametrize(
    "argv",
    [
        ["vllm", "--api-key", "sk-verysecret"],
        ["vllm", "--api-key=sk-verysecret"],
        ["vllm", "--api_key=sk-verysecret"],
        ["env", "HF_TOKEN=sk-verysecret", "python3"],
        ["serve", "--db", "postgres://voices:sk-verysecret@db:5432/x"],
    ],
)
def test_a_secret_is_never_shown(proc: Proc, argv: list[str]) -> None:
    proc.add(10, argv)
    proc.add(11, title="VLLM::EngineCore", parent=10)
    for pid in (10, 11):
        assert "verysecret" not in shown_command(pid, proc.root)
        assert argv[0] in shown_command(pid, proc.root)


def test_a_command_is_one_printable_line_of_bounded_length(proc: Proc) -> None:
    proc.add(10, ["serve", "a\nb\x1b[31m", "x" * 5000])
    shown = shown_command(10, proc.root)
    assert shown.isprintable()
    assert shown.startswith("serve 'a?b?[31m' xxx")
    assert len(shown) == 1000


@given(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=20), max_size=6))
def test_any_command_line_is_shown_as_one_printable_line(
    tmp_path_factory: pytest.TempPathFactory, argv: list[str]
) -> None:
    made = Proc(tmp_path_factory.mktemp("proc"))
    made.add(10, [part.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for part in argv])
    assert shown_command(10, made.root).isprintable()


# Real processes.


@contextlib.contextmanager
def running(*argv: str) -> Iterator[int]:
    """A process with this command line, and a child of it that says its own pid."""
    child = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code, *argv], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout
        yield int(parent.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, 9)
        parent.wait()
        assert parent.stdout
        parent.stdout.close()


def test_the_child_of_a_real_engine_is_the_seats() -> None:
    with running("--config", ENGINE_FILE) as pid:
        card = Card(0, "u", "n", processes=(CardProcess(pid, 5), CardProcess(os.getpid(), 6)))
        child, me = with_owners(card, [OTHER, SEAT], {}).processes
    assert (child.seat, me.seat) == ("qwen3-4b", "")
    assert child.readable
    assert me.readable
    assert with_owners(card, [OTHER, SEAT], {}).processes[0].seat == ""


# Cards as data.


def test_a_card_comes_back_from_a_modules_result_as_it_was() -> None:
    card = Card(
        1,
        "GPU-1",
        "H200",
        100,
        10,
        60,
        30,
        (CardProcess(1, None), CardProcess(2, 60, "x", "c", True, "s")),
        "",
        ("note",),
    )
    assert Card.from_dict(json.loads(json.dumps(card.as_dict()))) == card
    assert card.as_dict()["cuda_total_bytes"] == 90
