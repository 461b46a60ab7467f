#!/bin/sh
# scripts/openblas_core.sh SLEIGH - prints OPENBLAS_CORETYPE=..., or nothing. If OpenBLAS does not know the processor, OpenBLAS chooses its
# kernels for the oldest processors (Prescott). Then a prefill takes twice as long, and its sums differ more from those of decode steps. So
# the tests name the core type whose instructions the processor has.
[ -z "$OPENBLAS_CORETYPE" ] || exit 0
"$1" version 2>/dev/null | grep -q 'OpenBLAS .* Prescott' || exit 0
if grep -qw avx512bw /proc/cpuinfo; then
    echo OPENBLAS_CORETYPE=SkylakeX
elif grep -qw avx2 /proc/cpuinfo; then
    echo OPENBLAS_CORETYPE=Haswell
fi
