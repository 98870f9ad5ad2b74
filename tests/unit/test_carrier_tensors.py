"""A carrier's modules from its safetensors and from its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.carrier_tensors import carrier_modules, is_tower, layer_of, tail
from ansible.module_utils.voices.carrier_tensors_client import read_carrier_modules
from ansible.module_utils.voices.plan import VoicesError

from tests.support.adapter_dirs import raw_file
from tests.support.tiny_carrier import HIDDEN, LAYERS, LINEARS, VOCAB, write_carrier

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 64,
    "hidden_size": HIDDEN,
    "intermediate_size": 704,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": VOCAB,
}
ALL = {f"model.layers.{layer}.{name}": size for layer in range(LAYERS) for name, size in LINEARS.items()}


def test_weights_and_config_tell_the_same_of_the_tiny_carrier(tmp_path: Path) -> None:
    write_carrier(tmp_path / "tiny")
    from_weights = read_carrier_modules(tmp_path / "tiny")
    (tmp_path / "tiny/model.safetensors").unlink()
    from_config = read_carrier_modules(tmp_path / "tiny")
    for seen in (from_weights, from_config):
        assert seen.linears == {**ALL, "lm_head": (VOCAB, HIDDEN)}
        assert seen.embeddings == {"model.embed_tokens": (VOCAB, HIDDEN)}
        assert (seen.known, seen.multimodal, seen.layers("model.layers")) == (True, False, LAYERS)
        assert seen.embedding_modules == {"embed_tokens", "lm_head"}
        assert seen.names == ("tiny",)
    assert "model.layers.0.self_attn.q_norm" in from_weights.others


def test_packed_weights_take_their_sizes_from_the_config() -> None:
    packed = {f"{name}.qweight": ("I32", (32, 32)) for name in ALL}
    assert carrier_modules(CONFIG, packed).linears == {**ALL, "lm_head": (VOCAB, HIDDEN)}
    unknown = carrier_modules({"architectures": ["Other"]}, packed)
    assert set(unknown.linears) == set(ALL) and set(unknown.linears.values()) == {None}
    assert "architectures" in unknown.why_unknown


def test_an_unheard_of_carrier_is_known_by_its_tensors_alone() -> None:
    seen = carrier_modules(
        {"architectures": ["Other"]},
        {
            "wte.weight": ("BF16", (100, 8)),
            "h.0.attn.c_attn.weight": ("BF16", (24, 8)),
            "h.0.ln.weight": ("BF16", (8,)),
            "h.0.ln.bias": ("BF16", (8,)),
        },
    )
    assert seen.linears == {"h.0.attn.c_attn": (24, 8), "lm_head": (100, 8)}
    assert (seen.embeddings, seen.others) == ({"wte": (100, 8)}, {"h.0.ln"})
    assert seen.embedding_modules is None
    assert carrier_modules({}, None).known is False
    assert carrier_modules({}, None, embedding_modules={"wte": "x"}).embedding_modules == {"wte"}


@pytest.mark.parametrize(
    ("module", "split", "end"),
    [
        ("model.layers.3.mlp.up_proj", ("model.layers", 3, "mlp.up_proj"), "layers.3.mlp.up_proj"),
        ("layers.3.mlp", ("layers", 3, "mlp"), "layers.3.mlp"),
        ("model.layers.3.mlp.experts.7.up", ("model.layers", 3, "mlp.experts.7.up"), "layers.3.mlp.experts.7.up"),
        ("model.lm_head", None, "lm_head"),
        ("3.mlp", None, "mlp"),
        ("layers.3", None, "3"),
        ("layers.1234567.up", None, "up"),
        ("layers.\u0663.up", None, "up"),
        ("..1.x", None, "x"),
        ("", None, ""),
    ],
)
def test_layer_of_and_tail(module: str, split: tuple[str, int, str] | None, end: str) -> None:
    assert (layer_of(module), tail(module)) == (split, end)


@pytest.mark.parametrize(
    "module", ["visual.blocks.0.attn.qkv", "model.vision_tower.x", "audio_tower.l", "mm_projector"]
)
def test_towers(module: str) -> None:
    assert is_tower(module)
    assert not is_tower(f"re{module}s".replace(".", "_"))


def test_a_carrier_that_cannot_be_read_is_named_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(VoicesError, match=r"carrier .*config\.json: No such file.*: point carrier at"):
        read_carrier_modules(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(VoicesError, match=r"config\.json is no JSON: .*: copy that file anew"):
        read_carrier_modules(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(raw_file(b'{"a": 5}'))
    with pytest.raises(VoicesError, match=r"model\.safetensors has a bad header: tensor 'a'"):
        read_carrier_modules(tmp_path)


def test_the_names_of_a_carrier(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-4B/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({**CONFIG, "_name_or_path": "Qwen/Base"}))
    (tmp_path / "served").symlink_to(snapshot)
    assert read_carrier_modules(tmp_path / "served").names == ("served", "abc", "Qwen3-4B", "Qwen/Base")
