// cli/options/options.c - the parser of flags; see options.h.
#include "cli/options/all_options.h"
#include "attention/attention.h"
#include "base/nearest.h"
#include "cli/options/habits.h"
#include "cli/options/option_table.h"
#include "cli/options/option_values.h"
#include "models/source.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- names ----

// Finds a flag of these commands (~0u: of any command). *value: 0 after --no-X, else 1.
static const cli_option *find_option(const char *name, unsigned commands, int *value) {
    char word[40], negated[48];
    for (int i = 0; i < cli_n_options; i++) {
        if (!(cli_option_table[i].commands & commands)) continue;
        for (int j = 0; cli_option_name(cli_option_table[i].names, j, word, sizeof word); j++) {
            *value = 1;
            if (!strcmp(word, name)) return &cli_option_table[i];
            if (strncmp(word, "--", 2)) continue;
            *value = 0;
            snprintf(negated, sizeof negated, "--no-%s", word + 2);
            if (cli_option_table[i].type == OPT_SWITCH && !strcmp(negated, name)) return &cli_option_table[i];
        }
    }
    return NULL;
}

static int is_param(const char *name) { // a parameter of any method
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++)
        for (const sl_attn_param *p = (*m)->params; p && p->name; p++)
            if (!strcmp(p->name, name)) return 1;
    return 0;
}

enum { MOST_NAMES = CLI_MAX_FLAGS * 6 };

typedef struct flag_names {
    char words[MOST_NAMES][40];
    const char *names[MOST_NAMES]; // of words
    int n;
} flag_names;

// no: "no-", or "" for the names themselves.
static void add_names(flag_names *to, const char *names, const char *no) {
    char word[40];
    for (int i = 0; to->n < MOST_NAMES && cli_option_name(names, i, word, sizeof word); i++) {
        if (*no && strncmp(word, "--", 2)) continue;
        char *copy = to->words[to->n];
        snprintf(copy, sizeof to->words[0], *no ? "--%s%s" : "%s%s", no, *no ? word + 2 : word);
        to->names[to->n++] = copy;
    }
}

static int unknown_flag(const char *name, unsigned command, sl_error *err) {
    flag_names known = {.n = 0};
    int value, row = 0;
    if (find_option(name, ~0u, &value) || cli_habit_find(name, ~0u, &row))
        return sl_fail(err, SL_ERR_ARG, "flag %s does not belong to this command; --help lists its flags", name);
    for (int i = 0; i < cli_n_options; i++) {
        if (!(cli_option_table[i].commands & command)) continue;
        add_names(&known, cli_option_table[i].names, "");
        if (cli_option_table[i].type == OPT_SWITCH) add_names(&known, cli_option_table[i].names, "no-");
    }
    for (int i = 0; i < cli_n_habits; i++)
        if ((cli_habits[i].commands & command) && cli_habits[i].type != HABIT_REFUSED)
            add_names(&known, cli_habits[i].names, "");
    const char *nearest = sl_nearest(name, known.names, known.n);
    if (nearest) return sl_fail(err, SL_ERR_ARG, "unknown flag %.100s; did you mean %s?", name, nearest);
    return sl_fail(err, SL_ERR_ARG, "unknown flag %.100s; --help lists all flags", name);
}

// ---- values ----

static void *field_of(cli_options *o, const cli_option *opt) {
    return (char *)o + opt->field;
}

