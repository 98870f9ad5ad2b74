"""A placement as plain data: what the JSON of ``playbooks/plan.yml`` holds and what its text is made from. Pure.

The document's shape is described in docs/operations/plan.md. A field may be added under the same schema; one that is
removed or changes its meaning makes another schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from .placement_rows import VERDICTS, CardRow, HostPlan, SeatRow

SCHEMA = "voices-plan/1"


def document(hosts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole plan from its hosts' dicts (see ``host_dict``), hosts by name."""
    ordered = sorted((dict(host) for host in hosts), key=lambda host: str(host["host"]))
    verdicts = [seat["verdict"] for host in ordered for seat in host["seats"]]
    return {
        "schema": SCHEMA,
        "hosts": ordered,
        "summary": {
            "hosts": len(ordered),
            "hosts_unread": sum(bool(host["problem"]) for host in ordered),
            "cards": sum(len(host["cards"]) for host in ordered),
            "seats": len(verdicts),
            **{verdict: verdicts.count(verdict) for verdict in VERDICTS},
        },
    }


def host_dict(plan: HostPlan) -> dict[str, Any]:
    """One host of the document."""
    return {
        "host": plan.host,
        "problem": plan.problem,
        "cards": [_card(row) for row in plan.cards],
        "memory": _card(plan.memory) if plan.memory else None,
        "seats": [_seat(row) for row in plan.seats],
    }


def unread_host(host: str, problem: str) -> dict[str, Any]:
    """A host of which nothing is known but why."""
    return {"host": host, "problem": problem, "cards": [], "memory": None, "seats": []}


def _card(row: CardRow) -> dict[str, Any]:
    card, declared = row.card, row.declared
    return {
        "index": card.index,
        "uuid": card.uuid,
        "name": card.name,
        "problem": card.problem,
        "total_bytes": card.total_bytes,
        "cuda_total_bytes": card.cuda_total_bytes,
        "used_bytes": card.used_bytes,
        "free_bytes": card.free_bytes,
        "processes": [asdict(process) for process in card.processes],
        "tenants": [asdict(tenant) for tenant in declared.tenants],
        "tenants_peak_bytes": sum(tenant.peak_bytes for tenant in declared.tenants),
        "reserve_bytes": declared.reserve_bytes,
        "hold": {"name": declared.hold_name, "needs_bytes": declared.hold_bytes} if declared.hold_name else None,
        "room_at_peaks_bytes": row.room_at_peaks_bytes,
        "warnings": list(row.warnings),
    }


def _seat(row: SeatRow) -> dict[str, Any]:
    need, headroom = row.need, row.headroom
    return {
        "seat": row.seat,
        "device": row.device,
        "state": row.state,
        "verdict": row.verdict,
        "card": row.card,
        "running": row.running,
        "request_bytes": need.request_bytes if need else None,
        "resident_bytes": need.resident_bytes if need else None,
        "committed_bytes": need.committed_bytes if need else None,
        "context_bytes": need.context_bytes if need else None,
        "fits_now": headroom.fits_now if headroom else None,
        "fits_at_peaks": headroom.fits_at_peaks if headroom else None,
        "left_now_bytes": headroom.left_now_bytes if headroom else None,
        "left_at_peaks_bytes": headroom.left_at_peaks_bytes if headroom else None,
        "message": row.message,
        "warnings": list(headroom.warnings) if headroom else [],
        "misses": [{"card": miss.index, "missing_bytes": miss.missing_bytes, "why": miss.why} for miss in row.misses],
        "size": dict(need.details) if need else {},
    }
