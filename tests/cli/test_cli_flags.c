// tests/cli/test_cli_flags.c - every flag of every command at the parser: names, field, default, variable, words, and values
// one step below and above each bound. The rows are a second copy of what `--help` and docs/ promise: a new flag needs a row
// here.
#include "base/number.h"
#include "cli/options/all_options.h"
#include "cli/options/option_table.h"
#include "tests/test.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// In the order of the bits in options.h: generate, chat, tokenize, detokenize, logits, inspect, methods, version, bench,
// compare, perplexity, eval, plot, tune, serve, quantize.
static const char letters[] = "gctdlimvbopePusq";
static const unsigned bits[] = {CLI_GENERATE, CLI_CHAT,    CLI_TOKENIZE, CLI_DETOKENIZE, CLI_LOGITS,     CLI_INSPECT,
                                CLI_METHODS,  CLI_VERSION, CLI_BENCH,    CLI_COMPARE,    CLI_PERPLEXITY, CLI_EVAL,
                                CLI_PLOT,     CLI_TUNE,    CLI_SERVE,    CLI_QUANTIZE};

typedef enum { INT, U32, SEED, CTX, REAL, SIZE, INTS, INTS_ALL, PAIRS, WORD, SWITCH, TEXT, LIST, FLAG } kind;

typedef struct row {
    const char *names, *commands;
    kind kind;
    size_t field;
    const char *def;
    double low, high; // CTX: also 0; SEED: also -1
    const char *words;
} row;

#define BIG 2147483647
// clang-format off
#define N(NAMES, COMMANDS, KIND, FIELD, DEFAULT, LOW, HIGH) \
    {.names = NAMES, .commands = COMMANDS, .kind = KIND, .field = offsetof(cli_options, FIELD), .def = DEFAULT, .low = LOW, .high = HIGH}
#define W(NAMES, COMMANDS, FIELD, DEFAULT, WORDS) \
    {.names = NAMES, .commands = COMMANDS, .kind = WORD, .field = offsetof(cli_options, FIELD), .def = DEFAULT, .words = WORDS}
#define T(NAMES, COMMANDS, KIND, FIELD, DEFAULT) \
    {.names = NAMES, .commands = COMMANDS, .kind = KIND, .field = offsetof(cli_options, FIELD), .def = DEFAULT}
