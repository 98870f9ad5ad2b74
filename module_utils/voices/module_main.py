"""What the ``main()`` of every module does alike: name a missing library, and fail without a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from .plan import VoicesError


def require(module: AnsibleModule, libraries: str, import_error: str | None) -> None:
    """Fail when the host lacks ``libraries``; ``import_error`` is the traceback of their import, None when it worked.

    A module imports what needs them only where that worked, so a host without them gets this message instead.
    """
    if import_error is not None:
        module.fail_json(msg=missing_required_lib(libraries), exception=import_error)


@contextlib.contextmanager
def errors_reported(module: AnsibleModule, path: str | None = None) -> Iterator[None]:
    """Turn a refusal (VoicesError) and an error of a file (OSError) into the module's failure.

    ``path`` is what the message names when the error names no file.
    """
    try:
        yield
    except VoicesError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        what = error.filename or path
        module.fail_json(msg=(f"{what}: " if what else "") + (error.strerror or str(error)))
