"""Run something in a child that kills itself before a certain system call: what would a kill there leave behind?"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("open", "write", "rename", "fsync", "mkdir", "unlink", "rmdir", "chmod", "fchmod")


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that SIGKILLs itself before its system call ``number``. False when it got to its end."""
    child = os.fork()
    if child == 0:
        left = [number]

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def before(*args: Any, **options: Any) -> Any:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*args, **options)

            return before

        code = 3
        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False
