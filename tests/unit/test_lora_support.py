"""The verdict on a carrier: native classes, the Transformers backend, experts, parts, and what is said of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.engine_source import DirectorySource
from ansible.module_utils.voices.lora_support import NO, THROUGH, UNKNOWN, YES, Verdict, judge
from ansible.module_utils.voices.lora_support_carrier import carrier_from
from ansible.module_utils.voices.lora_support_engine import Engine
from ansible.module_utils.voices.plan import VoicesError

from tests.support.lora_engines import MODELS, REGISTRY, make_engine, registry

INTERFACE = "from vllm.model_executor.models.interfaces import SupportsLoRA\n"


def verdict(root: Path, *architectures: str, changes: dict[str, str | None] | None = None, **config: Any) -> Verdict:
    engine = Engine(DirectorySource(make_engine(root, changes)))
    return judge(engine, carrier_from({"architectures": list(architectures), **config}, "config.json"))


def with_class(text: str, name: str = "MyForCausalLM", **more: str) -> dict[str, str | None]:
    """An engine with one more class in my.py."""
    return {f"{MODELS}/my.py": INTERFACE + text, f"{MODELS}/registry.py": registry(**{name: f"my.{name}"}, **more)}


def test_a_native_class_with_its_evidence(tmp_path: Path) -> None:
    found = verdict(tmp_path, "PlainForCausalLM")
    assert (found.supported, found.verdict, found.backend) == (True, YES, "native")
    assert (found.class_name, found.file, found.line) == ("PlainForCausalLM", f"{MODELS}/plain.py", 4)
    assert found.packed_modules == {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    assert found.embedding_modules == {"embed_tokens": "input_embeddings"}
    assert found.evidence == [
        f"{MODELS}/registry.py:3: PlainForCausalLM is vllm.model_executor.models.plain.PlainForCausalLM",
        f"{MODELS}/plain.py:4: class PlainForCausalLM",
        f"{MODELS}/interfaces.py:3: class SupportsLoRA",
        f"{MODELS}/plain.py:5: packed_modules_mapping of PlainForCausalLM",
        f"{MODELS}/plain.py:6: embedding_modules of PlainForCausalLM",
    ]
    assert found.unreadable == []
    assert found.engine_version == "0.32.0"


def test_a_class_outside_the_usual_directory_that_builds_on_another(tmp_path: Path) -> None:
    found = verdict(tmp_path, "NewForCausalLM")
    assert found.supported
    assert found.file == "vllm/models/new/model.py"
    assert sorted(found.packed_modules) == ["gate_up_proj", "qkv_proj"]
    assert found.is_3d_moe_weight


def test_supports_lora_alone_is_not_what_the_engine_asks(tmp_path: Path) -> None:
    found = verdict(tmp_path, "DeafForCausalLM")
    assert (found.supported, found.verdict) == (False, NO)
    assert "derives from SupportsLoRA" in found.reason
    assert f"supports_lora at {MODELS}/deaf.py:4 alone is not enough" in found.reason


def test_the_first_architecture_that_is_registered_counts(tmp_path: Path) -> None:
    assert verdict(tmp_path, "NobodyForCausalLM", "OtherForCausalLM").class_name == "PlainForCausalLM"


def test_a_registered_class_that_is_not_there_leaves_it_open(tmp_path: Path) -> None:
    found = verdict(tmp_path, "GoneModel")
    assert (found.supported, found.verdict) == (False, UNKNOWN)
    assert "vllm.model_executor.models.gone is not in the source" in found.reason


TRANSFORMERS: dict[str, str | None] = {
    "transformers/modeling_utils.py": "class PreTrainedModel:\n    _supports_attention_backend = False\n",
    "transformers/models/own/modeling_own.py": """
        from ...modeling_utils import PreTrainedModel
        class OwnPreTrainedModel(PreTrainedModel):
            _supports_attention_backend = True
        class OwnForCausalLM(OwnPreTrainedModel): ...
        class StiffForCausalLM(PreTrainedModel): ...
        class OwnModel(OwnPreTrainedModel): ...
    """,
}


def test_an_unregistered_architecture_goes_through_the_transformers_backend(tmp_path: Path) -> None:
    found = verdict(tmp_path, "OwnForCausalLM", changes=TRANSFORMERS, model_type="own")
    assert (found.supported, found.verdict, found.backend) == (True, THROUGH, "transformers")
    assert found.class_name == "TransformersForCausalLM"
    assert (
        "transformers/models/own/modeling_own.py:4: OwnForCausalLM of Transformers takes other attention"
        in found.evidence
    )
    assert found.embedding_modules == {"embed_tokens": ""}, "some versions give a list of names only"
    assert any("self.packed_modules_mapping = {}, when the model is made" in one for one in found.unreadable)


def test_the_backend_has_classes_of_its_own_for_experts(tmp_path: Path) -> None:
    found = verdict(tmp_path, "OwnForCausalLM", changes=TRANSFORMERS, model_type="own", num_local_experts=8)
    assert found.class_name == "TransformersMoEForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "config", "words"),
    [
        (
            "OwnForCausalLM",
            {"model_type": "own", "vision_config": {}, "text_config": {"a": 1}},
            "no class TransformersMultiModalFor",
        ),
        ("OwnModel", {"model_type": "own"}, "no class TransformersEmbeddingModel"),
        ("StiffForCausalLM", {"model_type": "own"}, "does not say _supports_attention_backend"),
        ("NobodyForCausalLM", {"model_type": "own"}, "the Transformers beside it has no NobodyForCausalLM"),
        ("NobodyForCausalLM", {"model_type": "../../etc"}, "the Transformers beside it has no NobodyForCausalLM"),
        ("OldForCausalLM", {"model_type": "own"}, "its last vLLM was 0.9.2"),
    ],
)
def test_what_no_class_of_the_engine_serves(
    tmp_path: Path, architecture: str, config: dict[str, Any], words: str
) -> None:
    found = verdict(tmp_path, architecture, changes=TRANSFORMERS, **config)
    assert (found.supported, found.verdict, found.class_name) == (False, NO, "")
    assert words in found.reason
    assert f"{architecture} is not among the 7 architectures of vLLM 0.32.0" in found.reason


def test_a_carrier_with_its_own_code_is_said_to_be_open(tmp_path: Path) -> None:
    custom = {"AutoConfig": "a.B", "AutoModelForCausalLM": "a.C"}
    found = verdict(tmp_path, "CustomForCausalLM", changes=TRANSFORMERS, model_type="custom", auto_map=custom)
    assert (found.supported, found.verdict) == (True, THROUGH)
    assert found.unreadable[-1].startswith("backend: whether the carrier's own code (AutoModelForCausalLM) suits")


def test_without_transformers_beside_the_source_it_is_said(tmp_path: Path) -> None:
    found = verdict(tmp_path, "OwnForCausalLM", model_type="own")
    assert found.verdict == THROUGH
    assert found.unreadable[-1].startswith("backend: whether its Transformers has OwnForCausalLM is not read")


def test_a_class_in_the_directory_of_another_model_type_is_found(tmp_path: Path) -> None:
    found = verdict(tmp_path, "OwnForCausalLM", changes=TRANSFORMERS, model_type="own_text")
    assert (found.verdict, found.class_name) == (THROUGH, "TransformersForCausalLM")


GUESS = """
    import re
    class PreTrainedModel:
        _supports_attention_backend = False
        def _can_set_attn_implementation(cls):
            code = source_of(cls)
            if re.search(r"^class \\w*Attention\\w*\\(nn\\.Module\\):", code, re.MULTILINE):
                can_set = "ATTENTION.get(" in code
            else:
                can_set = True
