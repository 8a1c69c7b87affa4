#!/bin/sh
# Builds the virtual environments of this repository, from nothing but a Python 3.12 or 3.13.
#
#   .venv           skyrl 0.3.0 + harbor 0.21.0: training, and almost all tests
#   .venv-harbor26  harbor 0.26.0, no torch: the tests of the second harbor version
#   .venv-skyrl04   skyrl 0.4.0 + harbor 0.26.0: whole training runs, for `make test-full`
#
# Usage: scripts/setup.sh [main] [harbor26] [skyrl04] [bubblewrap] [browser]
#        (default: bubblewrap, main and harbor26)
#        scripts/setup.sh python     only print the interpreter that would be used
# PYTHON=/path/to/python3.12 chooses the interpreter. Safe to run again.
set -eu
cd "$(dirname "$0")/.."

# Behind a proxy with a certificate of its own, only the system's store knows it; uv brings others.
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || export UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}"
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# A name on PATH proves nothing: pyenv's shims exist and fail. Only a run does.
runs() {
    "$1" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-} python3.12 python3.13 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python3.13 \
        /opt/python/*/bin/python3.12 /usr/local/bin/python3.12; do
        if runs "$candidate"; then
            # The real path: pip and uv must not go through a shim again.
            "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return
        fi
    done
    if command -v uv >/dev/null 2>&1; then
        found=$(uv python find 3.12 2>/dev/null || { uv python install 3.12 >&2 && uv python find 3.12; }) &&
            runs "$found" && echo "$found" && return
    fi
    return 1
}

need_python() {
    [ -n "${python:-}" ] && return
    python=$(find_python) || die "no Python 3.12 or 3.13 that runs was found. Install one:
    uv python install 3.12            (with uv: https://docs.astral.sh/uv)
    apt-get install python3.12-venv   (Ubuntu 24.04)
    pyenv install 3.12
  or name one: make PYTHON=/path/to/python3.12 ..."
    say "Python: $python"
}

# create FOLDER: an empty environment with uv at hand as $uv.
create() {
    folder=$1
    if [ ! -x "$folder/bin/python" ] || ! runs "$folder/bin/python"; then
        need_python
        rm -rf "$folder"
        "$python" -m venv "$folder" || die "$python cannot make a virtual environment; \
on Debian and Ubuntu: apt-get install python3-venv"
    fi
    if command -v uv >/dev/null 2>&1; then
        uv=uv
    else
        [ -x .venv/bin/uv ] || "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
            'uv>=0.8' || die "pip could not fetch uv from the package index"
        uv=.venv/bin/uv
        [ -x $uv ] || uv=$folder/bin/uv
    fi
}

# install FOLDER CONSTRAINTS REQUIREMENT...
install() {
    folder=$1 constraints=$2
    shift 2
    create "$folder"
    say "installing into $folder ($constraints)"
    "$uv" pip install --quiet --python "$folder/bin/python" --constraint "$constraints" "$@"
    touch "$folder/.ready"
}

# Debian's index may be absent or stale on a fresh machine; only then is it fetched.
apt_install() {
    apt-get install -y --no-install-recommends "$1" >/dev/null 2>&1 ||
        { apt-get update >/dev/null && apt-get install -y --no-install-recommends "$1" >/dev/null; }
}

bubblewrap() {
    command -v bwrap >/dev/null 2>&1 && return
    command -v apt-get >/dev/null 2>&1 ||
        die "bubblewrap (the command bwrap) is missing: install it with this system's package manager"
    [ "$(id -u)" = 0 ] || die "bubblewrap is missing: sudo apt-get install -y bubblewrap"
    say "installing bubblewrap"
    apt_install bubblewrap ||
        die "bubblewrap is missing and could not be installed: apt-get install -y bubblewrap"
}

# For the tests of the report only: where it cannot be installed they are skipped, and say so.
browser() {
    ! command -v chromium >/dev/null 2>&1 || return 0
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 ||
        { say "no chromium: the report's browser tests will be skipped"; return; }
    say "installing chromium"
    apt_install chromium ||
        say "chromium could not be installed: the report's browser tests will be skipped"
}

for part in ${*:-bubblewrap main harbor26}; do
    case $part in
    bubblewrap) bubblewrap ;;
    browser) browser ;;
    python) need_python && echo "$python" ;;
    main) install .venv constraints/skyrl-0.3.0.txt --editable '.[train,dev,modal]' ;;
    harbor26) install .venv-harbor26 constraints/harbor-0.26.0.txt --editable '.[dev,modal]' ;;
    skyrl04) install .venv-skyrl04 constraints/skyrl-0.4.0.txt --editable '.[train-skyrl04,dev,modal]' ;;
    *) die "unknown part $part" ;;
    esac
done
