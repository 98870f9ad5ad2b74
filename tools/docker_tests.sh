#!/bin/sh
# The tests that need a Docker engine: Molecule compose, which brings one up where there is none, then tests/docker on it.
# An engine that was started for them is stopped at the end.
#
# usage: tools/docker_tests.sh [scenario]     (needs root and the dev environment's bin on PATH; scenario: Molecule alone)
set -u
cd "$(dirname "$0")/.." || exit 1
if [ "$(id -u)" -ne 0 ]; then
    # Said and not counted: nothing here may look like a test that passed.
    echo '==> docker: NOT RUN: starting a Docker engine takes root (as root: make docker)'
    exit 0
fi
trap 'molecule/compose/cleanup.sh "$PWD"' EXIT
trap 'exit 1' INT TERM HUP
status=0
VOICES_KEEP_DOCKER=1 tools/molecule.sh compose || status=1
if [ "${1:-}" != scenario ]; then
    tools/timed.sh docker python -m pytest tests/docker || status=1
fi
exit "$status"
