"""vLLM command lines and configuration files in one normal form, and the masks and digests over them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from ansible.module_utils.voices.engine_argv import (
    VLLM,
    EngineCommand,
    differences,
    effective_flags,
    parse_command,
    same,
)
from ansible.module_utils.voices.flags import flags_sha256, mask_flags

MODULE = ["/opt/engine/bin/python", "-m", "vllm.entrypoints.openai.api_server"]


@pytest.mark.parametrize(
    "start",
    [
        MODULE,
        ["python3", "-u", "-m", "vllm.entrypoints.openai.api_server"],
        ["vllm", "serve"],
        ["/opt/engine/bin/python", "/opt/engine/bin/vllm", "serve"],
        ["python", "/opt/site-packages/vllm/entrypoints/openai/api_server.py"],
    ],
)
def test_every_way_to_start_vllm_is_the_same_program(start: list[str]) -> None:
    command = parse_command([*start, "--config", "engine.yaml"])
    assert command == EngineCommand(VLLM, {}, "engine.yaml")


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (["--max_lora_rank", "8"], {"max-lora-rank": "8"}),
        (["--max-lora-rank=8"], {"max-lora-rank": "8"}),
        (["--enable-lora", "--no-enable-prefix-caching"], {"enable-lora": True, "enable-prefix-caching": False}),
        (["--no_enable_lora"], {"enable-lora": False}),
        (["-tp", "2"], {"tensor-parallel-size": "2"}),
        (["--seed", "-1"], {"seed": "-1"}),
        (["--lora-modules", "a=/a", "b=/b", "--port", "1"], {"lora-modules": ["a=/a", "b=/b"], "port": "1"}),
        (["--middleware", "a.A", "--middleware", "b.B"], {"middleware": ["a.A", "b.B"]}),
        (["--port", "1", "--port", "2"], {"port": "2"}),
        (["/models/tiny", "--port", "1"], {"model": "/models/tiny", "port": "1"}),
    ],
)
def test_options(options: list[str], flags: dict[str, Any]) -> None:
    assert parse_command(["vllm", "serve", *options]).flags == flags


def test_another_program_is_what_stands_before_its_options() -> None:
    command = parse_command(["python", "-m", "http.server", "--bind", "::1", "8000"])
    assert command.program == ("python", "-m", "http.server")
    assert parse_command(["/bin/sleep", "1000"]).program == ("/bin/sleep", "1000")


def test_the_command_line_wins_over_the_file_and_nothing_hides_in_spelling() -> None:
    config = {"max_lora_rank": 8, "port": 1, "enable-lora": True, "revision": None, "lora-modules": ["x=/x"]}
    command = parse_command([*MODULE, "--port", "2", "--lora-modules", "y=/y"])
    assert effective_flags(command, config, ["lora_modules"]) == {"max-lora-rank": 8, "port": 2, "enable-lora": True}


def test_a_secret_option_leaves_only_its_digest() -> None:
    key = "a-long-secret-key"
    digest = f"sha256:{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    assert effective_flags(parse_command(["vllm", "serve", "--api-key", key]), {}) == {"api-key": digest}
    assert effective_flags(parse_command(["vllm", "serve"]), {"api-key": [key]}) == {"api-key": digest}


@pytest.mark.parametrize(
    ("one", "other"),
    [(8, "8"), (0.5, "0.50"), (True, "True"), (["x"], "x"), ({"a": [1]}, '{"a": 1}'), ([1, 2], "[1, 2]"), (1, 1.0)],
)
def test_values_that_mean_the_same(one: Any, other: Any) -> None:
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [(True, 1), (True, "1"), (False, None), (8, 16), (["a", "b"], ["b", "a"]), ("8k", 8), ({"a": 1}, {})],
)
def test_values_that_do_not(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert not same(other, one)


def test_differences_are_sorted_and_name_both_sides() -> None:
    assert differences({"b": 1, "c": "2", "a": 1}, {"c": 2, "a": 2, "d": [1]}) == [
        ("a", 1, 2),
        ("b", 1, None),
        ("d", None, [1]),
    ]


def test_masking_covers_lists_and_is_stable() -> None:
    flags = {"api-key": ["one-secret", "two-secret"], "port": 1, "model": "api-key"}
    masked = mask_flags(flags)
    assert masked["api-key"] == [f"sha256:{hashlib.sha256(one.encode()).hexdigest()[:12]}" for one in flags["api-key"]]  # type: ignore[attr-defined]
    assert (masked["port"], masked["model"]) == (1, "api-key")
    assert mask_flags(masked) == masked
    assert mask_flags({"api-key": None}) == {"api-key": None}
    assert flags["api-key"] == ["one-secret", "two-secret"]


def test_the_digest_follows_values_and_not_the_order_of_keys() -> None:
    assert flags_sha256({"a": 1, "b": [1, 2]}) == flags_sha256({"b": [1, 2], "a": 1})
    assert flags_sha256({"a": 1}) == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert len({flags_sha256(flags) for flags in ({"a": 1}, {"a": "1"}, {"a": True}, {"a": [1]}, {})}) == 5
