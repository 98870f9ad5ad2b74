# Start dockerd where no service manager does, and wait until it answers.
#
# usage: start_dockerd.sh start|wait SOCKET PIDFILE LOG SECONDS [dockerd's arguments]     (POSIX sh)
#
# wait: another one starts it. Prints "started" or "kept" (it answers without having been started here). Exit status 1
# with dockerd's own last error lines on standard error when it ends, or does not answer in time. dockerd stays up when
# this is killed.
do=$1 socket=$2 pidfile=$3 log=$4 seconds=$5
shift 5
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" LC_ALL=C.UTF-8 DOCKER_CONFIG=/nonexistent
unset DOCKER_HOST DOCKER_CONTEXT DOCKER_TLS_VERIFY DOCKER_API_VERSION
umask 022
cd / || exit 1

answers() { timeout 15 docker --host "unix://$socket" version --format '{{.Server.Version}}' >/dev/null 2>&1 </dev/null; }

# Whether the pid in the file is a dockerd: after a reboot, or in a restarted container, it may be anything.
noted() { pid=$(cat "$pidfile" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; }

fail() {
    echo "$1" >&2
    [ "$do" = start ] || exit 1
    # What this start wrote, without what is no error.
    tail -c "+$((before + 1))" "$log" | grep -vE 'level=(debug|info|warning)|^[[:space:]]*$' | tail -n 8 >&2
    echo "The whole log: $log" >&2
    exit 1
}

before=0 child='' word=kept
if [ "$do" = start ] && ! answers && ! noted; then
    rm -f "$pidfile"
    mkdir -p "$(dirname "$log")" "$(dirname "$socket")" "$(dirname "$pidfile")" || exit 1
    touch "$log" || exit 1
    before=$(wc -c <"$log")
    # Containers inherit this; an ssh session's own limit is low.
    ulimit -n "$(ulimit -H -n)"
    # A session of its own: what ends this run's process group does not end dockerd.
    setsid dockerd "$@" >>"$log" 2>&1 </dev/null &
    child=$! word=started
fi

deadline=$(($(date +%s) + seconds))
until answers; do
    # It may have ended because another run's dockerd was first; that one's pid is noted then.
    if [ -n "$child" ] && ! kill -0 "$child" 2>/dev/null && ! noted; then
        fail 'dockerd ended before it answered.'
    fi
    [ "$(date +%s)" -lt "$deadline" ] || fail "No answer within $seconds s${child:+, dockerd (pid $child) goes on}."
    sleep 0.2
done
echo "$word"
