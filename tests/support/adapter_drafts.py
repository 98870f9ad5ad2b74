"""Drafts of adapters for the tiny carrier, and the ways in which tests/support/bad_adapters.py spoils them."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from tests.support.adapter_dirs import raw_file
from tests.support.tiny_carrier import LAYERS, LINEARS

PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
RANK = 8
MAX_LORA_RANK = 8  # of the engine that the bad ones are tried on
MODULES = tuple(f"model.layers.{layer}.{linear}" for layer in range(LAYERS) for linear in LINEARS)
Q0, K0 = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"


@dataclass
class Tensor:
    """One tensor as the file has it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def plain(values: numpy.ndarray, dtype: str = "F32") -> Tensor:
    """The values as a tensor; BF16 is the upper half of a float32."""
    if dtype == "BF16":
        data = (numpy.ascontiguousarray(values, dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = numpy.ascontiguousarray(values).astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()
    return Tensor(dtype, values.shape, data)


@dataclass
class Draft:
    """An adapter that is still to be written. ``pairs`` holds A and B by module, ``tensors`` what is added by name."""

    config: dict[str, Any]
    pairs: dict[str, list[numpy.ndarray]]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    name: Callable[[str, str], str] = lambda module, part: f"{PREFIX}{module}.lora_{part}.weight"
    dtype: str = "F32"
    after: list[Callable[[Path], None]] = field(default_factory=list)

    def add(self, module: str, a: tuple[int, ...], b: tuple[int, ...], name: str = "{}.lora_{}.weight") -> None:
        for part, shape in (("A", a), ("B", b)):
            self.tensors[PREFIX + name.format(module, part)] = plain(numbers(f"{module} {part}", shape))

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True)
        listed = {
            self.name(module, part): plain(values, self.dtype)
            for module, both in self.pairs.items()
            for part, values in zip("AB", both, strict=True)
        }
        (directory / WEIGHTS).write_bytes(packed({**listed, **self.tensors}))
        (directory / CONFIG).write_text(json.dumps(self.config))
        for change in self.after:
            change(directory)
        return directory


def packed(tensors: dict[str, Tensor]) -> bytes:
    """The safetensors file."""
    listed: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, one in tensors.items():
        listed[name] = {
            "dtype": one.dtype,
            "shape": list(one.shape),
            "data_offsets": [position, position + len(one.data)],
        }
        position += len(one.data)
    return raw_file(json.dumps(listed).encode(), b"".join(one.data for one in tensors.values()))


def numbers(seed: str, shape: tuple[int, ...], scale: float = 0.05) -> numpy.ndarray:
    """Normal numbers that depend on ``seed`` only."""
    generator = numpy.random.default_rng(list(seed.encode()))
    return (generator.standard_normal(shape) * scale).astype(numpy.float32)


def draft(rank: int = RANK) -> Draft:
    """A good adapter, as PEFT writes one."""
    pairs = {}
    for module in MODULES:
        out, inp = LINEARS[module.split(".", 3)[3]]
        pairs[module] = [numbers(f"{module} A", (rank, inp)), numbers(f"{module} B", (out, rank))]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "base_model_name_or_path": "tiny",
        "target_modules": [linear.split(".")[1] for linear in LINEARS],
    }
    return Draft(config, pairs)


def setting(**values: Any) -> Callable[[Draft], None]:
    """Change the configuration; a value of ... takes the key away."""

    def change(made: Draft) -> None:
        for key, value in values.items():
            if value is ...:
                del made.config[key]
            else:
                made.config[key] = value

    return change


def afterwards(action: Callable[[Path], object]) -> Callable[[Draft], None]:
    """Do something to the files that are written."""
    return lambda made: made.after.append(lambda directory: (action(directory), None)[1])


def weights(change: Callable[[bytes], bytes]) -> Callable[[Draft], None]:
    return afterwards(lambda at: (at / WEIGHTS).write_bytes(change((at / WEIGHTS).read_bytes())))


def config_text(change: Callable[[str], str]) -> Callable[[Draft], None]:
    return afterwards(lambda at: (at / CONFIG).write_text(change((at / CONFIG).read_text())))


def named(change: Callable[[str, str], str]) -> Callable[[Draft], None]:
    return lambda made: setattr(made, "name", change)


def pairs(change: Callable[[dict[str, list[numpy.ndarray]]], object]) -> Callable[[Draft], None]:
    return lambda made: (change(made.pairs), None)[1]


def added(module: str, a: tuple[int, ...], b: tuple[int, ...], name: str = "{}.lora_{}.weight") -> Any:
    return lambda made: made.add(module, a, b, name)


def tensor(name: str, shape: tuple[int, ...]) -> Callable[[Draft], None]:
    return lambda made: made.tensors.update({PREFIX + name: plain(numbers(name, shape))})


