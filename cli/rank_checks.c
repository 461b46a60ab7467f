// cli/rank_checks.c - see rank_checks.h.
#include "cli/rank_checks.h"
#include "attention/auto.h"
#include "base/comm.h"
#include "base/hash.h"
#include "cli/commands.h"
#include "cli/eval/fingerprint.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/rank_team.h"
#include "cli/resume_file.h"
#include "cli/run/load_model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

// ---- settings ----

static int differs(const sl_ranks *r, int rank, const sl_text *texts, sl_error *err) {
    json_t *first = json_loads(texts[0].data, 0, NULL), *other = json_loads(texts[rank].data, 0, NULL);
    char of_first[160], of_other[160];
    int rc = 0;
    const char *key = first && other ? cli_settings_differ(first, other) : NULL;
    if (!first || !other) {
        rc = sl_fail(err, SL_ERR_MEMORY, "settings of ranks: out of memory");
    } else if (key) {
        cli_settings_show(first, key, of_first), cli_settings_show(other, key, of_other);
        rc = sl_fail(err, SL_ERR_ARG, "%s has %s = %s, and rank 0 has %s; all ranks must have the same", sl_ranks_name(r, rank),
                     key, of_other, of_first);
    }
    json_decref(first), json_decref(other);
    return rc;
}

int cli_ranks_compare(sl_ranks *r, const json_t *settings, sl_error *err) {
    int n = sl_ranks_n(r), rc = 0;
    if (!r) return 0;
    char *mine = settings ? json_dumps(settings, JSON_COMPACT) : NULL;
    sl_text *all = calloc((size_t)n, sizeof *all);
    if (!mine || !all) rc = sl_fail(err, SL_ERR_MEMORY, "settings of ranks: out of memory");
    if (!rc) rc = sl_ranks_gather(r, mine, strlen(mine), all, err);
    for (int i = 1; !rc && !sl_ranks_rank(r) && i < n; i++) rc = differs(r, i, all, err);
    if (!rc) rc = sl_ranks_barrier(r, err); // so that only rank 0 reports a difference
    for (int i = 0; all && i < n; i++) sl_text_free(&all[i]);
    free(all), free(mine);
    return rc;
}

int cli_ranks_compare_model(sl_ranks *r, const cli_model_options *model, sl_error *err) {
    cli_fingerprint print;
    char arithmetic[256];
    if (sl_ranks_started() == 1 || !model->path) return 0; // copies of one process, or an error that follows
    int rc = cli_fingerprint_read(model->path, cli_is_dummy(model), &model->rope, &print, err);
    if (!rc) rc = sl_device_arithmetic("cpu", arithmetic, sizeof arithmetic, err);
    if (rc) return rc;
    json_t *s = json_pack("{s:s, s:s, s:s, s:s}", "config", print.config, "weights", print.weights, "tokenizer",
                          print.tokenizer, "arithmetic", arithmetic);
    rc = cli_ranks_compare(r, s, err);
    json_decref(s);
    return rc;
}

// ---- start ----

static int hash_program(char out[SL_HASH_TEXT], sl_error *err) {
    static char part[1 << 16];
    uint64_t sum = SL_FNV1A_START;
    FILE *f = fopen("/proc/self/exe", "rb");
    if (!f) return sl_fail(err, SL_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) sum = sl_checksum(sum, part, n);
    int failed = ferror(f);
    fclose(f);
    snprintf(out, SL_HASH_TEXT, "%016llx", (unsigned long long)sum);
    return failed ? sl_fail(err, SL_ERR_IO, "/proc/self/exe: cannot be read") : 0;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// The variables that are in place of flags. SLEIGH_MODELS is not: another host may have the same model in another folder.
static json_t *variables(void) {
    const char *found[64];
    size_t n = 0;
    json_t *out = json_array();
    for (char **v = environ; *v && n < sizeof found / sizeof *found; v++)
        if (!strncmp(*v, "SLEIGH_", 7) && strncmp(*v, "SLEIGH_MODELS=", 14)) found[n++] = *v;
    qsort(found, n, sizeof *found, by_text);
    for (size_t i = 0; i < n; i++) json_array_append_new(out, json_string(found[i]));
    return out;
}

static int check_start(sl_ranks *r, int argc, char **argv, sl_error *err) {
    char program[SL_HASH_TEXT];
    int rc = hash_program(program, err);
    if (rc) return rc;
    json_t *arguments = json_array();
    for (int i = 1; i < argc; i++) json_array_append_new(arguments, json_string(argv[i]));
    json_t *s = json_pack("{s:s, s:s, s:o, s:o}", "version", cli_version(), "program", program, "arguments", arguments,
                          "environment", variables());
    rc = cli_ranks_compare(r, s, err);
    json_decref(s);
    return rc;
}

static void say(const char *text) {
    dprintf(cli_error_fd(), "%ssleigh: error: %s\n", cli_progress_erase(), text);
}

static int silence(sl_error *err) {
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int failed = nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0;
    if (nowhere >= 0) close(nowhere);
    return failed ? sl_fail(err, SL_ERR_IO, "/dev/null: %s", strerror(errno)) : cli_silence(err);
}

static const sl_ranks_end at_end = {say, cli_end_now};

// Only rank 0 writes.
static int take_rank(const sl_ranks *r, sl_error *err) {
    cli_set_rank(sl_ranks_name(r, sl_ranks_rank(r)));
    return sl_ranks_rank(r) ? silence(err) : 0;
}

int cli_ranks_open(int argc, char **argv, sl_ranks **out, sl_error *err) {
    if (sl_ranks_started() == 1) return 0;
    int rc = sl_ranks_open(&at_end, out, err);
    if (!rc) rc = take_rank(*out, err);
    return rc ? rc : check_start(*out, argc, argv, err);
}

int cli_ranks_fork(int n, sl_ranks **out, sl_error *err) {
    fflush(stdout), fflush(stderr); // not to be written by each copy of the process
    int rc = sl_ranks_fork(n, &at_end, out, err);
    return rc ? rc : take_rank(*out, err);
}

int cli_ranks_check_command(const sl_ranks *r, unsigned command, sl_error *err) {
    if (!r || !(command & CLI_LOADS) || command & (CLI_EVAL | CLI_PERPLEXITY)) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "mpirun or srun has started %d ranks, and only the commands eval and perplexity share their work between "
                   "ranks; --tensor-parallel-size %d shares the model",
                   sl_ranks_n(r), sl_ranks_n(r));
}

