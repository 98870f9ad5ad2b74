"""Make the project's own modules importable as Ansible imports them: ``ansible.module_utils.voices`` and library/."""

from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils

REPOSITORY = Path(__file__).resolve().parent.parent

ansible.module_utils.__path__.append(str(REPOSITORY / "module_utils"))
for directory in (REPOSITORY, REPOSITORY / "library"):
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