"""
GUESSED = (
    "from ...modeling_utils import PreTrainedModel\nfrom torch import nn\nclass OwnForCausalLM(PreTrainedModel): ...\n"
)


@pytest.mark.parametrize(
    ("more", "asks", "supported"),
    [
        ("", True, True),
        ("class OwnAttention(nn.Module):\n    pass\n", True, False),
        ("class OwnAttention(nn.Module):\n    x = ATTENTION.get('a')\n", True, True),
        ("", False, False),
    ],
)
def test_newer_engines_also_ask_transformers_for_a_guess(
    tmp_path: Path, more: str, asks: bool, supported: bool
) -> None:
    changes: dict[str, str | None] = {
        "transformers/modeling_utils.py": GUESS,
        "transformers/models/own/modeling_own.py": GUESSED + more,
        f"{MODELS}/registry.py": REGISTRY + ("    # cls._can_set_attn_implementation()\n" if asks else ""),
    }
    assert verdict(tmp_path, "OwnForCausalLM", changes=changes, model_type="own").supported is supported


def test_an_older_backend_has_other_names(tmp_path: Path) -> None:
    old = """
        class ModelConfig:
            def _get_transformers_backend_cls(self) -> str:
                if self.runner_type == "pooling":
                    return "TransformersModel"
                if self.hf_config != self.hf_text_config:
                    return "TransformersForMultimodalLM"
                return "TransformersForCausalLM"
    """
    changes = {**TRANSFORMERS, "vllm/config/model.py": old}
    assert (
        verdict(tmp_path / "a", "OwnForCausalLM", changes=changes, model_type="own").class_name
        == "TransformersForCausalLM"
    )
    multimodal = verdict(tmp_path / "b", "OwnForCausalLM", changes=changes, model_type="own", text_config={"a": 1})
    assert "no class TransformersForMultimodalLM" in multimodal.reason


def test_another_ending_of_a_registered_name_is_taken_for_it(tmp_path: Path) -> None:
    found = verdict(tmp_path, "PlainForSequenceClassification", changes=TRANSFORMERS)
    assert (found.supported, found.class_name) == (True, "PlainForCausalLM")
    assert "the engine takes it for PlainForCausalLM, whose name has another ending" in found.evidence


EXPERTS = {"num_local_experts": 8}
MOE_CLASS = """
class Inner:
    {inner}
