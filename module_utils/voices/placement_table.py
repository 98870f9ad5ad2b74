"""The plan of ``playbooks/plan.yml`` as text for people, in MiB. Pure, and the same for the same plan."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .cards_spec import MIB

#: Ansible indents what a task says by eight columns, and a terminal of 100 columns is common.
WIDTH = 92

LEGEND = (
    "Sizes in MiB. Of a card: used and free are now; peaks are those of its declared tenants; at peaks is what is left"
    " when all of them are there, beside the seats that run. Of a seat: what it leaves; negative is missing."
)

#: A longer name gets a line of its own.
_SEAT_WIDTH = 23

_SAID = {
    "fits": "fits",
    "refused": "REFUSED",
    "proposed": "proposed",
    "no_room": "NO ROOM",
    "unknown": "unknown",
}


def render(document: Mapping[str, Any]) -> str:
    """The document of ``placement_report`` as lines of at most WIDTH columns."""
    lines = textwrap.wrap(LEGEND, WIDTH)
    for host in document["hosts"]:
        lines += ["", *_host(host)]
    return "\n".join([*lines, "", *_summary(document["summary"])]) + "\n"


def _host(host: Mapping[str, Any]) -> Iterator[str]:
    yield from _wrapped(host["host"], "")
    if host["problem"]:
        yield from _wrapped(host["problem"], "  ")
    rows = [*host["cards"], *([host["memory"]] if host["memory"] else [])]
    if rows:
        yield _card_line("card", "name", ["total", "used", "peaks", "reserve", "free", "at peaks"])
    for card in rows:
        yield from _card(card)
    if host["seats"]:
        yield _seat_line("seat", "card", ["asks", "takes", "up to", "left now", "at peaks"], "verdict")
    for seat in host["seats"]:
        yield from _seat(seat, host["problem"])


def _card_line(index: str, name: str, numbers: Sequence[str]) -> str:
    return f"  {index:<5}{_cut(name, 28):<28}" + "".join(f"{number:>9}" for number in numbers)


def _card(card: Mapping[str, Any]) -> Iterator[str]:
    index = str(card["index"]) if card["index"] >= 0 else "host"
    if card["problem"]:
        yield f"  {index:<5}{_cut(card['name'] or '?', 28)}".rstrip()
        yield from _wrapped(card["problem"], "       ")
        return
    keys = ("total", "used", "tenants_peak", "reserve", "free", "room_at_peaks")
    yield _card_line(index, card["name"], [_mib(card[f"{key}_bytes"]) for key in keys])
    for warning in card["warnings"]:
        yield from _wrapped(warning, "       ")
    if hold := card["hold"]:
        needs = f", which needs {_mib(hold['needs_bytes'])}" if hold["needs_bytes"] else ""
        yield from _wrapped(f"held for {hold['name']}{needs}", "       ")


def _seat_line(seat: str, place: str, numbers: Sequence[str], verdict: str) -> str:
    return f"  {seat:<{_SEAT_WIDTH}}{place:<6}" + "".join(f"{number:>9}" for number in numbers) + f"  {verdict}"


def _seat(seat: Mapping[str, Any], said: str) -> Iterator[str]:
    """``said`` is what the host's own line says already."""
    place = "-" if seat["card"] is None else str(seat["card"])
    if seat["device"] == "cpu":
        place = "host"
    keys = ("request", "resident", "committed", "left_now", "left_at_peaks")
    verdict = _SAID.get(seat["verdict"], seat["state"])
    if seat["running"]:
        verdict += ", runs"
    name = seat["seat"]
    if len(name) > _SEAT_WIDTH - 1:
        yield f"  {name}"
        name = ""
    yield _seat_line(name, place, [_mib(seat[f"{key}_bytes"]) for key in keys], verdict)
    if seat["verdict"] != "fits" and seat["message"] not in ("", said):
        yield from _wrapped(seat["message"], "      ")


def _summary(summary: Mapping[str, int]) -> list[str]:
    seats = ", ".join(f"{summary[key]} {said}" for key, said in _VERDICTS if summary[key])
    text = ", ".join(_counted(summary[f"{what}s"], what) for what in ("host", "card", "seat")) + (
        seats and f": {seats}"
    )
    if summary["hosts_unread"]:
        text += f"; the cards of {_counted(summary['hosts_unread'], 'host')} could not be read"
    return textwrap.wrap(text, WIDTH)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


_VERDICTS = (
    ("fits", "fit"),
    ("refused", "refused"),
    ("proposed", "proposed"),
    ("no_room", "without room"),
    ("unknown", "unknown"),
    ("idle", "idle"),
)


def _mib(size_bytes: int | None) -> str:
    """Whole MiB, rounded down: 1,157. A size that is not known is a hyphen."""
    return "-" if size_bytes is None else f"{size_bytes // MIB:,}"


def _cut(text: str, width: int) -> str:
    text = _plain(text)
    return text if len(text) < width else text[: width - 2] + ". "


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(_plain(text), WIDTH, initial_indent=indent, subsequent_indent=indent) or [indent.rstrip()]


def _plain(text: str) -> str:
    """One line of printable characters: a driver's or a host's text may hold anything."""
    return "".join(character if character.isprintable() else " " for character in str(text))