static const row rows[] = {
    W("--activations", "gclbopeus", run.model.activations, "auto", "auto,float,int16,int8,fp8"),
    W("--load-format", "gclibopeus", run.model.load_format, "auto", "auto,safetensors,dummy"),
    N("-c --ctx-size --ctx", "gcies", CTX, run.limits.n_ctx, NULL, 1, BIG),
    N("-c --ctx-size --ctx", "p", CTX, run.limits.n_ctx, NULL, 4, BIG),
    N("--stride", "p", INT, perplexity.stride, NULL, 1, BIG),
    N("--windows", "p", INT, perplexity.windows, NULL, 1, BIG),
    N("--score", "p", INT, perplexity.score, NULL, 1, BIG), N("--score", "u", INT, tune.score, NULL, 1, BIG),
    N("--history", "p", INTS_ALL, perplexity.histories, NULL, 1, BIG),
    N("--segment", "p", INT, perplexity.segment, NULL, 1, BIG),
    N("-ub --ubatch-size", "gclbopeus", INT, run.device.ubatch, NULL, 1, 65536),
    N("-t --threads", "gclbopeusq", INT, run.device.threads, "0", 0, 1024),
    W("--kv-cache", "gcbps", run.device.kv_cache, "gpu", "gpu,host,auto"),
    T("--kv-cache-dtype", "gclibopeus", TEXT, run.device.kv_cache_dtype, "auto"),
    T("-ctk --cache-type-k", "gclibopeus", TEXT, run.device.cache_type_k, NULL),
    T("-ctv --cache-type-v", "gclibopeus", TEXT, run.device.cache_type_v, NULL),
    N("--kv-gpu-memory", "gcibps", SIZE, run.device.kv_gpu_memory, NULL, 1, 1e18),
    N("--host-memory", "gcibps", SIZE, run.device.host_memory, NULL, 1, 1e18),
    W("--rope-scaling", "gclibopeus", run.model.rope.scaling, NULL, "none,linear,llama3,yarn"),
    N("--rope-scale", "gclibopeus", REAL, run.model.rope.factor, NULL, 1, 1e6),
    N("--rope-theta --rope-freq-base", "gclibopeus", REAL, run.model.rope.theta, NULL, 1, 1e12),
    N("--rope-original-ctx --yarn-orig-ctx", "gclibopeus", INT, run.model.rope.original_ctx, NULL, 1, 268435456),
    N("--rope-low-freq-factor", "gclibopeus", REAL, run.model.rope.low_freq_factor, NULL, 1e-3, 1e6),
    N("--rope-high-freq-factor", "gclibopeus", REAL, run.model.rope.high_freq_factor, NULL, 1e-3, 1e6),
    N("--yarn-attention-factor", "gclibopeus", REAL, run.model.rope.attention_factor, NULL, 1e-3, 1e3),
    N("--yarn-beta-fast", "gclibopeus", REAL, run.model.rope.beta_fast, NULL, 1e-3, 1e6),
    N("--yarn-beta-slow", "gclibopeus", REAL, run.model.rope.beta_slow, NULL, 1e-3, 1e6),
    N("-np --parallel", "go", INT, input.parallel, "1", 1, 1024),
    N("--random-prompt", "g", INT, run.ids.n_random, NULL, 1, BIG),
    N("-n --n-predict --predict", "g", INT, run.limits.n_predict, "512", -1, BIG),
    N("-n --n-predict --predict", "c", INT, run.limits.n_predict, "1024", -1, BIG),
    N("-n --n-predict --predict", "o", INT, compare.n_predict, "64", 1, BIG),
    T("-e --escape", "gctoeu", SWITCH, input.escape, "0"), T("--display-prompt", "g", SWITCH, output.display_prompt, "0"),
    W("-o --output", "gt", output.format, "text", "text,json"),
    N("--logprobs", "g", INT, output.logprobs, NULL, 0, 20),
    W("-o --output", "imbopeuq", output.format, "md", "md,csv,json,jsonl"),
    N("-s --seed", "gcbopeu", SEED, run.sampling.seed, "0", 0, 4294967295.0),
    N("--temp --temperature", "gcs", REAL, run.sampling.temp, "0.8", 0, 1e6),
    N("--temp --temperature", "o", REAL, run.sampling.temp, "0", 0, 1e6),
    N("--top-k", "gcoes", INT, run.sampling.top_k, "40", 0, BIG),
    N("--top-p", "gcoes", REAL, run.sampling.top_p, "0.95", 0, 1),
    N("--min-p", "gcoes", REAL, run.sampling.min_p, "0.05", 0, 1),
    N("--repeat-penalty", "gcoes", REAL, run.sampling.repeat_penalty, "1", 1e-3, 1e3),
    N("--repeat-last-n", "gcoes", INT, run.sampling.repeat_last_n, "64", -1, BIG),
    N("--presence-penalty", "gcoes", REAL, run.sampling.presence_penalty, "0", -1e3, 1e3),
    N("--frequency-penalty", "gcoes", REAL, run.sampling.frequency_penalty, "0", -1e3, 1e3),
    N("--prefill-check", "gcope", INT, run.attention.prefill_check, "0", 0, 4096),
    N("--prefill-segment", "gcopeus", INT, run.attention.prefill_segment, "32768", 128, BIG),
    N("--dense-prefix", "go", INT, input.dense_prefix, NULL, 0, BIG), N("--dense-prefix", "p", INT, perplexity.dense_prefix, NULL, 0, BIG),
    N("--stats-seeds", "gc", INT, run.stats.n_seeds, "1", 1, 1000),
    N("--seq-id", "gcope", U32, run.sampling.seq_id, "0", 0, 4294967295.0),
    T("--perf", "g", SWITCH, output.perf, "1"), T("--auto-calibrate", "gcbopes", SWITCH, run.attention.auto_calibrate, "1"),
    T("--texts", "o", SWITCH, compare.texts, "1"), T("--heads", "o", SWITCH, compare.heads, "1"),
    N("-p --n-prompt", "b", INTS, bench.n_prompts, NULL, 0, BIG),
    N("-n --steps --n-gen", "b", INTS, bench.n_gens, NULL, 0, 1000000),
    N("-pg --prompt-gen", "b", PAIRS, bench.pairs, NULL, 1, BIG),
    N("-d --depth --n-depth", "b", INTS, bench.depths, NULL, 0, BIG),
    N("-b --batch", "b", INTS, bench.batches, NULL, 1, 1024),
    W("--phase", "b", bench.phase, "all", "decode,prefill,masks,all"),
    N("--mask-density", "b", REAL, bench.mask_density, "0.5", 0.01, 1),
    N("--cliffs-seconds", "b", REAL, bench.cliffs_seconds, "300", 0, 1e6),
    N("--query-deviation", "b", REAL, run.attention.query_deviation, "4", 0, 100),
    N("--query-spread", "b", REAL, bench.query_spread, "0", 0, 4),
    N("-r --repetitions", "b", INT, bench.repetitions, NULL, 1, 1000),
    W("--fill", "b", bench.fill, "prefill", "prefill,random"),
    N("--hot-hits", "b", REAL, bench.hot_hits, NULL, 0, 1),
    N("--memory-rate", "b", REAL, bench.memory_rate, "0", 0, 1e6),
    N("--length", "e", INTS, tasks.lengths, "4k", 64, 16777216),
    N("--samples", "eu", INT, tasks.samples, NULL, 1, 1000000),
    N("--questions", "e", INT, eval.questions, "1", 1, 256),
    N("--task-seed", "eu", U32, tasks.seed, "42", 0, 4294967295.0),
    W("--haystack", "eu", tasks.haystack, "text", "text,noise,needles"),
    N("-n --n-predict --predict", "eu", INT, tasks.n_predict, "-1", -1, BIG),
    N("--temp --temperature", "e", REAL, run.sampling.temp, NULL, 0, 1e6),
    W("--measure", "u", tune.measure, "score", "score,kl"),
    N("--length", "u", INTS, tasks.lengths, "16k,32k,64k,128k", 64, 16777216),
    N("--check", "u", INT, tune.check, "16", 0, 1000000),
    N("--loss", "u", REAL, tune.loss, "0.01", 0, 1e3),
    N("--iterations", "u", INT, tune.iterations, "501", 0, 1000000),
    N("--episodes", "u", INT, tune.episodes, "10", 1, 1000),
    N("--batch-questions", "u", INT, tune.batch_questions, "16", 1, 100000),
    N("--rate", "u", REAL, tune.rate, "0.02", 0, 1e3),
    T("--attention", "o", SWITCH, compare.attention, "0"), T("--weights", "gclibopeus", TEXT, run.model.weights, NULL), T("--weights", "q", TEXT, run.model.weights, NULL),
    T("--weights-head", "gclibopeus", TEXT, run.model.weights_head, NULL), T("--weights-head", "q", TEXT, run.model.weights_head, NULL),
    T("--weights-embedding", "gclibopeus", TEXT, run.model.weights_embedding, NULL), T("--out", "q", TEXT, output.path, NULL),
    N("--max-shard-size", "q", SIZE, quantize.shard_size, "5G", 1, 1e18),
    T("--exact-below", "gcbs", TEXT, run.attention.exact_below, "auto"), T("--exact-below", "opeu", TEXT, run.attention.exact_below, "off"),
    T("-m --model", "gctdlibopeusq", TEXT, run.model.path, NULL),
    T("--device", "gclibopeus", TEXT, run.device.name, "auto"), T("--mlock", "gclbopeus", FLAG, run.model.mlock, NULL),
    N("-tp --tensor-parallel-size", "gclibopeus", INT, run.model.tensor_parallel, "1", 1, 8),
    T("-p --prompt", "gtdo", TEXT, input.prompt, NULL), T("-f --file", "gtdop", TEXT, input.file, NULL),
    T("--chat", "goeu", FLAG, chat.is_on, NULL), T("--chat-template", "gcoeus", TEXT, run.model.chat_template, NULL),
    T("--chat-template-kwargs", "gcoeus", TEXT, chat.kwargs, NULL), T("--tools", "gc", TEXT, chat.tools, NULL),
    T("--parse-special", "gcoeu", FLAG, chat.parse_special, NULL), T("-sys --system-prompt", "gcoeu", TEXT, chat.system, NULL),
    T("--prompt-cache", "gc", TEXT, cache.path, NULL), T("--prompt-cache-ro", "gc", FLAG, cache.read_only, NULL),
    T("--jsonl", "gop", TEXT, input.jsonl, NULL), T("--jsonl", "eu", TEXT, tasks.jsonl, NULL), T("--reference", "o", TEXT, compare.reference, NULL),
    T("--prompts", "g", TEXT, input.prompts, NULL), T("--bos", "t", FLAG, tokenize.bos, NULL), T("--plain", "t", FLAG, tokenize.plain, NULL),
    T("--ids", "gl", TEXT, run.ids.path, NULL), T("--stop -r --reverse-prompt", "gcoeu", LIST, run.limits.stops, NULL),
    T("--ignore-eos", "gco", FLAG, run.sampling.ignore_eos, NULL), T("-o --output", "lP", TEXT, output.path, NULL),
    T("--tensors", "i", FLAG, output.tensors, NULL), T("--plot", "boe", TEXT, output.plot, NULL),
    T("-l --logit-bias", "gco", LIST, run.sampling.logit_bias, NULL),
    T("--grammar --grammar-file", "gc", TEXT, run.grammar.gbnf, NULL),
    T("-j --json-schema -jf --json-schema-file", "gc", TEXT, run.grammar.schema, NULL),
    T("--regex", "gc", TEXT, run.grammar.regex, NULL), T("--choice", "gc", LIST, run.grammar.choices, NULL),
    T("--grammar-after", "gc", TEXT, run.grammar.after, NULL), T("--attn", "gcps", TEXT, run.attention.attn, "dense"),
    T("--attn-layer", "gcpes", LIST, run.attention.attn_layers, NULL), T("--attn-prefill", "gcps", TEXT, run.attention.attn_prefill, "dense"),
    T("--attn-prefill", "oeu", LIST, run.attention.attn_prefills, NULL),
    T("--attn-prefill-layer", "gcopes", LIST, run.attention.attn_prefill_layers, NULL),
    T("--attn-profile", "gcopes", TEXT, run.attention.attn_profile, NULL), T("--S-schedule", "gcps", TEXT, run.attention.schedule, NULL),
    T("--calibration", "gcbopeus", TEXT, run.attention.calibration, NULL), T("--question-dense", "go", FLAG, input.question_dense, NULL), T("--question-dense", "eu", FLAG, tasks.question_dense, NULL),
    T("--stats", "gc", TEXT, run.stats.path, NULL), T("--stats-error", "gc", FLAG, run.stats.error, NULL),
    T("--stats-attn", "gc", LIST, run.stats.attns, NULL), T("--attn", "boe", LIST, run.attention.attns, NULL),
    T("--calibrate", "b", FLAG, bench.calibrate, NULL), T("--cliffs", "b", FLAG, bench.cliffs, NULL), T("--mask-method", "b", TEXT, bench.mask_method, "sample"),
    T("--states", "b", TEXT, bench.states, NULL), T("--ragged", "b", FLAG, bench.ragged, NULL), T("--copy", "b", FLAG, bench.copy, NULL),
    T("--task", "eu", TEXT, tasks.tasks, "niah-single,niah-multikey,qa-2hop"), T("--grader", "e", TEXT, eval.grader, NULL),
    T("--procedure", "e", TEXT, eval.procedure, NULL), T("--out", "eu", TEXT, output.path, NULL), T("--dump", "e", TEXT, eval.dump, NULL),
    T("--parts", "u", TEXT, tune.parts, "prefill,budgets"), T("--attn", "u", TEXT, run.attention.attn, NULL),
    T("-q --quiet", "gctdlimvbopePusq", FLAG, quiet, NULL), T("-h --help", "gctdlimvbopePusq", FLAG, help, NULL),
    N("-np --parallel", "s", INT, serve.parallel, "8", 1, 1024),
    N("--kv-tokens", "s", INT, run.device.kv_tokens, NULL, 1, BIG),
    T("-a --alias --served-model-name", "s", TEXT, serve.alias, NULL),
    T("--host", "s", TEXT, serve.host, "127.0.0.1"),
    N("--port", "s", INT, serve.port, "8080", 0, 65535),
    T("--insecure", "s", FLAG, serve.insecure, NULL),
    T("--api-key", "s", LIST, serve.api_keys, NULL),
    T("--api-key-file", "s", TEXT, serve.api_key_file, NULL),
    T("--tls-cert --ssl-certfile --ssl-cert-file", "s", TEXT, serve.tls_cert, NULL),
    T("--tls-key --ssl-keyfile --ssl-key-file", "s", TEXT, serve.tls_key, NULL),
    T("--cors-origin", "s", LIST, serve.cors_origins, NULL),
    N("--max-header", "s", SIZE, serve.max_header, "16K", 1, 1e18),
    N("--max-body", "s", SIZE, serve.max_body, "16M", 1, 1e18),
    N("--max-bodies", "s", SIZE, serve.max_bodies, "256M", 1, 1e18),
    N("--max-unread", "s", SIZE, serve.max_unread, "1M", 1, 1e18),
    N("--max-connections", "s", INT, serve.max_connections, "1024", 1, 1000000),
    N("--max-address-connections", "s", INT, serve.max_address_connections, "0", 0, 1000000),
    N("--header-timeout", "s", REAL, serve.header_timeout, "10", 0.1, 1e9),
    N("--body-timeout", "s", REAL, serve.body_timeout, "60", 0.1, 1e9),
    N("--read-timeout", "s", REAL, serve.read_timeout, "60", 0.1, 1e9),
    N("--idle-timeout", "s", REAL, serve.idle_timeout, "75", 0.1, 1e9),
    N("--sse-interval", "s", REAL, serve.sse_interval, "15", 0.1, 1e9),
    N("--drain-timeout", "s", REAL, serve.drain_timeout, "30", 0, 1e9),
    N("--max-waiting", "s", INT, serve.max_waiting, "512", 1, 1000000),
    N("--step-tokens", "s", INT, serve.step_tokens, "0", 0, BIG),
    T("--prefix-cache", "s", SWITCH, serve.prefix_cache, "1"),
    N("--keep-conversations", "s", INT, serve.keep_conversations, "8", 0, 1000000),
    T("--draft", "gces", TEXT, run.drafts.draft, NULL), T("--draft", "b", LIST, run.drafts.drafts, NULL),
    T("-md --draft-model --model-draft", "gcesb", TEXT, run.drafts.model, NULL),
    T("--slot-save-path", "s", TEXT, serve.slot_save_path, NULL),
};
// clang-format on
enum { N_ROWS = sizeof rows / sizeof *rows };

