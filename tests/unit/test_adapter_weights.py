"""Non-finite and all-zero weights found in bytes, against numpy's own word."""

from __future__ import annotations

import time

import numpy
import pytest
from ansible.module_utils.voices.adapter_check import Seat, Source, check_adapter
from ansible.module_utils.voices.adapter_weights import ELEMENT_BYTES, PIECE_BYTES, Scan, scan
from ansible.module_utils.voices.carrier_tensors import CarrierModules
from ansible.module_utils.voices.safetensors_header import Tensor
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = tuple(ELEMENT_BYTES)


def values_of(data: bytes, dtype: str) -> numpy.ndarray:
    """The numbers by numpy, which has no BF16: that is the upper half of a float32."""
    if dtype == "BF16":
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(data, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype])


def by_numpy(data: bytes, dtype: str) -> Scan:
    values = values_of(data, dtype)
    bad = ~numpy.isfinite(values)
    first = int(bad.argmax()) if bad.any() else -1
    return Scan(len(values), int(bad.sum()), first, bool((values == 0).all()))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_value_of_two_bytes(dtype: str) -> None:
    for value in range(1 << 16):
        data = value.to_bytes(2, "little")
        assert scan([data], dtype) == by_numpy(data, dtype), hex(value)


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_numbers_at_the_edges(dtype: str) -> None:
    kind = {"F32": numpy.float32, "F64": numpy.float64}[dtype]
    info = numpy.finfo(kind)
    edges = [0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, numpy.inf, -numpy.inf, numpy.nan, 1.0]
    for value in edges:
        data = numpy.array([value], dtype=kind).tobytes()
        assert scan([data], dtype) == by_numpy(data, dtype), value


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    words=st.lists(
        st.integers(0, 2**64 - 1)
        | st.sampled_from([0, 1 << 63, 0x7F80 << 48, 0x7FF0 << 48, 0x7C00 << 48, 0x7C00, 0x80]),
        min_size=1,
        max_size=24,
    ),
    piece=st.integers(1, 9),
)
def test_any_bytes_in_any_pieces(dtype: str, words: list[int], piece: int) -> None:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    step = piece * ELEMENT_BYTES[dtype]
    assert scan([data[at : at + step] for at in range(0, len(data), step)], dtype) == by_numpy(data, dtype)


def test_nothing_is_all_zero_and_finite() -> None:
    assert scan([], "F32") == Scan(0, 0, -1, True)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_it_is_no_loop_over_elements(dtype: str) -> None:
    """8 MiB in far less than a loop of Python takes for its 2 to 4 million elements (about a second)."""
    generator = numpy.random.default_rng(5)
    if dtype == "F16":
        data = generator.standard_normal(PIECE_BYTES // 2).astype("<f2").tobytes()
    else:
        data = (generator.standard_normal(PIECE_BYTES // 4) * 0.02).astype("<f4").tobytes()
    begun = time.process_time()
    assert scan([data] * 8, dtype).zero is False
    assert time.process_time() - begun < 0.4


def test_the_finding_counts_and_places_what_is_not_finite() -> None:
    tensor = Tensor("model.layers.0.mlp.up_proj.lora_A.weight", "F32", (2, 4), 0, 32)
    config = b'{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["up_proj"]}'
    source = Source(config=config, tensors=(tensor,), scans={tensor.name: Scan(8, 3, 5, False)})
    seen = check_adapter(source, Seat(CarrierModules(known=False, why_unknown="none given")))
    (one,) = (one for one in seen.findings if one.code == "non-finite")
    assert (one.message, one.tensor) == ("3 of 8 weights are NaN or infinite, the first at 5", tensor.name)
