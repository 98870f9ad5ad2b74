"""The adapter store: its plan over a model, its client on a real directory with kills, full disks and bad sources."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from ansible.module_utils.voices import adapter_files, store_client
from ansible.module_utils.voices.adapter_files import (
    Adapter,
    Broken,
    File,
    config_rank,
    digest_of,
    framed,
    read_adapter,
)
from ansible.module_utils.voices.plan import Action, VoicesError
from ansible.module_utils.voices.store import Desired, Plan, Voice, desired_from, entry_name, plan, voice_of
from ansible.module_utils.voices.store_client import StoreClient, converge
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.adapter_dirs import set_digest, tree, weights, write_adapter

A, B, C = "a" * 64, "b" * 64, "c" * 64


def adapter(digest: str, rank: int = 8, size: int = 100) -> Adapter:
    return Adapter("/somewhere", digest, rank, size, (File("adapter_config.json", "/somewhere/x", size),))


@dataclass
class Model:
    """A store and its sources in memory. ``asked`` lists the sources that were read."""

    stored: dict[str, Adapter | Broken] = field(default_factory=dict)
    sources: dict[str, Adapter | Broken] = field(default_factory=dict)
    free: int = 10**9
    asked: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return sorted(self.stored)

    def entry(self, name: str) -> Adapter | Broken | None:
        return self.stored.get(name)

    def source(self, path: str) -> Adapter | Broken:
        self.asked.append(path)
        return self.sources.get(path, Broken(("does not exist",)))

    def used(self, paths: Iterable[str]) -> set[str]:
        return {os.path.basename(path) for path in paths}

    def free_bytes(self) -> int:
        return self.free

    def apply(self, made: Plan) -> None:
        for step in made.steps:
            if step.adapter is None:
                del self.stored[step.entry]
            else:
                self.stored[step.entry] = step.adapter


def refusal(desired: Desired, model: Model) -> str:
    with pytest.raises(VoicesError) as caught:
        plan(desired, model)
    return str(caught.value)


def lines(made: Plan) -> list[tuple[str, str, str, Any]]:
    return [(action.do, action.what, action.why, action.after) for action in made.actions]


def only(name: str = "lv-x", source: str = "/s", pin: str = "", **more: Any) -> Desired:
    return Desired(voices=(Voice(name, source, pin),), **more)


# --- parameters -------------------------------------------------------------------------------------------------------


def test_good_parameters_come_through() -> None:
    found = desired_from(
        {"lv-y": {"source": "/y", "digest": None}, "lv-x": {"source": "/x", "digest": A[:12]}},
        ["lv-z", "lv-z"],
        ["/p"],
        8,
    )
    assert found == Desired((Voice("lv-x", "/x", A[:12]), Voice("lv-y", "/y")), ("lv-z",), ("/p",), 8)


@pytest.mark.parametrize(
    ("voices", "named"),
    [
        ({"voices-base": {"source": "/s"}}, "named like the base"),
        ({"lv_x": {"source": "/s"}}, "'lv_x' is outside the naming rule"),
        ({"lv-x/../y": {"source": "/s"}}, "outside the naming rule"),
        ({7: {"source": "/s"}}, "voice 7 is outside"),
        ({"lv-x": "/s"}, "not a map with source"),
        ({"lv-x": None}, "not a map with source"),
        ({"lv-x": {}}, "source None; a source is an absolute path"),
        ({"lv-x": {"source": "relative"}}, "'relative'; a source is an absolute path"),
        ({"lv-x": {"source": "/a\0b"}}, "a source is an absolute path"),
        ({"lv-x": {"source": "/s", "sorce": 1}}, "unknown key 'sorce'"),
        ({"lv-x": {"source": "/s", "digest": "a" * 11}}, "12 to 64 lower-case hex"),
        ({"lv-x": {"source": "/s", "digest": "a" * 65}}, "12 to 64 lower-case hex"),
        ({"lv-x": {"source": "/s", "digest": "A" * 12}}, "12 to 64 lower-case hex"),
        ({"lv-x": {"source": "/s", "digest": 123456789012}}, "in quotes"),
    ],
)
def test_bad_voices_are_refused(voices: Mapping[Any, Any], named: str) -> None:
    with pytest.raises(VoicesError) as caught:
        desired_from(voices)
    assert named in str(caught.value)


def test_all_bad_parameters_stand_in_one_message() -> None:
    with pytest.raises(VoicesError) as caught:
        desired_from({"lv-x": {"source": "s"}, "lv-y": 3}, ["lv-y", "Homer", "../x"], max_lora_rank=-1)
    text = str(caught.value)
    assert text.startswith("6 errors, nothing was changed:\n- ")
    for part in ("'lv-x' has the source", "'lv-y' is 3", "'lv-y' is both", "'Homer'", "'../x'", "max_lora_rank is -1"):
        assert part in text


@pytest.mark.parametrize(
    "name", ["lv-x", "@" + A[:12], "lv-x@" + "a" * 11, "lv-x@" + "a" * 13, "lv-x@" + "A" * 12, "x@" + A[:12], ".lock"]
)
def test_what_is_no_entry_has_no_voice(name: str) -> None:
    assert voice_of(name) is None


def test_temporary_names_are_never_entries() -> None:
    for prefix in (store_client._INCOMING, store_client._OUTGOING):
        assert voice_of(prefix + "lv-x@" + A[:12]) is None
    assert voice_of("lv-x-2@" + A[:12]) == "lv-x-2"


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_a_new_voice_is_stored() -> None:
    made = plan(only(), Model(sources={"/s": adapter(A)}))
    assert lines(made) == [("store", "lv-x", "new", f"lv-x@{A[:12]}")]
    assert made.entries["lv-x"] == (f"lv-x@{A[:12]}", adapter(A))


def test_a_changed_source_is_stored_beside_the_old_entry() -> None:
    made = plan(only(), Model(stored={f"lv-x@{A[:12]}": adapter(A)}, sources={"/s": adapter(B)}))
    assert lines(made) == [("store", "lv-x", "changed source", f"lv-x@{B[:12]}")]


def test_another_voice_with_a_longer_name_is_another_voice() -> None:
    made = plan(only(), Model(stored={f"lv-x-y@{A[:12]}": adapter(A)}, sources={"/s": adapter(A)}))
    assert lines(made) == [("store", "lv-x", "new", f"lv-x@{A[:12]}")]


def test_what_is_there_needs_nothing() -> None:
    made = plan(only(), Model(stored={f"lv-x@{A[:12]}": adapter(A)}, sources={"/s": adapter(A)}))
    assert made.steps == ()
    assert made.entries["lv-x"][0] == f"lv-x@{A[:12]}"


@pytest.mark.parametrize("damaged", [Broken(("does not exist",)), adapter(B)])
def test_a_damaged_entry_is_mended_from_its_source(damaged: Adapter | Broken) -> None:
    for pin in ("", A[:12], A):
        made = plan(only(pin=pin), Model(stored={f"lv-x@{A[:12]}": damaged}, sources={"/s": adapter(A)}))
        assert lines(made) == [("mend", f"lv-x@{A[:12]}", "", None)]
        assert made.entries["lv-x"] == (f"lv-x@{A[:12]}", adapter(A))


@pytest.mark.parametrize("length", [12, 30, 64])
def test_a_pinned_entry_is_used_without_its_source(length: int) -> None:
    model = Model(stored={f"lv-x@{A[:12]}": adapter(A)})
    made = plan(only(pin=A[:length]), model)
    assert made.steps == ()
    assert made.entries["lv-x"][1] == adapter(A)
    assert model.asked == []


def test_a_pin_that_is_not_stored_comes_from_its_source() -> None:
    made = plan(only(pin=A[:20]), Model(stored={f"lv-x@{B[:12]}": adapter(B)}, sources={"/s": adapter(A)}))
    assert lines(made) == [("store", "lv-x", "changed source", f"lv-x@{A[:12]}")]


def test_a_pin_that_nobody_has_is_refused() -> None:
    text = refusal(only(pin=C[:12]), Model(stored={f"lv-x@{B[:12]}": adapter(B)}, sources={"/s": adapter(A)}))
    for part in ("voice lv-x", C[:12], "/s holds " + A, f"the store has lv-x@{B[:12]}"):
        assert part in text
    text = refusal(only(pin=C[:12]), Model())
    assert "source /s does not exist" in text
    assert "the store has" not in text


def test_a_damaged_pinned_entry_without_its_source_is_named() -> None:
    for source in ({}, {"/s": adapter(C)}):
        text = refusal(only(pin=A), Model(stored={f"lv-x@{A[:12]}": adapter(B)}, sources=dict(source)))
        assert f"entry lv-x@{A[:12]} is damaged: it holds {B}" in text
    text = refusal(only(pin=A), Model(stored={f"lv-x@{A[:12]}": Broken(("has no config",))}))
    assert f"lv-x@{A[:12]} is damaged: it has no config" in text
    assert "cannot mend it: it does not exist" in text


def test_a_pin_that_is_wrong_behind_the_twelfth_digit_is_named() -> None:
    pin = A[:12] + "0" * 52
    text = refusal(only(pin=pin), Model(stored={f"lv-x@{A[:12]}": adapter(A)}, sources={"/s": adapter(A)}))
    assert "correct the pin after its 12th digit" in text


def test_two_adapters_with_one_short_digest_are_not_mixed_up() -> None:
    other = A[:12] + "0" * 52
    text = refusal(only(), Model(stored={f"lv-x@{A[:12]}": adapter(other)}, sources={"/s": adapter(A)}))
    assert "two adapters share the first 12 digits" in text


def test_an_unusable_source_is_named_with_what_the_store_has() -> None:
    text = refusal(only(), Model(stored={f"lv-x@{A[:12]}": adapter(A)}))
    assert text.startswith("voice lv-x: source /s does not exist")
    assert f"pin its digest; the store has lv-x@{A[:12]}" in text


@pytest.mark.parametrize(
    ("rank", "limit", "fix"),
    [
        (2, 1, "to 8"),
        (9, 8, "to 16"),
        (16, 8, "to 16"),
        (129, 64, "to 256"),
        (257, 256, "to 320"),
        (512, 320, "to 512"),
    ],
)
def test_a_rank_above_the_limit_names_the_rank_to_set(rank: int, limit: int, fix: str) -> None:
    text = refusal(only(max_lora_rank=limit), Model(sources={"/s": adapter(A, rank)}))
    assert f"rank {rank}, max_lora_rank is {limit}: set max_lora_rank {fix} (vLLM allows 1, 8, 16, 32, 64, 128" in text


def test_a_rank_above_all_limits_is_told_so() -> None:
    text = refusal(only(max_lora_rank=512), Model(sources={"/s": adapter(A, 513)}))
    assert "no setting serves it" in text


@pytest.mark.parametrize("limit", [0, 8, 16])
def test_a_rank_within_the_limit_passes(limit: int) -> None:
    assert plan(only(max_lora_rank=limit), Model(sources={"/s": adapter(A, 8)})).steps


def test_the_rank_of_a_pinned_entry_counts_too() -> None:
    text = refusal(only(pin=A[:12], max_lora_rank=8), Model(stored={f"lv-x@{A[:12]}": adapter(A, 16)}))
    assert "rank 16" in text


def test_two_voices_may_share_a_source() -> None:
    desired = Desired(voices=(Voice("lv-x", "/s"), Voice("lv-y", "/s")))
    assert [step.entry for step in plan(desired, Model(sources={"/s": adapter(A)})).steps] == [
        f"lv-x@{A[:12]}",
        f"lv-y@{A[:12]}",
    ]


def test_absent_voices_are_forgotten_after_the_copies() -> None:
    model = Model(
        stored={f"lv-z@{A[:12]}": adapter(A), f"lv-z@{B[:12]}": Broken(("is odd",)), f"lv-zz@{A[:12]}": adapter(A)},
        sources={"/s": adapter(A)},
    )
    made = plan(only(absent=("lv-z", "lv-never-there")), model)
    assert lines(made) == [
        ("store", "lv-x", "new", f"lv-x@{A[:12]}"),
        ("forget", f"lv-z@{A[:12]}", "", None),
        ("forget", f"lv-z@{B[:12]}", "", None),
    ]


def test_an_entry_in_use_is_never_forgotten() -> None:
    model = Model(stored={f"lv-z@{A[:12]}": adapter(A), f"lv-z@{B[:12]}": adapter(B)})
    text = refusal(Desired(absent=("lv-z",), in_use=(f"/store/lv-z@{B[:12]}",)), model)
    assert text == f"voice lv-z: lv-z@{B[:12]} is still in use: unload it before it is removed"


def test_too_little_room_is_refused_with_numbers() -> None:
    mib = 1 << 20
    text = refusal(only(), Model(sources={"/s": adapter(A, size=10 * mib)}, free=9 * mib))
    assert "room for 9 MiB, the new entries need 10 MiB" in text
    assert plan(only(), Model(sources={"/s": adapter(A, size=10 * mib)}, free=10 * mib)).steps
    assert not plan(only(pin=A), Model(stored={f"lv-x@{A[:12]}": adapter(A)}, free=0)).steps


def test_the_errors_of_all_voices_stand_in_one_message() -> None:
    desired = Desired(
        voices=(Voice("lv-a", "/gone"), Voice("lv-b", "/s"), Voice("lv-c", "/s", C)),
        absent=("lv-z",),
        in_use=(f"/store/lv-z@{A[:12]}",),
        max_lora_rank=4,
    )
    text = refusal(desired, Model(stored={f"lv-z@{A[:12]}": adapter(A)}, sources={"/s": adapter(A)}))
    assert text.startswith("4 errors, nothing was changed:\n- voice lv-a: ")
    assert [line.split(":")[0] for line in text.splitlines()[1:]] == [
        "- voice lv-a",
        "- voice lv-b",
        "- voice lv-c",
        "- voice lv-z",
    ]


digests = st.sampled_from([A, B, C, A[:12] + "0" * 52])
held = st.one_of(digests.map(adapter), st.just(Broken(("is damaged",))))
voice_names = st.sampled_from(["lv-a", "lv-b", "lv-c", "lv-a-b"])
states = st.builds(
    Model,
    stored=st.dictionaries(st.builds(entry_name, voice_names, digests), held, max_size=6),
    sources=st.dictionaries(st.sampled_from(["/r", "/s"]), held, max_size=2),
)
wishes = st.dictionaries(
    voice_names,
    st.fixed_dictionaries(
        {"source": st.sampled_from(["/r", "/s", "/t"]), "digest": st.sampled_from([None, A, B[:12], C[:20]])}
    ),
    max_size=3,
)


@settings(max_examples=400, deadline=None)
@given(model=states, voices=wishes, absent=st.sets(voice_names, max_size=2), used=st.sets(digests, max_size=1))
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(
    model: Model, voices: dict[str, Any], absent: set[str], used: set[str]
) -> None:
    in_use = [f"/store/{entry_name('lv-c', digest)}" for digest in used]
    desired = desired_from(voices, sorted(absent - set(voices)), in_use)
    before = dict(model.stored)
    try:
        made = plan(desired, model)
    except VoicesError:
        assert model.stored == before
        return
    model.apply(made)
    assert plan(desired, model).steps == ()
    for name, (entry, found) in made.entries.items():
        assert entry == entry_name(name, found.digest)
        assert model.stored[entry] == found
        assert found.digest.startswith(voices[name]["digest"] or "")
    kept = {name: what for name, what in before.items() if voice_of(name) not in desired.absent}
    mended = {step.entry for step in made.steps if step.action.do == "mend"}
    assert {name: model.stored[name] for name in kept if name not in mended} == {
        name: what for name, what in kept.items() if name not in mended
    }


# --- the digest -------------------------------------------------------------------------------------------------------

file_sets = st.dictionaries(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6),
    st.binary(max_size=40),
    max_size=4,
)


def given_as(files: Mapping[str, bytes], step: int = 7) -> dict[str, tuple[int, list[bytes]]]:
    return {
        name: (len(data), [data[at : at + step] for at in range(0, len(data), step)]) for name, data in files.items()
    }


def read_back(stream: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    while stream:
        name_bytes, size = struct.unpack(">QQ", stream[:16])
        name, data = stream[16 : 16 + name_bytes], stream[16 + name_bytes : 16 + name_bytes + size]
        files[name.decode()] = data
        stream = stream[16 + name_bytes + size :]
    return files


@given(files=file_sets)
def test_the_hashed_stream_can_be_read_back_in_one_way(files: dict[str, bytes]) -> None:
    assert read_back(b"".join(framed(given_as(files)))) == files


@given(files=file_sets, other=file_sets, step=st.integers(1, 50))
def test_equal_digests_mean_equal_files(files: dict[str, bytes], other: dict[str, bytes], step: int) -> None:
    assert digest_of(given_as(files)) == digest_of(given_as(dict(reversed(files.items())), step))
    assert (digest_of(given_as(files)) == digest_of(given_as(other))) == (files == other)


def test_moving_a_byte_between_name_and_content_changes_the_digest() -> None:
    assert len({digest_of(given_as(files)) for files in ({"ab": b"c"}, {"a": b"bc"}, {"a": b"b", "c": b""})}) == 3


@pytest.mark.parametrize("size", [2, 4])
def test_a_content_that_is_not_its_size_is_refused(size: int) -> None:
    with pytest.raises(VoicesError, match=f"{size} bytes before, 3 read"):
        digest_of({"a": (size, [b"abc"])})


def test_the_digest_never_changes_its_meaning(tmp_path: Path) -> None:
    """Written down: another value here would give every stored adapter a new name."""
    found = read_adapter(str(write_adapter(tmp_path / "s")))
    assert isinstance(found, Adapter)
    assert found.digest == set_digest(tmp_path / "s")
    assert found.digest == "e51e7f574dfde7828af5427f1856ea150b6cbc0c65c43c1a838fed2e2ef2b783"


# --- what an adapter directory holds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"\xff\xfe{}", "no valid JSON"),
        (b'{"r":' + b"9" * 5000 + b"}", "no valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "holds a list"),
        (b"null", "holds a NoneType"),
        (b"{}", "r = None"),
        (b'{"r":0}', "r = 0"),
        (b'{"r":-8}', "r = -8"),
        (b'{"r":true}', "r = True"),
        (b'{"r":8.0}', "r = 8.0"),
        (b'{"r":"8"}', "r = '8'"),
        (b'{"r":8,"rank_pattern":[1]}', "rank_pattern [1]"),
        (b'{"r":8,"rank_pattern":{"q":0}}', "rank_pattern 'q' = 0"),
        (b'{"r":8,"rank_pattern":{"q":"16"}}', "rank_pattern 'q' = '16'"),
    ],
)
def test_bad_configurations_are_named(tmp_path: Path, config: bytes, named: str) -> None:
    with pytest.raises(VoicesError) as caught:
        config_rank(config)
    assert named in str(caught.value)
    (write_adapter(tmp_path / "s") / "adapter_config.json").write_bytes(config)
    assert f"adapter_config.json {caught.value}" in str(read_adapter(str(tmp_path / "s")))


@pytest.mark.parametrize(
    ("config", "rank"),
    [({"r": 8}, 8), ({"r": 8, "rank_pattern": None}, 8), ({"r": 8, "rank_pattern": {"q": 32, "v": 4}}, 32)],
)
def test_the_largest_rank_counts(config: dict[str, Any], rank: int) -> None:
    assert config_rank(json.dumps(config).encode()) == rank


def broken(directory: Path) -> str:
    found = read_adapter(str(directory))
    assert isinstance(found, Broken), found
    return str(found)


def test_a_whole_adapter_is_read(tmp_path: Path) -> None:
    found = read_adapter(str(write_adapter(tmp_path / "s")))
    assert isinstance(found, Adapter)
    assert (found.rank, [file.name for file in found.files]) == (
        8,
        ["adapter_config.json", "adapter_model.safetensors"],
    )
    assert found.bytes == found.total_bytes == sum(path.stat().st_size for path in (tmp_path / "s").iterdir())


def test_what_is_no_adapter_directory_is_named(tmp_path: Path) -> None:
    assert broken(tmp_path / "gone").startswith("does not exist: correct the path")
    (tmp_path / "file").write_text("x")
    assert broken(tmp_path / "file") == "is no directory"
    (tmp_path / "empty").mkdir()
    assert "has no adapter_config.json" in broken(tmp_path / "empty")


def test_an_adapter_without_weights_is_named(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    (source / "adapter_model.safetensors").rename(source / "model.safetensors")
    assert "has no adapter_model.safetensors, the only name that vLLM loads" in broken(source)
    (source / "model.safetensors").unlink()
    assert "holds no safetensors file" in broken(source)


def test_a_truncated_or_padded_weights_file_is_named_with_numbers(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    path = source / "adapter_model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    text = broken(source)
    assert "adapter_model.safetensors is truncated" in text
    assert f"asks for {len(whole)} bytes, the file has {len(whole) - 100}" in text
    path.write_bytes(whole + b"1234")
    assert "adapter_model.safetensors has 4 bytes too many" in broken(source)
    path.write_bytes(b"")
    assert "adapter_model.safetensors is truncated: 0 bytes" in broken(source)


def test_weights_without_a_tensor_are_refused(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    (source / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert "holds no tensor" in broken(source)


@pytest.mark.parametrize("name", ["adapter_model.bin", "a.pt", "b.PTH", "c.ckpt", "sub/d.bin", "e.pkl"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    source = write_adapter(tmp_path / "s")
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_bytes(b"x")
    assert f"{name} is a pickle" in broken(source)


def test_what_a_trainer_leaves_is_no_part_of_the_voice(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    plain = read_adapter(str(source))
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth", ".hidden.safetensors", ".git/x.bin"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"x")
    write_adapter(source / "checkpoint-500", "other")
    os.mkfifo(source / "checkpoint-500" / "pipe")
    assert read_adapter(str(source)) == plain


@pytest.mark.parametrize("name", ["README.md", "tokenizer.json", "records/gate.json", "checkpoint-best/x.json"])
def test_other_files_ride_along_outside_the_digest(tmp_path: Path, name: str) -> None:
    source = write_adapter(tmp_path / "s")
    plain = read_adapter(str(source))
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_bytes(b"xyz")
    found = read_adapter(str(source))
    assert isinstance(plain, Adapter)
    assert isinstance(found, Adapter)
    assert (found.digest, found.bytes) == (plain.digest, plain.bytes)
    assert name in [file.name for file in found.files]
    assert found.total_bytes == plain.total_bytes + 3


@pytest.mark.parametrize("name", ["extra.safetensors", "sub/extra.safetensors"])
def test_every_safetensors_file_is_in_the_digest(tmp_path: Path, name: str) -> None:
    source = write_adapter(tmp_path / "s")
    plain = read_adapter(str(source))
    (source / name).parent.mkdir(exist_ok=True)
    shutil.copy(source / "adapter_model.safetensors", source / name)
    found = read_adapter(str(source))
    assert isinstance(plain, Adapter)
    assert isinstance(found, Adapter)
    assert found.digest == set_digest(source)
    assert found.digest != plain.digest
    (source / name).write_bytes(b"x")
    assert f"{name} is truncated" in broken(source)


def test_a_link_inside_the_source_counts_as_its_file(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s")
    plain = read_adapter(str(source))
    (source / ".blobs").mkdir()
    (source / "adapter_model.safetensors").rename(source / ".blobs" / "1")
    (source / "adapter_model.safetensors").symlink_to(".blobs/1")
    found = read_adapter(str(source))
    assert isinstance(plain, Adapter)
    assert isinstance(found, Adapter)
    assert found.digest == plain.digest


def test_links_that_leave_the_source_are_refused(tmp_path: Path) -> None:
    outside = write_adapter(tmp_path / "s2", "other")
    for target in (outside / "adapter_model.safetensors", Path("../s2/adapter_model.safetensors")):
        source = write_adapter(tmp_path / "s")
        (source / "adapter_model.safetensors").unlink()
        (source / "adapter_model.safetensors").symlink_to(target)
        assert f"adapter_model.safetensors is a link that leaves the directory (to {target})" in broken(source)
        (source / "adapter_model.safetensors").unlink()


@pytest.mark.parametrize("target", ["nothing-there", "records", ".", "link.json"])
def test_links_to_no_file_are_refused(tmp_path: Path, target: str) -> None:
    source = write_adapter(tmp_path / "s")
    (source / "records").mkdir()
    (source / "link.json").symlink_to(target)
    assert f"link.json is a link to {target}, which is no file" in broken(source)


def test_a_link_to_a_source_directory_is_that_directory(tmp_path: Path) -> None:
    write_adapter(tmp_path / "s")
    (tmp_path / "link").symlink_to("s")
    found, same = read_adapter(str(tmp_path / "link")), read_adapter(str(tmp_path / "s"))
    assert isinstance(found, Adapter)
    assert isinstance(same, Adapter)
    assert found.digest == same.digest


@pytest.mark.parametrize("name", ["notes.txt", "extra.safetensors"])
def test_files_that_are_no_files_are_refused_without_waiting(tmp_path: Path, name: str) -> None:
    source = write_adapter(tmp_path / "s")
    os.mkfifo(source / name)
    assert f"{name} is a fifo" in broken(source)
    (source / name).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / name))
        assert f"{name} is a socket" in broken(source)


def test_a_fifo_that_takes_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(VoicesError, match="no regular file any more"):
        adapter_files.open_regular(str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic link"):
        adapter_files.open_regular(str(tmp_path / "link"))


def test_all_problems_of_a_source_are_named(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "s", config={"r": 0})
    (source / "adapter_model.safetensors").write_bytes(b"x")
    (source / "adapter_model.bin").write_bytes(b"x")
    (source / "out").symlink_to("/etc/passwd")
    text = broken(source)
    for part in ("adapter_model.bin is a pickle", "out is a link that leaves", "r = 0", "adapter_model.safetensors is"):
        assert part in text


def test_an_unreadable_source_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    source = write_adapter(tmp_path / "s")
    monkeypatch.setattr(os, "scandir", refuse)
    assert "cannot be read: Permission denied" in broken(source)


# --- the client -------------------------------------------------------------------------------------------------------


@dataclass
class Ground:
    """A store, two sources and short ways to run."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    def source(self, seed: str = "a", name: str = "s", **more: Any) -> Path:
        return write_adapter(self.root / name, seed, **more)

    def run(self, voices: Mapping[str, Any], absent: Iterable[str] = (), check: bool = False, **more: Any) -> Plan:
        named = {name: {"source": str(what)} if isinstance(what, Path) else what for name, what in voices.items()}
        return converge(desired_from(named, list(absent), **more), StoreClient(self.store), check=check)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.store))

    def entry(self, name: str) -> Path:
        return self.store / name


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def name_for(voice: str, source: Path) -> str:
    return f"{voice}@{set_digest(source)[:12]}"


