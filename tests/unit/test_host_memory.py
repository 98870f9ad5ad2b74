"""Host memory as a card: what the kernel says, what a control group allows, and what the seats hold."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from ansible.module_utils.voices.gpu_processes import SeatMarks
from ansible.module_utils.voices.host_memory import parse_groups, parse_meminfo, read_memory
from ansible.module_utils.voices.plan import VoicesError

from tests.unit.test_cards import running

GIB = 1024**3
KIB = 1024
MEMINFO = (
    f"MemTotal:       {64 * GIB // KIB} kB\nMemFree:  1 kB\nMemAvailable:   {40 * GIB // KIB} kB\nHugePages_Total: 0\n"
)


class Machine:
    """A /proc and a /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        (self.proc / "meminfo").write_text(MEMINFO)
        (self.proc / "self/cgroup").write_text("0::/\n")

    def group(self, path: str, **files: str) -> None:
        directory = self.cgroup / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / f"memory.{name}").write_text(text)

    def gib(self) -> tuple[float, float]:
        """(total, free)."""
        card = read_memory([], self.proc, self.cgroup)
        assert card.used_bytes + card.free_bytes == card.total_bytes
        return card.total_bytes / GIB, card.free_bytes / GIB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_free_is_what_the_kernel_calls_available(machine: Machine) -> None:
    assert machine.gib() == (64, 40)
    assert read_memory([], machine.proc, machine.cgroup).index == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MemTotal: 5 kB\n",
        "MemTotal: x kB\nMemAvailable: 5 kB\n",
        "MemTotal: 5 kB\nMemAvailable: 6 kB\n",
        "MemTotal",
    ],
)
def test_a_meminfo_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(VoicesError, match="does not say what memory is there"):
        parse_meminfo(text)


def test_no_proc_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(VoicesError, match=r"meminfo cannot be read: No such file"):
        read_memory([], tmp_path, tmp_path)


def test_a_lower_limit_of_the_group_counts(machine: Machine) -> None:
    machine.group("", max=f"{16 * GIB}\n", current=f"{10 * GIB}\n")
    assert machine.gib() == (16, 6)


@pytest.mark.parametrize("limit", ["max\n", f"{128 * GIB}\n"])
def test_a_limit_above_the_hosts_memory_is_none(machine: Machine, limit: str) -> None:
    machine.group("", max=limit, current=f"{10 * GIB}\n")
    assert machine.gib() == (64, 40)


def test_a_group_has_no_more_than_the_host(machine: Machine) -> None:
    machine.group("", max=f"{60 * GIB}\n", current="0\n")
    assert machine.gib() == (60, 40)


def test_the_page_cache_of_a_group_is_free(machine: Machine) -> None:
    stat = f"anon 5\ninactive_file {3 * GIB}\nactive_file {2 * GIB}\nshmem {9 * GIB}\n"
    machine.group("", max=f"{16 * GIB}\n", current=f"{10 * GIB}\n", stat=stat)
    assert machine.gib() == (16, 11)


def test_a_group_above_its_limit_has_nothing_free(machine: Machine) -> None:
    machine.group("", max=f"{16 * GIB}\n", current=f"{17 * GIB}\n")
    assert machine.gib() == (16, 0)


def test_the_limits_of_the_groups_above_count_too(machine: Machine) -> None:
    (machine.proc / "self/cgroup").write_text("0::/user.slice/user-7.slice/session.scope\n")
    machine.group("user.slice/user-7.slice/session.scope", max=f"{50 * GIB}\n", current="0\n")
    machine.group("user.slice/user-7.slice", max=f"{8 * GIB}\n", current=f"{3 * GIB}\n")
    machine.group("user.slice", max="max\n", current=f"{30 * GIB}\n")
    assert machine.gib() == (8, 5)


def test_version_1_and_its_sums_over_the_groups_below(machine: Machine) -> None:
    (machine.proc / "self/cgroup").write_text("9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/\n")
    (machine.cgroup / "memory/docker/abc").mkdir(parents=True)
    machine.group(
        "memory/docker/abc",
        limit_in_bytes=f"{20 * GIB}\n",
        usage_in_bytes=f"{12 * GIB}\n",
        stat=f"inactive_file 0\nactive_file 0\ntotal_inactive_file {2 * GIB}\ntotal_active_file {GIB}\n",
    )
    assert machine.gib() == (20, 11)
    machine.group("memory/docker/abc", limit_in_bytes="9223372036854771712\n")
    assert machine.gib() == (64, 40)


def test_groups_that_are_none_are_left_out() -> None:
    text = "0::/a/b\n3:memory:/c\n5:cpu:/d\n\nnonsense\n0::relative\n4:memory:/../../e\n"
    assert parse_groups(text) == [(2, PurePosixPath("/a/b")), (1, PurePosixPath("/c"))]


def test_this_machine_can_be_read() -> None:
    card = read_memory([])
    assert 0 < card.free_bytes <= card.total_bytes
    assert (card.problem, card.processes) == ("", ())


def test_the_seats_processes_and_no_others_are_there_with_what_they_hold() -> None:
    marks = SeatMarks("qwen3-4b", "/var/lib/voices/seats/qwen3-4b/engine/engine.yaml")
    with running("--config", marks.engine_file) as pid:
        processes = read_memory([marks]).processes
        assert pid in [one.pid for one in processes]
        assert len(processes) == 2  # the engine and its child
    assert {one.seat for one in processes} == {"qwen3-4b"}
    if os.geteuid() == 0 or all(one.used_bytes is not None for one in processes):
        assert all(0 < (one.used_bytes or 0) < GIB for one in processes)
