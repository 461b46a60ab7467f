// attention/cuda/buckets/saap_host.cu - saap, saap-kmeans and saap-is with K and V in host memory: the kernels of saap.cu,
// which read the listed rows over the bus (host_rows.cuh).
#define SL_HOST_ROWS
#include "attention/cuda/buckets/saap.cu"
