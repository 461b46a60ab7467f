#!/bin/sh
# Installs what `make` has built, or removes an installed copy. packaging/package.mk calls this script.
#
#     packaging/install.sh install BUILD
#     packaging/install.sh uninstall
#
# Environment: DESTDIR, prefix, libdir, includedir, mandir, docdir as in GNU's Makefiles; STRIP: the program that strips symbols.
# The file share/sleigh/installed lists the files of the copy, and the folders that the installation made. uninstall removes the files, and
# the folders that are empty then.
set -eu
cd "$(dirname "$0")/.."
what=${1:?} build=${2:-}
dest=${DESTDIR:-} bindir=$prefix/bin share=$prefix/share # the program searches its models in ../share/sleigh
list=$share/sleigh/installed

fail() {
    echo "sleigh: error: $*" >&2
    exit 1
}
folder() { # folder DIR: makes a folder and its parents
    [ -n "$1" ] && [ ! -d "$dest$1" ] || return 0
    folder "${1%/*}"
    mkdir -m 755 "$dest$1" && echo "$1" >>"$made"
}
put() { # put MODE FILE TARGET
    folder "${3%/*}"
    install -m "$1" "$2" "$dest$3" && echo "$3" >>"$made"
}
link() { # link TO TARGET
    ln -sfn "$1" "$dest$2" && echo "$2" >>"$made"
}
tree() { # tree FOLDER TARGET [TESTS]: the files of a folder, or those that pass tests of find
    from=$1 to=$2
    shift 2
    find "$from" -type f "$@" | LC_ALL=C sort | while IFS= read -r file; do
        if [ -x "$file" ]; then mode=755; else mode=644; fi
        put $mode "$file" "$to${file#"$from"}"
    done
}
symbols() { # symbols OPTION TARGET: strips a file if STRIP names a program
    [ -z "${STRIP:-}" ] || "$STRIP" "$1" "$dest$2"
}
update_loader() { # as root, without DESTDIR: so that programs find the shared library in $libdir
    [ -n "$dest" ] || [ "$(id -u)" != 0 ] || ! command -v ldconfig >/dev/null || ldconfig ||
        echo "sleigh: ldconfig failed, so a program needs LD_LIBRARY_PATH=$libdir" >&2
}
keep_list() { # also after an error, so that uninstall can remove what is there
    if [ -s "$made" ] && [ -d "$dest${list%/*}" ]; then
        cat "$made" >>"$dest$list"
        LC_ALL=C sort -u -o "$dest$list" "$dest$list"
    fi
    rm -f "$made"
}

install_all() {
    version=$(sed -n 's/^#define SLEIGH_VERSION "\(.*\)"/\1/p' engine/sleigh.h)
    for file in sleigh libsleigh.a "libsleigh.so.$version" sleigh.pc sleigh.1 sleigh.bash; do
        [ -e "$build/$file" ] || fail "$build/$file is missing; run \`make\` first, without SAN and PORTABLE"
    done
    made=$(mktemp)
    trap keep_list EXIT
    [ -z "$dest" ] || mkdir -p "$dest"
    folder "$share/sleigh"
    put 755 "$build/sleigh" "$bindir/sleigh"
    symbols --strip-all "$bindir/sleigh"
    put 644 engine/sleigh.h "$includedir/sleigh.h"
    put 644 "$build/libsleigh.a" "$libdir/libsleigh.a"
    symbols --strip-debug "$libdir/libsleigh.a"
    put 644 "$build/libsleigh.so.$version" "$libdir/libsleigh.so.$version"
    symbols --strip-unneeded "$libdir/libsleigh.so.$version"
    link "libsleigh.so.$version" "$libdir/libsleigh.so.0"
    link libsleigh.so.0 "$libdir/libsleigh.so"
    sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@includedir@|$includedir|" -e "s|=$prefix/|=\${prefix}/|" \
        "$build/sleigh.pc" >"$made.pc"
    put 644 "$made.pc" "$libdir/pkgconfig/sleigh.pc"
    rm -f "$made.pc"
    put 644 "$build/sleigh.1" "$mandir/man1/sleigh.1"
    put 644 "$build/sleigh.bash" "$share/bash-completion/completions/sleigh"
    for dir in models/*/; do tree "${dir%/}" "$share/sleigh/${dir%/}"; done
    put 644 LICENSE "$docdir/LICENSE"
    put 644 README.md "$docdir/README.md"
    for dir in docs results; do tree $dir "$docdir/$dir" ! -name '*.dat' ! -name '*.json*'; done # pages and pictures
    tree examples "$docdir/examples"
    tree scripts "$docdir/scripts" ! -path '*/__pycache__/*' # the pages name them
    case $docdir in # the scripts search the embedded model beside their folder
    "$prefix/share/doc/sleigh") link ../../sleigh/models "$docdir/models" ;;
    *) link "$share/sleigh/models" "$docdir/models" ;;
    esac
    echo "$list" >>"$made"
    update_loader
    echo "sleigh $version is installed in $dest$prefix"
}

uninstall_all() {
    [ -e "$dest$list" ] || fail "$dest$list is missing: no copy of Sleigh is installed with PREFIX=$prefix"
    # In reverse order a folder comes after its files.
    LC_ALL=C sort -r "$dest$list" | while IFS= read -r path; do
        if [ -d "$dest$path" ] && [ ! -L "$dest$path" ]; then
            rmdir "$dest$path" 2>/dev/null || : # other files are in it
        else
            rm -f "$dest$path"
        fi
    done
    update_loader
    echo "sleigh is removed from $dest$prefix"
}

case $prefix in /*) ;; *) fail "PREFIX=$prefix: expected a path from the root" ;; esac
case $what in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail "$what: expected install or uninstall" ;;
esac