// 1: the flag gives input, which a second flag would replace in silence. (The last one of other flags counts, so that a script
// can have defaults.)
static int is_input(const cli_option *opt) {
    static const size_t fields[] = {offsetof(cli_options, input.prompt),  offsetof(cli_options, input.file),
                                    offsetof(cli_options, chat.system),   offsetof(cli_options, input.jsonl),
                                    offsetof(cli_options, input.prompts), offsetof(cli_options, run.ids.path),
                                    offsetof(cli_options, tasks.jsonl)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (opt->field == fields[i] && opt->type == OPT_STRING) return 1;
    return 0;
}

// source: CLI_BY_ENV, CLI_BY_FLAG, or 0 for a default.
static int set_value(cli_options *o, const cli_option *opt, const char *flag, const char *value, int source, sl_error *err) {
    unsigned char *given = &o->given.rows[opt - cli_option_table];
    if (source == CLI_BY_FLAG && *given == source && is_input(opt))
        return sl_fail(err, SL_ERR_ARG, "flag %s is given twice: expected it once", flag);
    if (opt->type == OPT_SEED) o->random_seed = !strcmp(value, "-1");
    int rc = cli_option_set(opt, field_of(o, opt), flag, value, *given != source, err);
    if (!rc) *given = (unsigned char)source;
    return rc;
}

// ---- flags ----

// The words that the parser has not read yet.
typedef struct arguments {
    char **args;
    int n, i;
} arguments;

// The value of a flag: the text after '=', or the next word. NULL: there is none.
static const char *take_value(arguments *a, const char *equals) {
    if (equals) return equals + 1;
    return a->i < a->n ? a->args[a->i++] : NULL;
}

static int lacks_value(const char *name, sl_error *err) {
    return sl_fail(err, SL_ERR_ARG, "flag %s needs a value", name);
}

static int takes_none(const char *name, sl_error *err) {
    return sl_fail(err, SL_ERR_ARG, "flag %s takes no value", name);
}

static int parse_option(cli_options *o, const cli_option *opt, const char *name, int on, arguments *a, const char *equals,
                        sl_error *err) {
    if (!cli_option_takes_value(opt))
        return equals ? takes_none(name, err) : set_value(o, opt, name, on ? "1" : "0", CLI_BY_FLAG, err);
    const char *value = take_value(a, equals);
    return value ? set_value(o, opt, name, value, CLI_BY_FLAG, err) : lacks_value(name, err);
}

static int parse_param(cli_options *o, const char *name, arguments *a, const char *equals, sl_error *err) {
    const char *value = take_value(a, equals);
    if (!value) return lacks_value(name, err);
    if (o->run.attention.n_params == CLI_MAX_PARAMS)
        return sl_fail(err, SL_ERR_ARG, "flag %s: expected at most %d parameters of methods", name, CLI_MAX_PARAMS);
    cli_param *p = &o->run.attention.params[o->run.attention.n_params++];
    snprintf(p->name, sizeof p->name, "%.31s", name + 2);
    p->value = value;
    return 0;
}

static void note_no_effect(cli_options *o, const char *name, const char *value, const char *reason) {
    size_t n = strlen(o->no_effect);
    int is_known = strstr(o->no_effect, reason) != NULL;
    snprintf(o->no_effect + n, sizeof o->no_effect - n, "%s%s%s%.40s%s%s%s", n ? ", " : "", name, value ? " " : "",
             value ? value : "", is_known ? "" : " (", is_known ? "" : reason, is_known ? "" : ")");
}

// The values that rows of a habitual flag accept: "bf16,f16". "": the flag has no such rows.
static const char *habit_values(const char *name, unsigned command, char *buf, size_t size) {
    const cli_habit *h;
    *buf = 0;
    for (int row = 0; (h = cli_habit_find(name, command, &row)); row++) {
        size_t n = strlen(buf);
        if (h->type != HABIT_REFUSED && h->accepts) snprintf(buf + n, size - n, "%s%s", n ? "," : "", h->accepts);
    }
    return buf;
}

static int refuse_habit(const cli_habit *h, const char *name, unsigned command, const char *value, sl_error *err) {
    char values[128];
    if (value && *habit_values(name, command, values, sizeof values))
        return sl_fail(err, SL_ERR_ARG, "%s %.100s: expected %s%s; %s", name, value, strchr(values, ',') ? "one of " : "",
                       values, h->text);
    return sl_fail(err, SL_ERR_ARG, "flag %s: %s", name, h->text);
}

// A flag of another program (habits.h). row: of its first row.
static int parse_habit(cli_options *o, const char *name, int row, arguments *a, const char *equals, sl_error *err) {
    const cli_habit *h = &cli_habits[row];
    const char *value = NULL;
    int is_missing = !equals && a->i == a->n;
    if (!h->value && equals) return takes_none(name, err);
    if (h->value && cli_habit_optional(h) && !equals)
        value = !is_missing && cli_habit_is_value(a->args[a->i]) ? a->args[a->i++] : NULL;
    else if (h->value && !(is_missing && h->type == HABIT_REFUSED)) {
        if (!(value = take_value(a, equals))) return lacks_value(name, err);
    }
    for (; h && !cli_habit_accepts(h, value); h = cli_habit_find(name, o->given.command, &row)) row++;
    SL_CHECK(h); // the last row of a flag accepts every value
    if (h->type == HABIT_REFUSED) return refuse_habit(h, name, o->given.command, value, err);
    if (h->type == HABIT_NOTHING) {
        note_no_effect(o, name, value, h->text);
        return 0;
    }
    int on;
    const cli_option *opt = find_option(h->target, o->given.command, &on);
    SL_CHECK(opt);
    return set_value(o, opt, name, h->as_value ? h->as_value : value, CLI_BY_FLAG, err);
}

// Parses the next flag. A long name may have '_' in place of '-', as in llama.cpp and vLLM.
static int parse_flag(cli_options *o, arguments *a, sl_error *err) {
    char name[64], dashed[64];
    const char *arg = a->args[a->i++], *equals = !strncmp(arg, "--", 2) ? strchr(arg, '=') : NULL;
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - arg) : (int)strlen(arg), arg);
    int on = 1, row = 0;
    const cli_option *opt = find_option(name, o->given.command, &on);
    if (opt) return parse_option(o, opt, name, on, a, equals, err);
    if (!strncmp(name, "--", 2) && (o->given.command & CLI_DECODES) && is_param(name + 2))
        return parse_param(o, name, a, equals, err);
    strcpy(dashed, name);
    for (char *p = dashed; !strncmp(name, "--", 2) && *p; p++)
        if (*p == '_') *p = '-';
    if ((opt = find_option(dashed, o->given.command, &on))) return parse_option(o, opt, dashed, on, a, equals, err);
    if (cli_habit_find(dashed, o->given.command, &row)) return parse_habit(o, dashed, row, a, equals, err);
    return unknown_flag(name, o->given.command, err);
}