def test_an_adapter_is_copied_whole_and_read_only(ground: Ground) -> None:
    source = ground.source()
    (source / "records").mkdir()
    (source / "records" / "gate.json").write_text("{}")
    (source / "adapter_config.json").chmod(0o600)
    before = tree(source)
    old = os.umask(0o077)
    try:
        made = ground.run({"lv-x": source})
    finally:
        os.umask(old)
    entry = ground.entry(name_for("lv-x", source))
    assert lines(made) == [("store", "lv-x", "new", entry.name)]
    assert ground.names() == [".lock", entry.name]
    content = {name: data for name, (_, _, _, data) in before.items()}
    assert {name: data for name, (_, _, _, data) in tree(entry).items()} == content
    modes = {name: stat.S_IMODE(mode) for name, (_, mode, _, _) in tree(ground.store).items() if name != ".lock"}
    assert set(modes.values()) == {0o755, 0o444}
    assert stat.S_IMODE(ground.store.stat().st_mode) == 0o755
    assert all(stat.S_ISREG(mode) for name, (_, mode, _, _) in tree(entry).items() if name != "records")
    assert tree(source) == before


def test_a_link_is_copied_as_a_file_of_its_own(ground: Ground) -> None:
    source = ground.source()
    (source / "copy.safetensors").symlink_to("adapter_model.safetensors")
    ground.run({"lv-x": source})
    copied = ground.entry(name_for("lv-x", source)) / "copy.safetensors"
    assert not copied.is_symlink()
    assert copied.read_bytes() == (source / "adapter_model.safetensors").read_bytes()