class MyForCausalLM(SupportsLoRA):
    def __init__(self):
        self.model = self._init_model()
        self.head = Inner2()
    def _init_model(self):
        return Inner(config=1)
    {outer}
class Inner2: ...
"""
METHOD_RULE: dict[str, str | None] = {
    "vllm/lora/utils.py": "raise AttributeError(\"'get_expert_mapping' must be implemented\")"
}


@pytest.mark.parametrize(
    ("inner", "outer", "supported"),
    [
        ("pass", "", False),
        ("def get_expert_mapping(self): ...", "", True),
        ("pass", "def get_expert_mapping(self): ...", True),
    ],
)
def test_an_engine_that_asks_a_mixture_of_experts_for_a_method(
    tmp_path: Path, inner: str, outer: str, supported: bool
) -> None:
    changes = with_class(MOE_CLASS.format(inner=inner, outer=outer)) | METHOD_RULE
    found = verdict(tmp_path / "moe", "MyForCausalLM", changes=changes, **EXPERTS)
    assert found.supported is supported
    if not supported:
        assert "with 8 experts the engine asks MyForCausalLM or a part of it for get_expert_mapping" in found.reason
        assert "vllm/lora/utils.py:1" in found.reason
    assert verdict(tmp_path / "dense", "MyForCausalLM", changes=changes).supported, "without experts nothing is asked"


def test_a_part_that_is_made_elsewhere_leaves_the_experts_open(tmp_path: Path) -> None:
    text = "class MyForCausalLM(SupportsLoRA):\n    def __init__(self):\n        self.model = build_it()\n"
    found = verdict(tmp_path, "MyForCausalLM", changes=with_class(text) | METHOD_RULE, **EXPERTS)
    assert found.supported
    assert any("the class of model the text does not tell" in one for one in found.unreadable)


def test_an_older_engine_leaves_the_experts_out(tmp_path: Path) -> None:
    rule: dict[str, str | None] = {"vllm/lora/models.py": "# x\nwarn('vLLM currently does not support fused MoE LoRA')"}
    found = verdict(tmp_path, "PlainForCausalLM", changes=rule, **EXPERTS)
    assert found.supported
    assert found.unreadable == [
        "experts: vllm/lora/models.py:2: this engine puts no LoRA on the 8 experts, only beside them"
    ]


@pytest.mark.parametrize("config", [{"num_experts": 0}, {"num_experts": None}, {"n_routed_experts": "many"}, {}])
def test_no_experts(config: dict[str, Any]) -> None:
    assert carrier_from({"architectures": ["A"], **config}, "x").experts(("num_experts", "n_routed_experts")) == 0


@pytest.mark.parametrize(
    "config",
    [
        {"num_experts": 8},
        {"n_routed_experts": 8},
        {"num_experts": [8, 8]},
        {"text_config": {"num_experts": 8}},
        {"thinker_config": {"text_config": {"num_experts": 8}}},
        {
            "block_configs": [
                {"block_type": "moe", "n_routed_experts": 8},
                {"block_type": "dense", "n_routed_experts": 9},
            ]
        },
    ],
)
def test_experts_where_the_config_has_them(config: dict[str, Any]) -> None:
    assert carrier_from({"architectures": ["A"], **config}, "x").experts(("num_experts", "n_routed_experts")) == 8


def test_the_engine_names_the_keys_itself(tmp_path: Path) -> None:
    own: dict[str, str | None] = {"vllm/config/model.py": 'num_expert_names = [\n    "ffn_count",  # new\n]\n'}
    assert Engine(DirectorySource(make_engine(tmp_path, own))).expert_keys == ("ffn_count",)


DISPATCH = """
class One(SupportsLoRA):
    packed_modules_mapping = {"one": ["a"], "both": ["x"]}
class Two(SupportsLoRA):
    packed_modules_mapping = {"both": ["x"]}
class Three: ...
BY_VERSION = {(1, 0): One, (2, 0): Two, (3, 0): Three}
class MyForCausalLM(SupportsLoRA):
    def __new__(cls, *, vllm_config):
        made = BY_VERSION.get(vllm_config.version)
        cls.packed_modules_mapping.update(made.packed_modules_mapping)
        return made(vllm_config=vllm_config)
