"""What a check of an adapter can find: the table of all codes, and the rules for showing and allowing findings. Pure.

``CODES`` is the one place that lists them. What vLLM does with each is in docs/decisions/0004-adapter-checks.md.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)
SHOWN_PER_CODE = 3
_LONGEST = 160
_SHORT = reprlib.Repr()  # of a value that may be deep or long, without going through all of it
_SHORT.maxstring = _SHORT.maxother = _LONGEST


@dataclass(frozen=True)
class Kind:
    """One code: how bad it is, what it means, what helps.

    ``structural``: the files themselves cannot be read safely or wholly, so that no inventory may allow it.
    """

    severity: str
    meaning: str
    fix: str
    structural: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing found. ``tensor`` is the tensor's name as the file has it, "" where it is not about one tensor."""

    code: str
    severity: str
    tensor: str
    message: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """For a module's result: hostile names are escaped and clipped."""
        return {
            "code": self.code,
            "severity": self.severity,
            "tensor": shown(self.tensor),
            "message": self.message,
            "fix": self.fix,
        }

    def line(self) -> str:
        """For a person: ``rank-above-seat: … : set max_lora_rank to 16``."""
        tensor = f" {shown(self.tensor)}:" if self.tensor else ""
        return f"{self.code}:{tensor} {self.message} [fix: {self.fix}]"


def _error(meaning: str, fix: str) -> Kind:
    return Kind(ERROR, meaning, fix)


def _broken(meaning: str, fix: str) -> Kind:
    return Kind(ERROR, meaning, fix, structural=True)


def _warning(meaning: str, fix: str) -> Kind:
    return Kind(WARNING, meaning, fix)


_RESAVE = "save the adapter anew with PEFT's save_pretrained"
_COPY = "copy the file anew from where it was made, and compare its size"
_MERGE = "merge it into a carrier of its own, or train a plain LoRA"
_OTHER_CARRIER = "serve it on the carrier it was trained for, or train it for this one"

