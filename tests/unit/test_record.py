"""Deploy records: what they hold, how their names sort, that nothing secret and nothing half-written gets in."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import deploy_record
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.record import RecordDirectory, Run, SecretError, as_text, build_record, file_name
from ansible.module_utils.voices.secret_check import find_leaks, looks_secret
from ansible.module_utils.voices.times import epoch_of

FINISHED = epoch_of("2026-11-30T20:09:44.500Z")
SECRET = "kR9v-Zq2LmXw8TtB41nYcQ0ePf6uHs3D"
RESTART = {"do": "restart", "what": "tiny", "why": "max-lora-rank", "before": 8, "after": 16}
LOAD = {"do": "load", "what": "lv-homer", "why": "", "before": None, "after": "/srv/store/lv-homer@0123456789ab"}


def a_run(**changes: Any) -> Run:
    values: dict[str, Any] = {
        "seat": "tiny", "runtime": "supervisor", "actions": [RESTART, LOAD], "operator": "ann@desk", **changes,
    }  # fmt: skip
    return Run(**values)


# --- what a record holds


def test_a_record_says_what_why_by_whom_from_which_commit_and_how_long() -> None:
    record = build_record(
        a_run(
            reasons=[{"flag": "max-lora-rank", "before": 8, "after": 16}, "the engine was not running"],
            before={"flags": {"max-lora-rank": 8, "api-key": "sha256:0123456789ab"}},
            after={"flags": {"max-lora-rank": 16, "api-key": "sha256:0123456789ab"}},
            commit="4f0c2b7d9e61-dirty",
            started="2026-11-30T21:09:00+01:00",
            durations={"engine": "24.1234", "voices": {"lv-homer": {"load_s": 0.24}}},
        ),
        FINISHED,
    )
    assert record == {
        "schema": "voices/deploy-record/1",
        "seat": "tiny",
        "runtime": "supervisor",
        "operator": "ann@desk",
        "commit": "4f0c2b7d9e61",
        "dirty": True,
        "started": "2026-11-30T20:09:00.000Z",
        "finished": "2026-11-30T20:09:44.500Z",
        "outcome": "ok",
        "error": None,
        "durations_s": {"engine": 24.123, "voices": {"lv-homer": {"load_s": 0.24}}},
        "actions": [RESTART, LOAD],
        "reasons": [{"flag": "max-lora-rank", "before": 8, "after": 16}, "the engine was not running"],
        "before": {"flags": {"max-lora-rank": 8, "api-key": "sha256:0123456789ab"}},
        "after": {"flags": {"max-lora-rank": 16, "api-key": "sha256:0123456789ab"}},
    }


def test_a_record_of_a_run_that_failed_half_way_says_so() -> None:
    record = build_record(a_run(error="1 voices failed: lv-homer: rank 32"), FINISHED)
    assert (record["outcome"], record["error"]) == ("failed", "1 voices failed: lv-homer: rank 32")


@pytest.mark.parametrize(
    ("commit", "flag", "expected"),
    [
        ("4f0c2b7", False, ("4f0c2b7", False)),
        ("4f0c2b7", True, ("4f0c2b7", True)),
        ("4f0c2b7-dirty", False, ("4f0c2b7", True)),
        ("unknown", False, (None, False)),
        ("", True, (None, True)),
    ],
)
def test_commit_and_dirty(commit: str, flag: bool, expected: tuple[str | None, bool]) -> None:
    record = build_record(a_run(commit=commit, dirty=flag), FINISHED)
    assert (record["commit"], record["dirty"]) == expected


def test_a_start_without_offset_is_utc_and_none_is_null() -> None:
    assert build_record(a_run(started="2026-11-30T20:00:00"), FINISHED)["started"] == "2026-11-30T20:00:00.000Z"
    assert build_record(a_run(), FINISHED)["started"] is None


def test_the_text_has_sorted_keys_and_needs_no_locale() -> None:
    text = as_text(build_record(a_run(operator="Åsa@desk"), FINISHED))
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert text.isascii()
    assert json.loads(text)["operator"] == "Åsa@desk"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seat": "Tiny_1"}, "seat 'Tiny_1' is outside"),
        ({"seat": "../x"}, "outside the naming rule"),
        ({"started": "yesterday"}, "started is 'yesterday'"),
        ({"durations": {"engine": "long"}}, "durations.engine is 'long'"),
        ({"durations": {"engine": {"load_s": -1}}}, "durations.engine.load_s is -1"),
        ({"durations": {"engine": float("inf")}}, "durations.engine is inf"),
        ({"durations": {"engine": True}}, "durations.engine is True"),
        ({"actions": [RESTART, {"do": "load"}]}, r"actions\[1\] has no do and what"),
    ],
)
def test_a_value_outside_the_rules_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VoicesError, match=said):
        build_record(a_run(**changes), FINISHED)


# --- secrets


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"after": {"flags": {"api-key": SECRET}}}, "after.flags.api-key"),
        ({"before": {"flags": {"api-key": [SECRET]}}}, "before.flags.api-key[0]"),
        ({"after": {"environment": {"HF_TOKEN": SECRET}}}, "after.environment.HF_TOKEN"),
        ({"after": {"hfToken": SECRET}}, "after.hfToken"),
        ({"after": {"db": {"password": 12345678}}}, "after.db.password"),
        ({"after": {"secrets": {"first": SECRET}}}, "after.secrets.first"),
        ({"after": {"token": "12345678"}}, "after.token"),
        ({"after": {"LITELLM_MASTER_KEY": SECRET}}, "after.LITELLM_MASTER_KEY"),
        ({"after": {"AWS_SECRET_ACCESS_KEY": SECRET}}, "after.AWS_SECRET_ACCESS_KEY"),
        ({"after": {"token_sha256": SECRET}}, "after.token_sha256"),
        ({"actions": [{**RESTART, "why": "api-key", "after": SECRET}]}, "actions[0].after"),
        ({"actions": [{**RESTART, "what": "api key", "why": "", "before": SECRET}]}, "actions[0].before"),
        ({"actions": [{**RESTART, "why": "environment HF_TOKEN", "after": SECRET}]}, "actions[0].after"),
        ({"reasons": [{"flag": "api-key", "before": SECRET, "after": None}]}, "reasons[0].before"),
        ({"reasons": [f"api-key: {SECRET}"]}, "reasons[0] (api-key)"),
        ({"after": {"file": f"model: x\napi-key: '{SECRET}'\n"}}, "after.file (api-key)"),
        ({"after": {"env": [f"HF_TOKEN={SECRET}"]}}, "after.env[0] (HF_TOKEN)"),
        ({"after": {"argv": ["vllm", "--api-key", SECRET]}}, "after.argv[2]"),
        ({"after": {"argv": [f"--api-key={SECRET}"]}}, "after.argv[0] (api-key)"),
        ({"after": {"header": f"Authorization: Bearer {SECRET}"}}, "after.header (Authorization)"),
        ({"after": {"curl": f"-H 'x: Bearer {SECRET}'"}}, "after.curl (a bearer header)"),
        ({"after": {"url": f"postgresql://litellm:{SECRET}@db/x"}}, "after.url (a password in a URL)"),
        ({"operator": f"https://ann:{SECRET}@desk"}, "operator (a password in a URL)"),
    ],
)
def test_what_looks_like_a_secret_is_refused_by_its_place_and_never_shown(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(SecretError) as caught:
        build_record(a_run(**changes), FINISHED)
    assert f" {where}" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "12345678" not in str(caught.value)
    assert caught.value.leaks


@pytest.mark.parametrize(
    "harmless",
    [
        {"api-key": "sha256:0123456789ab"},
        {"api-key": ["sha256:" + "0" * 64]},
        {"api-key": None},
        {"api-key": ""},
        {"api-key": "(to be generated)"},
        {"api_key_file": "/srv/seats/tiny/secrets/api_key"},
        {"secrets_dir": "/srv/seats/tiny/secrets"},
        {"token_sha256": "0123456789abcdef"},
        {"max-num-batched-tokens": 2048},
        {"max_tokens": "24"},
        {"long-prefill-token-threshold": 0},
        {"return-tokens-as-token-ids": True},
        {"tokenizer": "/srv/carrier", "tokenizer-mode": "auto"},
        {"key": "lv-homer", "keyboard": "x", "monkey": "y"},
        {"file": "api-key: sha256:0123456789ab\nmax-num-batched-tokens: 2048\ntokenizer: /srv\nhf-token: null\n"},
        {"argv": ["python", "--api-key", "--host", "127.0.0.1", "--tokenizer", "x"]},
        {"argv": ["--max-num-batched-tokens", "2048"]},
        {"url": "http://127.0.0.1:8027/v1", "ipv6": "http://[::1]:8027"},
        {"what": "api key", "before": None, "after": "sha256:0123456789ab"},
        {"why": "the old token was retired with its key", "before": "lv-a", "after": "lv-b"},
        {"why": "the run had lost its token", "before": "lv-a", "after": "lv-b"},
        {"what": "token lv-a", "before": "lv-a", "after": "lv-b"},
        {"what": "lv-homer", "why": "secret voice of lv-x", "after": "/srv/store/lv-homer@0123456789ab"},
    ],
)
def test_digests_stand_ins_places_and_counts_pass(harmless: dict[str, Any]) -> None:
    assert list(find_leaks(harmless)) == []


def test_many_leaks_are_counted() -> None:
    with pytest.raises(SecretError, match="and 2 more"):
        build_record(a_run(after={f"token-{n}": SECRET for n in range(7)}), FINISHED)


@pytest.mark.parametrize(
    "name", ["api-key", "API_KEY", "apiKey", "apikey", "OPENAI_API_KEY", "x-api-key", "db.password"]
)
def test_spellings_of_secret_names(name: str) -> None:
    assert looks_secret(name)


# --- files


def test_names_sort_by_time_also_within_a_second() -> None:
    names = [
        file_name("tiny", FINISHED - 3600),
        file_name("zeta", FINISHED - 1),
        *(file_name("tiny", FINISHED, count) for count in (0, 1, 2, 10, 999)),
        file_name("alpha", FINISHED + 1),
    ]
    assert names == sorted(names)
    assert names[2:4] == ["20261130T200944Z-tiny.json", "20261130T200944Z.001-tiny.json"]


def test_a_record_is_readable_and_earlier_ones_stay_as_they_are(tmp_path: Path) -> None:
    records = RecordDirectory(tmp_path / "var" / "records")
    before_umask = os.umask(0o077)
    try:
        first = records.add("tiny", FINISHED, "first\n")
        earlier = first.stat()
        second = records.add("tiny", FINISHED, "second\n")
    finally:
        os.umask(before_umask)
    assert [path.name for path in sorted(first.parent.iterdir())] == [first.name, second.name]
    assert (first.read_text(), second.read_text()) == ("first\n", "second\n")
    assert stat.S_IMODE(first.stat().st_mode) == stat.S_IMODE(second.stat().st_mode) == 0o644
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (earlier.st_ino, earlier.st_mtime_ns)
    assert first.stat().st_nlink == 1


def test_a_link_that_lies_at_the_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / file_name("tiny", FINISHED)).symlink_to(victim)
    written = RecordDirectory(tmp_path / "records").add("tiny", FINISHED, "text\n")
    assert written.name == file_name("tiny", FINISHED, 1)
    assert not victim.exists()


def _add(directory: str, number: int) -> str:
    return RecordDirectory(Path(directory)).add("tiny", FINISHED, f"record {number}\n").name


def test_runs_at_the_same_second_all_keep_their_record(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        names = pool.starmap(_add, [(str(tmp_path), number) for number in range(40)])
    assert len(set(names)) == 40
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == sorted(f"record {n}\n" for n in range(40))


def test_a_file_system_without_links_still_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Any, target: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    records = RecordDirectory(tmp_path)
    paths = [records.add("tiny", FINISHED, f"{number}\n") for number in range(3)]
    assert [path.read_text() for path in paths] == ["0\n", "1\n", "2\n"]
    assert sorted(tmp_path.iterdir()) == paths
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o644


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VoicesError, match=f"{tmp_path}.*No space left on device"):
        RecordDirectory(tmp_path).add("tiny", FINISHED, "text\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("")
    with pytest.raises(VoicesError, match=f"no deploy record could be written to {tmp_path}/records"):
        RecordDirectory(tmp_path / "records").add("tiny", FINISHED, "text\n")


# --- the module


def run_module(capsys: pytest.CaptureFixture[str], **params: Any) -> dict[str, Any]:
    given = {"seat": "tiny", "runtime": "supervisor", "actions": [LOAD], "operator": "ann@desk", **params}
    with patch_module_args(given), pytest.raises(SystemExit):
        deploy_record.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_module_writes_the_record_and_reports_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module(capsys, dir=str(tmp_path / "records"), durations={"engine": "3"})
    assert (result["changed"], result["actions"], result["diff"]) == (False, [], [])
    found = json.loads(Path(result["path"]).read_text())
    assert (found["schema"], found["actions"], found["durations_s"]) == (
        "voices/deploy-record/1",
        [LOAD],
        {"engine": 3},
    )


@pytest.mark.parametrize("why", ["check mode", "nothing was done"])
def test_the_module_writes_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str) -> None:
    params: dict[str, Any] = {"_ansible_check_mode": True} if why == "check mode" else {"actions": []}
    result = run_module(capsys, dir=str(tmp_path / "records"), **params)
    assert (result["changed"], result["path"], result["directory"]) == (False, "", str(tmp_path / "records"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("check", [False, True])
def test_the_module_shows_a_refused_secret_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    result = run_module(capsys, dir=str(tmp_path), after={"api-key": SECRET}, _ansible_check_mode=check)
    assert result["failed"]
    assert "after.api-key" in result["msg"]
    assert result["invocation"]["module_args"]["seat"] == "tiny"
    assert SECRET not in json.dumps(result)
    assert list(tmp_path.iterdir()) == []


def test_the_module_refuses_a_relative_directory(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module(capsys, dir="records")
    assert result["failed"]
    assert "is relative" in result["msg"]
