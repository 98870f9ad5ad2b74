"""The plan of supervised_service: from what runs to what is wanted, and what is refused."""

from __future__ import annotations

import configparser
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.voices.masking import mask_text, secret_values, shown_argv
from ansible.module_utils.voices.plan import VoicesError
from ansible.module_utils.voices.processes import Identity
from ansible.module_utils.voices.service import (
    Actual,
    Booted,
    Candidate,
    Holder,
    Plan,
    Spec,
    check_spec,
    environment_texts,
)
from ansible.module_utils.voices.service_adoption import adoption_differences
from ansible.module_utils.voices.service_failure import error_lines, failure_message, log_of_launch
from ansible.module_utils.voices.service_plan import plan_service
from ansible.module_utils.voices.supervisord_conf import recorded_socket, render_supervisord_conf, socket_path

LOG = Path(__file__).resolve().parents[1] / "support/vllm_failed_start.log"
TOKEN = "a-secret-token"
FILES = {"supervisord.conf": "conf\n", "service_run.py": "wrapper\n"}
ARGV = ("/opt/engine/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--config", "/srv/engine.yaml")
CONFIG = {"max-lora-rank": 8, "port": 8027, "api-key": "sha256:0123456789ab"}
SPEC = Spec(
    name="tiny",
    directory="/srv/tiny",
    argv=ARGV,
    environment={"THREADS": "1", "HF_TOKEN": TOKEN},
    config_file="/srv/engine.yaml",
    config=CONFIG,
    config_ignore=("lora-modules",),
    listen_port=8027,
    supervisord="/opt/bin/supervisord",
    python="/usr/bin/python3",
    adopt_environment=("THREADS",),
)
BOOTED = Booted(
    leader=Identity(4242, 77, "boot"),
    argv=ARGV,
    environment=SPEC.environment,
    config_file="/srv/engine.yaml",
    flags={**CONFIG, "lora-modules": ["lv-a=/store/a"]},
    launch_id="abc",
)
LAUNCH = {**SPEC.launch(), "launch_id": "abc", "adopt": None}
RUNNING = Actual(
    exists=True, supervisord="running", program="RUNNING", booted=BOOTED, alive=True, files=FILES, launch=LAUNCH
)
CANDIDATE = Candidate(
    leader=Identity(99, 5, "boot"),
    argv=("python", "-m", "vllm.entrypoints.openai.api_server", "--config", "engine.yaml", "--max_lora_rank", "8"),
    program_directory="/opt/engine/bin",
    config={"port": 8027, "api-key": "sha256:0123456789ab", "lora-modules": ["lv-b=/store/b"]},
    environment={"THREADS": "1"},
)
HAND_STARTED = Actual(
    holders=(Holder(99, "ann", CANDIDATE.argv, candidate=CANDIDATE),), program_directory="/opt/engine/bin"
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def planned(spec: Spec, actual: Actual, files: Mapping[str, str] = FILES) -> Plan:
    return plan_service(spec, actual, files)


def steps(plan: Plan) -> list[tuple[str, str, Any, Any]]:
    """The plan's actions, without the service's name."""
    return [(one.do, one.why, one.before, one.after) for one in plan.actions]


def test_nothing_to_do() -> None:
    assert planned(SPEC, RUNNING) == Plan()
    assert planned(SPEC, RUNNING).will_start is False


def test_a_new_service_is_started() -> None:
    plan = planned(SPEC, Actual())
    assert steps(plan) == [("start", "it is new", None, None)]
    assert (plan.way, plan.will_start) == ("start", True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"config": {**CONFIG, "max-lora-rank": 16}}, ("max-lora-rank", 8, 16)),
        ({"config": {**CONFIG, "dtype": "float32"}}, ("dtype", None, "float32")),
        (
            {"config": {**CONFIG, "api-key": "sha256:ffffffffffff"}},
            ("api-key changed", None, None),
        ),
        ({"config_file": "/srv/other.yaml"}, ("config_file", "/srv/engine.yaml", "/srv/other.yaml")),
        ({"environment": {**SPEC.environment, "THREADS": "2"}}, ("environment THREADS", "1", "2")),
        ({"environment": {"THREADS": "1"}}, ("environment HF_TOKEN", f"sha256:{sha256(TOKEN)[:8]}", None)),
    ],
)
def test_each_difference_is_one_reason_for_a_restart(change: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    plan = planned(replace(SPEC, **change), RUNNING)
    assert steps(plan) == [("restart", *expected)]
    assert plan.will_start is True
    assert plan.reasons[0].startswith(f"restart tiny: {expected[0]}")


def test_several_differences_are_several_actions() -> None:
    spec = replace(
        SPEC, config={**CONFIG, "max-lora-rank": 16, "dtype": "auto"}, argv=(*ARGV, "--api-key", "open-sesame")
    )
    plan = planned(spec, RUNNING)
    assert [one.why for one in plan.actions] == ["dtype", "max-lora-rank", "argv"]
    assert "open-sesame" not in str(plan)
    assert plan.actions[2].after == f"{' '.join(ARGV)} --api-key sha256:{sha256('open-sesame')[:12]}"


@pytest.mark.parametrize(
    "config",
    [
        {**CONFIG, "lora-modules": ["lv-b=/store/b"]},
        {**CONFIG, "max-lora-rank": "8"},
        dict(reversed(CONFIG.items())),
    ],
    ids=["ignored key", "same number", "other order"],
)
def test_what_is_no_reason_for_a_restart(config: dict[str, Any]) -> None:
    assert planned(replace(SPEC, config=config), RUNNING) == Plan()


def test_without_a_wanted_content_the_bytes_of_the_file_count() -> None:
    spec = replace(SPEC, config=None)
    running = replace(RUNNING, booted=replace(BOOTED, config_sha256="a" * 64), config_file_sha256="a" * 64)
    assert planned(spec, running) == Plan()
    changed = planned(spec, replace(running, config_file_sha256="b" * 64))
    assert steps(changed) == [("restart", "content of /srv/engine.yaml", "a" * 12, "b" * 12)]


def test_a_configuration_that_cannot_be_read_back_is_a_reason() -> None:
    plan = planned(SPEC, replace(RUNNING, booted=replace(BOOTED, flags=None)))
    assert steps(plan)[0][:2] == ("restart", "config_file")


@pytest.mark.parametrize("state", ["FATAL", "STOPPED", "EXITED", ""])
def test_a_service_that_was_given_up_is_started(state: str) -> None:
    plan = planned(SPEC, replace(RUNNING, program=state, alive=False))
    assert [one.do for one in plan.actions] == ["start"]
    assert state in plan.reasons[0]


@pytest.mark.parametrize("state", ["RUNNING", "STARTING", "BACKOFF"])
def test_a_service_that_is_being_restarted_is_left_to_it(state: str) -> None:
    assert planned(SPEC, replace(RUNNING, program=state, alive=False)) == Plan()
    changed = replace(SPEC, config={**CONFIG, "port": 8028})
    assert [one.do for one in planned(changed, replace(RUNNING, program=state, alive=False)).actions] == ["restart"]
    first_boot = replace(RUNNING, program=state, alive=False, booted=None)
    if state == "RUNNING":  # it has booted long since, and nobody knows with what
        assert [one.do for one in planned(SPEC, first_boot).actions] == ["start"]
        return
    assert planned(SPEC, first_boot) == Plan()
    assert [one.do for one in planned(replace(SPEC, argv=("/bin/other",)), first_boot).actions] == ["start"]


@pytest.mark.parametrize(
    ("supervisord", "program"), [("gone", ""), ("unreachable", ""), ("running", "FATAL"), ("running", "")]
)
def test_a_process_without_its_supervisord_is_taken_over(supervisord: str, program: str) -> None:
    plan = planned(SPEC, replace(RUNNING, supervisord=supervisord, program=program))
    assert [one.do for one in plan.actions] == ["adopt"]
    assert "pid 4242 runs on" in plan.reasons[0]
    assert (plan.way, plan.will_start, plan.adopt) == ("exchange", False, None)


def test_a_process_without_its_supervisord_that_differs_is_restarted() -> None:
    changed = replace(SPEC, config={**CONFIG, "port": 8028})
    assert [one.do for one in planned(changed, replace(RUNNING, supervisord="gone")).actions] == ["restart"]


def test_other_files_are_taken_up_without_a_restart() -> None:
    plan = planned(SPEC, RUNNING, {**FILES, "supervisord.conf": "newer\n"})
    assert [(one.do, one.what) for one in plan.actions] == [("write", "supervisord.conf")]
    assert (plan.way, plan.will_start) == ("exchange", False)
    plan = planned(replace(SPEC, log_backups=9), RUNNING)
    assert [(one.do, one.what) for one in plan.actions] == [("write", "launch.json")]
    assert (plan.way, plan.will_start) == ("note", False)


def test_a_restart_does_not_list_its_files() -> None:
    plan = planned(replace(SPEC, config={**CONFIG, "port": 1}), RUNNING, {**FILES, "supervisord.conf": "newer\n"})
    assert [one.do for one in plan.actions] == ["restart"]


@pytest.mark.parametrize(
    ("actual", "stopped", "absent"),
    [
        (Actual(), [], []),
        (Actual(exists=True), [], ["remove"]),
        (RUNNING, ["stop"], ["stop", "remove"]),
        (Actual(others=1), ["stop"], ["stop"]),
        (Actual(exists=True, supervisord="unreachable"), ["stop"], ["stop", "remove"]),
    ],
    ids=["nothing", "directory", "running", "orphans", "supervisord"],
)
def test_going_down(actual: Actual, stopped: list[str], absent: list[str]) -> None:
    assert [one.do for one in planned(replace(SPEC, state="stopped"), actual).actions] == stopped
    assert [one.do for one in planned(replace(SPEC, state="absent"), actual).actions] == absent


# ------------------------------------------------------------------------------------------------------------- adopting


def test_a_process_started_by_hand_as_wanted_is_adopted() -> None:
    plan = planned(SPEC, HAND_STARTED)
    assert steps(plan) == [("adopt", "pid 99 runs as the inventory says", None, None)]
    assert (plan.way, plan.adopt, plan.will_start) == ("exchange", CANDIDATE.leader, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {**(CANDIDATE.config or {}), "dtype": "auto"}}, ["dtype auto here, not set wanted"]),
        ({"argv": (*CANDIDATE.argv[:-1], "16")}, ["max-lora-rank 16 here, 8 wanted"]),
        ({"argv": ("nginx", "--port=8027"), "config": None}, ["program nginx here, vllm wanted"]),
        ({"program_directory": "/home/ann/venv/bin"}, ["program in /home/ann/venv/bin here, /opt/engine/bin wanted"]),
        ({"environment": {"THREADS": "2"}}, ["environment THREADS 2 here, 1 wanted"]),
        ({"environment": {}}, ["environment THREADS not set here, 1 wanted"]),
        ({"environment": None}, ["environment THREADS unreadable here"]),
        ({"unknown": "its --config file was changed"}, ["its --config file was changed"]),
    ],
)
def test_one_that_differs_is_refused_with_every_difference(change: dict[str, Any], said: list[str]) -> None:
    candidate = replace(CANDIDATE, **change)
    assert adoption_differences(SPEC, candidate, "/opt/engine/bin")[: len(said)] == said
    actual = replace(HAND_STARTED, holders=(replace(HAND_STARTED.holders[0], candidate=candidate),))
    with pytest.raises(VoicesError) as refused:
        planned(SPEC, actual)
    for part in (
        "service tiny: port 127.0.0.1:8027 is taken by pid 99 (user ann)",
        said[0],
        "Nothing was changed",
        "kill 99",
    ):
        assert part in str(refused.value)


