"""lora_adapter_check over real files: every bad adapter is refused by its own code, every good one passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.adapter_check import Checked, Seat, check_adapter
from ansible.module_utils.voices.adapter_check_client import read_source
from ansible.module_utils.voices.adapter_check_config import check_config
from ansible.module_utils.voices.adapter_findings import CODES, ERROR, INFO, WARNING
from ansible.module_utils.voices.carrier_tensors import CarrierModules, carrier_modules
from ansible.module_utils.voices.carrier_tensors_client import read_carrier_modules

from tests.support.adapter_drafts import MAX_LORA_RANK, draft, numbers, plain
from tests.support.bad_adapters import BAD, DOUBTFUL, GOOD, Case
from tests.support.tiny_carrier import write_carrier

#: Said by a test of their own: no directory has them by itself.
ELSEWHERE = {"unreadable", "changed"}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CarrierModules:
    directory = tmp_path_factory.mktemp("carriers") / "tiny"
    write_carrier(directory)
    return read_carrier_modules(directory)


def like(kind: str, tiny: CarrierModules) -> CarrierModules:
    """The tiny carrier, or one that differs from it in what the case is about."""
    return {
        "": tiny,
        "no-embeddings": replace(tiny, embedding_modules=frozenset()),
        "unknown-embeddings": replace(tiny, embedding_modules=None),
        "multimodal-same": replace(tiny, multimodal=True),
        "multimodal": replace(
            tiny,
            multimodal=True,
            linears={f"model.language_model.{name.removeprefix('model.')}": s for name, s in tiny.linears.items()},
        ),
        "unknown": carrier_modules({"architectures": ["UnheardOf"]}, None, names=("tiny",)),
    }[kind]


def checked(case: Case, tmp_path: Path, tiny: CarrierModules, allow: tuple[str, ...] = ()) -> Checked:
    source = read_source(str(case.write(tmp_path / "adapter")), read_weights=True)
    return check_adapter(source, Seat(like(case.carrier, tiny), MAX_LORA_RANK), allow)


def by_severity(found: Checked, severity: str) -> set[str]:
    return {one.code for one in found.findings if one.severity == severity}


def named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", BAD, ids=named)
def test_a_bad_adapter_is_refused_by_its_code_alone(case: Case, tmp_path: Path, tiny: CarrierModules) -> None:
    found = checked(case, tmp_path, tiny)
    assert by_severity(found, ERROR) == {case.code}, [one.line() for one in found.findings]
    for one in found.findings:
        assert one.message and one.fix and "\n" not in one.line(), one


@pytest.mark.parametrize("case", DOUBTFUL, ids=named)
def test_a_doubtful_adapter_gets_its_warning_and_no_error(case: Case, tmp_path: Path, tiny: CarrierModules) -> None:
    found = checked(case, tmp_path, tiny)
    assert found.errors == ()
    assert {one.code for one in found.findings} | {"per-module-scaling"} == {case.code, "per-module-scaling"}
    assert case.code in by_severity(found, CODES[case.code].severity)


@pytest.mark.parametrize("case", GOOD, ids=named)
def test_a_good_adapter_passes(case: Case, tmp_path: Path, tiny: CarrierModules) -> None:
    found = checked(case, tmp_path, tiny)
    assert {one.code for one in found.findings} <= {"per-module-scaling"}, [one.line() for one in found.findings]
    assert found.facts()["weights_read"] is True
    assert (found.rank, found.modules > 0, found.bytes > 1000) == (8, True, True)


def test_every_code_has_an_adapter() -> None:
    assert {case.code for case in (*BAD, *DOUBTFUL)} | ELSEWHERE == set(CODES)
    assert {CODES[case.code].severity for case in BAD} == {ERROR}
    assert {CODES[case.code].severity for case in DOUBTFUL} == {WARNING, INFO}
    assert len({case.name for case in (*BAD, *DOUBTFUL, *GOOD)}) == len((*BAD, *DOUBTFUL, *GOOD))


def test_names_of_the_base_model(tmp_path: Path, tiny: CarrierModules) -> None:
    """A warning unless it is the carrier by any of its names; the inventory's override is quiet."""
    case = next(case for case in DOUBTFUL if case.code == "base-model-differs")  # Qwen/Qwen3-4B
    source = read_source(str(case.write(tmp_path / "adapter")), read_weights=False)

    def codes(*names: str, base: tuple[str, ...] = (), allow: tuple[str, ...] = ()) -> set[str]:
        seat = Seat(replace(tiny, names=names), MAX_LORA_RANK, base_models=base)
        return by_severity(check_adapter(source, seat, allow), WARNING)

    assert codes("tiny") == {"base-model-differs"}
    assert codes("qwen3-4b") == codes("/models/Qwen3-4B/") == set()
    assert codes("/hub/models--Qwen--Qwen3-4B/snapshots/abc") == set()
    assert codes("tiny", base=("Qwen/Qwen3-4B",)) == set()
    assert codes("tiny", allow=("base-model-differs",)) == set()


def test_allowed_codes_are_demoted_and_structural_ones_never(tmp_path: Path, tiny: CarrierModules) -> None:
    wrong = next(case for case in BAD if case.name == "language-model-prefix")
    found = checked(wrong, tmp_path / "a", tiny, allow=("wrong-prefix",))
    assert (found.errors, by_severity(found, WARNING)) == ((), {"wrong-prefix"})
    assert all("(allowed)" in one.message or "more of this kind" in one.message for one in found.findings)
    broken = next(case for case in BAD if case.name == "truncated")
    assert by_severity(checked(broken, tmp_path / "b", tiny, allow=("truncated",)), ERROR) == {"truncated"}


