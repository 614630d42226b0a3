#!/bin/sh
# Makes .venv with exactly the packages of requirements/dev.txt and this project, editable.
# `make` runs it when the lock or pyproject.toml changed, or the folder was moved. PYTHON names another interpreter.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)

fail() {
    printf 'think-celery: %s\n' "$@" >&2
    exit 1
}

python=
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$name
        break
    fi
done
[ -n "$python" ] || fail \
    "Python 3.11 or newer is needed, found: $("${PYTHON:-python3}" --version 2>&1 | sed -n 1p || true)" \
    "Debian 12, Ubuntu 24.04 or later: apt-get install python3 python3-venv. macOS: brew install python@3.13." \
    "It may also be named: make PYTHON=/path/to/python3.11 venv"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail \
    "$python (Python $version) comes without the venv and ensurepip modules." \
    "Debian, Ubuntu: apt-get install python$version-venv"

# A folder that was moved, or whose Python was removed, is made anew; an interrupted one is completed.
if ! .venv/bin/python -c 'import pip' 2>/dev/null || [ "$(cat .venv/.installed 2>/dev/null || echo "$here")" != "$here" ]; then
    "$python" -m venv --clear .venv
fi
rm -f .venv/.installed

PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_USER=0
export PIP_DISABLE_PIP_VERSION_CHECK PIP_ROOT_USER_ACTION PIP_USER
echo "Installing the locked packages into .venv ($(.venv/bin/python --version)) ..."
.venv/bin/python -m pip install -qq --no-deps --require-hashes -r requirements/dev.txt
.venv/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
.venv/bin/python -m pip check >.venv/check.log || {
    cat .venv/check.log >&2
    fail "requirements/dev.txt does not fit pyproject.toml; run: make lock"
}
printf '%s\n' "$here" >.venv/.installed
