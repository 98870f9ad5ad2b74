#!/bin/sh
# Run the project's own tools with some Python 3.11 or newer that really runs.
#
# usage: tools/python.sh SCRIPT [arguments]
#
# Which Python an environment under var/venv/ is made with is decided in interpreters.py; this only starts that script.
# An environment that is already there comes first, because a version manager's shims cost a tenth of a second each.
# $PYTHON (`make PYTHON=...`), when set, is tried before any other.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1

for candidate in ${PYTHON:+"$PYTHON"} \
    "$root/var/venv/controller/bin/python" "$root/var/venv/dev/bin/python" \
    python3.14 python3.13 python3.12 python3.11 \
    /usr/local/bin/python3 /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 python3; do
    # -E and -s: a PYTHONPATH or a package in the home directory changes nothing here.
    if "$candidate" -E -s -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null >/dev/null 2>&1; then
        exec "$candidate" -E -s -B "$@"
    fi
done
cat >&2 <<'END'
set-up: found no Python 3.11 or newer that runs (tried python3.14 to python3.11 and python3, on PATH and in /usr/bin).
  Install one (Debian, Ubuntu: apt install python3 python3-venv) or name one: make PYTHON=/path/to/python3.12
END
exit 1
