// cli/bench/cmd_bench.c - sleigh bench [SUBJECT]: chooses the subject that is timed.
#include "cli/bench/cmd_bench.h"
#include "cli/bench/calibrate.h"
#include "cli/commands.h"

#include <string.h>

int cmd_bench(const cli_options *o, sl_error *err) {
    static const cli_flag of_calibrate[] = {CLI_FLAG("--mask-method", mask_method), CLI_FLAG("--mask-density", mask_density)};
    const char *other = o->calibrate ? NULL : cli_given_flag(o, of_calibrate, CLI_N_FLAGS(of_calibrate));
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s needs --calibrate: sleigh bench attn --calibrate", other);
    if (o->calibrate && o->what && !strcmp(o->what, "attn")) return cmd_calibrate(o, err);
    if (o->calibrate) return sl_fail(err, SL_ERR_ARG, "flag --calibrate needs the subject attn: sleigh bench attn --calibrate");
    if (!o->what) return cmd_bench_model(o, err);
    if (!strcmp(o->what, "decode")) return cmd_bench_decode(o, err);
    if (!strcmp(o->what, "attn")) return cmd_bench_attn(o, err);
    return sl_fail(err, SL_ERR_ARG, "bench %.60s: expected decode, attn, or no subject to time a model", o->what);
}
