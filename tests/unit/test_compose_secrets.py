"""No secret of a compose.yaml is shown."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.module_utils.voices.compose_secrets import MaskedText, Secrets, check_named, digest, is_secret_key
from ansible.module_utils.voices.plan import VoicesError
from hypothesis import given
from hypothesis import strategies as st

VALUE = "hf_s3cret-value"


def parse(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def masked(text: str, *named: str) -> str:
    return MaskedText(text, named, parse).text


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("HF_TOKEN", True),
        ("api_key", True),
        ("DB_PASSWORD", True),
        ("CLIENT_SECRET", True),
        ("THREADS", False),
        ("VLLM_API_KEY_FILE", False),
        ("KEY_DIR", False),
        ("MINE", True),
    ],
)
def test_keys(key: str, secret: bool) -> None:
    assert is_secret_key(key, ("MINE",)) is secret


@pytest.mark.parametrize(
    "text",
    [
        f"environment:\n  HF_TOKEN: {VALUE}\n  A: 1\n",
        f"environment:\n  - HF_TOKEN={VALUE}\n  - A=1\n",
        f'environment: {{A: 1, HF_TOKEN: "{VALUE}"}}\n',
        f"environment:\n  'HF_TOKEN': '{VALUE}'\n",
        f"environment:\n  HF_TOKEN: |\n    {VALUE}\n    more-of-it\n",
        f'environment: ["HF_TOKEN={VALUE}"]\n',
        f"x-a: &a\n  HF_TOKEN: {VALUE}\nenvironment:\n  <<: *a\n",
        f"environment:\n  HF_TOKEN: {VALUE}\ncommand: serve --key {VALUE}\n",
        f"broken: [\nHF_TOKEN: {VALUE}\n",
        f"broken: [\n- HF_TOKEN={VALUE}\n",
    ],
)
def test_a_secret_is_masked_wherever_it_stands(text: str) -> None:
    assert VALUE not in masked(text)
    assert "more-of-it" not in masked(text)
    assert "sha256:" in masked(text)


def test_what_is_no_secret_stays() -> None:
    text = "services:\n  a:\n    secrets: [api_key]\n    environment: {A: 1}\nsecrets:\n  api_key:\n    file: ./x\n"
    assert masked(text) == text


def test_escapes_do_not_help() -> None:
    text = 'environment:\n  HF_TOKEN: "a\\"b\\u0063defgh"\n'
    assert parse(text)["environment"]["HF_TOKEN"] == 'a"bcdefgh'
    assert "defgh" not in masked(text)


def test_short_values_are_masked_behind_their_key_only() -> None:
    assert masked("environment:\n  A: one\n  PASSWORD: one\n") == (
        f"environment:\n  A: one\n  PASSWORD: {digest('one')}\n"
    )


def test_another_value_shows_as_another() -> None:
    one, other = (masked(f"HF_TOKEN: {value}\n") for value in ("first-secret", "other-secret"))
    assert one != other


def test_named_keys() -> None:
    assert VALUE in masked(f"MINE: {VALUE}\n")
    assert VALUE not in masked(f"MINE: {VALUE}\n", "MINE")
    with pytest.raises(VoicesError, match="secret_environment 'a b'"):
        check_named(["A", "a b"])


@given(st.text(alphabet=st.characters(blacklist_categories=("Cs", "Cc")), min_size=6, max_size=40), st.booleans())
def test_any_secret(value: str, as_list: bool) -> None:
    entry: Any = [f"X_TOKEN={value}"] if as_list else {"X_TOKEN": value}
    text = yaml.safe_dump({"services": {"a": {"environment": entry}}}, allow_unicode=True, width=10**6)
    lines = masked(text).splitlines()
    shown = lines[-1].partition("X_TOKEN")[2].lstrip("=: '\"")
    assert shown.startswith("sha256:")
    assert lines[:-1] == text.splitlines()[:-1]


def test_fields() -> None:
    secrets = Secrets().with_environment({"HF_TOKEN": VALUE, "A": "visible", "PASSWORD": "abc"})
    assert secrets.shown("environment HF_TOKEN", VALUE) == digest(VALUE)
    assert secrets.shown("environment PASSWORD", "abc") == digest("abc")
    assert secrets.shown("environment A", "visible") == "visible"
    assert secrets.shown("environment A", None) is None
    assert secrets.shown("environment A", "") == ""
    assert secrets.shown("labels x", f"has {VALUE} in it") == f"has {digest(VALUE)} in it"
    assert secrets.conceal("abc stays") == "abc stays"
    assert VALUE not in repr(secrets)