def test_a_second_run_changes_nothing(ground: Ground) -> None:
    source = ground.source()
    ground.run({"lv-x": source})
    before = tree(ground.store)
    assert ground.run({"lv-x": source}).steps == ()
    assert tree(ground.store) == before


def test_check_mode_makes_the_same_plan_and_writes_nothing(ground: Ground) -> None:
    source = ground.source()
    planned = ground.run({"lv-x": source}, check=True)
    assert not ground.store.exists()
    done = ground.run({"lv-x": source})
    assert planned == done
    ground.source("b")
    before = tree(ground.root)
    planned = ground.run({"lv-y": source}, ["lv-x"], check=True)
    assert tree(ground.root) == before
    assert planned == ground.run({"lv-y": source}, ["lv-x"])
    assert [action.do for action in planned.actions] == ["store", "forget"]


def test_check_mode_leaves_a_dead_run_s_temporaries(ground: Ground) -> None:
    source = ground.source()
    (ground.store / ".incoming-dead").mkdir(parents=True)
    ground.run({"lv-x": source}, check=True)
    assert ground.names() == [".incoming-dead"]


def test_a_readme_alone_changes_nothing(ground: Ground) -> None:
    source = ground.source()
    ground.run({"lv-x": source})
    (source / "README.md").write_text("new")
    assert ground.run({"lv-x": source}).steps == ()