CODES: Mapping[str, Kind] = {
    # The directory and its files.
    "source-missing": _broken("there is no such directory", "correct the path, or bring its mount back"),
    "unreadable": _broken("the system refuses to read it", "give the user that runs this the right to read it"),
    "no-config": _broken("adapter_config.json is missing", "point source at the directory that PEFT saved"),
    "config-not-a-file": _broken("adapter_config.json is a directory", _RESAVE),
    "config-too-large": _broken("adapter_config.json is larger than any real one", _RESAVE),
    "config-invalid": _broken("adapter_config.json is no JSON object", _RESAVE),
    "config-duplicate-key": _error("a key stands twice: readers differ in which one counts", "keep one of the two"),
    "config-not-finite": _error("a number is NaN or infinite", "write the number that was trained with"),
    "no-weights": _broken("adapter_model.safetensors is missing", "save the weights under that name"),
    "sharded": _broken("the weights are in parts, and vLLM loads one file", "save them in one file (max_shard_size)"),
    "pickle": _broken("pickled weights run code when they are loaded", "save the weights as adapter_model.safetensors"),
    "link-escapes": _broken("a link leaves the directory", "put the file itself there"),
    "link-broken": _broken("a link points at no file", "put the file itself there"),
    "special-file": _broken("a fifo, socket or device", "take it away"),
    "truncated": _broken("the weight file ends too early", _COPY),
    "padded": _broken("the weight file has bytes too many", _COPY),
    "header-invalid": _broken("the weight file's header is damaged, or it is no safetensors file", _COPY),
    "header-too-large": _broken("the weight file's header is larger than any real adapter's", _RESAVE),
    "changed": _broken("the file was written to while it was read", "run again when nobody writes to it"),
    "empty": _broken("the weight file holds no tensor: the voice would be the base", _RESAVE),
    "several-adapters": _warning("a directory below holds another adapter", "keep one adapter in a directory"),
    "extra-weights": _warning("a safetensors file that vLLM does not load", "take it away, or save one file"),
    # The configuration.
    "not-lora": _error("another PEFT method than LoRA, which vLLM does not ask about", _MERGE),
    "peft-type-unsaid": _warning("peft_type is missing", "write peft_type: LORA if it is one"),
    "task-type": _warning("it was trained for another task than writing text", "make sure that it is the right one"),
    "rank-invalid": _error("r is no whole number above 0", "write the rank that was trained with"),
    "rank-pattern-invalid": _error("rank_pattern is no map of modules to ranks", "write the ranks as trained"),
    "rank-above-seat": _error("a rank is above the seat's max_lora_rank", "raise max_lora_rank"),
    "alpha-missing": _error("lora_alpha is missing", "write the lora_alpha that was trained with"),
    "alpha-invalid": _error("lora_alpha or an entry of alpha_pattern is no number", "write it as trained"),
    "alpha-zero": _error("an alpha is 0: what it scales is silent", "write the lora_alpha that was trained with"),
    "alpha-negative": _error("an alpha is below 0: the voice is turned round", "write lora_alpha as trained"),
    "alpha-absurd": _warning("alpha / rank is outside 1/64 to 64", "compare lora_alpha with the training's settings"),
    "per-module-scaling": Kind(
        INFO, "rank_pattern or alpha_pattern: vLLM 0.32.0 scales each module by it", "ask an older engine by its probe"
    ),
    "pattern-unmatched": _warning("a key of rank_pattern or alpha_pattern fits no module", "correct or remove it"),
    "pattern-not-checked": _warning("a pattern is too involved to be tried safely", "write it as a module's name"),
    "target-modules": _error("target_modules is missing or no list of names", "write the modules that were trained"),
    "target-absent": _warning("a target module has no tensor", "correct target_modules, or train that module"),
    "target-undeclared": _warning("a module with tensors is no target module", "correct target_modules"),
    "dora": _error("weight-decomposed LoRA (DoRA), which vLLM does not apply", _MERGE),
    "modules-to-save": _error("whole modules were trained, which vLLM does not take for text", _MERGE),
    "bias": _error("biases were trained, which vLLM does not apply", "train with bias: none, or merge it"),
    "alora": _error("an activated LoRA (aLoRA), which vLLM would apply everywhere or not at all", _MERGE),
    "init-changes-base": _error(
        "init_lora_weights changed the base's weights while training (PiSSA, OLoRA, CorDA, LoftQ)",
        "convert it with path_initial_model_for_weight_conversion",
    ),
    "layer-replication": _error("it was trained on a carrier with replicated layers", _MERGE),
    "lora-variant": _error("a variant of LoRA that vLLM does not apply", _MERGE),
    "trainable-tokens": _error("single tokens' embeddings were trained, which vLLM does not apply", _MERGE),
    "fan-in-fan-out": _warning(
        "fan_in_fan_out is set, which linear layers do not have", "compare the carrier's family with the training's"
    ),
    "layers-missing": _warning("some layers have no tensors", "compare the carrier's number of layers"),
    "base-model-differs": _warning("it names another base model", "list the name in base_models if it is this carrier"),
    "base-model-unsaid": Kind(INFO, "it names no base model", "write base_model_name_or_path"),
    # Names and shapes of the tensors.
    "tensor-name": _error("a tensor is no lora_A or lora_B of a module", _RESAVE),
    "adapter-name": _error("a tensor's name carries the adapter's name, as a state_dict does", _RESAVE),
    "wrong-prefix": _error(
        "the module's name has another prefix than the carrier's: vLLM finds no module and says nothing",
        "rename the tensors",
    ),
    "prefix-not-checked": _warning(
        "a multimodal carrier: which prefixes the engine renames is not known here",
        "compare the voice with the base after loading",
    ),
    "unknown-module": _error("the carrier has no such module", _OTHER_CARRIER),
    "not-linear": _error("the module is no linear layer or embedding", "train linear layers only"),
    "layer-out-of-range": _error("the carrier has no such layer", _OTHER_CARRIER),
    "tower-module": _warning("a module outside the language model, which vLLM leaves out by default", _MERGE),
    "duplicate-module": _error("a module's tensor stands twice, with and without a prefix", _RESAVE),
    "missing-a": _error("lora_B without its lora_A", _RESAVE),
    "missing-b": _error("lora_A without its lora_B", _RESAVE),
    "rank-mismatch": _error("lora_A and lora_B have different ranks", _RESAVE),
    "rank-differs": _error("the tensors have another rank than the configuration", "write r as trained"),
    "shape-other-carrier": _error("the shape fits another carrier", _OTHER_CARRIER),
    "shape-transposed": _error("the tensor is transposed", _RESAVE),
    "shape-not-2d": _error("the tensor has not two dimensions", _RESAVE),
    "shapes-not-checked": _warning("the carrier does not tell the shape", "compare the voice with the base"),
    "embedding-not-applied": _error("this architecture takes no LoRA on its embeddings", "train linear layers only"),
    "embedding-not-checked": _warning(
        "whether this architecture takes LoRA on its embeddings is not known", "give support"
    ),
    "embedding-weights": _error("whole embeddings were trained, which vLLM refuses", _MERGE),
    "embedding-copy": _warning(
        "a copy of the embeddings, which vLLM leaves out", "make sure that only LoRA was trained"
    ),
    "dtype": _error("a data type that holds no trained LoRA weights", "save it in bfloat16, float16 or float32"),
    "dtype-wide": _warning("float64, which vLLM rounds", "save it in bfloat16, float16 or float32"),
    # The weights.
    "non-finite": _error("a weight is NaN or infinite", "take an earlier checkpoint of the training"),
    "all-zero": _error("every module's A or B is zero: the voice is the base", "save it after the training"),
    "some-zero": _warning("some modules' A or B is zero: these are silent", "make sure that they were trained"),
}