def test_a_key_is_compared_and_never_shown() -> None:
    key = "an-api-key-that-is-long-enough"
    candidate = replace(CANDIDATE, argv=(*CANDIDATE.argv, "--api-key", key))
    actual = replace(HAND_STARTED, holders=(Holder(99, "ann", candidate.argv, candidate=candidate),))
    with pytest.raises(VoicesError) as refused:
        planned(SPEC, actual)
    assert "api-key sha256:" in str(refused.value)
    assert key not in str(refused.value)


def test_a_holder_of_another_user_is_named_by_user() -> None:
    with pytest.raises(
        VoicesError, match=r"taken by a process of user bob: its command line is not readable\. .*its user"
    ):
        planned(SPEC, Actual(holders=(Holder(0, "bob"),)))


def test_a_second_listener_beside_ours_is_refused_even_if_it_is_alike() -> None:
    with pytest.raises(VoicesError, match="The service itself runs as pid 4242"):
        planned(SPEC, replace(RUNNING, holders=HAND_STARTED.holders, program_directory="/opt/engine/bin"))


def test_an_orphan_of_ours_is_adopted_when_it_is_as_wanted_and_replaced_when_not() -> None:
    orphan = replace(HAND_STARTED.holders[0], orphan=True)
    assert planned(SPEC, replace(HAND_STARTED, holders=(orphan,))).adopt == CANDIDATE.leader
    changed = replace(SPEC, config={**CONFIG, "max-lora-rank": 32})
    argv = ("python", "-m", "vllm.entrypoints.openai.api_server")
    differing = replace(orphan, candidate=replace(CANDIDATE, argv=argv))
    assert [one.do for one in planned(changed, replace(HAND_STARTED, holders=(differing,))).actions] == ["start"]