def test_changed_weights_get_a_new_entry_and_the_old_one_stays(ground: Ground) -> None:
    old = name_for("lv-x", ground.source())
    ground.run({"lv-x": ground.root / "s"})
    before = tree(ground.entry(old))
    new = name_for("lv-x", ground.source("b"))
    made = ground.run({"lv-x": ground.root / "s"})
    assert lines(made) == [("store", "lv-x", "changed source", new)]
    assert ground.names() == sorted([".lock", old, new])
    assert tree(ground.entry(old)) == before


def test_a_pinned_voice_outlives_its_source(ground: Ground) -> None:
    source = ground.source()
    digest = set_digest(source)
    ground.run({"lv-x": source})
    shutil.rmtree(source)
    for pin in (digest, digest[:12]):
        made = ground.run({"lv-x": {"source": str(source), "digest": pin}})
        assert made.steps == ()
        assert made.entries["lv-x"][1].digest == digest
    with pytest.raises(VoicesError, match=r"source .* does not exist: .* \(to do without it, pin its digest"):
        ground.run({"lv-x": source})


def test_a_shared_source_is_hashed_once(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ground.source()
    (ground.root / "link").symlink_to(source)
    hashed: list[str] = []
    original = adapter_files.digest_of

    def counted(files: Mapping[str, tuple[int, Iterable[bytes]]]) -> str:
        hashed.append("once")
        return original(files)

    monkeypatch.setattr(adapter_files, "digest_of", counted)
    ground.run({"lv-x": source, "lv-y": ground.root / "link"}, check=True)
    assert len(hashed) == 1
    hashed.clear()
    ground.run({"lv-x": source, "lv-y": ground.root / "link"})
    assert len(hashed) == 3  # the source, and each copy
    hashed.clear()
    ground.run({"lv-x": source, "lv-y": ground.root / "link"})
    assert len(hashed) == 3  # the source, and each entry
    other = ground.source("b", name="s2")
    hashed.clear()
    ground.run({"lv-x": source, "lv-z": other})
    assert len(hashed) == 4  # both sources, the entry that was there, the copy; nothing again under the lock


def damage(entry: Path) -> Path:
    path = entry / "adapter_model.safetensors"
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    return path


def test_a_damaged_entry_is_replaced_and_never_written_into(ground: Ground) -> None:
    source = ground.source()
    name = name_for("lv-x", source)
    ground.run({"lv-x": source})
    path = damage(ground.entry(name))
    seen = path.read_bytes()
    inode = ground.entry(name).stat().st_ino
    with path.open("rb") as reader:
        assert [action.do for action in ground.run({"lv-x": source}, check=True).actions] == ["mend"]
        assert path.read_bytes() == seen
        made = ground.run({"lv-x": source})
        assert reader.read() == seen
    assert made.actions == [Action("mend", name)]
    assert ground.entry(name).stat().st_ino != inode
    assert set_digest(ground.entry(name)) == set_digest(source)
    assert ground.names() == [".lock", name]
    assert ground.run({"lv-x": source}).steps == ()


@pytest.mark.parametrize("kind", ["file", "link", "empty", "fifo inside", "pickle inside", "truncated"])
def test_whatever_stands_in_an_entry_s_place_is_mended(ground: Ground, kind: str) -> None:
    source = ground.source()
    entry = ground.entry(name_for("lv-x", source))
    ground.run({"lv-x": source})
    if kind in ("file", "link", "empty"):
        shutil.rmtree(entry)
    if kind == "file":
        entry.write_text("x")
    elif kind == "link":
        entry.symlink_to(source)
    elif kind == "empty":
        entry.mkdir()
    elif kind == "fifo inside":
        os.mkfifo(entry / "pipe")
    elif kind == "pickle inside":
        (entry / "adapter_model.bin").write_bytes(b"x")
    else:
        (entry / "adapter_model.safetensors").chmod(0o644)
        os.truncate(entry / "adapter_model.safetensors", 50)
    assert ground.run({"lv-x": source}).actions == [Action("mend", entry.name)]
    assert not entry.is_symlink()
    assert _read(entry).digest == set_digest(source)
    assert ground.names() == [".lock", entry.name]


def _read(directory: Path) -> Adapter:
    found = read_adapter(str(directory))
    assert isinstance(found, Adapter)
    return found


def test_a_damaged_pinned_entry_without_its_source_is_left_and_named(ground: Ground) -> None:
    source = ground.source()
    digest = set_digest(source)
    ground.run({"lv-x": source})
    damage(ground.entry(name_for("lv-x", source)))
    before = tree(ground.store)
    ground.source("b")
    with pytest.raises(VoicesError, match=f"lv-x@{digest[:12]} is damaged"):
        ground.run({"lv-x": {"source": str(source), "digest": digest}})
    assert tree(ground.store) == before


def test_a_damaged_entry_is_no_source(ground: Ground) -> None:
    source = ground.source()
    entry = ground.entry(name_for("lv-x", source))
    ground.run({"lv-x": source})
    assert [step.entry for step in ground.run({"lv-y": entry}).steps] == [name_for("lv-y", source)]
    damage(entry)
    with pytest.raises(VoicesError, match="damaged entry of the store"):
        ground.run({"lv-z": entry})


def test_a_source_that_contains_the_store_is_refused(ground: Ground) -> None:
    source = ground.source()
    client = StoreClient(source / "store")
    for path in (source, source / "store"):
        with pytest.raises(VoicesError, match="contains the store"):
            converge(desired_from({"lv-x": {"source": str(path)}}), client, check=True)


def test_one_bad_voice_keeps_all_from_being_copied(ground: Ground) -> None:
    good = ground.source()
    with pytest.raises(VoicesError) as caught:
        ground.run({"lv-a": good, "lv-b": ground.root / "gone", "lv-c": ground.root})
    assert not ground.store.exists()
    for part in (
        "2 errors",
        f"voice lv-b: source {ground.root}/gone does not exist",
        "voice lv-c",
        "contains the store",
    ):
        assert part in str(caught.value)


def test_absent_entries_are_forgotten(ground: Ground) -> None:
    one, two = ground.source(name="s1"), ground.source("b", name="s2")
    ground.run({"lv-x": one})
    ground.run({"lv-x": two, "lv-y": one})
    (ground.store / "notes").mkdir()
    made = ground.run({}, ["lv-x", "lv-never"])
    assert [action.what for action in made.actions] == sorted([name_for("lv-x", one), name_for("lv-x", two)])
    assert ground.names() == [".lock", name_for("lv-y", one), "notes"]
    assert ground.run({}, ["lv-x", "lv-never"]).steps == ()


def test_an_absent_voice_of_no_store_is_no_error(ground: Ground) -> None:
    assert ground.run({}, ["lv-x"]).steps == ()
    assert not ground.store.exists()


@pytest.mark.parametrize("spelt", ["{store}/{name}", "{store}/{name}/", "{store}/../store/{name}", "{link}/{name}"])
def test_an_entry_in_use_stays_however_it_is_spelt(ground: Ground, spelt: str) -> None:
    source = ground.source()
    ground.run({"lv-x": source})
    (ground.root / "link").symlink_to("store")
    path = spelt.format(store=ground.store, link=ground.root / "link", name=name_for("lv-x", source))
    with pytest.raises(VoicesError, match="still in use"):
        ground.run({}, ["lv-x"], in_use=["/elsewhere/x", path])
    assert name_for("lv-x", source) in ground.names()


def test_a_path_in_use_elsewhere_protects_nothing_here(ground: Ground) -> None:
    source = ground.source()
    ground.run({"lv-x": source})
    assert ground.run({}, ["lv-x"], in_use=[f"/adapters/{name_for('lv-x', source)}"]).steps


def test_a_store_that_is_a_file_is_named(ground: Ground) -> None:
    source = ground.source()
    ground.store.write_text("x")
    with pytest.raises(VoicesError, match=r"store .* cannot be read: Not a directory"):
        ground.run({"lv-x": source})


def test_a_store_that_cannot_be_made_is_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: int = 0) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    source = ground.source()
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(VoicesError, match="cannot be written: Permission denied"):
        ground.run({"lv-x": source})


