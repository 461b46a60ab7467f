// base/host_device.h - marks functions that kernels use too.
#ifndef SLEIGH_HOST_DEVICE_H
#define SLEIGH_HOST_DEVICE_H

#ifdef __CUDACC__
#define SL_HOST_DEVICE __host__ __device__
#else
#define SL_HOST_DEVICE
#endif

#endif