static sl_error err;

// Parses one flag with a value (NULL: without a value).
static int parse(cli_options *o, unsigned command, const char *flag, const char *value) {
    char *args[] = {(char *)flag, (char *)value};
    return cli_options_parse(o, command, flag ? 1 + (value != NULL) : 0, args, &err);
}

static const char *name_of(const row *r, int i, char buf[40]) { // NULL: there is no name i
    return cli_option_name(r->names, i, buf, 40) ? buf : NULL;
}

static const char *variable_of(const row *r, char buf[64]) {
    char name[40];
    int i = 0;
    while (strncmp(name_of(r, i, name), "--", 2)) i++;
    snprintf(buf, 64, "SLEIGH_%s", name + 2);
    for (char *p = buf; *p; p++) *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return buf;
}

static int has_variable(const row *r) {
    return strcmp(r->names, "-h --help") && !(r->kind == TEXT && !strncmp(r->names, "-o ", 3));
}

// The number that a field holds; a list: its last number.
static double number_in(const cli_options *o, const row *r) {
    const void *at = (const char *)o + r->field;
    const cli_ints *list = at;
    switch (r->kind) {
    case REAL:
        return *(const double *)at;
    case U32:
    case SEED:
        return *(const uint32_t *)at;
    case SIZE:
        return (double)*(const size_t *)at;
    case INTS:
    case INTS_ALL:
    case PAIRS:
        return list->n ? (double)list->at[list->n - 1] : (double)NAN;
    default:
        return *(const int *)at;
    }
}