# ------------------------------------------------------------------------------------------------------ spec, rendering


def test_a_good_spec_passes() -> None:
    check_spec(SPEC)
    check_spec(Spec(name="tiny", directory="/srv/tiny", state="stopped"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "a:b"}, "name 'a:b'"),
        ({"directory": "/srv/a ;b"}, "dir '/srv/a ;b'"),
        ({"argv": ()}, r"argv\[0\] is ''"),
        ({"argv": ("python",)}, r"argv\[0\] is 'python'"),
        ({"environment": {"A-B": "1"}}, "environment key 'A-B'"),
        ({"environment": {"VOICES_SERVICE": "x"}}, "VOICES_SERVICE"),
        ({"environment": environment_texts({"DEBUG": True})}, "environment DEBUG: write the value as a text"),
        ({"listen_port": 65536}, "listen_port 65536"),
        ({"health_url": "https://localhost/"}, "health_url"),
        ({"stop_seconds": 0}, "stop_seconds is 0: at least 1"),
    ],
)
def test_a_bad_spec_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(VoicesError, match=named):
        check_spec(replace(SPEC, **change))


def test_numbers_in_the_environment_become_texts() -> None:
    assert environment_texts({"A": 1, "B": 0.5, "C": "x"}) == {"A": "1", "B": "0.5", "C": "x"}