int cli_ranks_share_seed(sl_ranks *r, uint32_t *seed, sl_error *err) {
    sl_text text = {0};
    int rc = r ? sl_text_append(&text, (const char *)seed, sizeof *seed, err) : 0;
    if (!rc && r) rc = sl_ranks_broadcast(r, &text, err);
    if (!rc && r && text.n == sizeof *seed) memcpy(seed, text.data, sizeof *seed);
    sl_text_free(&text);
    return rc;
}

const char *cli_ranks_gpu(const sl_ranks *r) {
    static char name[32]; // static: options point to it
    int n = 0;
    for (int is_there = r != NULL; is_there; n += is_there) {
        snprintf(name, sizeof name, "cuda:%d", n);
        is_there = !sl_device_check(name, NULL);
    }
    if (!n) return NULL;
    snprintf(name, sizeof name, "cuda:%d", sl_ranks_local(r) % n);
    return name;
}

void cli_ranks_describe(const sl_ranks *r, int team, int n_units, const char *unit) {
    char teams[64] = "";
    if (team > 1) snprintf(teams, sizeof teams, " in teams of %d, each with a model,", team);
    if (r && sl_ranks_n(r) > team)
        fprintf(stderr, "ranks: %d%s share %d %s%s; this is %s\n", sl_ranks_n(r), teams, n_units, unit, n_units == 1 ? "" : "s",
                sl_ranks_name(r, sl_ranks_rank(r)));
}

// ---- what several ranks cannot do ----

// Each rank of a team reads these files. The first one reads standard input for all (--file -).
static int check_files(const cli_options *o, sl_error *err) {
    const char *file = o->input.file_given && strcmp(o->input.file, "-") ? o->input.file : NULL;
    const char *const files[][2] = {
        {"--file", file},
        {"--jsonl", o->input.jsonl},
        {"--jsonl", o->tasks.jsonl},
        {"--prompts", o->input.prompts},
        {"--ids", o->run.ids.path},
        {"--reference", o->compare.reference},
        {"--haystack", o->tasks.haystack},
        {"--tools", o->chat.tools},
        {"--grammar", o->run.grammar.gbnf},
        {"--json-schema", o->run.grammar.schema},
        {"--chat-template", o->run.model.chat_template},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof files / sizeof *files; i++)
        rc = cli_team_check_file(o->run.model.comm, files[i][0], files[i][1], err);
    return rc;
}

int cli_ranks_check_team(cli_options *o, sl_error *err) {
    const char *flag = o->cache.path                                                      ? "--prompt-cache"
                       : o->run.drafts.model                                              ? "--draft-model"
                       : o->serve.slot_save_path                                          ? "--slot-save-path"
                       : o->input.jsonl && !strcmp(o->input.jsonl, "-")                   ? "--jsonl -"
                       : o->input.prompts && !strcmp(o->input.prompts, "-")               ? "--prompts -"
                       : o->what && strcmp(o->what, "decode") && strcmp(o->what, "model") ? o->what
                                                                                          : NULL;
    if (flag)
        return sl_fail(err, SL_ERR_ARG, "%s is not offered with --tensor-parallel-size %d", flag, o->run.model.tensor_parallel);
    int rc = check_files(o, err);
    if (rc || !sl_comm_rank(o->run.model.comm)) return rc;
    o->output.plot = NULL;
    if (o->run.stats.path) o->run.stats.path = "/dev/null";
    return 0;
}

int cli_ranks_check_file(const sl_ranks *r, const char *path, const char *flag, sl_error *err) {
    if (!r || (path && strcmp(path, "-"))) return 0;
    return sl_fail(err, SL_ERR_ARG, "%s: expected the name of a file, because only rank 0 has standard input", flag);
}

int cli_ranks_check_plans(const sl_ranks *r, const cli_run *run, sl_error *err) {
    if (!r || (!sl_auto_in_plan(&run->requested) && !sl_auto_in_plan(&run->requested_prefill))) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "auto cannot be used with several ranks, because each rank would choose from its own times; name a method");
}
