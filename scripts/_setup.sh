# Sourced by the commands of this folder (bash): the folder .venv, made when it is missing or out of date.
#
# Before:  `root` is the absolute path of the project.
# Offers:  `ensure_venv [EXTRA]` leaves in `venv` an environment with the project, installed
#          editable, and the extra; `find_python` leaves in `python` the interpreter to make it with;
#          `bounded PYTHON COMMAND...` and `end_on_signals SENTENCE` for what must end with this shell.
#
# Rules:
#   * The stamp says what .venv was made from: its own place and the interpreter (first line), the
#     sources of the set-up (second), the extra (third), and by whom (fourth). What differs is out
#     of date: another place or interpreter means a new .venv, other sources or a missing extra one
#     more run of pip. What was made by hand is never emptied.
#   * Before anything in .venv changes, the stamp reads "unfinished"; the true one is put in place
#     last, by rename. The one before is kept beside it, and is true again when pip failed, or was
#     ended, before it changed anything: pip fetches everything first, so no network means that.
#   * Whoever changes .venv holds the lock on the project's folder, and so does its pip.
#   * What runs here ends with this shell, even when that is killed.
#   * A start that finds everything in order runs no Python here, only stat, cat and sha256sum.

say() { printf '%s\n' "$*" >&2; }

die() {
    say "softhca: $*"
    exit 1
}

# --- what ends with this shell -----------------------------------------------------------------

# Bash answers no signal while it runs a command in front: what takes long runs behind, awaited.
bounded() { # PYTHON COMMAND...
    "$1" -I "$root/scripts/_bounded.py" $$ "${@:2}" &
    wait $!
}

end_on_signals() { # SENTENCE
    local each
    for each in INT:130 TERM:143 HUP:129; do
        trap "end_by_signal ${each#*:} ${1@Q}" "${each%:*}"
    done
}

end_by_signal() { # CODE SENTENCE
    trap '' INT TERM HUP
    local running
    running=$(jobs -p)
    [ -z "$running" ] || { kill -s TERM $running; wait; } 2>/dev/null
    say "softhca: $2"
    exit "$1"
}

# --- what .venv was made from, and what it should be made from --------------------------------

identity() { stat -L -c '%n %s %Y' -- "$venv/bin/python" 2>/dev/null; }

sources() { cat -- "$root/pyproject.toml" "$root/scripts/_setup.sh" | sha256sum; }

read_stamp() {
    made_identity='' made_sources='' made_extra='' made_by=''
    [ -r "$stamp" ] || return 1
    {
        IFS= read -r made_identity && IFS= read -r made_sources && IFS= read -r made_extra || return 1
        IFS= read -r made_by || made_by=softhca
    } <"$stamp"
}

readonly unfinished_by_hand='unfinished, made by hand'

is_in_place() { read_stamp && [ "$made_identity" = "$(identity)" ]; }

is_by_hand() {
    [ -e "$venv/bin/python" ] &&
        { [ ! -e "$stamp" ] || [ "$made_by" = hand ] || [ "$made_identity" = "$unfinished_by_hand" ]; }
}

write_stamp() { # SOURCES EXTRA BY
    printf '%s\n' "$(identity)" "$1" "${2:-none}" "$3" >"$stamp.new" &&
        mv -f -- "$stamp.new" "$stamp" && rm -f -- "$stamp.before"
}

# The stamp's own time is when the change began: what is newer was changed by pip.
begin_change() { # BY
    if read_stamp; then cat -- "$stamp" >"$stamp.before"; fi &&
        if [ "$1" = hand ]; then echo "$unfinished_by_hand"; else echo unfinished; fi >"$stamp"
}

take_back_change() { # true when nothing had been changed, so that the stamp of before is true again
    local newer
    [ -s "$stamp.before" ] && ! read_stamp &&
        newer=$(find "$venv/" -mindepth 1 ! -name "${stamp##*/}*" -cnewer "$stamp" -print -quit) &&
        [ -z "$newer" ] && mv -f -- "$stamp.before" "$stamp"
}

has_extra() { [ -z "$1" ] || [ "$made_extra" = "$1" ]; }

is_ready() { is_in_place && [ "$made_sources" = "$(sources)" ] && has_extra "$1"; }

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
    say "  making the virtual environment with $python..."
    rm -f -- "$stamp.before"
    mkdir -p -- "$venv" && echo unfinished >"$stamp" &&
        find "$venv/" -mindepth 1 ! -name "${stamp##*/}" -delete &&
        bounded "$python" "$python" -I -m venv "$venv" >&2 ||
        die "$python could not make $venv (see above); when the reason is gone, start again"
}

check_foreign_venv() {
    "$venv/bin/python" -I -c "${fitness}" >/dev/null 2>&1 && "$venv/bin/python" -I -c 'import pip' 2>/dev/null ||
        die "$venv was not made by this command and lacks CPython 3.11 or pip: move it away and start again"
}

install_project() { # EXTRA
    say "  fetching and installing the packages with pip; the first time takes half a minute or more..."
    # The caller's pip configuration holds, but for what would put the packages elsewhere. Without
    # -B, pip would change the environment by caching its own code.
    (cd -- "$root" && unset PIP_TARGET PIP_PREFIX PIP_ROOT && export PIP_USER=0 &&
        exec "$venv/bin/python" -I scripts/_bounded.py $$ \
            "$venv/bin/python" -I -B -m pip install -q --no-input --disable-pip-version-check \
            -e ".${1:+[$1]}") >&2 &
    wait $!
}

# Every process starts faster for it, also where Python may not keep what it has compiled
# (PYTHONDONTWRITEBYTECODE). What is changed later Python compiles by itself, there at each start.
compile_sources() {
    bounded "$venv/bin/python" "$venv/bin/python" -I -m compileall -q \
        "$root/kernel_proc" "$root/shared" "$root/user_proc" >&2
}

set_up() { # EXTRA
    local extra=$1 used by=softhca
    used=$(sources) # before pip reads them: what is changed meanwhile is new at the next start
    if is_in_place; then
        say "setting up .venv (something is new)..."
        by=$made_by
        [ "$made_extra" = none ] || extra=$made_extra
    elif is_by_hand; then
        say "setting up the .venv that is here (once)..."
        by=hand
        check_foreign_venv
    else
        find_python
        say "setting up .venv (once)..."
        make_empty_venv
    fi
    begin_change "$by" || die "cannot write $stamp"
    if install_project "$extra"; then
        compile_sources || say "softhca: the sources could not be compiled; processes start slower"
        write_stamp "$used" "$extra" "$by" || die "cannot write $stamp"
    elif take_back_change && is_in_place && has_extra "$1"; then
        say "softhca: pip could not renew .venv (see above; check the network or pip's configuration): going on with it as it was"
    elif is_in_place; then
        die "pip could not add what is needed here (see above), and .venv stays as it was: check the network or pip's configuration, then start again"
    else
        die "pip could not install what is needed (see above): check the network or pip's configuration, then start again"
    fi
}

ensure_venv() { # [EXTRA]
    local extra=${1:-} lock made_identity made_sources made_extra made_by
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
    end_on_signals "the set-up of .venv was interrupted; the next start takes it up again"
    exec {lock}<"$root"
    flock -n "$lock" || {
        say "waiting for another set-up of this .venv to end..."
        flock "$lock" &
        wait $! || die "cannot lock $root"
    }
    take_back_change
    is_ready "$extra" || set_up "$extra"
    trap - INT TERM HUP
    exec {lock}<&-
}
