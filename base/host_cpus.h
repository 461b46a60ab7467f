// base/host_cpus.h - how many processors this process may use.
#ifndef SLEIGH_HOST_CPUS_H
#define SLEIGH_HOST_CPUS_H

// The least of the processors of the affinity mask and of the quotas of the process' control groups (version 1 or 2, and all
// their parents). A quota of one and a half processors counts as two. root: as in host_memory.h. At least 1.
int sl_host_cpus(const char *root);
int sl_host_cpu_quota(const char *root, int most); // the least of `most` and of the quotas

#endif
