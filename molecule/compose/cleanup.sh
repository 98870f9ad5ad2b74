#!/bin/sh
# Take away what the scenario made: its container and network, its files (only where it had claimed the directory), and the
# Docker engine if the scenario started it. Prints what it removed.
set -eu
project=$1
python="$project/var/venv/dev/bin/python"
started="$project/var/molecule/compose-dockerd"
cd "$project"
if docker info >/dev/null 2>&1; then
    for id in $(docker container ls --all --quiet --filter label=com.docker.compose.project=voices-qwen3-4b); do
        docker container rm --force "$id"
    done
    docker network ls --quiet --filter label=com.docker.compose.project=voices-qwen3-4b | xargs -r docker network rm
fi
for directory in /var/lib/voices /tank/aimodels; do
    if [ -e "$directory/.made-for-tests" ]; then
        "$python" -m tests.support.fleet_files remove "$directory"
        echo "removed $directory"
    fi
done
if [ -s "$started" ] && [ -z "${VOICES_KEEP_DOCKER:-}" ]; then
    pid=$(cat "$started")
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
        kill "$pid"
        tries=0
        while [ -e "/proc/$pid" ] && [ "$tries" -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
        echo "stopped dockerd, pid $pid"
    fi
    rm -f "$started"
fi