def test_the_configuration_of_supervisord_survives_odd_paths_and_holds_no_secret() -> None:
    spec = replace(SPEC, directory="/srv/100% it's/tiny", start_seconds=40)
    text = render_supervisord_conf(spec, spec.path("run", "s%.sock"))
    parsed = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"))
    parsed.read_string(text)
    program = parsed["program:tiny"]
    assert (
        program["command"]
        == "/usr/bin/python3 -I '/srv/100%% it'\"'\"'s/tiny/service_run.py' '/srv/100%% it'\"'\"'s/tiny'"
    )
    assert (program["startsecs"], program["stopwaitsecs"], program["autorestart"]) == ("40", "35", "true")
    assert parsed["supervisord"]["umask"] == "077"
    assert "user" not in parsed["supervisord"]
    assert "user=root" in render_supervisord_conf(spec, "/s", as_root=True)
    assert recorded_socket(text) == "/srv/100% it's/tiny/run/s%.sock"
    assert "a-secret-token" not in text


def test_the_socket_moves_only_when_its_path_is_too_long() -> None:
    assert socket_path("/srv/tiny", 1000, "/tmp") == "/srv/tiny/run/supervisord.sock"  # noqa: S108
    deep = "/srv/" + "x" * 100
    short = socket_path(deep, 1000, "/tmp")  # noqa: S108
    assert short.startswith("/tmp/voices-1000-")  # noqa: S108
    assert len(short) < 60
    assert short != socket_path(deep + "y", 1000, "/tmp")  # noqa: S108
    assert socket_path(deep, 1000, "/var/tmp", recorded=short) == short  # noqa: S108
    assert socket_path(deep, 1000, "/var/tmp", recorded="/elsewhere/supervisord.sock").startswith("/var/tmp/")  # noqa: S108


