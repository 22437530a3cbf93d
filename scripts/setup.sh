#!/bin/sh
# Make .venv with sealift, its demo and its test tools: `sh scripts/setup.sh [python3]`;
# with a second word, `demo` or `demo,outsource`, with what the demo needs, and no Debian packages.
#
# Looks for the Debian packages of debian-packages.txt, installs missing ones where the
# machine lets it (root, or sudo that asks for no password), and writes who installed
# which into .venv/debian-packages.log. Downloads from package registries only.
set -eu

python=${1:-python3}
extras=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
venv=$(dirname "$here")/.venv
record=debian-packages.log
log=

stop() {
    echo "setup: $*" >&2
    exit 3
}

check_python() {
    command -v "$python" >/dev/null ||
        stop "there is no $python. Try: apt-get install python3, or make setup PYTHON=/path/to/python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        stop "$("$python" --version 2>&1) is too old: sealift needs Python 3.11 or newer. Try: make setup PYTHON=python3.12"
    # shellcheck disable=SC2034 # used by the lines of debian-packages.txt
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
}

# Fails, with nothing printed, when this user may not install Debian packages.
apt_install() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" = 0 ]; then
        as_root=env
    elif sudo -n true 2>/dev/null; then
        as_root="sudo -n env"
    else
        return 1
    fi
    echo "setup: installing the Debian package $1"
    $as_root apt-get -qq update >&2 || true
    $as_root DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
        --no-install-recommends "$1" >&2
}

need_package() {
    eval "package=$1"
    probe=$2 lost=$3
    if eval "$probe" >/dev/null 2>&1; then
        who="already there"
        # What an earlier set-up installed stays known as its work.
        ! grep -qs "^$package: installed" "$venv/$record" || who="installed by make setup"
    elif apt_install "$package" && eval "$probe" >/dev/null 2>&1; then
        who="installed by make setup"
    else
        who="missing; lost without it: $lost. Try: apt-get install $package"
        echo "setup: $package is $who" >&2
    fi
    log="$log$package: $who
"
}

need_packages() {
    while IFS='|' read -r package probe lost; do
        case $package in '' | '#'*) continue ;; esac
        [ -z "$extras" ] || [ "${package#python}" != "$package" ] || continue
        need_package "${package% }" "$probe" "${lost# }" </dev/null
    done <"$here/debian-packages.txt"
}

make_venv() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
        "$python" -m venv --clear "$venv" || stop "could not make $venv (see above)"
    printf '%s' "$log" >"$venv/$record"
}

pip_install() {
    # shellcheck disable=SC2086 # $quiet is one word or none
    "$venv/bin/python" -m pip install --disable-pip-version-check $quiet \
        -c constraints.txt "$@" || stop "pip could not install $* (see above)"
}

# The build backend is pinned and installed first, so that nothing unpinned is fetched
# for the build, and a repeated set-up needs no network.
install() {
    cd "$(dirname "$here")"
    quiet=--quiet
    [ ! -t 1 ] || quiet=
    echo "setup: installing into .venv (torch is large: minutes on a slow line)"
    if [ -z "$extras" ]; then
        pip_install setuptools
        pip_install --no-build-isolation -e ".[demo,dev]"
        return
    fi
    # Of scikit-learn the demo reads one file, so it needs nothing that scikit-learn needs;
    # of what pip would compile it imports a fifth, which is compiled here: a sandbox cannot.
    pip_install --no-compile --no-deps setuptools scikit-learn
    pip_install --no-compile --no-warn-conflicts --no-build-isolation -e ".[$(echo "$extras" | sed s/demo/train/)]"
    "$venv/bin/python" -c 'from sealift.train.sandboxed.recipeworker import warm_up; warm_up()'
}

check_python
need_packages
make_venv
install
echo "setup: ready. make demo shows a joint training; make test checks it, once it has set up its own tools"