static const char *text_in(const cli_options *o, const row *r) { // a list: its last text
    const void *at = (const char *)o + r->field;
    const cli_list *list = at;
    return r->kind != LIST ? *(const char *const *)at : list->n ? list->items[list->n - 1] : NULL;
}

static int is_text(const row *r) {
    return r->kind == TEXT || r->kind == WORD || r->kind == LIST;
}

static void accept_number(unsigned command, const row *r, const char *flag, const char *text, double want) {
    cli_options o;
    char pair[80];
    snprintf(pair, sizeof pair, r->kind == PAIRS ? "%s,%s" : "%s", text, text);
    if (parse(&o, command, flag, pair)) FAIL("%s %s: %s", flag, pair, err.message);
    if (number_in(&o, r) != want) FAIL("%s %s: the field has %.17g", flag, pair, number_in(&o, r));
    if (cli_given_by(&o.given, flag) != CLI_BY_FLAG) FAIL("%s %s: not given", flag, pair);
    cli_options_free(&o);
}

static void accept(unsigned command, const row *r, const char *flag, double x) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", x);
    if (r->kind != REAL) snprintf(text, sizeof text, "%.0f", x);
    accept_number(command, r, flag, text, x);
}

// An error of the command line, which names the flag and what was expected.
static void refuse(unsigned command, const row *r, const char *flag, const char *text) {
    cli_options o;
    char pair[80], low[SL_NUMBER_TEXT], high[SL_NUMBER_TEXT], want[96] = "";
    snprintf(pair, sizeof pair, r->kind == PAIRS ? "%s,%s" : "%s", text, text);
    int rc = parse(&o, command, flag, pair);
    if (!rc) FAIL("%s %s: accepted, %.17g", flag, pair, number_in(&o, r));
    if (rc != SL_ERR_ARG || strncmp(err.message, flag, strlen(flag))) FAIL("%s %s: %d, %s", flag, pair, rc, err.message);
    sl_number_text(r->low, low), sl_number_text(r->high, high);
    if (r->kind == SIZE) return;
    if (r->kind == SEED || r->kind == U32 || r->high < BIG)
        snprintf(want, sizeof want, "from %s to %s", low, high);
    else
        snprintf(want, sizeof want, "number%s, %s or more", r->kind == INTS_ALL ? "s" : "", low);
    if (!strstr(err.message, want)) FAIL("%s %s: \"%s\" lacks \"%s\"", flag, pair, err.message, want);
}

