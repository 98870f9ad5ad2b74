"""Run one of the project's modules in a process of its own, so that a test can kill it.

python -m tests.support.module_process NAME [--check]     (arguments as JSON on standard input, the result on output)
"""

from __future__ import annotations

import json
import sys

import tests.conftest  # noqa: F401 - makes library/ and the core importable
from tests.support.run_module import run_module


def main() -> None:
    """Print the module's result; exit status 1 when it failed."""
    result = run_module(sys.argv[1], json.load(sys.stdin), check="--check" in sys.argv[2:])
    json.dump(result, sys.stdout)
    sys.exit(1 if result.get("failed") else 0)


if __name__ == "__main__":
    main()