def found(code: str, message: str, tensor: str = "", *, fix: str = "", severity: str = "") -> Finding:
    """A finding with its code's own severity and fix unless given. Raises KeyError for a code that is not listed."""
    kind = CODES[code]
    return Finding(code, severity or kind.severity, tensor, message, fix or kind.fix)


def shown(text: object, longest: int = _LONGEST) -> str:
    """A name or value of a stranger's file for a message: nothing that a terminal obeys, and cut short."""
    raw = text if isinstance(text, str) else _SHORT.repr(text)
    escaped = repr(raw[: longest * 2])[1:-1]
    return escaped if len(escaped) <= longest else f"{escaped[:longest]}…"


def allow_errors(where: str, allow: Sequence[Any]) -> list[str]:
    """What is wrong with a list of codes that an inventory wants to allow."""
    wrong = []
    for code in allow:
        if not isinstance(code, str) or code not in CODES:
            close = difflib.get_close_matches(str(code), CODES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "docs/decisions/0004-adapter-checks.md lists them"
            wrong.append(f"{where}: allow has the unknown code '{shown(code, 60)}'; {hint}")
        elif CODES[code].structural:
            wrong.append(f"{where}: {code} cannot be allowed, {CODES[code].meaning}: {CODES[code].fix}")
    return wrong


def allowed(findings: Iterable[Finding], allow: Sequence[str]) -> list[Finding]:
    """The findings, those of the codes in ``allow`` demoted: errors to warnings, warnings to notes."""
    return [
        replace(one, severity=WARNING if one.severity == ERROR else INFO, message=f"{one.message} (allowed)")
        if one.code in allow and not CODES[one.code].structural
        else one
        for one in findings
    ]


def capped(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first; of each code and severity the first ``SHOWN_PER_CODE``, and one line that counts the rest."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in sorted(findings, key=lambda one: SEVERITIES.index(one.severity)):
        groups.setdefault((one.code, one.severity), []).append(one)
    kept: list[Finding] = []
    for group in groups.values():
        kept += group[:SHOWN_PER_CODE]
        if (more := len(group) - SHOWN_PER_CODE) > 0:
            last = group[SHOWN_PER_CODE - 1]
            kept.append(replace(last, tensor="", message=f"and {more} more of this kind ({len(group)} in all)"))
    return kept