static void refuse_number(unsigned command, const row *r, const char *flag, double x) {
    char text[40];
    snprintf(text, sizeof text, r->kind == REAL ? "%.17g" : "%.0f", x);
    refuse(command, r, flag, text);
}

// A bound, and the next value beyond it. out: -1: below, 1: above.
static void try_bound(unsigned command, const row *r, const char *flag, double at, int out) {
    double step = r->kind == REAL ? fmax(fabs(at), 1) * 1e-6 : 1;
    accept(command, r, flag, at);
    accept(command, r, flag, at - out * step);
    double beyond = at + out * step;
    if (r->kind == SEED && beyond == -1) beyond = -2;
    if (r->kind == CTX && beyond == 0) beyond = -1;
    refuse_number(command, r, flag, beyond);
}

static void try_number(unsigned command, const row *r, const char *flag) {
    static const char *const wrong[] = {"x", "", "7x", " 7", "0x7", "7kk", "99999999999999999999999", "nan", "1.5"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong - (r->kind == REAL); i++) {
        int is_hex = !strcmp(wrong[i], "0x7"), is_real = r->kind == REAL || r->kind == SIZE;
        if (is_real && (is_hex || (r->kind == SIZE && !strcmp(wrong[i], "1.5")))) continue; // strtod takes 0x7
        refuse(command, r, flag, wrong[i]);
    }
    if (r->kind == SIZE) {
        static const double unit[] = {1024.0, 1048576.0, 1073741824.0, 1099511627776.0};
        for (int i = 0; i < 8; i++)
            accept_number(command, r, flag, (const char *[]){"3K", "3M", "3G", "3T", "3k", "3m", "3g", "3t"}[i],
                          3 * unit[i % 4]);
        accept_number(command, r, flag, "1.5M", 1572864);
        accept(command, r, flag, r->low), accept(command, r, flag, 1e17);
        refuse(command, r, flag, "0"), refuse(command, r, flag, "0.5");
        refuse(command, r, flag, "-1"), refuse(command, r, flag, "1e19");
        return;
    }
    try_bound(command, r, flag, r->low, -1);
    try_bound(command, r, flag, r->high, 1);
    if (r->kind == REAL)
        return refuse(command, r, flag, "1k"), refuse(command, r, flag, "inf"), refuse(command, r, flag, "1e-400");
    for (int i = 0; i < 2; i++) {
        const char *kilo = i ? "1K" : "1k";
        if (r->low <= 1024 && r->high >= 1024)
            accept_number(command, r, flag, kilo, 1024);
        else
            refuse(command, r, flag, kilo);
    }
    if (r->kind == CTX) accept(command, r, flag, 0), refuse_number(command, r, flag, r->low - 1 > 0 ? r->low - 1 : -1);
    if (r->kind == INTS_ALL) accept_number(command, r, flag, "all", CLI_ALL), accept_number(command, r, flag, "3,all", CLI_ALL);
    if (r->kind == INTS) refuse(command, r, flag, "all");
    if (r->kind != SEED) return;
    cli_options o;
    CHECK(!parse(&o, command, flag, "-1") && o.random_seed);
    cli_options_free(&o);
    CHECK(!parse(&o, command, flag, "5") && !o.random_seed);
    cli_options_free(&o);
}

