// attention/cuda/quantised/santa_is_host.cu - santa-is with K and V in host memory: the kernels of santa_is.cu, which fetch the
// drawn rows over the bus (host_rows.cuh).
#define SL_HOST_ROWS
#include "attention/cuda/quantised/santa_is.cu"
