#!/bin/sh
# Run every linter, also after one has failed, so that one run shows all there is to mend.
#
# usage: tools/lint.sh     (exit status: 1 when any linter found something; needs the dev environment's bin on PATH)
set -u
cd "$(dirname "$0")/.." || exit 1
failed=

check() { # check NAME command [arguments]
    name=$1
    shift
    echo "--> $name"
    "$@" || failed="$failed $name"
}

# Modules import the pure core as ansible.module_utils.voices; this link makes that a real path for mypy.
mkdir -p var/mypy/ansible/module_utils
ln -sfn ../../../../module_utils/voices var/mypy/ansible/module_utils/voices

check ruff ruff check
check 'ruff format' ruff format --check
check mypy mypy
check yamllint yamllint --strict .
check ansible-lint ansible-lint --offline
check sh sh -c 'for script in tools/*.sh; do sh -n "$script" || exit 1; done; bash -n .ci/run'

[ -z "$failed" ] || { echo "lint: failed:$failed" >&2; exit 1; }
