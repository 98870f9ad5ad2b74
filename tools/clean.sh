#!/bin/sh
# Remove everything that set-up and runs made: all of var/. `make clean` stops what runs there first.
#
# usage: tools/clean.sh
set -eu
cd "$(dirname "$0")/.."
if [ -L var ]; then
    echo "clean: var is a link to $(readlink var), where other things may lie: empty that yourself, then: rm var" >&2
    exit 1
fi
[ -d var ] || exit 0
# Stored adapters are read-only, directories included. -xdev: never into something mounted below var/.
find var -xdev -type d ! -perm -u+w -exec chmod u+w {} +
find var -xdev -delete