// ---- escapes ----

// The byte of an escape whose letter is c; -1: not an escape.
static int escape_of(char c) {
    static const char letters[] = "ntr\"'\\", bytes[] = "\n\t\r\"'\\";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? bytes[at - letters] : -1;
}

// *text: replaced by a copy without escapes. Unknown escapes stay as they are.
static int unescape(cli_options *o, const char *flag, const char **text, sl_error *err) {
    if (!*text) return 0;
    char *copy = strdup(*text), *to = copy;
    int rc = copy ? cli_list_add(&o->owned, copy, err) : sl_fail(err, SL_ERR_MEMORY, "command line: out of memory");
    if (rc) {
        free(copy);
        return rc;
    }
    for (const char *p = copy; *p;) {
        int byte = *p == '\\' ? escape_of(p[1]) : -1;
        if (*p == '\\' && p[1] == 'x' && isxdigit((unsigned char)p[2]) && isxdigit((unsigned char)p[3])) {
            byte = (int)strtol((const char[]){p[2], p[3], 0}, NULL, 16);
            if (!byte)
                return sl_fail(err, SL_ERR_ARG, "%s: expected text without \\x00; a file of --file can hold this byte", flag);
            p += 4;
        } else if (byte >= 0) {
            p += 2;
        } else {
            byte = *p++;
        }
        *to++ = (char)byte;
    }
    *to = 0;
    *text = copy;
    return 0;
}

static int unescape_all(cli_options *o, sl_error *err) {
    int rc = unescape(o, "--prompt", &o->input.prompt, err);
    if (!rc) rc = unescape(o, "--system-prompt", &o->chat.system, err);
    for (int i = 0; !rc && i < o->run.limits.stops.n; i++) rc = unescape(o, "--stop", &o->run.limits.stops.items[i], err);
    return rc;
}

// ---- the command line ----

static int parse_env(cli_options *o, sl_error *err) {
    for (int i = 0; i < cli_n_options; i++) {
        char name[48];
        const char *value = getenv(cli_option_env(&cli_option_table[i], name));
        if (!value || !(cli_option_table[i].commands & o->given.command) || !cli_option_has_env(&cli_option_table[i])) continue;
        int rc = set_value(o, &cli_option_table[i], name, value, CLI_BY_ENV, err);
        if (rc) return rc;
    }
    return 0;
}

