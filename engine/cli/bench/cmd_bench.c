// engine/cli/bench/cmd_bench.c - sleigh bench [SUBJECT]: chooses the subject that is timed.
#include "engine/cli/bench/cmd_bench.h"
#include "engine/cli/bench/calibrate.h"
#include "engine/cli/commands.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(const cli_options *o, sl_error *err);
} subjects[] = {
    {"decode", cmd_bench_decode},
    {"attn", cmd_bench_attn},
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

int cmd_bench(const cli_options *o, sl_error *err) {
    static const cli_flag of_calibrate[] = {CLI_FLAG("--mask-method", mask_method), CLI_FLAG("--mask-density", mask_density)};
    const char *other = o->calibrate ? NULL : cli_given_flag(o, of_calibrate, CLI_N_FLAGS(of_calibrate));
    char names[128] = "";
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s needs --calibrate: sleigh bench attn --calibrate", other);
    if (o->calibrate && o->what && !strcmp(o->what, "attn")) return cmd_calibrate(o, err);
    if (o->calibrate) return sl_fail(err, SL_ERR_ARG, "flag --calibrate needs the subject attn: sleigh bench attn --calibrate");
    if (!o->what) return cmd_bench_model(o, err);
    for (int i = 0; i < N_SUBJECTS; i++) {
        if (!strcmp(o->what, subjects[i].name)) return subjects[i].run(o, err);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", subjects[i].name);
    }
    return sl_fail(err, SL_ERR_ARG, "bench %.60s: expected %s, or no subject to time a model", o->what, names);
}
