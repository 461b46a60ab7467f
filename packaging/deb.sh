#!/bin/sh
# Makes a Debian package of what `make` has built: program, library, header, models, manual. `make deb` calls this script.
#
#     packaging/deb.sh BUILD OUT      writes OUT/sleigh_VERSION_ARCHITECTURE.deb and prints its name
#
# Environment: COMPRESS: the compression of dpkg-deb, xz if not set.
set -eu
cd "$(dirname "$0")/.."
build=${1:?} out=${2:?}

for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v $tool >/dev/null || { echo "sleigh: error: $tool is missing; run scripts/setup.sh" >&2 && exit 1; }
done
version=$(sed -n 's/^#define SLEIGH_VERSION "\(.*\)"/\1/p' engine/sleigh.h)
arch=$(dpkg --print-architecture)
libdir=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s) # equal sources make an equal package
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

DESTDIR=$root prefix=/usr libdir=$libdir includedir=/usr/include mandir=/usr/share/man docdir=/usr/share/doc/sleigh STRIP=strip \
    packaging/install.sh install "$build" >/dev/null
rm "$root/usr/share/sleigh/installed" # dpkg has its own list
mv "$root/usr/share/doc/sleigh/LICENSE" "$root/usr/share/doc/sleigh/copyright"
gzip -9n "$root/usr/share/man/man1/sleigh.1"

# The packages of the shared libraries. cuBLAS may come from no package: then we recommend NVIDIA's package of the same version.
mkdir "$work/debian"
printf 'Source: sleigh\n\nPackage: sleigh\nArchitecture: any\n' >"$work/debian/control"
program=$root/usr/bin/sleigh library=$root$libdir/libsleigh.so.$version
if ! depends=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info -e"$program" -e"$library" 2>log); then
    cat "$work/log" >&2
    exit 1
fi
depends=$(echo "$depends" | sed -n 's/^shlibs:Depends=//p')
recommends=""
case $depends in *libcublas*) ;; *)
    cuda=$(readelf -d "$program" | sed -n 's|.*R.*PATH.*/cuda-\([0-9]*\)\.\([0-9]*\)/.*|\1-\2|p')
    [ -z "$cuda" ] || recommends="Recommends: libcublas-$cuda"
    ;;
esac

mkdir "$root/DEBIAN"
{
    cat <<EOF
Package: sleigh
Version: $version
Architecture: $arch
Maintainer: The Sleigh developers <maintainers@sleigh.invalid>
Section: science
Priority: optional
Installed-Size: $(du -ks --apparent-size "$root/usr" | cut -f1)
Depends: $depends
EOF
    [ -z "$recommends" ] || echo "$recommends"
    cat <<EOF
Suggests: bash-completion, gnuplot-nox | gnuplot, openmpi-bin, pkgconf
Description: language models with exact and sampled attention
 Sleigh runs language models of the Llama and Qwen families on a CPU or an
 NVIDIA GPU. It decodes long contexts with exact attention, or with methods that
 read a sample of the KV cache.
 .
 This package has the program, the library with its header, and a small model.
EOF
} >"$root/DEBIAN/control"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum) >"$root/DEBIAN/md5sums"
chmod -R u=rwX,go=rX "$root"
deb=$out/sleigh_${version}_$arch.deb
mkdir -p "$out"
dpkg-deb --root-owner-group -Z"${COMPRESS:-xz}" --build "$root" "$deb.part" >/dev/null && mv "$deb.part" "$deb"
echo "$deb"