static int unexpected(const cli_options *o, const char *word, sl_error *err) {
    const char *hint = !o->run.model.path && (o->given.command & CLI_LOADS) ? "give a model with --model"
                                                                            : "give text with --prompt or --file";
    if (!(o->given.command & CLI_LOADS)) hint = "--help lists the flags";
    return sl_fail(err, SL_ERR_ARG, "unexpected argument \"%.100s\"; %s", word, hint);
}

// Sets the fields NAME_given of the small structs.
static void note_given(cli_options *o) {
    const cli_given *given = &o->given;
    cli_attention_options *attention = &o->run.attention;
    cli_sampling_options *sampling = &o->run.sampling;
    o->run.limits.n_predict_given = cli_given_by(given, "--n-predict");
    o->run.stats.n_seeds_given = cli_given_by(given, "--stats-seeds");
    o->input.prompt_given = cli_given_by(given, "--prompt");
    o->input.file_given = cli_given_by(given, "--file");
    o->input.parallel_given = cli_given_by(given, "--parallel");
    o->output.logprobs_given = cli_given_by(given, "--logprobs");
    o->bench.hot_hits_given = cli_given_by(given, "--hot-hits");
    attention->attn_given = cli_given_by(given, "--attn");
    attention->attn_prefill_given = cli_given_by(given, "--attn-prefill");
    attention->prefill_segment_given = cli_given_by(given, "--prefill-segment");
    sampling->temp_given = cli_given_by(given, "--temp");
    sampling->top_k_given = cli_given_by(given, "--top-k");
    sampling->top_p_given = cli_given_by(given, "--top-p");
    sampling->min_p_given = cli_given_by(given, "--min-p");
    sampling->repeat_penalty_given = cli_given_by(given, "--repeat-penalty");
    sampling->repeat_last_n_given = cli_given_by(given, "--repeat-last-n");
}

int cli_options_parse(cli_options *o, unsigned command, int n, char **args, sl_error *err) {
    *o = (cli_options){.given.command = command, .input.dense_prefix = -1, .perplexity.dense_prefix = -1};
    o->run.attention.has_plan = (command & CLI_DECODES) != 0;
    o->run.drafts.by_request = command == CLI_SERVE;
    // A default of this command replaces the default that another command has for the same field.
    for (int only_command = 0; only_command < 2; only_command++)
        for (int i = 0; i < cli_n_options; i++)
            if (cli_option_table[i].def && (!only_command || (cli_option_table[i].commands & command)))
                SL_CHECK(set_value(o, &cli_option_table[i], cli_option_table[i].names, cli_option_table[i].def, 0, err) == 0);
    arguments a = {.args = args, .n = n};
    int rc = parse_env(o, err);
    while (!rc && a.i < n) {
        const char *word = args[a.i];
        if (word[0] == '-' && word[1])
            rc = parse_flag(o, &a, err);
        else if ((command & (CLI_BENCH | CLI_PLOT)) && !o->what)
            o->what = args[a.i++];
        else
            rc = unexpected(o, word, err);
    }
    if (!rc && o->input.escape) rc = unescape_all(o, err);
    note_given(o);
    if (rc) cli_options_free(o);
    return rc;
}

void cli_options_free(cli_options *o) {
    sl_source_close(o->run.model.source);
    for (int i = 0; i < o->owned.n; i++) free((void *)o->owned.items[i]);
    const cli_list *const lists[] = {&o->owned,
                                     &o->run.limits.stops,
                                     &o->run.sampling.logit_bias,
                                     &o->run.attention.attn_layers,
                                     &o->run.stats.attns,
                                     &o->run.attention.attns,
                                     &o->run.drafts.drafts,
                                     &o->run.attention.attn_prefill_layers,
                                     &o->run.attention.attn_prefills,
                                     &o->run.grammar.choices,
                                     &o->serve.api_keys,
                                     &o->serve.cors_origins};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]->items);
}

int cli_given_by(const cli_given *given, const char *name) {
    int value;
    const cli_option *opt = find_option(name, given->command, &value);
    return opt ? given->rows[opt - cli_option_table] : 0;
}

const char *cli_given_flag(const cli_given *given, const char *const *names) {
    for (; *names; names++)
        if (cli_given_by(given, *names) == CLI_BY_FLAG) return *names;
    return NULL;
}
