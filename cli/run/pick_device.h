// cli/run/pick_device.h - the device of --device.
#ifndef SLEIGH_PICK_DEVICE_H
#define SLEIGH_PICK_DEVICE_H

#include "attention/attention.h"
#include "cli/options/options.h"
#include "engine/engine.h"

int cli_check_device(const cli_device_options *o, sl_error *err); // SL_ERR_ARG: this build has no such --device
int cli_kv_formats(const cli_device_options *o, sl_kv_formats *out, sl_error *err); // of the flags of the KV cache
// What the flags of the device, of the KV cache and --seed say of an engine. device: of cli_pick_device
sl_engine_options cli_engine_options(const cli_run_options *o, const char *device);
// For commands without methods: --device, or the CPU for auto with a KV cache that no GPU offers.
const char *cli_cache_device(const cli_device_options *o);
// The device of --device auto: a GPU if there is one that offers these n methods and the other flags, else the CPU. If there is
// a GPU that lacks a feature, a line on stderr names the feature.
const char *cli_pick_device(const cli_run_options *o, const sl_attn_spec *specs, int n);

#endif
