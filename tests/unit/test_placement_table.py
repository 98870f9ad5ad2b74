"""The plan's document and text: what a person reads at 100 columns, the same for the same plan."""

from __future__ import annotations

import json
from dataclasses import replace

from ansible.module_utils.voices.cards_spec import MIB, CardDeclaration, Tenant
from ansible.module_utils.voices.placement import plan_host
from ansible.module_utils.voices.placement_report import document, host_dict, unread_host
from ansible.module_utils.voices.placement_rows import VERDICTS, Host
from ansible.module_utils.voices.placement_table import LEGEND, WIDTH, render
from hypothesis import given

from tests.unit.test_placement import (
    REFERENCE_SEAT,
    SEAT_MIB,
    a_card,
    a_seat,
    cards_of,
    hosts,
    memory,
    process,
    reference_host,
)

REFERENCE_TEXT = """\
fv-ml1
  card name                            total     used    peaks  reserve     free at peaks
  0    NVIDIA RTX PRO 6000 Blackw.    97,887   96,092   85,352        0    1,157    1,157
  1    NVIDIA RTX PRO 6000 Blackw.    97,887   91,549        0        0    5,700    5,700
  2    NVIDIA RTX PRO 6000 Blackw.    97,887   94,849        0        0    2,400    2,400
  3    NVIDIA RTX PRO 6000 Blackw.    97,887        0        0        0   97,249   97,249
       held for flash-next, which needs 95,232
  seat                   card       asks    takes    up to left now at peaks  verdict
  old                    -             -        -        -        -        -  stopped
  qwen3-4b               0        10,697   10,740   10,740      730    1,157  fits, runs
  second                 -             -        -        -        -        -  NO ROOM
      Seat second has no room without a placement decision (card 1: 5,040 MiB missing; card
      2: 8,340 MiB missing; card 0: 9,583 MiB missing; card 3: held for flash-next).

1 host, 4 cards, 3 seats: 1 fit, 1 without room, 1 idle
"""


def text_of(*found: object) -> str:
    return render(document(found))  # type: ignore[arg-type]


def body(text: str) -> str:
    """The text without the legend."""
    return text.partition("\n\n")[2]


def test_the_reference_host_as_text() -> None:
    plan = plan_host(reference_host(), [REFERENCE_SEAT, a_seat("second"), a_seat("old", state="stopped")])
    assert body(text_of(host_dict(plan))) == REFERENCE_TEXT


def test_the_text_begins_with_what_its_numbers_are() -> None:
    legend = text_of().partition("\n\n")[0]
    assert " ".join(legend.split()) == LEGEND


def test_a_host_that_was_not_read_is_a_row_that_says_why() -> None:
    text = text_of(
        unread_host("b", "ssh: connect to host b port 22: No route to host"), host_dict(plan_host(Host("a"), []))
    )
    assert body(text).splitlines() == [
        "a",
        "",
        "b",
        "  ssh: connect to host b port 22: No route to host",
        "",
        "2 hosts, 0 cards, 0 seats; the cards of 1 host could not be read",
    ]


def test_what_the_host_says_is_not_said_again_for_each_seat() -> None:
    host = Host("h", problem="no NVIDIA driver", memory=memory(8_000))
    text = text_of(host_dict(plan_host(host, [a_seat("a", gpu="0"), a_seat("b")])))
    assert text.count("no NVIDIA driver") == 1
    assert text.count("unknown") == 3  # two rows and the sum


def test_host_memory_and_unreadable_cards_have_their_rows() -> None:
    host = replace(cards_of(9_000), memory=memory(8_000))
    host = replace(host, cards=(replace(host.cards[0], problem="it is in MIG mode"),))
    text = text_of(host_dict(plan_host(host, [a_seat("a", 9_000, device="cpu"), a_seat("b", gpu="0")])))
    lines = body(text).splitlines()
    assert lines[2:4] == ["  0    NVIDIA RTX PRO 6000 Blackw.", "       it is in MIG mode"]
    assert lines[4].split() == ["host", "host", "memory", "97,887", "89,249", "0", "0", "8,000", "8,000"]
    assert lines[6].split() == ["a", "host", "0", "9,000", "9,000", "-1,000", "-1,000", "REFUSED"]
    assert "  b                      0             -        -        -        -        -  unknown" in lines


