#!/bin/sh
# scripts/openblas_core.sh SLEIGH - prints OPENBLAS_CORETYPE=..., or nothing. OpenBLAS takes its kernels for old processors (Prescott) on a
# processor that it does not know, for instance one that is newer than the library. A prefill then takes twice as long. So the tests name
# the core type whose instructions the processor has.
[ -z "$OPENBLAS_CORETYPE" ] || exit 0
"$1" version 2>/dev/null | grep -q 'OpenBLAS .* Prescott' || exit 0
if grep -qw avx512bw /proc/cpuinfo; then
    echo OPENBLAS_CORETYPE=SkylakeX
elif grep -qw avx2 /proc/cpuinfo; then
    echo OPENBLAS_CORETYPE=Haswell
fi
