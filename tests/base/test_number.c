// tests/base/test_number.c - numbers as text (number.h), also for a program with a locale whose decimal point is a comma.
#include "attention/attention.h"
#include "base/number.h"
#include "engine/engine.h"
#include "models/config.h"
#include "tests/test.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

static sl_error err;

static void texts(void) {
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0, "0"},         {1, "1"},        {1048576, "1048576"},
                 {1e6, "1000000"}, {0.5, "0.5"},    {0.1, "0.1"},
                 {-2.5, "-2.5"},   {1e-9, "1e-09"}, {4294967295.0, "4294967295"},
                 {1e12, "1e+12"},  {0.3, "0.3"},    {1.0 / 3, "0.3333333333333333"}};
    char text[SL_NUMBER_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_STR(sl_number_text(cases[i].x, text), cases[i].text);
        CHECK(strtod(text, NULL) == cases[i].x);
    }
    CHECK_STR(sl_float_text(0.1f, text), "0.1");
    CHECK_STR(sl_float_text(1e6f, text), "1000000");
}

// Sets a locale with a decimal comma. Returns 0: the system can make none.
static int set_comma(void) {
    static const char source[] = "comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"\"\n"
                                 "grouping -1\nEND LC_NUMERIC\n";
    char path[300], command[1000];
    snprintf(path, sizeof path, "%s/comma.src", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(source, f) != EOF && !fclose(f));
    snprintf(command, sizeof command, "localedef -c -i '%s' '%s/comma' >/dev/null 2>&1", path, test_tmp());
    if (system(command) < 0) return 0;
    setenv("LOCPATH", test_tmp(), 1);
    const char *set = setlocale(LC_NUMERIC, "comma");
    unsetenv("LOCPATH");
    return set != NULL;
}

typedef struct printed {
    char attn[128], rope[256], number[2][SL_NUMBER_TEXT], error[3][sizeof err.message];
    uint64_t config, logits;
} printed;

static void print_all(printed *p) {
    sl_attn_spec spec;
    sl_model *model;
    sl_engine *engine;
    sl_session *session;
    sl_sampling sampling = sl_sampling_default();
    memset(p, 0, sizeof *p);
    CHECK_OK(sl_attn_parse("santa-pps:epsilon=0.25:delta=0.125", &spec, &err), err);
    CHECK(sl_attn_get(&spec, "epsilon") == 0.25);
    sl_attn_format(&spec, p->attn, sizeof p->attn);
    sl_number_text(0.2, p->number[0]), sl_float_text(1.5f, p->number[1]);
    CHECK(sl_attn_parse("santa-pps:epsilon=2.5", &spec, &err) == SL_ERR_ARG);
    memcpy(p->error[0], err.message, sizeof err.message);
    sampling.top_p = 1.5f;
    CHECK(sl_sampling_check(&sampling, 100, &err) == SL_ERR_ARG);
    memcpy(p->error[1], err.message, sizeof err.message);
    CHECK(sl_fail(&err, SL_ERR_ARG, "%g and %.3f", 0.5, 0.25) == SL_ERR_ARG);
    memcpy(p->error[2], err.message, sizeof err.message);
    CHECK_OK(sl_model_load("models/tiny", NULL, &model, &err), err);
    sl_config_describe_rope(sl_model_config(model), p->rope, sizeof p->rope);
    p->config = sl_config_hash(sl_model_config(model));
    CHECK_OK(sl_engine_new(model, &(sl_engine_options){.n_ctx = 256, .n_threads = 1, .attn = "santa-pps:epsilon=0.5"}, &engine,
                           &err),
             err);
    CHECK_OK(sl_session_new(engine, 0, &session, &err), err);
    CHECK_OK(sl_prefill(session, (int32_t[]){5, 6, 7}, 3, NULL, &err), err);
    CHECK_OK(sl_decode(&session, 1, (int32_t[]){8}, &err), err);
    p->logits = sl_logits_hash(sl_session_logits(session, &err), sl_model_n_vocab(model));
    sl_session_free(session), sl_engine_free(engine), sl_model_free(model);
}

// Parameters, labels, hashes, messages and logits are those of the locale "C".
static void comma(void) {
    printed plain, with_comma;
    print_all(&plain);
    CHECK_STR(plain.attn, "santa-pps:epsilon=0.25:delta=0.125");
    CHECK_STR(plain.error[2], "0.5 and 0.250");
    if (!set_comma()) TEST_SKIP("needs localedef");
    print_all(&with_comma);
    CHECK_STR(with_comma.attn, plain.attn);
    CHECK_STR(with_comma.rope, plain.rope);
    for (int i = 0; i < 2; i++) CHECK_STR(with_comma.number[i], plain.number[i]);
    for (int i = 0; i < 3; i++) CHECK_STR(with_comma.error[i], plain.error[i]);
    CHECK(with_comma.config == plain.config && with_comma.logits == plain.logits);
    char text[16];
    snprintf(text, sizeof text, "%g", 0.5);
    CHECK_STR(text, "0,5"); // the locale of the program stays
    CHECK(setlocale(LC_NUMERIC, "C") != NULL);
}

static const test_case cases[] = {{"texts", 0, texts}, {"comma", 0, comma}, {0}};
const test_suite suite_number = {"number", cases};