static void try_word(unsigned command, const row *r, const char *flag) {
    char word[32];
    cli_options o;
    for (const char *p = r->words; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(p, ","), p);
        if (parse(&o, command, flag, word)) FAIL("%s %s: %s", flag, word, err.message);
        CHECK_STR(text_in(&o, r), word);
        cli_options_free(&o);
        for (int i = 0; i < 4; i++) { // a part, and other words
            char want[120], other[40];
            snprintf(other, sizeof other, "%s%s", i == 3 ? "" : word + (i == 1), i == 2 ? "x" : i == 0 ? "," : "");
            if (!parse(&o, command, flag, other)) FAIL("%s %s: accepted", flag, other);
            snprintf(want, sizeof want, "%s %s: expected one of %s", flag, other, r->words);
            CHECK_STR(err.message, want);
        }
    }
}

static void try_text(unsigned command, const row *r, const char *flag) {
    cli_options o;
    char *twice[] = {(char *)flag, "some text", (char *)flag, ""};
    static const char *const inputs[] = {"-p --prompt", "-f --file", "-sys --system-prompt", "--jsonl", "--prompts", "--ids"};
    int is_input = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) is_input |= !strcmp(r->names, inputs[i]);
    CHECK_OK(parse(&o, command, flag, "some text"), err);
    CHECK_STR(text_in(&o, r), "some text");
    cli_options_free(&o);
    CHECK_ERR(parse(&o, command, flag, NULL), err, SL_ERR_ARG, "needs a value");
    int rc = cli_options_parse(&o, command, 4, twice, &err); // the last one counts, but for input
    if (rc != (is_input ? SL_ERR_ARG : 0)) FAIL("%s twice: returned %d", flag, rc);
    if (rc) return;
    CHECK_STR(text_in(&o, r), "");
    if (r->kind == LIST) CHECK_INT(((const cli_list *)((char *)&o + r->field))->n, 2);
    cli_options_free(&o);
}

