#!/bin/sh
# Make the engine's base image from Debian's own packages: Python and libnuma, the rest is mounted. No registry is asked.
#
# usage: base_image.sh IMAGE CACHE_DIRECTORY
set -eu
image=$1 cache=$2
[ -z "$(docker image ls -q "$image")" ] || exit 0
. /etc/os-release
archive="$cache/base-$VERSION_CODENAME.tar"
mkdir -p "$cache"
if [ ! -s "$archive" ]; then
    command -v mmdebstrap >/dev/null || { apt-get update -q && apt-get install -q -y mmdebstrap; } >/dev/null
    # The machine's own sources, whatever their format.
    find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -o -name '*.sources' 2>/dev/null |
        xargs cat | mmdebstrap --quiet --variant=minbase --include=python3,libnuma1 "$VERSION_CODENAME" "${archive%.tar}.new.tar" -
    mv "${archive%.tar}.new.tar" "$archive"
fi
# There is no C++ compiler in it. Without one, an engine that has torch compile what tells log-probabilities dies of it.
docker import --change 'ENV TORCHDYNAMO_DISABLE=1' "$archive" "$image" >/dev/null
echo "made $image"
