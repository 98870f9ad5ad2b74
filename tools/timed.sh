#!/bin/sh
# Run one part of the tests and say how long it took, whatever its outcome.
#
# usage: tools/timed.sh NAME command [arguments]     (exit status: the command's)
set -u
name=$1
shift
# In a log, colours and links are noise.
[ -t 1 ] || export NO_COLOR=1
began=$(date +%s)
echo "==> $name"
"$@"
status=$?
if [ "$status" -eq 0 ]; then outcome=ok; else outcome="FAILED, exit status $status"; fi
echo "==> $name: $outcome, $(($(date +%s) - began)) s"
exit "$status"