def test_launch_is_plain_data() -> None:
    assert json.loads(json.dumps(SPEC.launch())) == SPEC.launch()


# ------------------------------------------------------------------------------------------------------ secrets, errors


def test_secrets_are_found_and_masked() -> None:
    argv = ["x", "--hf-token", "tok-en-1", "--api-key=key-in-argv", "--tokenizer", "plain-value"]
    known = secret_values(
        {"HF_TOKEN": "in-the-environment", "TOKENIZERS_PARALLELISM": "false", "A": "plain"},
        {"api-key": ["first-key", "second-key"], "model": "plain-model", "max-num-batched-tokens": 2048},
        argv,
    )
    assert known == {"in-the-environment", "first-key", "second-key", "tok-en-1", "key-in-argv"}
    assert mask_text("a first-key b", known) == "a *** b"
    shown = shown_argv(argv)
    assert "tok-en-1" not in shown
    assert "key-in-argv" not in shown
    assert "--tokenizer plain-value" in shown


def test_the_errors_of_a_recorded_failure_name_the_root_cause_first() -> None:
    errors, last = error_lines(LOG.read_text())
    assert len(errors) == 4
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/adapter_config.json'" in errors[0]
    assert "LoRAAdapterNotFoundError: Loading lora lv-x failed" in errors[1]
    assert errors[-1].startswith("ValueError: Loading lora lv-x failed")
    assert last[-2] == "service_run: pid 25503 ended with 1"
    assert len(last) == 15


def test_many_errors_are_cut_in_the_middle_and_colours_dropped() -> None:
    errors, _ = error_lines("\n".join(f"\x1b[31mx.Some{n}Error: {n}\x1b[0m\r" for n in range(20)))
    assert errors == [f"x.Some{n}Error: {n}" for n in (0, 1, 2, 3, 16, 17, 18, 19)]
    errors, last = error_lines("fine\nERROR: cannot bind secret-1\n" + "y" * 500, ["secret-1"])
    assert errors == ["ERROR: cannot bind ***"]
    assert len(last[-1]) == 400


def test_only_this_launch_is_quoted() -> None:
    log = (
        "service_run: launch old at T: python\nOldError: old\n"
        "service_run: launch new at T: python\nNewError: first\nservice_run: pid 1 ended with 1\n"
        "service_run: launch new at T: python\nloading\n"
    )
    assert log_of_launch(log, "new") == "NewError: first\nservice_run: pid 1 ended with 1\n"
    assert log_of_launch("service_run: launch new at T: python\nloading\n", "new") == "loading\n"
    assert log_of_launch(log, "unknown") == ""


def test_a_failure_names_everything_a_person_needs() -> None:
    message = failure_message(
        SPEC,
        61.23,
        "nothing listens",
        "STARTING",
        "a-secret-token\nValueError: x\n",
        {"a-secret-token"},
        "/srv/engine.yaml.previous",
    )
    for part in (
        "service tiny",
        "61.2 s",
        "limit 180 s",
        "nothing listens",
        "STARTING",
        "/srv/tiny/log/service.log",
        "ValueError: x",
    ):
        assert part in message
    assert message.endswith("the configuration that was last healthy is kept: /srv/engine.yaml.previous")
    assert "a-secret-token" not in message
    assert "wrote nothing" in failure_message(SPEC, 1, "x", "", "", (), "")