def test_a_file_written_to_meanwhile_is_no_adapter(
    tmp_path: Path, tiny: CarrierModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.module_utils.voices import adapter_check_client as client

    at = GOOD[0].write(tmp_path / "adapter")
    weights = at / "adapter_model.safetensors"
    size = weights.stat().st_size

    def interfered(action: Callable[[], Any]) -> set[str]:
        def scan_then(pieces: Any, dtype: str) -> Any:
            scan = client_scan(pieces, dtype)
            action()
            return scan

        monkeypatch.setattr(client, "scan", scan_then)
        found = check_adapter(read_source(str(at), read_weights=True), Seat(tiny, MAX_LORA_RANK))
        return by_severity(found, ERROR)

    client_scan = client.scan
    assert interfered(lambda: None) == set()
    assert interfered(lambda: weights.open("ab").write(b"x") and None) == {"changed"}
    weights.open("r+b").truncate(size)
    assert interfered(lambda: weights.open("r+b").truncate(size // 2) and None) == {"changed"}


def test_what_the_system_refuses_is_a_finding(
    tmp_path: Path, tiny: CarrierModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.module_utils.voices import adapter_check_client as client

    at = GOOD[0].write(tmp_path / "adapter")

    def refuse(path: str) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(client, "open_regular", refuse)
    found = check_adapter(read_source(str(at), read_weights=True), Seat(tiny, MAX_LORA_RANK))
    assert by_severity(found, ERROR) == {"unreadable"}
    assert "Permission denied" in found.errors[0].message


def test_tensors_above_the_seats_rank_are_told_apart_from_the_configuration(
    tmp_path: Path, tiny: CarrierModules
) -> None:
    made = draft(16)
    made.config.update(r=8, lora_alpha=16)
    source = read_source(str(made.write(tmp_path / "adapter")), read_weights=False)
    found = check_adapter(source, Seat(tiny, MAX_LORA_RANK))
    assert by_severity(found, ERROR) == {"rank-differs", "rank-above-seat"}
    assert next(one.fix for one in found.errors if one.code == "rank-above-seat") == "set max_lora_rank to 16"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model.embed_tokens.base_layer.weight", "embedding-copy"),
        ("transformer.wte.base_layer.weight", "embedding-weights"),  # no name that vLLM skips
        ("lm_head.weight", "embedding-weights"),
    ],
)
def test_which_copies_of_embeddings_an_engine_skips(tmp_path: Path, tiny: CarrierModules, name: str, code: str) -> None:
    made = draft()
    made.tensors[f"base_model.model.{name}"] = plain(numbers(name, (2048, 256)))
    wte = replace(tiny, embeddings={**tiny.embeddings, "transformer.wte": (2048, 256)})
    found = check_adapter(read_source(str(made.write(tmp_path / "adapter")), read_weights=True), Seat(wte))
    assert {one.code for one in found.findings} == {code}


def test_a_rank_is_not_judged_where_a_pattern_before_was_not_tried(tmp_path: Path, tiny: CarrierModules) -> None:
    made = draft(4)
    made.config.update(r=8, rank_pattern={"(a+)+b": 4, "q_proj": 4})
    source = read_source(str(made.write(tmp_path / "adapter")), read_weights=False)
    assert by_severity(check_adapter(source, Seat(tiny, MAX_LORA_RANK)), ERROR) == set()
    made.config.update(rank_pattern={"q_proj": 4})
    source = read_source(str(made.write(tmp_path / "other")), read_weights=False)
    assert by_severity(check_adapter(source, Seat(tiny, MAX_LORA_RANK)), ERROR) == {"rank-differs"}


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({"r": 64, "lora_alpha": 2048}, None),
        ({"r": 64, "lora_alpha": 2048, "use_rslora": True}, "scaling 256 (alpha / sqrt(rank), as use_rslora is set)"),
        ({"r": 8, "lora_alpha": 8, "alpha_pattern": {"q_proj": 100}}, None),
        ({"r": 8, "lora_alpha": 8, "alpha_pattern": {"q_proj": 100}, "rank_pattern": {"q_proj": 1}}, "scaling 100"),
        ({"r": 64, "lora_alpha": 0.5}, "scaling 0.0078125"),
    ],
)
def test_the_scaling_is_the_one_that_the_engine_uses(settings: dict[str, Any], scaling: str | None) -> None:
    _, findings = check_config({"target_modules": [], **settings}, 0)
    told = [one.message for one in findings if one.code == "alpha-absurd"]
    assert (scaling in told[0] if scaling and told else told == []) and bool(told) is bool(scaling)


def test_findings_of_one_kind_are_counted(tmp_path: Path, tiny: CarrierModules) -> None:
    wide = next(case for case in BAD if case.name == "twice-as-wide")
    found = checked(wide, tmp_path, tiny)
    assert len(found.findings) == 4
    assert found.findings[-1].message == "and 53 more of this kind (56 in all)"
    assert "1408 in features, the carrier's model.layers.0.mlp.down_proj has 704" in found.findings[0].message
