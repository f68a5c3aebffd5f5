# Sourced by the commands of this folder (bash): the folder .venv, made when it is missing or out of date.
#
# Before:  `root` is the absolute path of the project.
# Offers:  `ensure_venv [EXTRA]` leaves in `venv` an environment with the project, installed
#          editable, and the extra; `find_python` leaves in `python` the interpreter to make it with.
#
# Rules:
#   * The stamp says what .venv was made from: its own place and the interpreter (first line), the
#     sources of the set-up (second), the extra (third). What differs is out of date: another place
#     or interpreter means a new .venv, other sources or a missing extra one more run of pip.
#   * Before anything in .venv changes, the stamp reads "unfinished"; the true one is put in place
#     last, by rename. So a set-up that was interrupted is done again, from an empty folder.
#   * Whoever changes .venv holds the lock on the project's folder. pip inherits it: while a pip
#     whose shell was killed still runs, nobody else starts.
#   * A start that finds everything in order runs no Python here, only stat, cat and sha256sum.

say() { printf '%s\n' "$*" >&2; }

die() {
    say "softhca: $*"
    exit 1
}

# --- what .venv was made from, and what it should be made from --------------------------------

identity() { stat -L -c '%n %s %Y' -- "$venv/bin/python" 2>/dev/null; }

sources() { cat -- "$root/pyproject.toml" "$root/scripts/_setup.sh" | sha256sum; }

read_stamp() {
    [ -r "$stamp" ] || return 1
    { IFS= read -r made_identity && IFS= read -r made_sources && IFS= read -r made_extra; } <"$stamp"
}

write_stamp() { # SOURCES EXTRA
    printf '%s\n' "$(identity)" "$1" "${2:-none}" >"$stamp.new" &&
        mv -f -- "$stamp.new" "$stamp"
}

is_ready() { # EXTRA
    read_stamp &&
        [ "$made_identity" = "$(identity)" ] &&
        [ "$made_sources" = "$(sources)" ] &&
        { [ -z "$1" ] || [ "$made_extra" = "$1" ]; }
}

# --- the interpreter ---------------------------------------------------------------------------

# A free-threaded build is refused: what is shared between processes rests on the order the GIL gives.
readonly fitness='
import sys, sysconfig
note = "" if sys.implementation.name == "cpython" else " (%s)" % sys.implementation.name
note = " (free-threaded)" if sysconfig.get_config_var("Py_GIL_DISABLED") else note
print("%d.%d.%d" % sys.version_info[:3] + note)
sys.exit(bool(note) or sys.version_info < (3, 11))
'

find_python() {
    # An active .venv must not be made from itself.
    local -x PATH=":$PATH:"
    PATH=${PATH//":$root/.venv/bin:"/:}
    PATH=${PATH#:} PATH=${PATH%:}
    local name found unfit='' incomplete=''
    for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
        python=$(command -v "$name") || continue
        if ! found=$("$python" -I -c "$fitness" 2>/dev/null); then
            unfit+="${found:+${unfit:+, }$name is $found}"
        elif ! "$python" -I -c 'import ensurepip, venv; ensurepip.version()' >/dev/null 2>/dev/null; then
            incomplete=${incomplete:-$name}
        else
            return 0
        fi
    done
    [ -z "$incomplete" ] ||
        die "$incomplete lacks the modules venv and ensurepip; on Debian and Ubuntu this cures it: apt install $incomplete-venv"
    die "CPython 3.11 or later is needed and was not found${unfit:+ ($unfit)}; on Debian 12 or later this cures it: apt install python3 python3-venv"
}

# --- the set-up --------------------------------------------------------------------------------

make_empty_venv() {
    mkdir -p -- "$venv" && echo unfinished >"$stamp" &&
        find "$venv/" -mindepth 1 ! -name "${stamp##*/}" -delete &&
        "$python" -I -m venv "$venv" >&2 ||
        die "$python could not make $venv (see above); when the reason is gone, start again"
}

check_foreign_venv() {
    "$venv/bin/python" -I -c "${fitness}" >/dev/null 2>&1 && "$venv/bin/python" -I -c 'import pip' 2>/dev/null ||
        die "$venv was not made by this command and lacks CPython 3.11 or pip: move it away and start again"
}

install_project() { # EXTRA
    # The caller's pip configuration holds, but for what would put the packages elsewhere.
    (cd -- "$root" && unset PIP_TARGET PIP_PREFIX PIP_ROOT && export PIP_USER=0 &&
        exec "$venv/bin/python" -I -m pip install -q --no-input --disable-pip-version-check \
            -e ".${1:+[$1]}") >&2
}

set_up() { # EXTRA
    local extra=$1 used
    used=$(sources) # before pip reads them: what is changed meanwhile is new at the next start
    if read_stamp && [ "$made_identity" = "$(identity)" ]; then
        say "setting up .venv (something is new)..."
        [ "$made_extra" = none ] || extra=$made_extra
    elif [ -e "$venv/bin/python" ] && [ ! -e "$stamp" ]; then
        say "setting up the .venv that is here (once)..."
        check_foreign_venv
    else
        find_python
        say "setting up .venv (once)..."
        make_empty_venv
    fi
    echo unfinished >"$stamp"
    install_project "$extra" ||
        die "pip could not install what is needed (see above): check the network or pip's configuration, then start again"
    write_stamp "$used" "$extra" || die "cannot write $stamp"
}

ensure_venv() { # [EXTRA]
    local extra=${1:-} lock made_identity made_sources made_extra
    venv=$root/.venv
    stamp=$venv/softhca.stamp
    unset PYTHONHOME PYTHONPATH VIRTUAL_ENV
    is_ready "$extra" && return
    [ "$(uname -s)" = Linux ] ||
        die "Linux is needed and this is $(uname -s): use a Linux machine, virtual machine or container"
    [ -w "$root" ] ||
        die "cannot write to $root, where .venv is to be made: change its owner or its rights, or use a copy of your own"
    command -v flock >/dev/null ||
        die "the command flock is missing; on Debian and Ubuntu this cures it: apt install util-linux"
    exec {lock}<"$root"
    flock -n "$lock" || {
        say "waiting for another set-up of this .venv to end..."
        flock "$lock" || die "cannot lock $root"
    }
    trap 'exit 130' INT # pip would answer Ctrl-C with a failure, and that is no matter of the network
    is_ready "$extra" || set_up "$extra"
    trap - INT
    exec {lock}<&-
}
