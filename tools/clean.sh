#!/bin/sh
# Remove everything that set-up and runs made: all of var/. `make clean` stops what runs there first.
#
# usage: tools/clean.sh
set -eu
cd "$(dirname "$0")/.."
[ -d var/ ] || exit 0
# Stored adapters are read-only, directories included. -xdev: never into something mounted below var/.
find var/ -xdev -type d ! -perm -u+w -exec chmod u+w {} +
find var/ -xdev -mindepth 1 -delete
# var may be a link to a larger disk: the link is the person's own, what lay behind it is ours.
[ -L var ] || rmdir var
