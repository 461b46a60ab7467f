#!/bin/sh
# Puts the packages of scripts/test_packages.txt into a virtual environment for tests: build/venv, or $SLEIGH_VENV. It does so once for a
# list and a python. If it fails, for example without a network, it prints one line and returns 0, because tests that need the environment
# are skipped. pip uses the index and the cache of this machine's settings. An environment that another hand made is left as it is.
set -u
cd "$(dirname "$0")/.." || exit 1
list=scripts/test_packages.txt venv=${SLEIGH_VENV:-build/venv} python=${PYTHON:-python3}
log=$venv.log new=$venv.new

without() { # without REASON
    rm -rf "$new"
    echo "sleigh: $venv could not be made, so tests that need it are skipped: $1" >&2
    exit 0
}
made() { # for this list and python, or by another hand
    [ -e "$venv" ] || return 1
    [ -e "$venv/made-from" ] || return 0
    [ "$(cat "$venv/made-from")" = "$state" ]
}

command -v "$python" >/dev/null || without "no $python"
state="$("$python" -VV) $(cksum <$list)"
made && exit 0
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
if command -v flock >/dev/null; then flock 9; fi # `make test` and `make SAN=1 test` may run at the same time
made && exit 0

echo "sleigh: downloading the packages of $list into $venv (145 MB, once)" >&2
rm -rf "$new"
"$python" -m venv "$new" >"$log" 2>&1 || without "'$python -m venv' failed (Debian: apt-get install python3-venv); see $log"
# The list is complete (--no-deps), and a test compiles nothing (--only-binary).
"$new/bin/python" -m pip install --disable-pip-version-check --no-input --retries 1 --no-deps --only-binary :all: --no-compile -r $list \
    >>"$log" 2>&1 || without "$(grep '^ERROR' "$log" | tail -1 | cut -c 1-160); see $log"
echo "$state" >"$new/made-from"
rm -rf "$venv" "$new"/bin/[Aa]ctivate* "$new"/bin/pip* # these hold the path of $new
mv "$new" "$venv"
