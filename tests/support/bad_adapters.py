"""Adapters for the tiny carrier: bad ones, each with one fault and the code that names it, and good ones.

``BAD`` has at least one for each code that is about an adapter; ``GOOD`` must give no error. Each case changes a draft
of a good adapter, so that nothing but the fault sets it apart. What a real engine does with each is in
docs/decisions/0004-adapter-checks.md, made with tests/support/bad_adapters_engine.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support import adapter_drafts as how
from tests.support.tiny_carrier import HIDDEN, LINEARS, VOCAB


@dataclass(frozen=True)
class Case:
    """One adapter. ``code`` "" is a good one. ``carrier``: what else than the tiny carrier it is compared with."""

    code: str
    name: str
    change: Callable[[how.Draft], None]
    carrier: str = ""

    def write(self, directory: Path) -> Path:
        made = how.draft()
        self.change(made)
        return made.write(directory)


LOOSE = "(" + "|".join(linear.split(".")[1] for linear in LINEARS) + ")"

BAD: tuple[Case, ...] = (
    Case("source-missing", "source-missing", how.afterwards(how.gone)),
    Case("no-config", "no-config", how.afterwards(lambda at: (at / how.CONFIG).unlink())),
    Case("config-not-a-file", "config-directory", how.afterwards(how.directory_instead(how.CONFIG))),
    Case("config-too-large", "config-too-large", how.afterwards(how.huge_config)),
    Case("config-invalid", "config-cut", how.config_text(lambda text: text[:-20])),
    Case("config-invalid", "config-list", how.config_text(lambda text: "[1]")),
    Case("config-invalid", "config-deep", how.afterwards(how.deep)),
    Case("config-invalid", "config-latin1", how.afterwards(lambda at: (at / how.CONFIG).write_bytes(b'{"a": "\xe9"}'))),
    Case("config-duplicate-key", "config-two-ranks", how.config_text(lambda text: text.replace("{", '{"r": 4, ', 1))),
    Case("config-not-finite", "config-nan", how.config_text(lambda text: text.replace('alpha": 16', 'alpha": NaN'))),
    Case("no-weights", "no-weights", how.afterwards(lambda at: (at / how.WEIGHTS).unlink())),
    Case("no-weights", "weights-directory", how.afterwards(how.directory_instead(how.WEIGHTS))),
    Case(
        "no-weights", "weights-other-name", how.afterwards(lambda at: (at / how.WEIGHTS).rename(at / "w.safetensors"))
    ),
    Case("sharded", "sharded", how.afterwards(how.sharded)),
    Case("pickle", "pickle-beside", how.afterwards(lambda at: (at / "adapter_model.bin").write_bytes(b"\x80\x04N."))),
    Case("link-escapes", "link-escapes", how.afterwards(how.escape)),
    Case("link-broken", "link-broken", how.afterwards(lambda at: how.link(at, "gone.safetensors"))),
    Case("special-file", "fifo", how.afterwards(lambda at: os.mkfifo(at / "pipe"))),
    Case("special-file", "socket", how.afterwards(how.socket_beside)),
    Case("truncated", "truncated", how.weights(lambda data: data[:-100])),
    Case("truncated", "truncated-in-header", how.weights(lambda data: data[:200])),
    Case("truncated", "empty-file", how.weights(lambda data: b"")),
    Case("padded", "padded", how.weights(lambda data: data + bytes(512))),
    Case("header-invalid", "html", how.weights(lambda data: b"<!DOCTYPE html><html>not found</html>" * 9)),
    Case("header-invalid", "header-lies", how.weights(lambda data: struct.pack("<Q", 2**63) + data[8:])),
    Case("header-too-large", "header-too-large", how.afterwards(how.huge_header)),
    Case("empty", "no-tensor", how.pairs(dict.clear)),
    Case("not-lora", "ia3", how.setting(peft_type="IA3")),
    Case("rank-invalid", "rank-0", how.setting(r=0)),
    Case("rank-invalid", "rank-text", how.setting(r="8")),
    Case("rank-pattern-invalid", "rank-pattern-text", how.setting(rank_pattern={"q_proj": "8"})),
    Case(
        "rank-above-seat", "rank-16", how.both(lambda made: how.other_rank(made, 16), how.setting(r=16, lora_alpha=32))
    ),
    Case("alpha-missing", "alpha-missing", how.setting(lora_alpha=...)),
    Case("alpha-invalid", "alpha-text", how.setting(lora_alpha="16")),
    Case("alpha-zero", "alpha-zero", how.setting(lora_alpha=0)),
    Case("alpha-negative", "alpha-negative", how.setting(lora_alpha=-16)),
    Case("target-modules", "target-modules-missing", how.setting(target_modules=...)),
    Case("dora", "dora-set", how.setting(use_dora=True)),
    Case("dora", "dora-tensor", how.tensor(f"{how.Q0}.lora_magnitude_vector", (256,))),
    Case("modules-to-save", "modules-to-save-set", how.setting(modules_to_save=["lm_head"])),
    Case("modules-to-save", "modules-to-save-tensor", how.tensor("lm_head.modules_to_save.weight", (VOCAB, HIDDEN))),
    Case("bias", "bias-set", how.setting(bias="lora_only")),
    Case("bias", "lora-bias-set", how.setting(lora_bias=True)),
    Case("bias", "bias-tensor", how.tensor(f"{how.Q0}.bias", (256,))),
    Case("alora", "alora", how.setting(alora_invocation_tokens=[1, 2])),
    Case("init-changes-base", "pissa", how.setting(init_lora_weights="pissa")),
    Case("layer-replication", "layer-replication", how.setting(layer_replication=[[0, 4], [2, 4]])),
    Case("lora-variant", "qalora", how.setting(use_qalora=True)),
    Case("lora-variant", "arrow", how.setting(arrow_config={"top_k": 2})),
    Case("trainable-tokens", "trainable-tokens-set", how.setting(trainable_token_indices=[1, 2])),
    Case(
        "trainable-tokens", "trainable-tokens-tensor", how.tensor("model.embed_tokens.trainable_tokens_delta", (2, 256))
    ),
    Case("tensor-name", "kohya-names", how.added("model.layers.0.mlp.up_proj", (8, 256), (704, 8), "{}.lora_{}_down")),
    Case(
        "adapter-name",
        "state-dict-names",
        how.named(lambda module, part: f"{how.PREFIX}{module}.lora_{part}.default.weight"),
    ),
    Case(
        "wrong-prefix", "language-model-prefix", how.named(how.renamed("model.layers", "model.language_model.layers"))
    ),
    Case("wrong-prefix", "no-model-prefix", how.named(how.renamed("model.layers", "layers"))),
    Case("unknown-module", "fused-qkv", how.added("model.layers.0.self_attn.qkv_proj", (8, 256), (512, 8))),
    Case("unknown-module", "gpt2-names", how.named(how.renamed("self_attn.q_proj", "attn.c_attn"))),
    Case("unknown-module", "known-name-elsewhere", how.added("model.layers.0.mlp.q_proj", (8, 256), (256, 8))),
    Case("not-linear", "norm", how.added("model.layers.0.input_layernorm", (8, 256), (256, 8))),
    Case("layer-out-of-range", "layer-99", lambda made: how.moved(made, how.Q0.replace(".0.", ".99."))),
    Case(
        "duplicate-module",
        "twice",
        lambda made: made.tensors.update({f"{how.Q0}.lora_A.weight": how.plain(made.pairs[how.Q0][0])}),
    ),
    Case("missing-a", "missing-a", lambda made: how.without(made, "A")),
    Case("missing-b", "missing-b", lambda made: how.without(made, "B")),
    Case("rank-mismatch", "rank-mismatch", lambda made: how.one_side(made, how.Q0, 1, how.numbers("b", (256, 4)))),
    Case("rank-differs", "rank-differs", lambda made: how.other_rank(made, 4)),
    Case("shape-other-carrier", "twice-as-wide", how.wider),
    Case("shape-other-carrier", "half-as-wide", how.narrower),
    Case(
        "shape-transposed", "transposed-b", lambda made: how.one_side(made, how.K0, 1, made.pairs[how.K0][1].T.copy())
    ),
    Case("shape-not-2d", "three-dimensions", how.three),
    Case("embedding-not-applied", "embedding-not-applied", how.added("lm_head", (8, 256), (2048, 8)), "no-embeddings"),
    Case("embedding-weights", "embedding-weights", how.tensor("model.embed_tokens.weight", (VOCAB, HIDDEN))),
    Case("dtype", "int8", how.integers),
    Case("non-finite", "nan", lambda made: how.value(made, float("nan"))),
    Case("non-finite", "infinite", lambda made: how.value(made, float("inf"))),
    Case("all-zero", "zero-b", lambda made: how.zeroed(made, len(how.MODULES))),
)

#: Each gives its code as a warning or a note, and no error.
DOUBTFUL: tuple[Case, ...] = (
    Case(
        "extra-weights",
        "extra-weights",
        how.afterwards(lambda at: (at / "old.safetensors").write_bytes(how.packed({}))),
    ),
    Case("several-adapters", "several-adapters", how.afterwards(how.nested)),
    Case("peft-type-unsaid", "peft-type-unsaid", how.setting(peft_type=...)),
    Case("task-type", "task-type", how.setting(task_type="SEQ_CLS")),
    Case("alpha-absurd", "alpha-absurd", how.setting(lora_alpha=4096)),
    Case("per-module-scaling", "per-module-scaling", how.setting(alpha_pattern={"q_proj": 32})),
    Case("pattern-unmatched", "pattern-unmatched", how.setting(alpha_pattern={"c_attn": 32})),
    Case("pattern-not-checked", "pattern-not-checked", how.setting(target_modules="(a+)+b|" + LOOSE)),
    Case("target-absent", "target-absent", lambda made: made.config["target_modules"].append("c_attn")),
    Case("target-undeclared", "target-undeclared", how.setting(target_modules=["q_proj"])),
    Case("fan-in-fan-out", "fan-in-fan-out", how.setting(fan_in_fan_out=True)),
    Case("layers-missing", "layers-missing", how.first_layer),
    Case("base-model-differs", "base-model-differs", how.setting(base_model_name_or_path="Qwen/Qwen3-4B")),
    Case("base-model-unsaid", "base-model-unsaid", how.setting(base_model_name_or_path=...)),
    Case("prefix-not-checked", "prefix-not-checked", lambda made: None, "multimodal"),
    Case(
        "tower-module",
        "tower-module",
        how.both(how.added("visual.blocks.0.attn.qkv", (8, 64), (192, 8)), how.targeted("qkv")),
        "multimodal-same",
    ),
    Case("shapes-not-checked", "shapes-not-checked", lambda made: None, "unknown"),
    Case(
        "embedding-not-checked",
        "embedding-not-checked",
        how.both(how.added("lm_head", (8, 256), (2048, 8)), how.targeted("lm_head")),
        "unknown-embeddings",
    ),
    Case("embedding-copy", "embedding-copy", how.tensor("model.embed_tokens.base_layer.weight", (VOCAB, HIDDEN))),
    Case("dtype-wide", "float64", how.typed("F64")),
    Case("some-zero", "some-zero", lambda made: how.zeroed(made, 1)),
)

GOOD: tuple[Case, ...] = (
    Case("", "as-peft-writes-it", lambda made: None),
    Case("", "no-peft-prefix", how.named(lambda module, part: f"{module}.lora_{part}.weight")),
    Case("", "prefix-twice", how.named(lambda module, part: f"{how.PREFIX}{how.PREFIX}{module}.lora_{part}.weight")),
    Case("", "bfloat16", how.typed("BF16")),
    Case("", "float16", how.typed("F16")),
    Case("", "rslora", how.setting(use_rslora=True)),
    Case("", "rank-pattern", how.wider_pattern),
    Case("", "alpha-pattern", how.setting(alpha_pattern={"q_proj": 32, r".*\.mlp\.up_proj": 8})),
    Case("", "targets-by-pattern", how.setting(target_modules=rf".*\.{LOOSE}$")),
    Case("", "all-linear", how.setting(target_modules="all-linear")),
    Case("", "attention-only", how.attention_only),
    Case("", "some-layers", how.both(how.first_layer, how.setting(layers_to_transform=[0]))),
    Case(
        "",
        "embedding",
        how.both(
            how.added("model.embed_tokens", (8, VOCAB), (HIDDEN, 8), "{}.lora_embedding_{}"),
            how.targeted("embed_tokens"),
        ),
    ),
    Case("", "lm-head", how.both(how.added("lm_head", (8, HIDDEN), (VOCAB, 8)), how.targeted("lm_head"))),
    Case("", "training-state", how.afterwards(lambda at: (at / "optimizer.pt").write_bytes(b"\x80\x04N."))),
    Case("", "link-inside", how.afterwards(lambda at: how.link(at, "weights.safetensors"))),
    Case("", "gaussian", how.setting(init_lora_weights="gaussian")),
)