def both(*changes: Callable[[Draft], None]) -> Callable[[Draft], None]:
    return lambda made: [change(made) for change in changes] and None


def gone(at: Path) -> None:
    for path in at.iterdir():
        path.unlink()
    at.rmdir()


def directory_instead(name: str) -> Callable[[Path], object]:
    def change(at: Path) -> None:
        (at / name).unlink()
        (at / name).mkdir()

    return change


def link(at: Path, target: str) -> None:
    (at / WEIGHTS).rename(at / "weights.safetensors")
    (at / WEIGHTS).symlink_to(target)


def escape(at: Path) -> None:
    outside = at.with_name(f"{at.name}-outside.safetensors")
    (at / WEIGHTS).rename(outside)
    (at / WEIGHTS).symlink_to(outside)


def socket_beside(at: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(at)  # a socket's path must be short
        try:
            one.bind("agent.sock")
        finally:
            os.chdir(here)


def nested(at: Path) -> None:
    (at / "other").mkdir()
    for name in (CONFIG, WEIGHTS):
        (at / "other" / name).write_bytes((at / name).read_bytes())


def sharded(at: Path) -> None:
    (at / WEIGHTS).rename(at / "adapter_model-00001-of-00001.safetensors")


def deep(at: Path) -> None:
    (at / CONFIG).write_text('{"r": ' + "[" * 100_000 + "]" * 100_000 + "}")


def huge_config(at: Path) -> None:
    with (at / CONFIG).open("ab") as stream:
        stream.truncate((16 << 20) + 1)


def huge_header(at: Path) -> None:
    length = (32 << 20) + 1
    with (at / WEIGHTS).open("wb") as stream:
        stream.write(struct.pack("<Q", length) + b"{}")
        stream.truncate(8 + length)


def one_side(made: Draft, module: str, part: int, values: numpy.ndarray) -> None:
    made.pairs[module][part] = values


def without(made: Draft, part: str) -> None:
    """Only one of the pair of the first module."""
    values = made.pairs.pop(Q0)
    kept = "B" if part == "A" else "A"
    made.tensors[f"{PREFIX}{Q0}.lora_{kept}.weight"] = plain(values["AB".index(kept)])


def other_rank(made: Draft, rank: int) -> None:
    made.pairs.update(draft(rank).pairs)


def wider(made: Draft) -> None:
    for module, (a, b) in made.pairs.items():
        made.pairs[module] = [numbers(module, (RANK, a.shape[1] * 2)), numbers(module, (b.shape[0] * 2, RANK))]


def narrower(made: Draft) -> None:
    """Of a smaller carrier: an engine that copies what fits takes it."""
    for module, (a, b) in made.pairs.items():
        made.pairs[module] = [a[:, : a.shape[1] // 2], b[: b.shape[0] // 2]]


def zeroed(made: Draft, modules: int) -> None:
    for module in list(made.pairs)[:modules]:
        made.pairs[module][1] = made.pairs[module][1] * 0


def value(made: Draft, value: float) -> None:
    made.pairs[Q0][0][3, 5] = value


def integers(made: Draft) -> None:
    values = made.pairs.pop(Q0)
    for part, one in zip("AB", values, strict=True):
        made.tensors[f"{PREFIX}{Q0}.lora_{part}.weight"] = Tensor("I8", one.shape, bytes(one.size - 1) + b"\1")


def typed(dtype: str) -> Callable[[Draft], None]:
    return lambda made: setattr(made, "dtype", dtype)


def moved(made: Draft, module: str) -> None:
    made.pairs[module] = made.pairs.pop(Q0)


def keep(made: Draft, wanted: Callable[[str], bool]) -> None:
    made.pairs = {module: values for module, values in made.pairs.items() if wanted(module)}


def first_layer(made: Draft) -> None:
    keep(made, lambda module: ".0." in module)


def attention_only(made: Draft) -> None:
    keep(made, lambda module: "self_attn" in module)
    made.config["target_modules"] = ["q_proj", "k_proj", "v_proj", "o_proj"]


def targeted(name: str) -> Callable[[Draft], None]:
    """One more target module."""
    return lambda made: made.config["target_modules"].append(name)


def three(made: Draft) -> None:
    made.pairs[Q0][0] = made.pairs[Q0][0][None]


def wider_pattern(made: Draft) -> None:
    """Different ranks by rank_pattern, as PEFT writes them."""
    made.config.update(r=4, lora_alpha=8, rank_pattern={"q_proj": 8, "layers.1.self_attn.k_proj": 2})
    for module, values in made.pairs.items():
        rank = 8 if module.endswith("q_proj") else 2 if module.endswith("layers.1.self_attn.k_proj") else 4
        made.pairs[module] = [values[0][:rank], values[1][:, :rank]]


def renamed(old: str, new: str) -> Callable[[str, str], str]:
    return lambda module, part: f"{PREFIX}{module.replace(old, new)}.lora_{part}.weight"
