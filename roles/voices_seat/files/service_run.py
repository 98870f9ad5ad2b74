"""Start one service's process, watch it, and leave nothing behind. Run by supervisord; standard library only.

    python -I service_run.py DIR

Reads DIR/run/launch.json (what to run; written by the module supervised_service) and writes DIR/run/booted.json (what
runs, by pid and start time) and DIR/run/booted_config (the configuration file as it was just before the start).

- Before a start it ends what an earlier start left: the recorded processes, the recorded process group, and every
  process that carries VOICES_SERVICE=DIR. A crashed API server leaves its engine processes alive, with their memory.
- The process gets its own session and writes into DIR/log/service.log itself, so that it outlives a killed wrapper
  or supervisord. The wrapper keeps that file short.
- When it finds the process of the same launch alive, it watches that one instead of starting another: this is how a
  service survives ``kill -9`` of the wrapper or of supervisord, and how a process started by hand is adopted.
- SIGTERM: stop the process, then exit 0. SIGUSR1: let go of the process and exit (a newer wrapper takes over).
- When the process ends, what is left of it is ended too, and the wrapper exits so that supervisord restarts it.

The few functions that read /proc exist a second time in module_utils/voices/processes.py: this file is copied alone to
the service's host and must run without that package.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

MARK = "VOICES_SERVICE"
PASSED_ON = ("PATH", "HOME", "LANG", "USER", "TMPDIR")
ORPHAN_GRACE_S = 5.0
TICK_S = 1.0
SCAN_S = 2.0  # while the process starts its children
LATER_SCAN_S = 15.0
POLL_S = 0.05
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Identity(NamedTuple):
    """One process, for ever: a pid is reused, pid and start time of one boot are not."""

    pid: int
    start_time: int
    boot_id: str


class Process(NamedTuple):
    """One line of the process table."""

    parent: int
    group: int
    session: int
    state: str
    start_time: int


def read_boot_id() -> str:
    """The id of this boot; empty where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return ""


BOOT_ID = read_boot_id()


def read_process(pid: int, zombies: bool = False) -> Process | None:
    """The process with this pid, or None when there is none (a zombie counts as none unless asked for)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if len(fields) < 20 or (fields[0] in "ZXx" and not zombies):
        return None
    return Process(int(fields[1]), int(fields[2]), int(fields[3]), fields[0], int(fields[19]))


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this pid now."""
    process = read_process(pid)
    return Identity(pid, process.start_time, BOOT_ID) if process else None


def is_alive(identity: Identity) -> bool:
    """Whether that very process still runs."""
    return identify(identity.pid) == identity


def carries_mark(pid: int, directory: str) -> bool:
    """Whether the process started with our mark in its environment (False when that is not readable)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return f"{MARK}={directory}".encode() in stream.read().split(b"\0")
    except OSError:
        return False


def send(identity: Identity, signum: int) -> bool:
    """Signal that very process; False when it is gone or not ours to signal. The descriptor pins it meanwhile."""
    handle = open_pidfd(identity.pid)
    try:
        if not is_alive(identity):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, signum)
        else:
            os.kill(identity.pid, signum)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, or -1 where the kernel or a sandbox has none."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        return -1


def find_members(
    directory: str, leader: Identity | None, group: int, recorded: set[Identity], marked: bool
) -> set[Identity]:
    """Every living process of the service: see ``members`` in module_utils/voices/processes.py for the rule."""
    table = {}
    for entry in os.listdir("/proc"):
        process = read_process(int(entry)) if entry.isdigit() else None
        if process:
            table[int(entry)] = process
    known = recorded | ({leader} if leader else set())
    mine = os.getpid()  # all our descendants are the service's: nothing else is started here, and orphans come to us
    ours = {mine} | {pid for pid, process in table.items() if Identity(pid, process.start_time, BOOT_ID) in known}
    if marked:
        ours |= {pid for pid in table if carries_mark(pid, directory)}
    head = table.get(group)
    if group and leader and leader.boot_id == BOOT_ID and (head is None or head.start_time == leader.start_time):
        ours |= {
            pid
            for pid, process in table.items()
            if group in (process.group, process.session) and process.start_time >= leader.start_time
        }
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    reach = list(ours)
    while reach:
        for child in children.get(reach.pop(), []):
            if child not in ours:
                ours.add(child)
                reach.append(child)
    while mine in table:  # never ourselves or who started us
        ours.discard(mine)
        mine = table[mine].parent
    return {Identity(pid, table[pid].start_time, BOOT_ID) for pid in ours}


def write_file(path: str, content: bytes) -> None:
    """Replace a file atomically; mode 0600 by the umask."""
    temporary = f"{path}.new"
    with open(temporary, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def read_json(path: str) -> dict[str, Any]:
    """The object in a file; empty when the file is missing or no JSON object."""
    try:
        with open(path) as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def as_identity(data: Any) -> Identity | None:
    """The identity in a state file, or None."""
    try:
        return Identity(int(data["pid"]), int(data["start_time"]), str(data["boot_id"]))
    except (TypeError, KeyError, ValueError):
        return None


def utc_now() -> str:
    """This instant, for a person."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def say(text: str) -> None:
    """One line into the service's log."""
    print(f"service_run: {text}", flush=True)


