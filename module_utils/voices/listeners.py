"""Who listens on a TCP port of this host, read from ``/proc/net`` and the processes' descriptors (Linux)."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from .processes import PROC, Process, process_table

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket. ``pids`` is empty when its owner is not readable for us (another user's process)."""

    address: str
    port: int
    inode: int
    uid: int
    pids: tuple[int, ...] = ()


def listeners(port: int, host: str = "", table: Mapping[int, Process] | None = None) -> list[Listener]:
    """The sockets that listen on TCP ``port`` and stand in the way of ``host`` (empty: any), with their owners.

    A wildcard address stands in the way of every address and the other way round. Owners are looked for among the
    processes of ``table`` (default: all); those of other users are not readable without root.
    """
    wanted = _addresses(host) if host else set()
    found = [
        one
        for name in ("tcp", "tcp6")
        for one in parse_listeners(_read_net(name), port)
        if not wanted or _collides(one.address, wanted)
    ]
    if not found:
        return []
    owners = _owners({one.inode for one in found}, table if table is not None else process_table())
    return [
        Listener(one.address, one.port, one.inode, one.uid, tuple(sorted(owners.get(one.inode, ())))) for one in found
    ]


def parse_listeners(text: str, port: int) -> list[Listener]:
    """The listening sockets on ``port`` in the text of ``/proc/net/tcp`` or ``tcp6``. Pure."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        address, _, hex_port = fields[1].partition(":")
        if int(hex_port, 16) == port:
            found.append(Listener(_address(address), port, int(fields[9]), int(fields[7])))
    return found


def _read_net(name: str) -> str:
    try:
        return (PROC / "self/net" / name).read_text()
    except OSError:  # no IPv6
        return ""


def _address(text: str) -> str:
    # The kernel prints the address as 32-bit words in host order.
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _addresses(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}


def _collides(address: str, wanted: set[str]) -> bool:
    any_address = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
    return address in wanted or address in any_address or bool(wanted & any_address)


def _owners(inodes: set[int], table: Mapping[int, Process]) -> dict[int, set[int]]:
    links = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[int, set[int]] = {}
    for pid in table:
        directory = f"{PROC}/{pid}/fd"
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            try:
                inode = links.get(os.readlink(f"{directory}/{name}"))
            except OSError:
                continue
            if inode is not None:
                owners.setdefault(inode, set()).add(pid)
    return owners