def test_a_tenant_above_its_peak_is_named_in_the_cards_row() -> None:
    declared = CardDeclaration(tenants=(Tenant("loud", 1_000 * MIB, command="program 5"),))
    host = Host("h", cards=(a_card(0, process(5, 3_000)),), declarations={"0": declared})
    text = text_of(host_dict(plan_host(host, [])))
    assert "tenant loud holds 3,000 MiB of card 0" in text


def test_a_seat_with_a_long_name_has_two_lines() -> None:
    lines = body(text_of(host_dict(plan_host(cards_of(9_000), [a_seat("s" * 32, 4_000, gpu="0")])))).splitlines()
    assert lines[4] == f"  {'s' * 32}"
    assert lines[5].split() == ["0", "0", "4,000", "4,000", "5,000", "5,000", "fits"]


def test_a_proposal_says_what_to_set() -> None:
    text = text_of(host_dict(plan_host(cards_of(9_000), [a_seat("a", 4_000)])))
    assert "proposed" in text
    assert 'set gpu: "0"' in text


def test_what_is_missing_is_never_said_to_be_less() -> None:
    seat = replace(
        a_seat("a", gpu="0"), need=lambda card: replace(a_seat("x", 100).need(card), resident_bytes=9_000 * MIB + 1)
    )
    assert "-1,000 " not in text_of(host_dict(plan_host(cards_of(8_000), [seat])))
    assert "-1,001 " in text_of(host_dict(plan_host(cards_of(8_000), [seat])))


def test_the_document_is_json_and_counts_every_verdict() -> None:
    plan = plan_host(reference_host(), [REFERENCE_SEAT, a_seat("second"), a_seat("old", state="stopped")])
    made = document([unread_host("z", "gone"), host_dict(plan)])
    assert json.loads(json.dumps(made)) == made
    assert made["schema"] == "voices-plan/1"
    assert [host["host"] for host in made["hosts"]] == ["fv-ml1", "z"]
    assert made["summary"] == {
        "hosts": 2,
        "hosts_unread": 1,
        "cards": 4,
        "seats": 3,
        **dict.fromkeys(VERDICTS, 0),
        "fits": 1,
        "no_room": 1,
        "idle": 1,
    }
    seats = {seat["seat"]: seat for seat in made["hosts"][0]["seats"]}
    assert seats["qwen3-4b"]["left_at_peaks_bytes"] == 1_157 * MIB
    assert (seats["qwen3-4b"]["card"], seats["qwen3-4b"]["running"]) == (0, True)
    assert seats["second"]["misses"][0] == {"card": 1, "missing_bytes": 5_040 * MIB, "why": "5,040 MiB missing"}
    assert made["hosts"][0]["cards"][3]["hold"] == {"name": "flash-next", "needs_bytes": 95_232 * MIB}
    assert made["hosts"][0]["cards"][0]["tenants_peak_bytes"] == (96_092 - SEAT_MIB) * MIB


def test_hostile_and_long_texts_stay_within_the_width() -> None:
    card = replace(a_card(0), name="x\x1b[31m\n" * 40, problem="y" * 300 + "\n\n" + "z " * 100)
    host = Host("h" * 200, cards=(card, a_card(1)), problem="")
    text = text_of(host_dict(plan_host(host, [a_seat("s" * 32, gpu="0"), a_seat("t" * 32, 200_000, gpu="1")])))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


@given(hosts())
def test_no_line_is_wider_than_the_width(case: object) -> None:
    host, seats = case  # type: ignore[misc]
    text = text_of(host_dict(plan_host(host, seats)))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text == text_of(host_dict(plan_host(host, list(reversed(seats)))))
