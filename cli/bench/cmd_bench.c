// cli/bench/cmd_bench.c - sleigh bench [SUBJECT]: chooses the subject that is timed.
#include "cli/bench/cmd_bench.h"
#include "cli/bench/calibrate.h"
#include "cli/bench/cliffs.h"

#include <string.h>

int cmd_bench(const char *subject, const cli_bench_flags *o, sl_error *err) {
    static const char *const of_calibrate[] = {"--mask-method", "--mask-density", NULL};
    const char *other = o->bench->calibrate ? NULL : cli_given_flag(o->given, of_calibrate);
    int is_draft = subject && !strcmp(subject, "draft");
    if (!other && !is_draft && cli_given_by(o->given, "--draft") == CLI_BY_FLAG)
        return sl_fail(err, SL_ERR_ARG, "flag --draft belongs to `sleigh bench draft`");
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s needs --calibrate: sleigh bench attn --calibrate", other);
    static const char *const of_cliffs[] = {"--cliffs-seconds", NULL};
    other = o->bench->cliffs ? NULL : cli_given_flag(o->given, of_cliffs);
    if (other) return sl_fail(err, SL_ERR_ARG, "flag %s needs --cliffs: sleigh bench attn --cliffs", other);
    if (o->bench->cliffs && subject && !strcmp(subject, "attn")) return cmd_cliffs(o, err);
    if (o->bench->cliffs) return sl_fail(err, SL_ERR_ARG, "flag --cliffs needs the subject attn: sleigh bench attn --cliffs");
    if (o->bench->calibrate && subject && !strcmp(subject, "attn")) return cmd_calibrate(o, err);
    if (o->bench->calibrate)
        return sl_fail(err, SL_ERR_ARG, "flag --calibrate needs the subject attn: sleigh bench attn --calibrate");
    if (!subject) return cmd_bench_model(o, err);
    if (!strcmp(subject, "decode")) return cmd_bench_decode(o, err);
    if (!strcmp(subject, "attn")) return cmd_bench_attn(o, err);
    if (is_draft) return cmd_bench_draft(o, err);
    if (!strcmp(subject, "linear")) return cmd_bench_linear(o, err);
    return sl_fail(err, SL_ERR_ARG, "bench %.60s: expected decode, attn, draft, linear, or no subject to time a model",
                   subject);
}
