# What a host has of Docker: does it answer on the socket $1, and is there a Compose, above all at the plugin's path $2.
# The other arguments are the names of packages, of which one may be half installed.
# Prints KEY=VALUE lines, the value empty for what is missing; reads only; POSIX sh.
socket=$1 plugin=$2
shift 2
# A remote shell may lack the directories of root's programs, and a person's own settings may point elsewhere.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" LC_ALL=C.UTF-8 DOCKER_CONFIG=/nonexistent
unset DOCKER_HOST DOCKER_CONTEXT DOCKER_TLS_VERIFY DOCKER_API_VERSION

put() { printf '%s=%s\n' "$1" "$2"; }

put dockerd "$(command -v dockerd)"
put docker "$(command -v docker)"
init=$(cat /proc/1/comm)
unit() { systemctl is-active --quiet "$1" 2>/dev/null; }
# Where systemd listens on the socket for a Docker that is stopped, asking would start it.
listens() { unit docker.socket && [ "$(systemctl show --value --property Listen docker.socket)" = "$1 (Stream)" ]; }
if [ "$init" = systemd ] && ! unit docker.service && { listens "$socket" || listens "/run/${socket#/var/run/}"; }; then
    put answers ''
else
    put answers "$(timeout 15 docker --host "unix://$socket" version --format '{{.Server.Version}}' 2>/dev/null </dev/null)"
fi
if [ -x "$plugin" ]; then
    put own_compose yes
    compose=$(timeout 15 "$plugin" version --short 2>/dev/null </dev/null)
else
    put own_compose no
    compose=$(timeout 15 docker compose version --short 2>/dev/null </dev/null)
fi
put compose "${compose#v}"
put init "$init"
if dpkg-query --show --showformat '${db:Status-Status}\n' "$@" 2>/dev/null | grep -qE '^(half|unpacked)'; then
    put unfinished yes
else
    put unfinished no
fi
put machine "$(uname -m)"
command -v apt-get >/dev/null 2>&1 && put apt yes || put apt no
