// attention/cuda/lists/quest_host.cu - quest with K and V in host memory: the kernels of quest.cu, which read the listed rows
// over the bus (host_rows.cuh).
#define SL_HOST_ROWS
#include "attention/cuda/lists/quest.cu"
