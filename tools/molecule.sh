#!/bin/sh
# Run one Molecule scenario from its beginning: Molecule remembers a scenario that it prepared once, and would not prepare
# it again.
#
# usage: tools/molecule.sh NAME     (needs the dev environment's bin on PATH; exit status: Molecule's)
set -u
cd "$(dirname "$0")/.." || exit 1
molecule reset --scenario-name "$1" >/dev/null 2>&1
exec tools/timed.sh "molecule $1" molecule test --scenario-name "$1"
