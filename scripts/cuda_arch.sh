#!/bin/sh
# Prints the compute capabilities to build for, in the words of nvcc and make (CUDA_ARCH): those of this machine's GPUs, else 90a.
#
#     scripts/cuda_arch.sh [NVCC]
#
# 90 becomes 90a, because the prefill kernel for H100 and H200 needs it. If nvcc does not know a GPU, the script prints the newest
# capability of nvcc before that of the GPU: the driver then compiles the PTX of the binary. Without a GPU one capability is enough, because
# a binary for the wrong GPU names the line to run. We choose 90a, not 80: code for 80 also runs on an H100, but slowly.
set -eu

known=$("${1:-nvcc}" --list-gpu-code 2>/dev/null | sed -n 's/^sm_\([0-9]*\)$/\1/p' | sort -n)
# A line of nvidia-smi is "9.0", or a message when there is no GPU or no driver.
found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n 's/^ *\([0-9]\{1,\}\)\.\([0-9]\) *$/\1\2/p' | sort -nu) || found=""
archs=""
for cap in $found; do
    [ "$cap" -ge 80 ] || continue # Sleigh needs 8.0; it reports an older GPU when it starts
    best=$cap
    if [ -n "$known" ]; then
        best=80
        for arch in $known; do [ "$arch" -gt "$cap" ] || best=$arch; done
    fi
    [ "$best" != 90 ] || best=90a
    case " $archs " in *" $best "*) ;; *) archs="$archs $best" ;; esac
done
archs=${archs# }
echo "${archs:-90a}"
