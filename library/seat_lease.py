#!/usr/bin/python
"""Ansible module: one operator a seat, by a lease that a dead play gives up by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.voices.lease import Outcome, Request, check_token
from ansible.module_utils.voices.lease_file import Host, LeaseFile, foresee, free, report, take
from ansible.module_utils.voices.module_main import errors_reported
from ansible.module_utils.voices.plan import VoicesError

DOCUMENTATION = r"""
---
module: seat_lease
short_description: One operator a seat, by a lease with holder and expiry
version_added: "0.1.0"
description:
  - Takes, renews or frees the lease of a voices seat, a file on the seat's host. While one play holds it, another play
    waits or fails saying who holds it.
  - A lease ends when it is freed with its token, when its time is up, or when its anchor ends. The anchor is the
    nearest ancestor of the module that lives as long as the play, which is ansible-playbook itself on a local
    connection and the session's sshd on an ssh connection. So a play killed on a local connection frees its seat at
    once, and one on an ssh connection when that connection closes.
  - Expiry is kept in time since boot, so a step of the clock neither frees nor prolongs a lease.
options:
  path:
    description: Absolute path of the lease file, C(<root>/leases/<seat>.json). The seat is named after the file.
    type: path
    required: true
  holder:
    description: Who holds the lease, for other people to read, such as C(ann@host). Required with O(state=held).
    type: str
  state:
    description:
      - V(held) takes the lease, or renews it when O(token) holds it already.
      - V(free) ends the lease that O(token) holds. A lease that is not there is free already.
    type: str
    choices: [held, free]
    default: held
  token:
    description:
      - What proves that a lease is this play's, at least 16 characters. Left out with O(state=held), one is made and
        returned. Required with O(state=free). The file holds its sha256 only.
    type: str
  ttl_s:
    description: The lease ends this many seconds from now unless renewed. 1 to 604800 (7 days).
    type: int
    default: 3600
  wait_s:
    description: How many seconds to wait for another holder before failing.
    type: int
    default: 0
  anchor:
    description:
      - V(auto) finds the play's process. V(none) lets the lease end by time and token alone.
      - Use V(none) where ssh connections are not kept open between tasks (C(ControlPersist=no), paramiko). There the
        session's sshd ends with the task, and the lease with it.
    type: str
    choices: [auto, none]
    default: auto
attributes:
  check_mode:
    description: Takes, frees and writes nothing. Reports who holds the lease, warns if a real run would not get it.
    support: full
  diff_mode:
    description: A lease is no change of the seat, so RV(diff) and RV(actions) are always empty.
    support: full
  idempotent:
    description: RV(changed) is always false. Taking a lease with the token that holds it renews it.
    support: full
notes:
  - A file that holds no lease that this version understands is refused, not taken for a free seat.
  - With C(ControlPersist) the ssh session outlives a killed play by the time set there (60 s by Ansible's default), and
    for as long as further plays of the same person and controller reach the host, because they share it. The refusal
    says so and what to do. The session ends during a play when no task reaches the host for that long, so a play that
    works elsewhere for longer renews its lease.
  - In an async task and in a container the play is not among the module's ancestors. There a lease ends by time and
    token.
  - A failed take names the holder, so do not set C(no_log) on the task. The token's only power is to end this lease.
author:
  - Voices project
"""

EXAMPLES = r"""
- name: Take the seat's lease, and wait a minute for another operator
  seat_lease:
    path: /srv/voices/leases/tiny.json
    holder: ann@desk
    wait_s: 60
  register: seat_lease_taken

- name: Renew it before a long step
  seat_lease:
    path: /srv/voices/leases/tiny.json
    holder: ann@desk
    token: "{{ seat_lease_taken.token }}"
    ttl_s: 7200

- name: Free it
  seat_lease:
    path: /srv/voices/leases/tiny.json
    state: free
    token: "{{ seat_lease_taken.token }}"
  when: seat_lease_taken.token | default('') | length > 0
"""

RETURN = r"""
token:
  description:
    - The token that holds the lease. Empty in check mode and with O(state=free).
    - Ansible masks it when the task was itself given O(token), so keep the first result.
  returned: success
  type: str
  sample: wBVoq1Jm0HqUjT5mSoO1y9eFhWm3cQ2x
holder:
  description: Who holds the lease now, empty when it is free. In check mode perhaps another.
  returned: success
  type: str
  sample: ann@desk
lease:
  description: The lease that stands now. Empty strings and 0 when the seat is free.
  returned: success
  type: dict
  contains:
    holder:
      description: Who holds it.
      type: str
      sample: ann@desk
    pid:
      description: The anchor's process on the seat's host, 0 without one.
      type: int
      sample: 4242
    anchor:
      description: What the anchor is, V(ansible-playbook), V(ansible) or V(sshd), empty without one.
      type: str
      sample: ansible-playbook
    since:
      description: When it was first taken, UTC.
      type: str
      sample: "2026-11-30T20:09:44.125Z"
    expires:
      description: When it ends unless renewed, UTC.
      type: str
      sample: "2026-11-30T21:09:44.125Z"
took_over:
  description: Whose lease was taken over and why it had ended, empty when the seat was free.
  returned: success
  type: str
  sample: "took over the lease of bob@desk: its play (pid 4100) is gone"
waited_s:
  description: Seconds spent waiting for another holder.
  returned: success
  type: float
  sample: 3.5
actions:
  description: Always empty, as a lease is no change of the seat.
  returned: success
  type: list
  elements: dict
  sample: []
diff:
  description: Always empty, as a lease is no change of the seat.
  returned: success
  type: list
  elements: dict
  sample: []
"""

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "holder": {"type": "str"},
    "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
    "token": {"type": "str", "no_log": True},
    "ttl_s": {"type": "int", "default": 3600},
    "wait_s": {"type": "int", "default": 0},
    "anchor": {"type": "str", "choices": ["auto", "none"], "default": "auto"},
}


def run(module: AnsibleModule) -> Outcome:
    """Do what the parameters ask; in check mode only look."""
    params = module.params
    token = params["token"] or ""
    path = Path(params["path"])
    if not path.is_absolute():
        raise VoicesError(f"path {str(path)!r} is relative; a lease needs an absolute path, the same for every play")
    file, host = LeaseFile(path), Host()
    if params["state"] == "free":
        check_token(token)
        return report(file, host) if module.check_mode else free(file, token, host)
    request = Request(params["holder"], token, params["ttl_s"], params["wait_s"], params["anchor"] == "auto")
    return foresee(file, request, host) if module.check_mode else take(file, request, host)


def main() -> None:
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True, required_if=[("state", "held", ["holder"])])
    with errors_reported(module):
        outcome = run(module)
    if outcome.warning:
        module.warn(outcome.warning)
    module.exit_json(
        changed=False,
        actions=[],
        diff=[],
        token=outcome.token,
        holder=outcome.public["holder"],
        lease=outcome.public,
        took_over=outcome.took_over,
        waited_s=round(outcome.waited_s, 3),
    )


if __name__ == "__main__":
    main()
