"""Carriers (config and tokenizer, no weights) and PEFT adapters of real shapes, for an engine with dummy weights.

Speed, memory and KV-cache size are those of the real carrier; the text is noise. Needs torch, safetensors, tokenizers
and transformers, as a GPU machine has them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: config.json of each shape that is measured. Qwen3-4B is the reference carrier; the others differ in every dimension
#: that the sizing knows: depth, width, head counts, tied or own output embedding.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-4b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "rope_theta": 5000000,
        "max_position_embeddings": 262144,
    },
    "qwen3-1.7b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "rope_theta": 1000000,
        "max_position_embeddings": 40960,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "rope_theta": 500000,
        "max_position_embeddings": 131072,
    },
}

COMMON = {
    "attention_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(shape: str) -> dict[str, Any]:
    """The config.json of ``shape``."""
    return {**COMMON, **SHAPES[shape]}


def linears(shape: str) -> dict[str, tuple[int, int]]:
    """Every linear layer of a block: name -> (out, in) features."""
    c = SHAPES[shape]
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    return {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def write_carrier(path: Path, shape: str) -> None:
    """``path`` with config.json and a tokenizer that knows every byte; serve it with ``--load-format dummy``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config(shape)))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {token: number for number, token in enumerate(tokens)}
    vocab.update({f"w{number}": number for number in range(len(vocab), SHAPES[shape]["vocab_size"])})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.save_pretrained(str(path))


def write_weights(path: Path, shape: str) -> None:
    """Random bf16 weights in one safetensors file, for the configuration that loads them as a person's carrier does."""
    import torch
    from safetensors.torch import save_file

    c = SHAPES[shape]
    hidden, head = c["hidden_size"], c["head_dim"]
    state = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(c["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        state |= {f"{block}.{name}.weight": size for name, size in linears(shape).items()}
        state |= {f"{block}.{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        state |= {f"{block}.self_attn.{name}.weight": (head,) for name in ("q_norm", "k_norm")}
    save_file(
        {name: (torch.randn(size, device="cuda") * 0.02).bfloat16().cpu() for name, size in state.items()},
        str(path / "model.safetensors"),
        metadata={"format": "pt"},
    )


def write_adapter(path: Path, shape: str, rank: int, seed: int) -> None:
    """A PEFT adapter of every linear layer, bf16: 132,188,360 bytes at rank 32 of the reference carrier."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    state = {}
    for layer in range(SHAPES[shape]["num_hidden_layers"]):
        for name, (out, inputs) in linears(shape).items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            state[f"{prefix}.lora_A.weight"] = (torch.randn(rank, inputs, device="cuda") * 0.01).bfloat16().cpu()
            state[f"{prefix}.lora_B.weight"] = (torch.randn(out, rank, device="cuda") * 0.01).bfloat16().cpu()
    path.mkdir(parents=True, exist_ok=True)
    save_file(state, str(path / "adapter_model.safetensors"))
    record = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "bias": "none",
        "base_model_name_or_path": "carrier",
        "target_modules": [name.split(".")[1] for name in linears(shape)],
    }
    (path / "adapter_config.json").write_text(json.dumps(record))
