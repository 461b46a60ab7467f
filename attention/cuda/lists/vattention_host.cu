// attention/cuda/lists/vattention_host.cu - vattention, with the predictor quest, with K and V in host memory: the kernels of
// vattention.cu, which read the listed rows over the bus (host_rows.cuh).
#define SL_HOST_ROWS
#include "attention/cuda/lists/vattention.cu"
