# What stands at $1 (the environment's path), compared with a lock's SHA-256 $2, and which Python could make it anew.
# $3: the one Python to consider, empty for all. Prints KEY=VALUE lines; reads only; POSIX sh; the caller sets $1 to $3.
venv=$1 lock=$2 named=$3
stamp=$venv/.made-from # lines: the lock's SHA-256, the Python it was made with, that Python's version

put() { printf '%s=%s\n' "$1" "$2"; }

answer='import sys
able = "yes"
try:
    import ensurepip, venv
except ImportError:
    able = "no"
print("%s %d.%d %s" % (getattr(sys, "_base_executable", None) or sys.executable, sys.version_info[0], sys.version_info[1], able))'

version_of() { "$1" -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null; }

same_file() { [ "$(readlink -f "$1")" = "$(readlink -f "$2")" ]; }

state=ready why='' usable=no
runs=$(version_of "$venv/bin/python") && usable=yes
if [ -e "$venv" ] && [ ! -L "$venv" ]; then
    state=foreign why='no link that the role made'
elif [ ! -L "$venv" ]; then
    state=missing why='there are none yet' usable=no
elif [ "$usable" = no ]; then
    state=broken why='their Python does not run'
elif [ ! -f "$stamp" ]; then
    state=broken why='they have no stamp'
elif [ "$(sed -n 3p "$stamp")" != "$runs" ]; then
    # An upgrade of the host: the new Python does not see what was installed for the old one.
    state=broken why="their Python was $(sed -n 3p "$stamp"), now it is $runs" usable=no
elif [ "$(sed -n 1p "$stamp")" != "$lock" ]; then
    state=outdated why='the lock changed'
elif [ -n "$named" ] && ! same_file "$named" "$(sed -n 2p "$stamp")"; then
    state=outdated why="they were made with $(sed -n 2p "$stamp"), not with $named"
fi
put state "$state"
put why "$why"
put usable "$usable"
[ "$state" = ready ] && exit 0

# The distribution's own comes first: it gets security updates, and every user can run it.
names='python3 python3.14 python3.13 python3.12 python3.11'
candidates() {
    if [ -n "$named" ]; then
        echo "$named"
        return
    fi
    for directory in /usr/bin /usr/local/bin; do
        for name in $names; do
            echo "$directory/$name"
        done
    done
    for name in $names; do
        command -v "$name"
    done
}

python='' version='' able=no lacks=''
for candidate in $(candidates); do
    [ -x "$candidate" ] || continue
    if ! found=$("$candidate" -I -c "$answer" 2>/dev/null </dev/null); then
        lack='does not run'
    else
        # Path, version and yes or no; no supported path has white space.
        # shellcheck disable=SC2086
        set -- $found
        minor=${2#3.}
        if [ "${2%%.*}" != 3 ] || [ "$minor" -lt 11 ]; then
            lack="is Python $2"
        elif [ "$3" = no ]; then
            lack="is Python $2 without venv or ensurepip"
        else
            python=$1 version=$2 able=yes
            break
        fi
    fi
    case "; $lacks" in
        *"; $candidate "*) ;;
        *) lacks="${lacks:+$lacks; }$candidate $lack" ;;
    esac
done
if [ "$able" = no ] && [ -z "$lacks" ]; then
    lacks="${named:-any Python} is not there"
fi
put python "$python"
put version "$version"
put able "$able"
put lacks "$lacks"
command -v apt-get >/dev/null 2>&1 && put apt yes || put apt no
