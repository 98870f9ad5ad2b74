"""Keys of engine.yaml against the options that an engine's source adds to its parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.voices.engine_source import DirectorySource
from ansible.module_utils.voices.lora_support_engine import Engine
from ansible.module_utils.voices.lora_support_flags import Options, UnknownFlag, unknown_flags
from ansible.module_utils.voices.plan import VoicesError

from tests.support.lora_engines import make_engine


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(Engine(DirectorySource(make_engine(tmp_path))))


def test_options_come_from_calls_loops_and_fields(options: Options) -> None:
    assert options.known == {
        *("dtype", "enforce-eager", "kv-cache-memory-bytes", "enable-lora", "guided-decoding-backend"),
        *("lora-modules", "api-key", "enable-log-deltas", "optional-text"),
    }


def test_boolean_options_have_a_negative_form(options: Options) -> None:
    assert options.negative == {"no-enforce-eager", "no-enable-lora", "no-enable-log-deltas"}


def test_whole_names_are_known_with_dashes_or_underscores(options: Options) -> None:
    known = ["enforce-eager", "enforce_eager", "no-enable-lora", "lora-modules", "api-key", "dtype.inner"]
    assert unknown_flags(options, known) == []


@pytest.mark.parametrize(
    ("flag", "why", "nearest", "words"),
    [
        ("kv-cache-memory", "abbreviation", "kv-cache-memory-bytes", "write that, because a later version may not"),
        ("kv_cache_memory", "abbreviation", "kv-cache-memory-bytes", "kv_cache_memory is an abbreviation"),
        ("enable-l", "unknown", "enable-log-deltas", "is no option of this engine; enable-log-deltas is the nearest"),
        ("enforce-eagre", "unknown", "enforce-eager", "enforce-eager is the nearest"),
        ("no-dtype", "unknown", "dtype", "no option"),
        ("no-enforce", "abbreviation", "no-enforce-eager", "takes for no-enforce-eager"),
        ("zzz", "unknown", "", "zzz is no option of this engine"),
        ("", "unknown", "", "no option"),
    ],
)
def test_others_are_reported_with_the_nearest(options: Options, flag: str, why: str, nearest: str, words: str) -> None:
    (found,) = unknown_flags(options, [flag])
    assert found == UnknownFlag(flag, why, nearest)
    assert words in found.line()


def test_a_renamed_flag_is_found_in_the_version_that_renamed_it(tmp_path: Path) -> None:
    older = "def add(parser):\n    parser.add_argument('--kv-cache-memory', type=int)\n"
    before = Options(Engine(DirectorySource(make_engine(tmp_path, {"vllm/engine/arg_utils.py": older}))))
    assert unknown_flags(before, ["kv-cache-memory"]) == []
    assert unknown_flags(before, ["kv-cache-memory-bytes"]) == [
        UnknownFlag("kv-cache-memory-bytes", "unknown", "kv-cache-memory")
    ]


def test_an_engine_whose_parser_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    root = make_engine(tmp_path, {"vllm/entrypoints/openai/cli_args.py": None})
    with pytest.raises(
        VoicesError, match=r"has no vllm.entrypoints.launchers.cli_args or vllm.entrypoints.openai.cli_args"
    ):
        Options(Engine(DirectorySource(root)))
