#!/bin/sh
# Installs the packages that Sleigh needs on Debian or Ubuntu. As root it calls apt; as another user it prints the line to run, and fails if
# a package is missing that the build needs. It does nothing where no package is missing. `scripts/setup.sh fuzz` also installs what
# `make fuzz` needs.
set -eu

missing="" wanted=""
need() { # need PACKAGE TEST...: the build needs it
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
want() { # want PACKAGE TEST...: --plot, several ranks, the tests of an installed copy or `make deb` need it
    package=$1
    shift
    "$@" >/dev/null 2>&1 || wanted="$wanted $package"
}
header() { [ -e "/usr/include/$1" ] || [ -e "/usr/include/$(uname -m)-linux-gnu/$1" ] || [ -e "/usr/local/include/$1" ]; }

need gcc command -v "${CC:-cc}"
need g++ command -v "${CXX:-c++}"
need make command -v make
need python3 command -v "${PYTHON:-python3}"
need libc6-dev header stdio.h
need libjansson-dev header jansson.h
need libpcre2-dev header pcre2.h
need libsentencepiece-dev header sentencepiece_processor.h
need libedit-dev header histedit.h
need libmicrohttpd-dev header microhttpd.h
want gnuplot-nox command -v gnuplot
want openmpi-bin command -v mpirun # several ranks (docs/several-gpus.md)
want pkgconf command -v pkg-config
want python3-venv "${PYTHON:-python3}" -c "import ensurepip, venv" # scripts/venv.sh
want python3-lxml /usr/bin/python3 -c "import lxml.etree" # scripts/train/prose_corpus.py
want dpkg-dev command -v dpkg-shlibdeps
if [ "${1:-}" = fuzz ]; then # clang and its fuzzing library
    clang=${FUZZ_CC:-clang}
    need clang command -v "$clang"
    need libclang-rt-dev test -e "$("$clang" -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)"
fi

[ -n "$missing$wanted" ] || exit 0
line="apt-get install -y --no-install-recommends$missing$wanted"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "sleigh: missing packages; run:  sudo apt-get update && sudo $line" >&2
    [ -n "$missing" ] || exit 0
    exit 1
fi
echo "sleigh: installing$missing$wanted" >&2
log=$(mktemp)
install() { # install PACKAGE...
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1
}
apt-get update >"$log" 2>&1 || : # then the installation tells what is missing
if [ -n "$missing" ] && ! install $missing; then
    tail -20 "$log" >&2
    echo "sleigh: error: '$line' failed; the log is $log" >&2
    exit 1
fi
if [ -n "$wanted" ] && ! install $wanted; then # for example without a network
    echo "sleigh: these packages cannot be installed, and the build does not need them:$wanted; the log is $log" >&2
    exit 0
fi
rm -f "$log"
