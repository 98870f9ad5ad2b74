"""The engine configurations whose memory is measured: which shape, which flags, in which wave they run side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024
#: Few sequences and few graphs, as a seat of voices is served; a start with every default takes minutes.
SMALL = {"max-num-seqs": 32, "cudagraph-capture-sizes": [1, 2, 4, 8, 16, 32]}


@dataclass(frozen=True)
class Configuration:
    """One engine: ``flags`` are engine.yaml's, without model, name, port and voices."""

    name: str
    shape: str
    wave: str
    rank: int = 0
    slots: int = 0
    kv_mib: int = 1536
    more: dict[str, Any] = field(default_factory=lambda: dict(SMALL))
    weights: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> dict[str, Any]:
        """Kebab-case flags of vLLM."""
        flags: dict[str, Any] = {
            "max-model-len": 8192,
            "dtype": "bfloat16",
            "kv-cache-memory-bytes": self.kv_mib * MIB,
            # Low, so that engines which start together do not refuse each other; with a pin it decides nothing else.
            "gpu-memory-utilization": 0.05,
            **self.more,
        }
        if self.rank:
            flags |= {"enable-lora": True, "max-lora-rank": self.rank, "max-loras": self.slots}
        return flags


CONFIGURATIONS = (
    Configuration("base", "qwen3-4b", "a"),
    Configuration("r32-s4", "qwen3-4b", "a", 32, 4),
    Configuration("r16-s4", "qwen3-4b", "a", 16, 4),
    Configuration("r64-s4", "qwen3-4b", "a", 64, 4),
    Configuration("small-base", "qwen3-1.7b", "a"),
    Configuration("small-r32-s4", "qwen3-1.7b", "a", 32, 4),
    Configuration("r32-s1", "qwen3-4b", "b", 32, 1),
    Configuration("r32-s8", "qwen3-4b", "b", 32, 8),
    Configuration("r32-s4-kv3072", "qwen3-4b", "b", 32, 4, 3072),
    Configuration("r64-s8-small", "qwen3-1.7b", "b", 64, 8),
    Configuration("r32-s4-tokens2048", "qwen3-4b", "b", 32, 4, 1536, {**SMALL, "max-num-batched-tokens": 2048}),
    Configuration("r32-s4-256", "qwen3-4b", "b", 32, 4, 1536, {"max-num-seqs": 256}),
    Configuration("base-256", "qwen3-4b", "b", more={"max-num-seqs": 256}),
    # Judged blind: the sizing was finished before these were measured.
    Configuration("llama-base", "llama-3.1-8b", "c"),
    Configuration("llama-r32-s4", "llama-3.1-8b", "c", 32, 4),
    Configuration("r32-s4-weights", "qwen3-4b", "c", 32, 4, weights=True),
    Configuration("r32-s4-eager", "qwen3-4b", "c", 32, 4, more={"max-num-seqs": 32, "enforce-eager": True}),
    Configuration("r32-s4-dual", "qwen3-4b", "c", 32, 4, environment={"VLLM_LORA_ENABLE_DUAL_STREAM": "1"}),
    Configuration("r32-s4-fp8", "qwen3-4b", "c", 32, 4, more={**SMALL, "kv-cache-dtype": "fp8"}),
    Configuration("r16-s2-128", "qwen3-4b", "c", 16, 2, more={"max-num-seqs": 128}),
    # No max-num-seqs and no capture sizes: what the engine takes when nobody says otherwise.
    Configuration("r32-s4-defaults", "qwen3-4b", "d", 32, 4, more={}),
    # The same as in wave a, with the compiled code of that wave in the engine's cache.
    Configuration("r32-s4-again", "qwen3-4b", "d", 32, 4),
    Configuration("fleet", "qwen3-4b", "d", 32, 3, more={**SMALL, "max-num-batched-tokens": 2048}),
    Configuration(
        "r8-s3-tokens4096", "qwen3-1.7b", "d", 8, 3, 2048, {"max-num-seqs": 64, "max-num-batched-tokens": 4096}
    ),
    Configuration("llama-r64-s2", "llama-3.1-8b", "d", 64, 2, 3072, {**SMALL, "max-num-batched-tokens": 2048}),
)
