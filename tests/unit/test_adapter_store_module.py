"""The module adapter_store as Ansible runs it: parameters in, one JSON result out; also killed, and twice at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import adapter_store
import pytest
import yaml

from tests.support.adapter_dirs import set_digest, tree, write_adapter
from tests.support.run_module import run_module

REPOSITORY = Path(__file__).resolve().parents[2]


def run(check: bool = False, **options: Any) -> dict[str, Any]:
    """The module's result; a failure has ``failed`` in it."""
    return run_module("adapter_store", options, check=check)


def options_for(root: Path, **voices: Path) -> dict[str, Any]:
    named = {f"lv-{name}": {"source": str(source)} for name, source in voices.items()}
    return {"store": str(root / "store"), "voices": named}


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root / "store"))


def test_check_real_check_real(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    options = options_for(tmp_path, x=source)
    digest = set_digest(source)
    path = str(tmp_path / "store" / f"lv-x@{digest[:12]}")

    planned = run(check=True, **options)
    assert not (tmp_path / "store").exists()
    done = run(**options)
    assert planned["changed"] is True
    assert planned["actions"] == [
        {"do": "store", "what": "lv-x", "why": "new", "before": None, "after": f"lv-x@{digest[:12]}"}
    ]
    assert planned["diff"] == [{"prepared": f"store lv-x: new (none) -> lv-x@{digest[:12]}\n"}]
    size = sum(file.stat().st_size for file in source.iterdir())
    assert planned["entries"] == {"lv-x": {"path": path, "digest": digest, "rank": 8, "bytes": size}}
    for key in ("changed", "actions", "diff", "entries"):
        assert done[key] == planned[key]
    assert set_digest(Path(path)) == digest

    before = tree(tmp_path)
    for check in (True, False):
        again = run(check=check, **options)
        assert (again["changed"], again["actions"], again["diff"]) == (False, [], [])
        assert again["entries"] == planned["entries"]
    assert tree(tmp_path) == before


def test_mend_and_forget_are_the_same_in_check_mode(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    run(**options_for(tmp_path, x=source, y=source))
    short = set_digest(source)[:12]
    (tmp_path / "store" / f"lv-x@{short}" / "adapter_config.json").unlink()
    options = {**options_for(tmp_path, x=source), "absent": ["lv-y"]}
    before = tree(tmp_path)
    planned = run(check=True, **options)
    assert tree(tmp_path) == before
    done = run(**options)
    assert [(action["do"], action["what"]) for action in planned["actions"]] == [
        ("mend", f"lv-x@{short}"),
        ("forget", f"lv-y@{short}"),
    ]
    assert done["actions"] == planned["actions"]
    assert names(tmp_path) == [".lock", f"lv-x@{short}"]
    assert run(**options)["changed"] is False


def test_the_example_of_a_rollback(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    old = set_digest(source)
    run(**options_for(tmp_path, x=source))
    write_adapter(source, "changed")
    changed = run(**options_for(tmp_path, x=source))
    assert changed["actions"][0]["why"] == "changed source"
    shutil.rmtree(source)
    pinned = {"lv-x": {"source": str(source), "digest": old[:12]}}
    back = run(store=str(tmp_path / "store"), voices=pinned)
    assert back["changed"] is False
    assert back["entries"]["lv-x"]["path"] == str(tmp_path / "store" / f"lv-x@{old[:12]}")


def test_every_bad_voice_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "good")
    empty = tmp_path / "empty"
    empty.mkdir()
    cut = write_adapter(tmp_path / "cut")
    os.truncate(cut / "adapter_model.safetensors", 1000)
    high = write_adapter(tmp_path / "high", config={"r": 8, "rank_pattern": {"q_proj": 17}})
    pickled = write_adapter(tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    options = options_for(tmp_path, a=good, b=empty, c=cut, d=high, e=pickled, f=tmp_path / "gone")
    for check in (True, False):
        result = run(check=check, max_lora_rank=16, **options)
        assert result["failed"] is True
        assert result["msg"].startswith("5 errors, nothing was changed:")
        for part in (
            f"voice lv-b: source {empty} has no adapter_config.json",
            f"voice lv-c: source {cut} adapter_model.safetensors is truncated",
            "rank 17, max_lora_rank is 16: set max_lora_rank to 32",
            "adapter_model.bin is a pickle",
            f"voice lv-f: source {tmp_path / 'gone'} does not exist",
        ):
            assert part in result["msg"]
        assert "lv-a" not in result["msg"]
        assert not (tmp_path / "store").exists()


def test_bad_parameters_fail_by_name(tmp_path: Path) -> None:
    assert "missing required arguments: store" in run(voices={})["msg"]
    result = run(store=str(tmp_path), voices={"voices-base": {"source": "/s"}})
    assert "named like the base model" in result["msg"]
    assert "unknown key 'sorce'" in run(store=str(tmp_path), voices={"lv-x": {"sorce": "/s"}})["msg"]


def test_an_entry_in_use_is_an_error(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    path = run(**options_for(tmp_path, x=source))["entries"]["lv-x"]["path"]
    result = run(store=str(tmp_path / "store"), absent=["lv-x"], in_use=[path])
    assert f"{os.path.basename(path)} is still in use" in result["msg"]
    assert os.path.isdir(path)


def test_an_error_of_the_system_is_a_failure_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> None:
        raise OSError(5, "Input/output error", str(path))

    source = write_adapter(tmp_path / "s")
    monkeypatch.setattr(os, "statvfs", refuse)
    result = run(**options_for(tmp_path, x=source))
    assert "Input/output error" in result["msg"]


def test_a_warning_reaches_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    source = write_adapter(tmp_path / "s")
    (tmp_path / "store" / ".incoming-dead").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    result = run(**options_for(tmp_path, x=source))
    assert result["changed"] is True
    assert ".incoming-dead is left over" in str(result["warnings"])


def test_documentation_and_spec_name_the_same_options() -> None:
    documented = yaml.safe_load(adapter_store.DOCUMENTATION)["options"]
    assert documented == {
        name: {"description": documented[name]["description"], **spec}
        for name, spec in adapter_store.ARGUMENT_SPEC.items()
    }
    assert yaml.safe_load(adapter_store.EXAMPLES)
    assert {"entries", "actions", "diff"} == set(yaml.safe_load(adapter_store.RETURN))


# --- processes of their own -------------------------------------------------------------------------------------------

# A run that says "copying" in the middle of its second piece and then waits for a line.
SLOW = """
import json, os, sys
import ansible.module_utils
repository, options = sys.argv[1], json.loads(sys.argv[2])
ansible.module_utils.__path__.append(repository + "/module_utils")
sys.path.insert(0, repository + "/library")
import adapter_store
from ansible.module_utils.testing import patch_module_args
from ansible.module_utils.voices import store_client
write, calls = store_client._write, []
def slow(handle, piece):
    if len(piece) == 1 << 20:
        calls.append(handle)
        if len(calls) == 2:
            write(handle, piece[:1000])
            print("copying", flush=True)
            sys.stdin.readline()
            piece = piece[1000:]
    write(handle, piece)
store_client._write = slow
with patch_module_args(options):
    adapter_store.main()
"""


def start_slow(options: Mapping[str, Any]) -> subprocess.Popen[str]:
    """A run in a process of its own that has stopped in the middle of a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(REPOSITORY), json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "copying\n"
    return process


def eventually(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def test_a_run_killed_in_mid_copy_leaves_no_entry_and_the_next_one_clears_up(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s", size=4 << 20)
    options = options_for(tmp_path, x=source)
    process = start_slow(options)
    try:
        assert not any("@" in name for name in names(tmp_path))
        partial = next((tmp_path / "store").glob(".incoming-*/adapter_model.safetensors"))
        assert (1 << 20) < partial.stat().st_size < (2 << 20)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [name[:10] for name in names(tmp_path)] == [".incoming-", ".lock"]
    result = run(**options)
    assert result["changed"] is True
    assert names(tmp_path) == [".lock", os.path.basename(result["entries"]["lv-x"]["path"])]
    assert set_digest(Path(result["entries"]["lv-x"]["path"])) == set_digest(source)


def _in_child(options: Mapping[str, Any], start: Any, results: Any) -> None:
    start.wait()
    results.put(run(**options))


def _waits_for_a_lock(pid: int) -> bool:
    locks = Path("/proc/locks").read_text()
    return re.search(rf"^\d+: -> FLOCK\s+\S+\s+\S+\s+{pid}\s", locks, re.MULTILINE) is not None


def test_a_second_run_waits_for_a_live_copy_and_then_finds_it_done(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s", size=4 << 20)
    options = options_for(tmp_path, x=source)
    first = start_slow(options)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    second = context.Process(target=_in_child, args=(options, context.Barrier(1), results))
    try:
        second.start()
        assert second.pid is not None
        pid = second.pid
        eventually(lambda: _waits_for_a_lock(pid))
        assert len(list((tmp_path / "store").glob(".incoming-*"))) == 1
        output, _ = first.communicate("go on\n", timeout=30)
        waited = results.get(timeout=30)
    finally:
        for process in (first, second):
            process.kill()
        first.wait()
        second.join()
    done = json.loads(output)
    assert (done["changed"], waited["changed"]) == (True, False)
    assert waited["actions"] == []
    assert done["entries"] == waited["entries"]
    assert names(tmp_path) == [".lock", f"lv-x@{set_digest(source)[:12]}"]


@pytest.mark.parametrize("attempt", range(5))
def test_of_two_runs_at_once_one_stores_and_both_agree(tmp_path: Path, attempt: int) -> None:
    source = write_adapter(tmp_path / "s", seed=str(attempt), size=1 << 20)
    options = options_for(tmp_path, x=source, y=source)
    context = multiprocessing.get_context("fork")
    results, start = context.Queue(), context.Barrier(2)
    runs = [context.Process(target=_in_child, args=(options, start, results)) for _ in range(2)]
    for process in runs:
        process.start()
    found = [results.get(timeout=30) for _ in runs]
    for process in runs:
        process.join()
    assert sorted(result["changed"] for result in found) == [False, True]
    assert found[0]["entries"] == found[1]["entries"]
    short = set_digest(source)[:12]
    assert names(tmp_path) == [".lock", f"lv-x@{short}", f"lv-y@{short}"]
    for voice in ("lv-x", "lv-y"):
        assert set_digest(tmp_path / "store" / f"{voice}@{short}") == set_digest(source)
