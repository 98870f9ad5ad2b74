"""What a real engine does with each adapter of tests/support/bad_adapters.py, beside what lora_adapter_check says.

usage: python -m tests.support.bad_adapters_engine DIRECTORY      (from the repository's root, in the dev environment)

Starts one vLLM CPU engine below DIRECTORY (about 30 s, 2.4 GB), loads one adapter after the other and asks each for the
log-probabilities of one text. After a crash the engine is started again. Prints a table for
docs/decisions/0004-adapter-checks.md and writes DIRECTORY/answers.json. It is no test: what another engine does is
news, and no failure of this project.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tests.conftest  # noqa: F401 - makes library/ and the core importable

# isort: split
import requests
from ansible.module_utils.voices.adapter_check import Seat, check_adapter
from ansible.module_utils.voices.adapter_check_client import read_source
from ansible.module_utils.voices.adapter_findings import CODES, ERROR
from ansible.module_utils.voices.carrier_tensors_client import read_carrier_modules
from ansible.module_utils.voices.names import BASE_MODEL
from ansible.module_utils.voices.seat_api import error_text

from tests.support.adapter_drafts import MAX_LORA_RANK
from tests.support.bad_adapters import BAD, DOUBTFUL, GOOD, Case
from tests.support.live_engine import LiveEngine, running_engine

PROBE = "It was late in the afternoon when the old woman closed the gate, and nobody on the road said a word."
PATIENCE_S = 60.0
_NOISE = re.compile(r"Call to add_lora method failed: Worker failed with error |, please check the stack trace.*")
SETTLE_S = 1.5  # an engine process that dies takes its server with it within a second
REFERENCE = next(case for case in GOOD if case.name == "as-peft-writes-it")


@dataclass(frozen=True)
class Answer:
    """``did``: refused, crashed, silent (bit-identical with the base), speaks, or error (loaded, but cannot answer)."""

    case: str
    code: str
    ours: str
    did: str
    words: str
    from_base: float
    from_reference: float


class Gone(Exception):
    """The engine is not there any more."""


class Asked:
    """One running engine."""

    def __init__(self, engine: LiveEngine) -> None:
        self.engine = engine
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {engine.key}"

    def post(self, path: str, body: dict[str, object]) -> tuple[int, str]:
        try:
            answer = self.session.post(f"{self.engine.base_url}{path}", json=body, timeout=PATIENCE_S)
        except requests.RequestException as error:
            raise Gone(type(error).__name__) from None
        return answer.status_code, answer.text

    def listen(self, model: str) -> list[float] | str:
        """The log-probabilities of the probe, or the words with which the engine fails."""
        body = {"model": model, "prompt": PROBE, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        status, text = self.post("/v1/completions", body)
        if status != 200:
            return f"{status} {error_text(text)}"
        given = json.loads(text)["choices"][0]["prompt_logprobs"]
        return [next(iter(one.values()))["logprob"] for one in given if one]

    def alive(self) -> bool:
        time.sleep(SETTLE_S)
        return self.engine.api().healthy()


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference; NaN where one of them is no number."""
    found = [abs(left - right) for left, right in zip(one, other, strict=True)]
    return float("nan") if any(value != value for value in found) else max(found)


def ours(path: Path, seat: Seat) -> str:
    seen = check_adapter(read_source(str(path), read_weights=True), seat)
    return seen.findings[0].severity if seen.findings else "good"


def judge(
    case: Case, path: Path, asked: Asked, base: list[float], reference: list[float]
) -> tuple[str, str, float, float]:
    """(did, words, from base, from reference) of one adapter."""
    nan = float("nan")
    name = f"lv-{case.name}"
    try:
        status, text = asked.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        if status != 200:
            words = f"{status} {error_text(text)}"
            return ("refused" if asked.alive() else "crashed"), words, nan, nan
        heard = asked.listen(name)
        if isinstance(heard, str):
            return ("error" if asked.alive() else "crashed"), heard, nan, nan
        again = asked.listen(BASE_MODEL)
        if again != base:
            return "error", "the base answers otherwise since", nan, nan
        asked.post("/v1/unload_lora_adapter", {"lora_name": name})
    except Gone as error:
        return "crashed", str(error), nan, nan
    apart = distance(heard, base)
    return ("silent" if heard == base else "speaks"), "", apart, distance(heard, reference) if reference else 0.0


def answers(root: Path, cases: Sequence[Case]) -> Iterator[Answer]:
    """Every case's answer, on as many engines as it takes."""
    adapters = root / "adapters"
    adapters.mkdir()
    waiting = list(cases)
    run = 0
    while waiting:
        run += 1
        with contextlib.ExitStack() as stack:
            place = root / f"engine-{run}"
            place.mkdir()
            engine = stack.enter_context(running_engine(place))
            asked = Asked(engine)
            seat = Seat(read_carrier_modules(place / "carriers/tiny"), MAX_LORA_RANK)
            base = asked.listen(BASE_MODEL)
            assert isinstance(base, list), base
            reference_at = adapters / f"reference-{run}"
            REFERENCE.write(reference_at)
            asked.post("/v1/load_lora_adapter", {"lora_name": "lv-reference", "lora_path": str(reference_at)})
            reference = asked.listen("lv-reference")
            assert isinstance(reference, list), reference
            while waiting:
                case = waiting.pop(0)
                path = case.write(adapters / case.name)
                did = judge(case, path, asked, base, reference)
                print(f"{case.name}: {did}", file=sys.stderr, flush=True)
                yield Answer(case.name, case.code, ours(path, seat), *did)
                if did[0] == "crashed":
                    break


def table(found: Sequence[Answer]) -> str:
    """Markdown, one row a case."""
    rows = [
        "| code | adapter | here | vLLM | how far from the base, from the good one | its words |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        apart = f"{one.from_base:.3g}, {one.from_reference:.3g}" if one.did in ("silent", "speaks") else ""
        words = _NOISE.sub("", one.words).replace("|", "/")[:100]
        rows.append(f"| {one.code or '(good)'} | {one.case} | {one.ours} | {one.did} | {apart} | {words} |")
    return "\n".join(rows)


def shares(found: Sequence[Answer]) -> str:
    """How many of those with an error here the engine accepts."""
    bad = [one for one in found if one.code and CODES[one.code].severity == ERROR]
    counts = {did: sum(one.did == did for one in bad) for did in ("refused", "silent", "speaks", "error", "crashed")}
    return f"{len(bad)} adapters of {len({one.code for one in bad})} codes with an error here: {counts}"


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]).absolute()
    root.mkdir(parents=True)
    cases = [case for case in (*GOOD, *DOUBTFUL, *BAD) if not case.carrier]
    found = []
    begun = time.monotonic()
    for one in answers(root, cases):
        found.append(one)
        (root / "answers.json").write_text(json.dumps([asdict(each) for each in found], indent=1))
    print(table(found))
    print(f"\n{shares(found)}; {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
