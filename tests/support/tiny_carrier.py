"""Make a tiny, real Qwen3 carrier and rank-8 PEFT voices for it, without torch and without a download.

usage: python -m tests.support.tiny_carrier DEST [--voices lv-austen lv-bronte ...]

Writes ``DEST/carriers/tiny`` (config, weights, tokenizer and chat template; 4.2 M parameters, float32) and
``DEST/adapters/<name>-tiny-v1`` for each voice. The same bytes come out on every run: the weights are drawn from
numpy's PCG64 generator, seeded by the name. The text is noise, but every voice's noise is its own at temperature 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_SIZE, VOCAB = 4, 256, 704, 4, 2, 64, 2048
LINEARS = {  # name: (out features, in features)
    "self_attn.q_proj": (HEADS * HEAD_SIZE, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_SIZE),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEFAULT_VOICES = ("lv-austen", "lv-bronte", "lv-homer")
CORPUS = Path(__file__).with_name("corpus.txt")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _generator(name: str) -> numpy.random.Generator:
    return numpy.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def _normal(generator: numpy.random.Generator, shape: tuple[int, ...], scale: float) -> numpy.ndarray:
    return (generator.standard_normal(shape) * scale).astype(numpy.float32)


def _save(tensors: dict[str, numpy.ndarray], path: Path) -> None:
    """safetensors makes the file its owner's alone; an engine under another user reads it too."""
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def _training_lines() -> list[str]:
    """The corpus, and coined words (heads and tails of its words joined) so that the vocabulary fills up."""
    text = CORPUS.read_text()
    words = sorted({word.strip('.,;:"?!()').lower() for word in text.split() if len(word) > 5})
    coined = [head[:4] + tail[-4:] for head in words for tail in words[::7]]
    return [*text.splitlines(), " ".join(coined)]


def write_tokenizer(directory: Path, positions: int) -> None:
    """Train a byte-level BPE of VOCAB entries on the corpus beside this file and write it with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_lines(), trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(f"tokenizer has {tokenizer.get_vocab_size()} entries, the carrier {VOCAB}: lengthen {CORPUS}")
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": positions,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def write_carrier(directory: Path, *, positions: int = 2048) -> None:
    """Write the carrier: Qwen3 architecture, tied embeddings, float32, for prompts of up to ``positions`` tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(
        directory / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "max_position_embeddings": positions,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "vocab_size": VOCAB,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    )
    _write_json(directory / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0})
    write_tokenizer(directory, positions)
    generator = _generator("voices tiny carrier")
    tensors = {"model.embed_tokens.weight": _normal(generator, (VOCAB, HIDDEN), 0.06)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, shape in LINEARS.items():
            tensors[f"{prefix}.{name}.weight"] = _normal(generator, shape, 0.06)
        for norm, size in (
            ("input_layernorm", HIDDEN),
            ("post_attention_layernorm", HIDDEN),
            ("self_attn.q_norm", HEAD_SIZE),
            ("self_attn.k_norm", HEAD_SIZE),
        ):
            tensors[f"{prefix}.{norm}.weight"] = numpy.ones(size, dtype=numpy.float32)
    tensors["model.norm.weight"] = numpy.ones(HIDDEN, dtype=numpy.float32)
    _save(tensors, directory / "model.safetensors")


def write_adapter(directory: Path, name: str, *, rank: int = 8, scale: float = 0.05, seed: str = "") -> None:
    """Write a PEFT LoRA adapter over every linear layer.

    ``scale`` is the standard deviation of A and B; ``seed`` replaces the name as the seed, so that one voice can have
    several versions (changed weights under one name).
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = _generator(seed or name)
    tensors: dict[str, numpy.ndarray] = {}
    for layer in range(LAYERS):
        for linear, (out, inp) in LINEARS.items():
            prefix = f"base_model.model.model.layers.{layer}.{linear}"
            tensors[f"{prefix}.lora_A.weight"] = _normal(generator, (rank, inp), scale)
            tensors[f"{prefix}.lora_B.weight"] = _normal(generator, (out, rank), scale)
    _save(tensors, directory / "adapter_model.safetensors")
    _write_json(
        directory / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": rank,
            "lora_alpha": 2 * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "base_model_name_or_path": "tiny",
            "target_modules": [linear.split(".")[1] for linear in LINEARS],
        },
    )


def _made_whole(directory: Path, write) -> None:
    """Write into a temporary neighbour and rename, so that a kill leaves nothing half made under the name."""
    if directory.exists():
        return
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    write(temporary)
    temporary.rename(directory)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the tiny carrier and its voices.")
    parser.add_argument("dest", type=Path)
    parser.add_argument("--voices", nargs="*", default=list(DEFAULT_VOICES))
    options = parser.parse_args(argv)
    for parent in ("carriers", "adapters"):
        (options.dest / parent).mkdir(parents=True, exist_ok=True)
    _made_whole(options.dest / "carriers/tiny", write_carrier)
    for voice in options.voices:
        _made_whole(options.dest / f"adapters/{voice}-tiny-v1", lambda path, name=voice: write_adapter(path, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