"""


@pytest.mark.parametrize(
    ("version", "supported", "packed"),
    [("1.0", True, {"one", "both"}), (2.0, True, {"both"}), ("3.0", False, set()), (None, True, {"one", "both"})],
)
def test_a_class_that_makes_others_by_version(tmp_path: Path, version: Any, supported: bool, packed: set[str]) -> None:
    found = verdict(tmp_path, "MyForCausalLM", changes=with_class(DISPATCH), version=version)
    assert found.supported is supported
    assert set(found.packed_modules) == packed
    assert found.declared["packed_modules_mapping"] == {}, "what the class itself says"
    assert any("may make a Three" in one for one in found.unreadable) is (version is None)


PARTS = """
from .plain import PlainForCausalLM
class MyForCausalLM(SupportsLoRA):
    def __init__(self, config):
        {made}
"""


@pytest.mark.parametrize(
    ("made", "config"),
    [
        ("self.inner = PlainForCausalLM(config)", {}),
        ("self.language_model = init_vllm_registered_model(x, architectures=['PlainForCausalLM'])", {}),
        (
            "self.language_model = init_vllm_registered_model(x, hf_config=config.text_config)",
            {"text": "PlainForCausalLM"},
        ),
    ],
)
def test_a_class_without_packed_modules_gets_those_of_its_parts(
    tmp_path: Path, made: str, config: dict[str, str]
) -> None:
    changes = with_class(PARTS.format(made=made), PlainForCausalLM="plain.PlainForCausalLM")
    inner = {"text_config": {"architectures": [config["text"]]}} if config else {}
    found = verdict(tmp_path, "MyForCausalLM", changes=changes, **inner)
    assert found.packed_modules == {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    assert any("packed_modules_mapping of PlainForCausalLM, a part of MyForCausalLM" in one for one in found.evidence)


def test_a_part_whose_class_is_open_is_said(tmp_path: Path) -> None:
    made = "self.language_model = init_vllm_registered_model(x, hf_config=config.text_config)"
    found = verdict(tmp_path, "MyForCausalLM", changes=with_class(PARTS.format(made=made)), text_config={"a": 1})
    assert found.packed_modules == {}
    assert (
        "packed_modules: those of MyForCausalLM.language_model, whose class the text does not tell" in found.unreadable
    )


def test_what_a_model_changes_when_it_is_made_is_said_with_its_condition(tmp_path: Path) -> None:
    text = """
class MyForCausalLM(SupportsLoRA):
    packed_modules_mapping = {"a": ["b"]}
    def __init__(self, config):
        if config.mlp:
            self.packed_modules_mapping["gate_up"] = ["gate", "up"]
"""
    found = verdict(tmp_path, "MyForCausalLM", changes=with_class(text))
    assert found.packed_modules == {"a": ["b"]}
    assert found.unreadable == [
        f"packed_modules: {MODELS}/my.py:7: self.packed_modules_mapping['gate_up'] = ['gate', 'up'] if config.mlp, "
        "when the model is made"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{MODELS}/registry.py": "x = 1"}, "has no _VLLM_MODELS"),
        ({f"{MODELS}/registry.py": "_VLLM_MODELS = {}"}, "has no _VLLM_MODELS"),
        ({f"{MODELS}/registry.py": "_VLLM_MODELS = make()"}, "the registry of vLLM 0.32.0 cannot be read"),
        ({f"{MODELS}/registry.py": "_VLLM_MODELS = {'A': 'b'}"}, "and not .module, class."),
        ({f"{MODELS}/registry.py": "def ("}, "line 1 is no Python that can be read"),
        ({f"{MODELS}/registry.py": "\0"}, "is no Python that can be read"),
        ({f"{MODELS}/plain.py": "(" * 5000}, "plain.py.* is no Python that can be read"),
        ({f"{MODELS}/interfaces.py": "x = 1"}, "has no SupportsLoRA"),
    ],
)
def test_a_source_of_another_kind_is_refused(tmp_path: Path, changes: dict[str, str | None], words: str) -> None:
    with pytest.raises(VoicesError, match=words):
        verdict(tmp_path, "PlainForCausalLM", changes=changes)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "names no architectures"),
        ({"architectures": []}, "names no architectures"),
        ({"architectures": "A"}, "is 'A', not a list"),
        ({"architectures": ["a b"]}, "not a list of class names"),
        ({"architectures": [1]}, "not a list of class names"),
    ],
)
def test_a_config_without_architectures_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(VoicesError, match=words):
        carrier_from(config, "config.json")


def test_architectures_of_the_language_model_stand_in(tmp_path: Path) -> None:
    found = carrier_from({"text_config": {"architectures": ["PlainForCausalLM"]}}, "config.json")
    assert found.architectures == found.text_architectures == ("PlainForCausalLM",)
    assert found.multimodal