static void try_switch(unsigned command, const row *r, const char *flag) {
    char other[48];
    cli_options o;
    snprintf(other, sizeof other, "--no-%s", flag[1] == '-' ? flag + 2 : "");
    CHECK_OK(parse(&o, command, flag, NULL), err);
    CHECK_INT(number_in(&o, r), 1);
    cli_options_free(&o);
    snprintf(other, sizeof other, "%s=1", flag);
    if (flag[1] == '-') CHECK_ERR(parse(&o, command, other, NULL), err, SL_ERR_ARG, "takes no value");
    if (flag[1] != '-') return;
    snprintf(other, sizeof other, "--no-%s", flag + 2);
    int rc = parse(&o, command, other, NULL);
    if (rc != (r->kind == SWITCH ? 0 : SL_ERR_ARG)) FAIL("%s: returned %d", other, rc);
    if (!rc) CHECK_INT(number_in(&o, r), 0);
    if (!rc) cli_options_free(&o);
}

static int has_default(size_t field) { // in some command
    int n = 0;
    for (int i = 0; i < N_ROWS; i++) n += rows[i].field == field && rows[i].def;
    return n > 0;
}

// Without flags a field has its default; a list has the numbers of its default. Without a default, the command does not read
// the field unless it is given.
static void check_default(unsigned command, const row *r) {
    cli_options o, given;
    char name[40];
    CHECK_OK(parse(&o, command, NULL, NULL), err);
    CHECK_INT(cli_given_by(&o.given, name_of(r, 0, name)), 0);
    if (!r->def && has_default(r->field)) {
        // the default of another command
    } else if (is_text(r)) {
        const char *is = text_in(&o, r);
        if (r->def ? !is || strcmp(is, r->def) : is != NULL) FAIL("%s of %x: default %s", r->names, command, is ? is : "none");
    } else if (r->def && (r->kind == INTS || r->kind == INT || r->kind == SIZE)) {
        CHECK_OK(parse(&given, command, name_of(r, 0, name), r->def), err);
        size_t size = r->kind == INT ? sizeof(int) : r->kind == SIZE ? sizeof(size_t) : sizeof(cli_ints);
        if (memcmp((char *)&o + r->field, (char *)&given + r->field, size)) FAIL("%s of %x: default", r->names, command);
        cli_options_free(&given);
    } else {
        double want = r->def ? atof(r->def) : strstr(r->names, "--dense-prefix") ? -1 : 0, is = number_in(&o, r);
        int is_list = r->kind == INTS || r->kind == INTS_ALL || r->kind == PAIRS;
        if (is_list ? !isnan(is) : is != want) FAIL("%s of %x: default %g", r->names, command, is);
    }
    cli_options_free(&o);
}

