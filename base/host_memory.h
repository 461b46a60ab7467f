// base/host_memory.h - how much memory of the host this process may still allocate.
#ifndef SLEIGH_HOST_MEMORY_H
#define SLEIGH_HOST_MEMORY_H

#include <stddef.h>

// The least of MemAvailable and of what the process' control groups (version 1 or 2, and all their parents) leave. Pages of
// files that the kernel can drop (inactive_file) do not count as used. root: "" for this machine; tests pass the root of a
// folder with proc/ and sys/. Files that are missing set no limit; without meminfo the result is 0.
size_t sl_host_memory_free(const char *root);
// Returns what the control groups leave. If none of them has a limit, returns MemAvailable. On a machine whose memory grows
// with its use, MemAvailable can be far below the limit.
size_t sl_host_memory_allowed(const char *root);

#endif
