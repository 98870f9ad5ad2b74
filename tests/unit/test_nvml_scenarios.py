"""The stand-in for the driver's library keeps NVML's own rules, and its scenarios are what they say."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.nvml import nvml_double
from tests.support.nvml.nvml_double import NoCompiler, build, in_this_process, write

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in nvml_double.SCENARIOS.glob("*.json"))
ONE_CARD = {
    "driver": "580.159.04",
    "cards": [{"uuid": "GPU-a", "name": "NVIDIA H200", "total_bytes": 90, "reserved_bytes": 10, "used_bytes": 30}],
}


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_says_what_it_is_and_has_no_unknown_key(name: str, tmp_path: Path) -> None:
    scenario = nvml_double.scenario(name)
    assert scenario["what"].endswith(".")
    assert json.loads(write(tmp_path / "x", scenario).read_text()) == scenario
    pids = [process["pid"] for card in scenario["cards"] for process in card.get("processes", [])]
    assert all(pid > 2**22 for pid in pids), "larger than Linux gives out"


@pytest.mark.parametrize("key", ["cards", "processes", "x"])
def test_a_key_that_is_misspelt_is_refused(key: str, tmp_path: Path) -> None:
    scenario: dict[str, Any] = {"cards": [{"processes": [{"pid": 1}]}]}
    where = {"cards": scenario["cards"][0], "processes": scenario["cards"][0]["processes"][0]}.get(key, scenario)
    where["uesd_bytes"] = 5
    with pytest.raises(ValueError, match="has no uesd_bytes; known are"):
        write(tmp_path / "x", scenario)


def test_both_forms_of_memory(tmp_path: Path) -> None:
    with in_this_process(write(tmp_path / "x", ONE_CARD)):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        first = pynvml.nvmlDeviceGetMemoryInfo(handle)
        pynvml.nvmlShutdown()
    assert (second.total, second.reserved, second.used, second.free) == (90, 10, 30, 50)
    assert (first.total, first.used, first.free) == (90, 40, 50)


def test_the_rules_of_nvml(tmp_path: Path) -> None:
    scenario = json.loads(json.dumps(ONE_CARD))
    scenario["cards"][0]["processes"] = [{"pid": pid, "used_bytes": pid} for pid in (1, 2, 3)]
    with in_this_process(write(tmp_path / "x", scenario)):
        pynvml.nvmlInit()
        library, handle = ctypes.CDLL(nvml_double.SONAME), pynvml.nvmlDeviceGetHandleByIndex(0)
        count, out = ctypes.c_uint(0), (pynvml.c_nvmlProcessInfo_t * 4)()
        steps = []
        for room, array in ((0, None), (2, out), (3, out), (4, out)):
            count.value = room
            answer = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), array)
            steps.append((answer, count.value))
        memory = pynvml.c_nvmlMemory_v2_t()
        versions = []
        for memory.version in (0, 0x01000028, pynvml.nvmlMemory_v2):
            versions.append(library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)))
        room_for_name = [
            library.nvmlDeviceGetName(handle, ctypes.create_string_buffer(size), ctypes.c_uint(size))
            for size in (11, 12)
        ]
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(1)
        assert pynvml.nvmlSystemGetDriverVersion() == "580.159.04"
        pynvml.nvmlShutdown()
    assert steps == [(7, 3), (7, 3), (0, 3), (0, 3)]
    assert [one.pid for one in out] == [1, 2, 3, 0]
    assert versions == [25, 25, 0]
    assert room_for_name == [7, 0]


@pytest.mark.parametrize("text", ["", "{", '{"cards": [', '{"cards": [{"uuid": "\\u12', '{"cards" 5}', "[[[", '{"a'])
def test_a_file_that_is_no_json_is_no_crash(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    code = "import pynvml as n\ntry:\n n.nvmlInit(); print(n.nvmlDeviceGetCount())\nexcept n.NVMLError as e: print(e)"
    environ = nvml_double.environment(build(), path)
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_scenario_is_named(tmp_path: Path) -> None:
    code = "import pynvml as n\ntry:\n n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    environ = nvml_double.environment(build(), tmp_path / "none")
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "999\n"
    assert str(tmp_path / "none") in done.stderr


def test_it_is_built_once_for_each_version_of_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build(tmp_path / "built") / nvml_double.SONAME
    before = library.stat().st_ino
    assert build(tmp_path / "built") == tmp_path / "built"
    assert library.stat().st_ino == before
    source = tmp_path / "other.c"
    source.write_text(nvml_double.SOURCE.read_text() + "\n")
    monkeypatch.setattr(nvml_double, "SOURCE", source)
    build(tmp_path / "built")
    assert library.stat().st_ino != before


def test_without_a_compiler_the_error_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NoCompiler, match="install gcc and libc6-dev"):
        build(tmp_path / "built")


def test_a_source_that_is_wrong_shows_what_the_compiler_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.c").write_text("int wrong(")
    monkeypatch.setattr(nvml_double, "SOURCE", tmp_path / "wrong.c")
    with pytest.raises(NoCompiler, match=r"failed:\n(.|\n)*error"):
        build(tmp_path / "built")


def test_the_command_line_prints_what_a_shell_exports() -> None:
    argv = [sys.executable, "-m", "tests.support.nvml.nvml_double", "h200_empty"]
    shown = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0)))"
    script = f'{shown}\n"{sys.executable}" -c "{code}"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "NVIDIA H200\n"