// The variable gives the field a value, and a flag takes precedence.
static void check_variable(unsigned command, const row *r) {
    char name[64], flag[40], value[64] = "1", wrong[] = "2";
    cli_options o;
    int takes_value = r->kind != FLAG && r->kind != SWITCH;
    if (takes_value && !is_text(r)) snprintf(value, sizeof value, r->kind == PAIRS ? "%.17g,%.17g" : "%.17g", r->low, r->low);
    if (r->kind == WORD) snprintf(value, sizeof value, "%.*s", (int)strcspn(r->words, ","), r->words);
    setenv(variable_of(r, name), value, 1);
    int rc = parse(&o, command, NULL, NULL), source = has_variable(r) ? CLI_BY_ENV : 0;
    if (rc) unsetenv(name), FAIL("%s=%s of %x: %s", name, value, command, err.message);
    if (cli_given_by(&o.given, name_of(r, 0, flag)) != source) unsetenv(name), FAIL("%s of %x: not given", name, command);
    int is_set = is_text(r) ? text_in(&o, r) && !strcmp(text_in(&o, r), value) : number_in(&o, r) == atof(value);
    cli_options_free(&o);
    if (source && !is_set) unsetenv(name), FAIL("%s=%s of %x: another value", name, value, command);
    if (!takes_value && source) {
        setenv(name, wrong, 1);
        rc = parse(&o, command, NULL, NULL);
        if (rc != SL_ERR_ARG || !strstr(err.message, name)) unsetenv(name), FAIL("%s=2 of %x: %d", name, command, rc);
        setenv(name, "0", 1);
    }
    rc = parse(&o, command, name_of(r, 0, flag), takes_value ? value : NULL);
    unsetenv(name);
    if (rc) FAIL("%s with %s: %s", flag, name, err.message);
    CHECK_INT(cli_given_by(&o.given, flag), CLI_BY_FLAG);
    if (r->kind == LIST) CHECK_INT(((const cli_list *)((char *)&o + r->field))->n, 1); // not both
    if (r->kind == PAIRS) CHECK_INT(((const cli_ints *)((char *)&o + r->field))->n, 2);
    if (!takes_value) CHECK_INT(number_in(&o, r), 1);
    cli_options_free(&o);
}

static void flags(void) {
    char flag[40];
    unsetenv("SLEIGH_EXACT_BELOW"); // which is set for every case
    for (int i = 0; i < N_ROWS; i++)
        for (int c = 0; letters[c]; c++) {
            const row *r = &rows[i];
            cli_options o;
            if (!strchr(r->commands, letters[c])) continue;
            check_default(bits[c], r);
            check_variable(bits[c], r);
            for (int k = 0; name_of(r, k, flag); k++) {
                if (r->kind == WORD)
                    try_word(bits[c], r, flag);
                else if (is_text(r))
                    try_text(bits[c], r, flag);
                else if (r->kind == FLAG || r->kind == SWITCH)
                    try_switch(bits[c], r, flag);
                else if (k)
                    accept(bits[c], r, flag, r->low);
                else
                    try_number(bits[c], r, flag);
            }
            if (r->kind != FLAG && r->kind != SWITCH)
                CHECK_ERR(parse(&o, bits[c], flag, NULL), err, SL_ERR_ARG, "needs a value");
        }
}

static int has_row(const char *names, char command) {
    int n = 0;
    for (int i = 0; i < N_ROWS; i++) n += !strcmp(rows[i].names, names) && strchr(rows[i].commands, command);
    return n;
}

// Each row of the table has a row here, for the same commands, and no command has a flag that only a row here has.
static void complete(void) {
    int n_table = 0, n_rows = 0;
    for (int i = 0; i < N_ROWS; i++) n_rows += (int)strlen(rows[i].commands);
    for (int i = 0; i < cli_n_options; i++)
        for (int c = 0; letters[c]; c++) {
            if (!(cli_option_table[i].commands & bits[c])) continue;
            n_table++;
            if (has_row(cli_option_table[i].names, letters[c]) != 1)
                FAIL("%s of command '%c': expected one row in this test", cli_option_table[i].names, letters[c]);
        }
    CHECK_INT(n_table, n_rows);
}

static const test_case cases[] = {{"flags", 0, flags}, {"complete", 0, complete}, {0}};
extern const test_suite suite_cli_flags;
const test_suite suite_cli_flags = {"cli_flags", cases};
