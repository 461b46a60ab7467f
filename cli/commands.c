// cli/commands.c - gives each command the flags that it takes.
#include "cli/commands.h"
#include "cli/options/all_options.h"

static int generate(const cli_options *o, sl_error *err) {
    const cli_generate_flags flags = {&o->run, &o->input, &o->chat, &o->cache, &o->output, &o->given};
    return cmd_generate(&flags, err);
}

static int chat(const cli_options *o, sl_error *err) {
    const cli_chat_flags flags = {&o->run, &o->chat, &o->cache};
    return cmd_chat(&flags, err);
}

static int bench(const cli_options *o, sl_error *err) {
    const cli_bench_flags flags = {&o->run, &o->bench, &o->output, &o->given};
    return cmd_bench(o->what, &flags, err);
}

static int compare(const cli_options *o, sl_error *err) {
    const cli_compare_flags flags = {&o->run, &o->input, &o->chat, &o->compare, &o->output, &o->given};
    return cmd_compare(&flags, err);
}

static int perplexity(const cli_options *o, sl_error *err) {
    const cli_perplexity_flags flags = {&o->run, &o->input, &o->perplexity, &o->output, o->ranks};
    return cmd_perplexity(&flags, err);
}

static int eval(const cli_options *o, sl_error *err) {
    const cli_eval_flags flags = {&o->run, &o->tasks, &o->chat, &o->eval, &o->output, &o->given, o->ranks};
    return cmd_eval(&flags, err);
}

static int tune(const cli_options *o, sl_error *err) {
    const cli_tune_flags flags = {&o->run, &o->tasks, &o->chat, &o->tune, &o->output, &o->given};
    return cmd_tune(&flags, err);
}

static int quantize(const cli_options *o, sl_error *err) {
    const cli_quantize_flags flags = {&o->run.model, &o->quantize, &o->output, o->run.device.threads};
    return cmd_quantize(&flags, err);
}

static int serve(const cli_options *o, sl_error *err) {
    const cli_serve_flags flags = {&o->run, &o->chat, &o->serve};
    return cmd_serve(&flags, err);
}

int cli_command_run(const cli_options *o, sl_error *err) {
    const char *format = o->output.format, *path = o->output.path;
    switch (o->given.command) {
    case CLI_GENERATE:
        return generate(o, err);
    case CLI_CHAT:
        return chat(o, err);
    case CLI_TOKENIZE:
        return cmd_tokenize(&o->run.model, &o->input, &o->tokenize, format, err);
    case CLI_DETOKENIZE:
        return cmd_detokenize(&o->run.model, &o->input, err);
    case CLI_LOGITS:
        return cmd_logits(&o->run, path, err);
    case CLI_INSPECT:
        return cmd_inspect(&o->run, &o->output, err);
    case CLI_BENCH:
        return bench(o, err);
    case CLI_COMPARE:
        return compare(o, err);
    case CLI_PERPLEXITY:
        return perplexity(o, err);
    case CLI_EVAL:
        return eval(o, err);
    case CLI_TUNE:
        return tune(o, err);
    case CLI_SERVE:
        return serve(o, err);
    case CLI_QUANTIZE:
        return quantize(o, err);
    case CLI_PLOT:
        return cmd_plot(o->what, path, err);
    case CLI_METHODS:
        return cmd_methods(format, err);
    default:
        SL_CHECK(o->given.command == CLI_VERSION);
        return cmd_version(err);
    }
}