# --- trouble on the way -----------------------------------------------------------------------------------------------


def test_a_source_that_changes_while_it_is_copied_is_not_kept(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ground.source()
    original = store_client._copy_file

    def meddling(file: File, directory: Path) -> None:
        if file.name == "adapter_model.safetensors":
            damage(source)
        original(file, directory)

    monkeypatch.setattr(store_client, "_copy_file", meddling)
    with pytest.raises(VoicesError, match=r"changed while it was copied .*run again"):
        ground.run({"lv-x": source})
    assert ground.names() == [".lock"]


def test_a_file_that_grows_while_it_is_hashed_is_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ground.source()
    original = adapter_files.pieces_of

    def growing(path: str) -> Iterator[bytes]:
        yield from original(path)
        if path.endswith(".safetensors"):
            yield b"more"

    monkeypatch.setattr(adapter_files, "pieces_of", growing)
    assert "adapter_model.safetensors changed while it was read" in broken(source)


def test_a_full_disk_leaves_nothing_and_keeps_what_was_done(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = ground.source(name="s1"), ground.source("b", name="s2", size=3 << 20)
    original = store_client._write

    def full(handle: int, piece: bytes) -> None:
        if len(piece) >= 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle, piece)

    monkeypatch.setattr(store_client, "_write", full)
    with pytest.raises(VoicesError) as caught:
        ground.run({"lv-a": one, "lv-b": two})
    text = str(caught.value)
    assert text.startswith("store lv-b: new")
    assert "No space left on device; nothing of it was kept" in text
    assert f"(done before: store lv-a: new (none) -> {name_for('lv-a', one)})" in text
    assert ground.names() == [".lock", name_for("lv-a", one)]
    monkeypatch.undo()
    assert [action.what for action in ground.run({"lv-a": one, "lv-b": two}).actions] == ["lv-b"]


def test_a_full_disk_during_a_mend_keeps_the_old_entry(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ground.source()
    entry = ground.entry(name_for("lv-x", source))
    ground.run({"lv-x": source})
    damage(entry)
    before = tree(entry)
    renamed: list[str] = []
    original = os.rename

    def full(old: Any, new: Any) -> None:
        renamed.append(str(new))
        if len(renamed) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(old, new)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(VoicesError, match="No space left"):
        ground.run({"lv-x": source})
    assert tree(entry) == before
    assert ground.names() == [".lock", entry.name]


def test_the_gap_of_a_mend_is_two_renames_and_nothing_else(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ground.source()
    ground.run({"lv-x": source})
    damage(ground.entry(name_for("lv-x", source)))
    done: list[str] = []
    for call in CALLS:
        monkeypatch.setattr(os, call, _noting(call, getattr(os, call), done))
    ground.run({"lv-x": source})
    first = done.index("rename")
    assert done[first : first + 2] == ["rename", "rename"]
    assert "fsync" in done[:first]
    assert done.count("rename") == 2


def test_all_that_is_copied_is_on_the_disk_before_it_gets_its_name(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ground.source()
    (source / "records").mkdir()
    (source / "records" / "gate.json").write_text("{}")
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        done.append("/".join(path.relative_to(ground.store).parts[1:]) if path != ground.store else "(store)")
        fsync(handle)

    def renamed(old: Any, new: Any) -> None:
        done.append("(rename)")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    ground.run({"lv-x": source})
    expected = {"", "records", "records/gate.json", "adapter_config.json", "adapter_model.safetensors"}
    assert set(done[:-2]) == expected
    assert done[-2:] == ["(rename)", "(store)"]


def test_what_another_run_did_in_the_meantime_is_not_done_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = ground.source(), ground.source("b", name="s2")
    ground.run({"lv-x": source, "lv-z": other})
    damage(ground.entry(name_for("lv-x", source)))
    enter = StoreClient.exclusive

    def late(client: StoreClient) -> Any:
        monkeypatch.undo()
        made = ground.run({"lv-x": source, "lv-y": source}, ["lv-z"])
        assert [action.do for action in made.actions] == ["mend", "store", "forget"]
        return enter(client)

    monkeypatch.setattr(StoreClient, "exclusive", late)
    assert ground.run({"lv-x": source, "lv-y": source}, ["lv-z"]).steps == ()
    assert ground.run({"lv-x": source, "lv-y": source}, ["lv-z"]).steps == ()


def test_what_cannot_be_cleared_is_a_warning_and_stops_nobody(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    source = ground.source()
    (ground.store / ".incoming-dead").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    client = StoreClient(ground.store)
    converge(desired_from({"lv-x": {"source": str(source)}}), client, check=False)
    assert name_for("lv-x", source) in ground.names()
    assert len(client.warnings) == 1
    assert ".incoming-dead is left over" in client.warnings[0]


def test_stale_temporaries_are_cleared_and_count_as_room(ground: Ground) -> None:
    source = ground.source()
    ground.run({"lv-x": source})
    dead = ground.store / ".incoming-dead"
    write_adapter(dead, size=1 << 20)
    (ground.store / ".outgoing-dead").write_text("a file, whatever made it")
    client = StoreClient(ground.store)
    assert client.free_bytes() >= os.statvfs(ground.store).f_bavail * os.statvfs(ground.store).f_frsize + (1 << 20)
    assert ground.run({"lv-x": source}).steps == ()
    assert ground.names() == [".lock", name_for("lv-x", source)]


CALLS = ("open", "write", "rename", "fsync", "mkdir", "unlink", "rmdir", "chmod", "fchmod")


def _noting(name: str, call: Callable[..., Any], done: list[str]) -> Callable[..., Any]:
    def noted(*args: Any, **options: Any) -> Any:
        done.append(name)
        return call(*args, **options)

    return noted


def _killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that SIGKILLs itself before its system call ``number``. False when it got to its end."""
    child = os.fork()
    if child == 0:
        left = [number]

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def before(*args: Any, **options: Any) -> Any:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*args, **options)

            return before

        code = 3
        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.parametrize("job", ["store", "mend", "forget", "all"])
def test_a_kill_at_any_system_call_leaves_whole_entries_only(ground: Ground, job: str) -> None:
    source, other = ground.source(), ground.source("b", name="s2")
    (source / "README.md").write_text("x")
    kept = name_for("lv-kept", other)
    target = name_for("lv-x", source)
    voices: dict[str, Any] = {"lv-kept": other}
    if job in ("store", "mend", "all"):
        voices["lv-x"] = source
    absent = ["lv-gone"] if job in ("forget", "all") else []

    def prepare() -> None:
        if ground.store.exists():
            shutil.rmtree(ground.store)
        ground.run({"lv-kept": other, "lv-gone": other} | ({"lv-x": source} if job == "mend" else {}))
        if job == "mend":
            damage(ground.entry(target))

    number = 0
    while True:
        prepare()
        damaged = ground.entry(target).exists() and set_digest(ground.entry(target))
        killed = _killed_at(number, lambda: ground.run(voices, absent))
        for name in ground.names():
            if voice_of(name):
                digest = _read(ground.entry(name)).digest
                assert digest.startswith(name.split("@")[1]) or (name == target and digest == damaged), number
        assert kept in ground.names()
        made = ground.run(voices, absent)
        expected = (
            {kept} | ({target} if "lv-x" in voices else set()) | (set() if absent else {name_for("lv-gone", other)})
        )
        assert set(ground.names()) == {".lock"} | expected
        assert ground.run(voices, absent).steps == ()
        if not killed:
            assert made.steps == ()
            break
        number += 1
    assert number > {"store": 15, "mend": 20, "forget": 5, "all": 20}[job]


def test_a_file_size_limit_of_the_kernel_is_an_error_with_nothing_left(ground: Ground) -> None:
    source = ground.source(size=3 << 20)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
        with pytest.raises(VoicesError, match=r"store lv-x: .*File too large"):
            ground.run({"lv-x": source})

    assert not _killed_at(10**9, limited)
    assert ground.names() == [".lock"]


def test_weights_longer_than_one_buffer_are_copied(ground: Ground) -> None:
    source = ground.source(size=(2 << 20) + 12345)
    ground.run({"lv-x": source})
    entry = ground.entry(name_for("lv-x", source))
    assert (entry / "adapter_model.safetensors").read_bytes().endswith(weights("a", (2 << 20) + 12345))
