"""The header check: whole files pass, every other file is named with its numbers, no header can do harm."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from ansible.module_utils.voices.safetensors_header import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    HeaderError,
    header_length,
    parse_header,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tests.support.adapter_dirs import raw_file, safetensors_bytes


def check(content: bytes, file_bytes: int | None = None) -> Any:
    """What a client does: 8 bytes, then the header."""
    size = len(content) if file_bytes is None else file_bytes
    length = header_length(content[:8], size)
    return parse_header(content[8 : 8 + length], size)


def refusal(content: bytes, file_bytes: int | None = None) -> str:
    with pytest.raises(HeaderError) as caught:
        check(content, file_bytes)
    return str(caught.value)


def one(**changes: Any) -> bytes:
    """A header with one tensor of 16 bytes, changed."""
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}
    return raw_file(json.dumps({"a": entry}).encode(), bytes(16))


def test_a_file_of_the_reference_writer_passes() -> None:
    content = save(
        {"x": numpy.ones((2, 3), dtype=numpy.float32), "y": numpy.zeros((0, 4), dtype=numpy.int64)},
        metadata={"format": "pt"},
    )
    header = check(content)
    assert {tensor.name: (tensor.dtype, tensor.shape, tensor.end - tensor.begin) for tensor in header.tensors} == {
        "x": ("F32", (2, 3), 24),
        "y": ("I64", (0, 4), 0),
    }
    assert header.metadata == {"format": "pt"}
    assert 8 + header.header_bytes + 24 == len(content)


def test_a_header_padded_with_spaces_passes() -> None:
    assert check(raw_file(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   ', b"xy")).tensors[0].shape == (2,)


@pytest.mark.parametrize("missing", [1, 15, 16])
def test_a_truncated_file_is_named_with_its_numbers(missing: int) -> None:
    whole = one()
    text = refusal(whole[:-missing])
    assert "truncated" in text
    assert f"{len(whole)} bytes" in text
    assert f"has {len(whole) - missing}" in text
    assert f"({missing} missing)" in text


def test_a_file_cut_inside_its_header_is_truncated() -> None:
    whole = one()
    assert "truncated" in refusal(whole[:20])
    assert "has 20 bytes" in refusal(whole[:20])


@pytest.mark.parametrize("size", range(8))
def test_a_file_shorter_than_its_length_is_truncated(size: int) -> None:
    assert f"truncated: {size} bytes" in refusal(bytes(size))


def test_a_padded_file_is_named_with_its_numbers() -> None:
    whole = one()
    text = refusal(whole + b"\0\0\0")
    assert "3 bytes too many" in text
    assert f"asks for {len(whole)} bytes, the file has {len(whole) + 3}" in text


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, MAX_HEADER_BYTES + 1])
def test_a_giant_length_is_refused_before_anything_is_read(length: int) -> None:
    with pytest.raises(HeaderError, match=f"header length {length}"):
        header_length(struct.pack("<Q", length), file_bytes=2**62)


@pytest.mark.parametrize("length", [0, 1])
def test_a_length_without_room_for_an_object_is_refused(length: int) -> None:
    assert f"header length {length}" in refusal(struct.pack("<Q", length) + b"{}")


@pytest.mark.parametrize("header", [b"[]", b'"text"', b"12", b"null", b" {}", b"\xef\xbb\xbf{}"])
def test_json_that_does_not_begin_as_an_object_is_refused(header: bytes) -> None:
    assert "begins with" in refusal(raw_file(header))


@pytest.mark.parametrize(
    "header", [b"{ ", b"{}{}", b"{'a':1}", b'{"a"}', b"{\xff}", b'{"a":NaN}', b'{"a":' + b"9" * 5000 + b"}"]
)
def test_what_is_no_json_is_refused(header: bytes) -> None:
    assert "not valid JSON" in refusal(raw_file(header))


@pytest.mark.parametrize("opening", [b'{"a":', b"["])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    assert "nested too deeply" in refusal(raw_file(b'{"x":' + opening * 200_000))


def test_duplicate_keys_are_refused_at_each_depth() -> None:
    entry = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    assert "key 'a' stands twice" in refusal(raw_file(b'{"a":' + entry + b',"a":' + entry + b"}", b"x"))
    inner = b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}'
    assert "key 'dtype' stands twice" in refusal(raw_file(inner, b"x"))


@pytest.mark.parametrize("metadata", [["a"], "text", {"a": 1}, {"a": {"b": "c"}}, None])
def test_metadata_is_strings_only(metadata: Any) -> None:
    assert "__metadata__" in refusal(raw_file(json.dumps({"__metadata__": metadata}).encode()))


@pytest.mark.parametrize("offsets", [[-1, 15], [0, -16], [0, 2**64], [0], [0, 16, 16], [0.0, 16], [False, 16], "0:16"])
def test_offsets_are_two_whole_numbers(offsets: Any) -> None:
    text = refusal(one(data_offsets=offsets))
    assert "tensor 'a'" in text
    assert "data_offsets" in text


def test_offsets_that_run_backwards_are_refused() -> None:
    assert "end at 0, before they begin at 16" in refusal(one(data_offsets=[16, 0]))


@pytest.mark.parametrize("shape", [[-2, -2], [2, 2.0], [True, 4], 4, None, [2**64], [[2], 2]])
def test_shapes_are_whole_numbers(shape: Any) -> None:
    assert "shape" in refusal(one(shape=shape))


@pytest.mark.parametrize("shape", [[2, 3], [], [0], [2**63, 2**63], [2**32] * 1000, [2**63, 4, 0]])
def test_a_shape_that_is_not_its_bytes_is_refused(shape: Any) -> None:
    assert "does not take the 16 bytes" in refusal(one(shape=shape))


def test_a_shape_that_64_bits_cannot_count_is_refused_even_when_it_is_empty() -> None:
    entry = {"dtype": "U8", "shape": [2**63, 4, 0], "data_offsets": [0, 0]}
    assert "does not take the 0 bytes" in refusal(raw_file(json.dumps({"a": entry}).encode()))


@pytest.mark.parametrize("dtype", ["F31", "f32", "", None, 4, ["F32"], {}])
def test_unknown_dtypes_are_refused(dtype: Any) -> None:
    assert "none of F4" in refusal(one(dtype=dtype))


@pytest.mark.parametrize("entry", [None, [], "x", 3, {}])
def test_an_entry_is_an_object_with_its_three_keys(entry: Any) -> None:
    assert "tensor 'a'" in refusal(raw_file(json.dumps({"a": entry}).encode()))


def spans(*offsets: tuple[int, int]) -> bytes:
    listed = {
        f"t{number}": {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for number, (begin, end) in enumerate(offsets)
    }
    return raw_file(json.dumps(listed).encode(), bytes(max(end for _, end in offsets)))


def test_gaps_and_overlaps_are_named() -> None:
    assert "a gap: tensor 't1' begins at byte 5, expected 4" in refusal(spans((0, 4), (5, 8)))
    assert "a gap: tensor 't0' begins at byte 1, expected 0" in refusal(spans((1, 4)))
    assert "an overlap: tensor 't1' begins at byte 3, expected 4" in refusal(spans((0, 4), (3, 8)))
    assert "an overlap" in refusal(spans((0, 8), (0, 8)))
    assert [tensor.name for tensor in check(spans((4, 8), (0, 4), (4, 4))).tensors] == ["t1", "t2", "t0"]


def test_a_hostile_name_is_clipped() -> None:
    header = json.dumps({"x" * 100_000: {"dtype": "U8", "shape": [1], "data_offsets": [0, 2]}}).encode()
    assert len(refusal(raw_file(header, b"xx"))) < 300


def test_a_name_that_is_no_text_is_refused() -> None:
    header = b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    assert "is no text" in refusal(raw_file(header, b"x"))


sizes = st.one_of(st.integers(0, 9), st.sampled_from([-1, 2**31, 2**63, 2**64 - 1, 2**64]))
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F31"]),
        "shape": st.lists(sizes, max_size=3),
        "data_offsets": st.lists(sizes, min_size=1, max_size=3),
    }
)


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """Files that lie tensor after tensor as they should, then perhaps one number changed and the end cut or padded."""
    listed: dict[str, Any] = {}
    position = 0
    for name in draw(st.lists(st.text(max_size=3), max_size=4, unique=True)):
        dtype = draw(st.sampled_from(list(DTYPE_BITS)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        size = DTYPE_BITS[dtype] * int(numpy.prod(shape, dtype=int)) // 8
        listed[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    wrong = draw(st.none() | entries)
    if listed and wrong is not None:
        listed[draw(st.sampled_from(sorted(listed)))] = wrong
    content = raw_file(json.dumps(listed).encode() + b" " * draw(st.integers(0, 2)), bytes(position))
    change = draw(st.sampled_from([0, 0, 0, -1, 1]))
    return content[:change] if change < 0 else content + bytes(change)


@settings(max_examples=400, deadline=None)
@given(content=nearly_right())
def test_it_agrees_with_the_reference_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "differential.safetensors"
    path.write_bytes(content)
    try:
        with safe_open(path, "numpy") as opened:
            theirs = set(opened.keys())
    except SafetensorError:
        theirs = None
    try:
        ours = {tensor.name for tensor in check(content).tensors}
    except HeaderError:
        ours = None
    assert ours == theirs


@settings(max_examples=300, deadline=None)
@given(blob=st.one_of(st.binary(max_size=200), st.text(max_size=80).map(lambda text: b"{" + text.encode())))
def test_no_header_raises_anything_else(blob: bytes) -> None:
    try:
        check(raw_file(blob))
    except HeaderError as error:
        assert str(error)


def test_the_tiny_writer_of_the_tests_is_right(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"a": b"abc", "b": b""}))
    with safe_open(path, "numpy") as opened:
        assert bytes(opened.get_tensor("a")) == b"abc"