class Wrapper:
    """The life of one wrapper."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.run = f"{directory}/run"
        self.log_path = f"{directory}/log/service.log"
        self.launch: dict[str, Any] = {}
        self.launch_stamp: tuple[int, int] = (0, 0)
        self.leader: Identity | None = None
        self.group = 0
        self.recorded: set[Identity] = set()
        self.child_pid = 0
        self.child_status: int | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.letting_go = False
        self.started = time.monotonic()
        self.scanned = 0.0
        self.lock = -1
        self.wake = -1

    # ------------------------------------------------------------------------------------------------ life

    def main(self) -> int:
        """Run to the end; returns the exit status for supervisord."""
        self.open_log()
        self.take_signals()
        self.take_lock()
        self.read_launch()
        if not self.launch.get("argv"):
            say(f"{self.run}/launch.json is missing or empty: nothing to run")
            return 1
        self.become_reaper()
        if self.resume() or self.adopt():
            return self.watch()
        self.clear("left by an earlier start")
        return 0 if self.stopping or self.letting_go else self.start() or self.watch()

    def open_log(self) -> None:
        handle = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)

    def take_signals(self) -> None:
        def handler(signum: int, _frame: Any) -> None:
            if signum == signal.SIGUSR1:
                self.letting_go = True
            else:
                self.stopping = True

        self.wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, handler)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def take_lock(self) -> None:
        """Be the only wrapper of this directory; an older one, whose supervisord was killed, is told to let go."""
        self.lock = os.open(f"{self.run}/wrapper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + 5
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                other = as_identity(read_json(f"{self.run}/wrapper.lock"))
                if other:
                    send(other, signal.SIGKILL if time.monotonic() > deadline else signal.SIGUSR1)
                time.sleep(POLL_S)
        self.note_wrapper()

    def note_wrapper(self, watching: int = 0) -> None:
        """Say who we are, for the next wrapper and for the module, which waits until somebody watches the process."""
        own = identify(os.getpid())
        text = json.dumps({**(own._asdict() if own else {}), "watching": watching}).encode()
        os.ftruncate(self.lock, os.pwrite(self.lock, text, 0))

    def become_reaper(self) -> None:
        """Let the service's orphans become our children: there may be no init that reaps them (a container)."""
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        except (OSError, AttributeError) as error:
            say(f"orphans cannot be reaped here: {error}")

    def read_launch(self) -> None:
        path = f"{self.run}/launch.json"
        with contextlib.suppress(OSError):
            status = os.stat(path)
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self.launch_stamp:
                self.launch, self.launch_stamp = read_json(path) or self.launch, stamp

    # ---------------------------------------------------------------------------------------- take, adopt, start

    def resume(self) -> bool:
        """Whether the process of this very launch still runs; then it is the one to watch."""
        booted = read_json(f"{self.run}/booted.json")
        leader = as_identity(booted)
        if leader is None:
            return False
        self.leader, self.group = leader, int(booted.get("group") or 0)
        # (`leader` may be dead: then this is what an earlier start left, for clear() to find.)
        noted = read_json(f"{self.run}/members.json").get("members") or []
        self.recorded = {Identity(*one) for one in noted}
        if not is_alive(leader) or booted.get("launch_id") != self.launch.get("launch_id"):
            return False
        say(f"watching pid {leader.pid} again")
        return True

    def adopt(self) -> bool:
        """Whether the launch names a running process to take over; then it is noted as ours."""
        wanted = as_identity(self.launch.get("adopt"))
        process = read_process(wanted.pid) if wanted else None
        if wanted is None or process is None or not is_alive(wanted):
            return False
        before = self.members(marked=True)
        # Only a group of its own: the group may as well be that of the shell or script it was started from.
        self.leader, self.group, self.recorded = wanted, wanted.pid if process.group == wanted.pid else 0, set()
        before -= self.members(marked=False)
        self.finish(before, ORPHAN_GRACE_S)
        self.snapshot_config()
        self.note_booted(adopted=True)
        output = self.output(wanted.pid)
        say(f"launch {self.launch.get('launch_id')} adopts pid {wanted.pid}; its output stays with {output}")
        return True

    def clear_temporary(self, temporary: str) -> None:
        """Make the process's own TMPDIR, without what an earlier process left there; a TMPDIR elsewhere is not ours."""
        if os.path.dirname(temporary) == self.directory:
            shutil.rmtree(temporary, ignore_errors=True)
            os.makedirs(temporary, mode=0o700, exist_ok=True)

    def start(self) -> int:
        """Start the process; returns a non-zero exit status when that fails."""
        argv = self.launch["argv"]
        environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        environment.update(self.launch.get("environment") or {})
        environment[MARK] = self.directory
        self.clear_temporary(environment.get("TMPDIR", ""))
        say(f"launch {self.launch.get('launch_id')} at {utc_now()}: {os.path.basename(argv[0])}")
        self.snapshot_config()
        try:
            self.child = subprocess.Popen(
                argv, env=environment, cwd=self.run, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            say(f"Error: cannot run {argv[0]}: {error.strerror}")
            return 1
        self.child_pid = self.child.pid
        # Not reaped yet, so it is there, if only as a zombie.
        process = read_process(self.child_pid, zombies=True)
        self.leader = Identity(self.child_pid, process.start_time if process else 0, BOOT_ID)
        self.group = self.child_pid
        self.recorded = set()
        self.note_booted(adopted=False)
        return 0

    def snapshot_config(self) -> None:
        path = self.launch.get("config_file")
        try:
            with open(path or os.devnull, "rb") as stream:
                content = stream.read()
        except OSError as error:
            say(f"Error: cannot read {path}: {error.strerror}")
            content = b""
        write_file(f"{self.run}/booted_config", content)

    def note_booted(self, adopted: bool) -> None:
        assert self.leader is not None  # noqa: S101 - called after it was set
        noted = {
            **self.leader._asdict(),
            "group": self.group,
            "adopted": adopted,
            "launch_id": self.launch.get("launch_id"),
            "argv": self.launch["argv"],
            "environment": self.launch.get("environment") or {},
            "config_file": self.launch.get("config_file") or "",
            "started": utc_now(),
        }
        write_file(f"{self.run}/booted.json", json.dumps(noted, indent=1).encode())

    @staticmethod
    def output(pid: int) -> str:
        try:
            return os.readlink(f"/proc/{pid}/fd/1")
        except OSError:
            return "whoever started it"

    # -------------------------------------------------------------------------------------------------- watch

    def watch(self) -> int:
        """Wait for the end of the process or for a signal; returns the exit status."""
        leader = self.leader
        assert leader is not None  # noqa: S101 - resume, adopt and start set it
        handle = open_pidfd(leader.pid)
        self.scan()
        self.note_wrapper(watching=leader.pid)
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        if handle >= 0:
            poller.register(handle, select.POLLIN)
        while True:
            self.reap()
            if self.letting_go:
                say("letting go: another wrapper takes over")
                sys.stdout.flush()
                os._exit(0)  # the Popen object must not wait
            if self.stopping:
                return self.stop()
            if not is_alive(leader):
                return self.ended()
            self.tick()
            poller.poll(TICK_S * 1000 if handle >= 0 else 250)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 512)

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.child_pid:
                    self.child_status = os.waitstatus_to_exitcode(status)

    def tick(self) -> None:
        self.read_launch()
        self.rotate()
        now = time.monotonic()
        if now - self.scanned >= (SCAN_S if now - self.started < 120 else LATER_SCAN_S):
            self.scan()

    def scan(self) -> None:
        """Note who belongs to the service now: children of a dead process cannot be found by their parent any more."""
        self.scanned = time.monotonic()
        found = self.members(marked=False)
        if not found <= self.recorded or not os.path.exists(f"{self.run}/members.json"):
            self.recorded = found
            write_file(f"{self.run}/members.json", json.dumps({"members": sorted(found)}).encode())

    def rotate(self) -> None:
        """Copy the log away and empty it once it is too long. Writers append, so they go on at the new end."""
        limit, backups = int(self.launch.get("log_max_bytes") or 0), int(self.launch.get("log_backups") or 0)
        if not limit or os.fstat(1).st_size < limit:
            return
        for number in range(backups, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.log_path}.{number - 1}", f"{self.log_path}.{number}")
        if backups:
            shutil.copyfile(self.log_path, f"{self.log_path}.1")
        os.ftruncate(1, 0)

    # --------------------------------------------------------------------------------------------------- end

    def stop_seconds(self) -> float:
        return float(self.launch.get("stop_seconds") or 20)

    def stop(self) -> int:
        """SIGTERM to the process, ``stop_seconds``, then SIGKILL to it and all that belongs to it."""
        limit_s = self.stop_seconds()
        if self.leader is not None:
            say(f"stopping pid {self.leader.pid}")
            self.scan()
            send(self.leader, signal.SIGTERM)
            if not self.wait_gone({self.leader}, limit_s):
                say(f"pid {self.leader.pid} did not stop within {limit_s:g} s: killing it")
                self.finish({self.leader, *self.recorded}, 0)
        self.clear("left after the stop")
        return 0

    def ended(self) -> int:
        self.reap()
        pid = self.leader.pid if self.leader else self.child_pid
        code = self.child_status
        say(f"pid {pid} ended" + ("" if code is None else f" with {code}" if code >= 0 else f" by signal {-code}"))
        self.clear("left after its end")
        if code is None or code == 0:
            return 1
        return code if 0 < code < 256 else 128 - code

    def members(self, marked: bool) -> set[Identity]:
        """Every living process of the service, by its leader, its group and what was recorded (and by the mark)."""
        return find_members(self.directory, self.leader, self.group, self.recorded, marked)

    def clear(self, why: str) -> None:
        """End every process that belongs to the service."""
        found = self.members(marked=True)
        if found:
            say(f"ending {', '.join(f'pid {one.pid}' for one in sorted(found))}: {why}")
            self.finish(found, min(ORPHAN_GRACE_S, self.stop_seconds()))
            found = self.members(marked=True)
            self.finish(found, 0)  # those that were being started meanwhile

    def finish(self, identities: set[Identity], grace_s: float) -> None:
        for signum, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            if wait_s == 0 or not identities:
                continue
            for one in identities:
                send(one, signum)
            if self.wait_gone(identities, wait_s):
                return
        for one in sorted(one for one in identities if is_alive(one)):
            say(f"Error: pid {one.pid} cannot be ended")

    def wait_gone(self, identities: set[Identity], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while True:
            self.reap()
            if not any(is_alive(one) for one in identities):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(Wrapper(os.path.abspath(sys.argv[1])).main())
