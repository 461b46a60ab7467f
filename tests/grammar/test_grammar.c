// tests/grammar/test_grammar.c - grammars and the tokens that they allow: random grammars against a second implementation,
// GBNF, regular expressions, limits.
#include "grammar/grammar_internal.h"
#include "tests/grammar/grammar_oracle.h"
#include "tests/support/tokens.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_error err;

// ---- the tokens of models/tiny ----

typedef struct vocabulary {
    sl_tokenizer *tok;
    sl_token_trie *trie;
    int32_t end;
    int n, n_words;
} vocabulary;

static void load(vocabulary *v, const char *folder, const char *end) {
    CHECK_OK(sl_tokenizer_load(&SL_FOLDER(folder), &v->tok, &err), err);
    v->end = end ? sl_tokenizer_find(v->tok, end) : sl_tokenizer_eos(v->tok);
    v->n = sl_tokenizer_n_vocab(v->tok);
    CHECK_OK(sl_token_trie_new(v->tok, v->n, &v->end, 1, &v->trie, &err), err);
    v->n_words = sl_token_trie_words(v->trie);
    CHECK_INT(v->n_words, (v->n + 31) / 32);
}

static void unload(vocabulary *v) {
    sl_token_trie_free(v->trie), sl_tokenizer_free(v->tok);
}

static int has(const uint32_t *bits, int32_t id) {
    return bits[id / 32] >> id % 32 & 1;
}

static sl_grammar *gbnf(const char *text) {
    sl_grammar *g;
    if (sl_grammar_new_gbnf(text, strlen(text), NULL, &g, &err)) FAIL("%s: %s", text, err.message);
    return g;
}

static sl_grammar *regex(const char *text) {
    sl_grammar *g;
    if (sl_grammar_new_regex(text, strlen(text), &g, &err)) FAIL("%s: %s", text, err.message);
    return g;
}

// 1: the text follows the grammar. 0: it begins such a text. -1: it does not.
static int match(const sl_grammar *g, const char *text, size_t n) {
    sl_automaton a;
    CHECK_OK(sl_automaton_new(g, &a, &err), err);
    uint32_t state = a.start;
    for (size_t i = 0; i < n; i++) CHECK_OK(sl_automaton_step(&a, state, (unsigned char)text[i], &state, &err), err);
    int result = a.facts[state].can_end ? 1 : state == SL_STATE_DEAD ? -1 : 0;
    sl_automaton_free(&a);
    return result;
}

static void check_matches(sl_grammar *g, const char *what, const char *const *yes, const char *const *no) {
    for (; *yes; yes++)
        if (match(g, *yes, strlen(*yes)) != 1) FAIL("%s does not match \"%s\"", what, *yes);
    for (; *no; no++)
        if (match(g, *no, strlen(*no)) == 1) FAIL("%s matches \"%s\"", what, *no);
    sl_grammar_free(g);
}

// ---- random grammars ----

typedef struct random_text {
    char bytes[ORACLE_LONGEST];
    size_t n;
} random_text;

static int32_t pick(const uint32_t *bits, int n) {
    int32_t picked = -1;
    for (int32_t id = 0, count = 0; id < n; id++)
        if (has(bits, id) && test_below(++count) == 0) picked = id;
    return picked;
}

static int must_end(oracle *o, random_text *t) {
    int follows, is_prefix;
    for (int byte = 0; byte < 256; byte++) {
        t->bytes[t->n] = (char)byte;
        oracle_match(o, t->bytes, t->n + 1, &follows, &is_prefix);
        if (is_prefix) return 0;
    }
    return 1;
}

// Compares every token at one place of a text.
static void check_tokens(const vocabulary *v, oracle *o, sl_grammar_run *run, random_text *t, uint32_t *bits,
                         const char *source) {
    int follows, is_prefix, can_end;
    oracle_match(o, t->bytes, t->n, &can_end, &is_prefix);
    CHECK(is_prefix);
    CHECK_INT(sl_grammar_can_end(run), can_end);
    CHECK_INT(sl_grammar_must_end(run), can_end && must_end(o, t));
    CHECK_OK(sl_grammar_allowed(run, bits, &err), err);
    for (int32_t id = 0; id < v->n; id++) {
        sl_text bytes = {0};
        if (id == v->end || sl_tokenizer_is_special(v->tok, id)) {
            CHECK_INT(has(bits, id), id == v->end && can_end);
            continue;
        }
        CHECK_OK(sl_token_bytes(v->tok, id, &bytes, &err), err);
        CHECK(t->n + bytes.n <= ORACLE_LONGEST);
        memcpy(t->bytes + t->n, bytes.data, bytes.n);
        oracle_match(o, t->bytes, t->n + bytes.n, &follows, &is_prefix);
        if (has(bits, id) != is_prefix)
            FAIL("%s: after \"%.*s\" token %d \"%.*s\" is %s", source, (int)t->n, t->bytes, id, (int)bytes.n, bytes.data,
                 is_prefix ? "not allowed" : "allowed");
        sl_text_free(&bytes);
    }
}

static void check_text(const vocabulary *v, oracle *o, sl_matcher *m, uint32_t *bits, const char *source) {
    random_text t = {.n = 0};
    sl_grammar_run *run, *copy;
    CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
    for (int step = 0; step < 12 && t.n < ORACLE_LONGEST - 16; step++) {
        check_tokens(v, o, run, &t, bits, source);
        int32_t id = pick(bits, v->n), wrong = test_below(v->n);
        if (!has(bits, wrong))
            CHECK_ERR(sl_grammar_accept(run, wrong, &err), err, SL_ERR_ARG, "expected a token that the grammar allows");
        CHECK_OK(sl_grammar_run_copy(run, &copy, &err), err);
        CHECK_OK(sl_grammar_accept(copy, id, &err), err);
        sl_grammar_run_free(run);
        run = copy;
        if (id == v->end) {
            CHECK(sl_grammar_can_end(run) && sl_grammar_must_end(run));
            CHECK_ERR(sl_grammar_accept(run, id, &err), err, SL_ERR_ARG, "has ended");
            CHECK_ERR(sl_grammar_allowed(run, bits, &err), err, SL_ERR_ARG, "has ended");
            break;
        }
        sl_text bytes = {0};
        CHECK_OK(sl_token_bytes(v->tok, id, &bytes, &err), err);
        memcpy(t.bytes + t.n, bytes.data, bytes.n), t.n += bytes.n;
        sl_text_free(&bytes);
    }
    sl_grammar_run_reset(run);
    t.n = 0;
    check_tokens(v, o, run, &t, bits, source);
    sl_grammar_run_free(run);
}

// most_bytes: small ones make the matcher drop what it has computed
static void check_random(int has_rules, int n_grammars, size_t most_bytes) {
    static oracle o;
    vocabulary v;
    char source[16384];
    load(&v, "models/tiny", NULL);
    uint32_t *bits = malloc((size_t)v.n_words * sizeof *bits);
    for (int i = 0; i < n_grammars; i++) {
        sl_grammar *g;
        sl_matcher *m;
        oracle_make(&o, has_rules);
        size_t n = has_rules ? oracle_print_gbnf(&o, source, sizeof source) : oracle_print_regex(&o, source, sizeof source);
        int rc = has_rules ? sl_grammar_new_gbnf(source, n, NULL, &g, &err) : sl_grammar_new_regex(source, n, &g, &err);
        if (!oracle_is_productive(&o)) {
            CHECK_ERR(rc, err, SL_ERR_UNSUPPORTED, "no text follows the grammar: rule root never ends");
            CHECK(!g);
            continue;
        }
        if (rc) FAIL("%s: %s", source, err.message);
        CHECK_OK(sl_matcher_new(g, v.trie, most_bytes, &m, &err), err);
        for (int k = 0; k < 2; k++) check_text(&v, &o, m, bits, source);
        sl_matcher_free(m);
        sl_grammar_free(g);
    }
    free(bits);
    unload(&v);
}

static void random_grammars(void) {
    test_draw_from(test_seed);
    check_random(1, 40, 0);
}

static void random_regexes(void) {
    test_draw_from(test_seed + 1);
    check_random(0, 20, 0);
}

static void little_memory(void) {
    test_draw_from(test_seed + 2);
    check_random(1, 20, 1);
}

// The tokens of a set are those that the run accepts, by a walk of their bytes alone.
static void check_accepts(const vocabulary *v, sl_grammar_run *run, uint32_t *bits) {
    CHECK_OK(sl_grammar_allowed(run, bits, &err), err);
    for (int32_t id = 0; id < v->n; id++) {
        sl_grammar_run *copy;
        CHECK_OK(sl_grammar_run_copy(run, &copy, &err), err);
        int rc = sl_grammar_accept(copy, id, &err);
        if ((rc == 0) != has(bits, id))
            FAIL("token %d is %sallowed, but: %s", id, has(bits, id) ? "" : "not ", rc ? err.message : "accepted");
        sl_grammar_run_free(copy);
    }
}

// ---- GBNF ----

#define LIST(...)                                                                                                              \
    (const char *const[]) {                                                                                                    \
        __VA_ARGS__, NULL                                                                                                      \
    }

static void gbnf_texts(void) {
    static const struct {
        const char *text;
        const char *yes[5], *no[8]; // ended by NULL
    } rows[] = {
        {"root ::= \"a\\x41\\u00e9\\U0001F600\\n\\t\\\\\\\"\\[\\]\"", {"aA\xc3\xa9\xf0\x9f\x98\x80\n\t\\\"[]"}, {"", "aA"}},
        {"root ::= [a-c\\]\\-]+ # all\n", {"a", "abc]-"}, {"", "d", "ab^"}},
        {"root ::= [^a-c\\n]", {"d", "\xc3\xa9", "\xf0\x9f\x98\x80"}, {"a", "b", "\n", "\xc3", "\xed\xa0\x80", "dd"}},
        {"root ::= .", {"a", "\n", "\xf4\x8f\xbf\xbf"}, {"", "ab", "\xf4\x90\x80\x80", "\xc0\x80"}},
        {"root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2}", {"aab", "aabbcc"}, {"ab", "aa", "aabccc"}},
        {"root::=x\nx::=(\"a\"|\"b\"|)\"c\"", {"ac", "bc", "c"}, {"", "a"}},
        {"root ::=\n  \"a\" # one\n  | \"b\" ( # two\n \"c\" )? \n", {"a", "b", "bc"}, {"ac"}},
        {"root ::= \"\" | [] | \"x\"", {"", "x"}, {"[]"}},
        {"root ::= list\nlist ::= \"x\" \",\" list | \"x\"", {"x", "x,x,x"}, {"", "x,"}},
        {"root ::= (\"a\"? \"b\"?)* \"c\"", {"c", "abbac"}, {"", "ab"}},
        {"root ::= opt opt \"x\"\nopt ::= \"y\"? opt2\nopt2 ::= \"z\"?", {"x", "yx", "yzyzx", "zzx"}, {"zyzyzx", "yzyz"}},
        {"root ::= \"(\" root \")\" root | \"\"", {"", "()", "(())()"}, {"(", ")("}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_matches(gbnf(rows[i].text), rows[i].text, rows[i].yes, rows[i].no);
}

// The JSON grammar of llama.cpp's manual, in its own words.
static void gbnf_json(void) {
    static const char text[] =
        "root ::= object\n"
        "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
        "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
        "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
        "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
        "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
        "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
    check_matches(gbnf(text), "json", LIST("{}", "{\"a\": [1, -2.5e3, \"x\\u00e9\", null], \"b\":{\"c\":true}}\n"),
                  LIST("", "[]", "{\"a\"}", "{\"a\":01}", "{\"a\":\"\n\"}", "{,}"));
}

static void gbnf_errors(void) {
    static const struct {
        const char *text, *message;
        int code;
    } rows[] = {
        {"", "no rule root", SL_ERR_FORMAT},
        {"a ::= \"x\"", "no rule root", SL_ERR_FORMAT},
        {"root ::= \"x\"\nroot ::= \"y\"", "line 2, column 1: the rule is defined twice", SL_ERR_FORMAT},
        {"root ::= a\n  b", "line 1, column 10: rule a is not defined", SL_ERR_FORMAT},
        {"root ::= \"a\n\"", "line 1, column 12: the line ends", SL_ERR_FORMAT},
        {"root ::= \"a", "the text ends, expected '\"'", SL_ERR_FORMAT},
        {"root ::= [a", "expected ']'", SL_ERR_FORMAT},
        {"root ::= [b-a]", "ends before it begins", SL_ERR_FORMAT},
        {"root ::= (\"a\"", "expected ')'", SL_ERR_FORMAT},
        {"root ::= \"a\")", "')' without '('", SL_ERR_FORMAT},
        {"root ::= \"a\" {2", "expected '}'", SL_ERR_FORMAT},
        {"root ::= \"a\"{x}", "expected a number", SL_ERR_FORMAT},
        {"root ::= \"a\"{3,2}", "not below the first", SL_ERR_FORMAT},
        {"root ::= \"a\"{1000000}", "a number above", SL_ERR_FORMAT},
        {"root ::= *", "line 1, column 10: expected a name", SL_ERR_FORMAT},
        {"root ::= \"\\q\"", "line 1, column 11: an unknown escape", SL_ERR_FORMAT},
        {"root ::= \"\\x4\"", "expected 2 hexadecimal digits", SL_ERR_FORMAT},
        {"root ::= \"\\ud800\"", "a surrogate", SL_ERR_FORMAT},
        {"root ::= \"\\U00110000\"", "a number too large", SL_ERR_FORMAT},
        {"root ::= \"\xff\"", "a byte that is not UTF-8", SL_ERR_FORMAT},
        {"root = \"a\"", "expected NAME ::=", SL_ERR_FORMAT},
        {"root ::= <think>", "expected a name", SL_ERR_FORMAT},
        {"root ::= root \"a\" | \"b\"", "rule root is left-recursive", SL_ERR_UNSUPPORTED},
        {"root ::= \"x\" a\na ::= e b \"q\" | \"z\"\nb ::= e a | \"y\"\ne ::= \"e\"?", "is left-recursive", SL_ERR_UNSUPPORTED},
        {"root ::= \"a\" root", "no text follows the grammar: rule root never ends", SL_ERR_UNSUPPORTED},
        {"root ::= []", "no text follows", SL_ERR_UNSUPPORTED},
        {"root ::= (((\"ab\"{1000}){1000}){1000})", "the grammar has more than", SL_ERR_UNSUPPORTED},
        {"root ::= ((((\"\"){1000}){1000}){1000})", "2097152 repeated parts", SL_ERR_UNSUPPORTED},
    };
    sl_grammar *g;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int rc = sl_grammar_new_gbnf(rows[i].text, strlen(rows[i].text), NULL, &g, &err);
        if (rc != rows[i].code || !strstr(err.message, rows[i].message))
            FAIL("%s: %d %s", rows[i].text, rc, rc ? err.message : "");
        CHECK(!g);
    }
    char deep[1200] = "root ::= ";
    for (int i = 0; i < 500; i++) strcat(deep, "(");
    CHECK_ERR(sl_grammar_new_gbnf(deep, strlen(deep), NULL, &g, &err), err, SL_ERR_FORMAT, "nested brackets");
    CHECK_ERR(sl_grammar_new_regex(deep + 9, strlen(deep + 9), &g, &err), err, SL_ERR_FORMAT, "nested brackets");
    char name[200] = "root ::= ";
    memset(name + 9, 'a', 150);
    CHECK_ERR(sl_grammar_new_gbnf(name, strlen(name), NULL, &g, &err), err, SL_ERR_FORMAT,
              "a name of more than 127 characters");
}

// A name that the text does not define is a part.
static void gbnf_schemas(void) {
    static const char text[] = "root ::= \"<tool_call>\\n\" call \"\\n</tool_call>\"";
    json_t *schemas = json_loads(
        "{\"call\": {\"schema\": {\"properties\": {\"x\": {\"type\": \"integer\"}}, \"required\": [\"x\"]}}}", 0, NULL);
    sl_grammar *g;
    CHECK_OK(sl_grammar_new_gbnf(text, sizeof text - 1, schemas, &g, &err), err);
    check_matches(g, text, LIST("<tool_call>\n{\"x\": 1}\n</tool_call>"), LIST("{\"x\": 1}", "<tool_call>\n{}\n</tool_call>"));
    json_object_set_new(json_object_get(json_object_get(schemas, "call"), "schema"), "not", json_object());
    CHECK_ERR(sl_grammar_new_gbnf(text, sizeof text - 1, schemas, &g, &err), err, SL_ERR_UNSUPPORTED,
              "call#: keyword \"not\" is not supported");
    json_decref(schemas);
}

// ---- tokens by their id ----

typedef struct token_run {
    vocabulary v;
    int32_t mark, word; // a special token; a token whose bytes are " the"
    sl_grammar *g;
    sl_matcher *m;
    sl_grammar_run *run;
    uint32_t bits[64];
} token_run;

static int32_t token_of(const vocabulary *v, const char *text) {
    const uint32_t *from = v->trie->from;
    for (int32_t id = 0; id < v->n; id++)
        if (from[id + 1] - from[id] == strlen(text) && !memcmp(v->trie->bytes.data + from[id], text, strlen(text))) return id;
    FAIL("no token \"%s\"", text);
}

// A grammar with the parts mark and word.
static sl_grammar *with_tokens(const char *text, int32_t mark, int32_t word) {
    sl_grammar *g;
    json_t *parts = json_pack("{s:{s:i}, s:{s:i}}", "mark", "token", mark, "word", "token", word);
    if (sl_grammar_new_gbnf(text, strlen(text), parts, &g, &err)) FAIL("%s: %s", text, err.message);
    json_decref(parts);
    return g;
}

static void begin_run(token_run *t, const char *text) {
    t->g = with_tokens(text, t->mark, t->word);
    CHECK_OK(sl_matcher_new(t->g, t->v.trie, 0, &t->m, &err), err);
    CHECK_OK(sl_grammar_run_new(t->m, &t->run, &err), err);
}

static void end_run(token_run *t) {
    sl_grammar_run_free(t->run), sl_matcher_free(t->m), sl_grammar_free(t->g);
}

// The only allowed token; -1: there are several.
static int32_t only(token_run *t) {
    int32_t found = -1;
    int n = 0;
    CHECK_OK(sl_grammar_allowed(t->run, t->bits, &err), err);
    for (int32_t id = 0; id < t->v.n; id++)
        if (has(t->bits, id)) found = id, n++;
    return n == 1 ? found : -1;
}

static int allows(token_run *t, int32_t id) {
    CHECK_OK(sl_grammar_allowed(t->run, t->bits, &err), err);
    return has(t->bits, id);
}

static void check_refused(token_run *t, int32_t id) {
    CHECK(!allows(t, id));
    CHECK_ERR(sl_grammar_accept(t->run, id, &err), err, SL_ERR_ARG, "expected a token that the grammar allows");
}

// A token stands where the grammar names it. Its bytes do not stand for the token, nor does the token stand for its bytes.
static void tokens_by_id(void) {
    token_run t;
    load(&t.v, "models/tiny", NULL);
    CHECK(t.v.n_words <= (int)(sizeof t.bits / sizeof *t.bits));
    t.mark = sl_tokenizer_find(t.v.tok, "<|reserved_special_token_3|>");
    t.word = token_of(&t.v, " the");
    int32_t less = token_of(&t.v, "<");
    CHECK(t.mark >= 0);
    begin_run(&t, "root ::= mark (\" \" [a-z]+ \"<|reserved_special_token_3|>\" | word \"<\") mark{2}");
    CHECK_INT(only(&t), t.mark);
    check_refused(&t, less), check_refused(&t, t.word);
    CHECK_ERR(sl_grammar_accept_bytes(t.run, "<", 1, &err), err, SL_ERR_ARG, "expected a text");
    CHECK_OK(sl_grammar_accept(t.run, t.mark, &err), err);
    check_refused(&t, t.mark);
    CHECK(allows(&t, t.word));
    CHECK_OK(sl_grammar_accept(t.run, t.word, &err), err);
    CHECK_INT(only(&t), less);
    CHECK_OK(sl_grammar_accept(t.run, less, &err), err);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(only(&t), t.mark);
        CHECK(!sl_grammar_can_end(t.run));
        CHECK_OK(sl_grammar_accept(t.run, t.mark, &err), err);
    }
    CHECK(sl_grammar_must_end(t.run) && only(&t) == t.v.end);
    sl_grammar_run_reset(t.run);
    CHECK_OK(sl_grammar_accept(t.run, t.mark, &err), err);
    CHECK_OK(sl_grammar_accept_bytes(t.run, " the<|reserved_special_token_3|>", 32, &err), err);
    CHECK_INT(only(&t), t.mark);
    end_run(&t);
    begin_run(&t, "root ::= \" the\" word?");
    check_refused(&t, t.word); // its bytes would fit
    CHECK_OK(sl_grammar_accept_bytes(t.run, " the", 4, &err), err);
    CHECK(allows(&t, t.word) && sl_grammar_can_end(t.run));
    CHECK_OK(sl_grammar_accept(t.run, t.word, &err), err);
    CHECK(sl_grammar_must_end(t.run));
    end_run(&t);
    unload(&t.v);
}

// Repetitions with twins, words of tokens and bytes, and what grammars with tokens refuse.
static void tokens_repeated(void) {
    token_run t;
    enum { N = 600 };
    sl_grammar *other, *g;
    load(&t.v, "models/tiny", NULL);
    t.mark = sl_tokenizer_find(t.v.tok, "<|reserved_special_token_3|>"), t.word = token_of(&t.v, "a");
    begin_run(&t, "root ::= (mark word?){600}");
    for (int i = 0; i < N; i++) {
        CHECK_INT(allows(&t, t.word), i > 0 && i % 3 == 0);
        CHECK_OK(sl_grammar_accept(t.run, t.mark, &err), err);
        if (i % 3 == 1) CHECK_OK(sl_grammar_accept(t.run, t.word, &err), err);
        if (i % 3 == 1 && i < N - 1) CHECK_INT(only(&t), t.mark);
        if (i % 3 == 0) CHECK_OK(sl_grammar_accept(t.run, t.word, &err), err);
    }
    end_run(&t);
    g = with_tokens("root ::= mark word", 7, 8), other = with_tokens("root ::= mark word", 7, 9);
    CHECK(!sl_grammar_equal(g, other));
    sl_grammar_free(other), other = with_tokens("root ::= mark word", 7, 8);
    CHECK(sl_grammar_equal(g, other));
    sl_grammar_free(g), sl_grammar_free(other);
    g = with_tokens("root ::= mark", t.v.n, 0);
    CHECK_ERR(sl_matcher_new(g, t.v.trie, 0, &t.m, &err), err, SL_ERR_ARG, "token 1024 of the grammar: expected 0 to 1023");
    sl_grammar_free(g);
    json_t *parts = json_pack("{s:{s:i}}", "mark", "token", 1);
    static const char endless[] = "root ::= mark root", left[] = "root ::= root mark | mark";
    CHECK_ERR(sl_grammar_new_gbnf(endless, sizeof endless - 1, parts, &g, &err), err, SL_ERR_UNSUPPORTED, "never ends");
    CHECK_ERR(sl_grammar_new_gbnf(left, sizeof left - 1, parts, &g, &err), err, SL_ERR_UNSUPPORTED, "left-recursive");
    json_decref(parts);
    unload(&t.v);
}

// ---- regular expressions ----

static void regex_texts(void) {
    static const struct {
        const char *text;
        const char *yes[5], *no[8]; // ended by NULL
    } rows[] = {
        {"", {""}, {"a"}},
        {"^a|b$", {"a", "b"}, {"ab", ""}},
        {"(?:a|(?<n>b)|(?P<m>c))+?", {"a", "abc"}, {""}},
        {"[a\\]^-]{2,3}", {"a]", "^-a"}, {"a", "aaaa"}},
        {"[^\\d\\s]", {"a", "\xc3\xa9"}, {"1", " ", "\n"}},
        {"\\d\\D\\w\\W\\s\\S", {"1a_! x"}, {"aa_! x"}},
        {"\\t\\n\\r\\f\\v\\-", {"\t\n\r\f\v-"}, {""}},
        {"a.c",
         {"abc", "a\xe2\x82\xac"
                 "c"},
         {"a\nc", "a\rc", "ac"}},
        {"{\"a\": [0-9]{3}}", {"{\"a\": 123}"}, {"{\"a\": 12}"}},
        {"a{2}b{1,}c{0,1}", {"aab", "aabbc"}, {"ab", "aabcc"}},
        {"(a|b)*abb", {"abb", "babababb"}, {"ab", "abba"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_matches(regex(rows[i].text), rows[i].text, rows[i].yes, rows[i].no);
    sl_grammar *g = regex("\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\.\\/\\0");
    CHECK_INT(match(g, "A\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80./\0", 14), 1);
    sl_grammar_free(g);
}

static void regex_errors(void) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"a(?=b)", "regex: column 3: lookaround is not supported"},
        {"(?<!a)b", "lookaround"},
        {"(a)\\1", "\\1 is not supported"},
        {"\\bword", "\\b is not supported"},
        {"\\p{L}", "\\p is not supported"},
        {"(?i)a", "(?i is not supported"},
        {"a**", "a repetition of a repetition"},
        {"a++", "a repetition of a repetition"},
        {"*a", "nothing to repeat"},
        {"a|*", "nothing to repeat"},
        {"(a", "expected ')'"},
        {"a)", "')' without '('"},
        {"[a", "expected ']'"},
        {"[]", "an empty class"},
        {"[z-a]", "ends before it begins"},
        {"[[:alpha:]]", "[:alpha:]"},
        {"a^b", "^: expected only at the start"},
        {"a$b", "$: expected only at the end"},
        {"(^a)", "^: expected only at the start"},
        {"a{3,2}", "not below the first"},
        {"a{2,x}", "expected a number"},
        {"a{1000000}", "a number above"},
        {"\\x4", "hexadecimal digits"},
        {"\\ud800", "a surrogate"},
        {"\\u{110000}", "a number too large"},
        {"\\", "the text ends"},
        {"\xff", "not UTF-8"},
        {"(?<a", "the name of a group does not end"},
    };
    sl_grammar *g;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int rc = sl_grammar_new_regex(rows[i].text, strlen(rows[i].text), &g, &err);
        if (rc != SL_ERR_FORMAT || !strstr(err.message, rows[i].message))
            FAIL("%s: %d %s", rows[i].text, rc, rc ? err.message : "");
    }
}

static void choices(void) {
    json_t *texts = json_loads("[\"yes\", \"no\", \"not\", \"n\\u00e9\", \"\"]", JSON_ALLOW_NUL, NULL);
    sl_grammar *g;
    CHECK_OK(sl_grammar_new_choice(texts, &g, &err), err);
    check_matches(g, "choice", LIST("yes", "no", "not", "n\xc3\xa9", ""), LIST("n", "yesno"));
    json_array_append_new(texts, json_integer(1));
    CHECK_ERR(sl_grammar_new_choice(texts, &g, &err), err, SL_ERR_FORMAT, "choice[5]: found an integer, expected a string");
    json_array_clear(texts);
    CHECK_ERR(sl_grammar_new_choice(texts, &g, &err), err, SL_ERR_FORMAT, "an empty list");
    CHECK_ERR(sl_grammar_new_choice(NULL, &g, &err), err, SL_ERR_FORMAT, "missing");
    json_decref(texts);
}

// ---- limits ----

// A text nests as deep as the limit, and no deeper; every prefix can end.
static void depth(void) {
    sl_grammar *g = gbnf("root ::= \"(\" root \")\" | \"x\"");
    sl_automaton a;
    uint32_t state;
    int n = 0;
    CHECK_OK(sl_automaton_new(g, &a, &err), err);
    for (uint32_t next = state = a.start; next != SL_STATE_DEAD; n++) {
        state = next;
        CHECK_OK(sl_automaton_step(&a, state, '(', &next, &err), err);
    }
    CHECK_INT(n - 1, SL_GRAMMAR_MOST_DEPTH);
    sl_automaton_free(&a);
    sl_grammar_free(g);
}

// A right-recursive list of any length stays at one depth, so its states come again.
static void lists(void) {
    sl_grammar *g = gbnf("root ::= list\nlist ::= item | item \",\" list\nitem ::= [a-z]+ | \"[\" list? \"]\"");
    sl_automaton a;
    CHECK_OK(sl_automaton_new(g, &a, &err), err);
    uint32_t state = a.start;
    for (int i = 0; i < 5000; i++) CHECK_OK(sl_automaton_step(&a, state, (unsigned char)"ab,[],"[i % 6], &state, &err), err);
    CHECK(state != SL_STATE_DEAD && a.states.n < 40 && a.callers.n < 20);
    sl_automaton_free(&a);
    sl_grammar_free(g);
}

// 2^n ways to read n bytes need some n^2 visits.
static void ambiguity(void) {
    sl_grammar *g =
        gbnf("root ::= \"a\" root \"c\" | \"a\" root \"b\" | s\ns ::= (\"a\"? | \"a\"? \"a\"?)* t\nt ::= \"a\" t | \"\"");
    sl_automaton a;
    CHECK_OK(sl_automaton_new(g, &a, &err), err);
    uint32_t state = a.start;
    for (int i = 0; i < 300; i++) CHECK_OK(sl_automaton_step(&a, state, 'a', &state, &err), err);
    if (a.n_visits > 2000000) FAIL("%ld visits", a.n_visits);
    sl_automaton_free(&a);
    sl_grammar_free(g);
}

// A grammar that needs too many visits for one token is refused, and the run stays where it was.
static void visits(void) {
    sl_grammar *g = gbnf("root ::= ([e]? [t]? [a]? [o]? [n]? [i]? [s]? [h]? [r]? [ ]? [d]? [l]?){1500}");
    vocabulary v;
    sl_matcher *m;
    sl_grammar_run *run;
    load(&v, "models/tiny", NULL);
    uint32_t *bits = malloc((size_t)v.n_words * sizeof *bits);
    CHECK_OK(sl_matcher_new(g, v.trie, 0, &m, &err), err);
    CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
    int rc = sl_grammar_allowed(run, bits, &err), can_end = sl_grammar_can_end(run);
    CHECK_ERR(rc, err, SL_ERR_UNSUPPORTED, "too ambiguous");
    CHECK_INT(sl_grammar_can_end(run), can_end);
    sl_grammar_run_free(run), sl_matcher_free(m), sl_grammar_free(g);
    free(bits);
    unload(&v);
}

// Long repetitions share sets of tokens, and these are the tokens that a run accepts: at the start, where a repetition has
// SL_TWIN_BYTES copies left, at its end, and behind it.
static void twins(void) {
    static const char *const texts[] = {
        "[^x]{0,300}x", "[^x]{300}x",     "(e|the| ?[^x]){0,280}x?", "([a-z]{1,2}){270,400}", "(e{0,300}t|[^t]{2}){0,300}",
        "(e?){0,300}t", "(e{300}){0,2}x", "(ee|t){257}(e|h){257,}"};
    vocabulary v;
    load(&v, "models/tiny", NULL);
    uint32_t *bits = malloc((size_t)v.n_words * sizeof *bits);
    int32_t e = token_of(&v, "e");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_grammar *g = regex(texts[i]);
        sl_matcher *m;
        sl_grammar_run *run;
        int rc = 0, n = 0;
        CHECK_OK(sl_matcher_new(g, v.trie, 0, &m, &err), err);
        CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
        for (; !rc && n < 620; n++) {
            int is_edge = (n > 20 && n < 28) || (n > 40 && n < 48) || (n > 250 && n < 320) || (n > 390 && n < 410) || n > 505;
            if (n < 3 || n % 50 == 0 || is_edge) check_accepts(&v, run, bits);
            rc = sl_grammar_accept(run, e, &err);
        }
        CHECK(n > 250);
        sl_grammar_run_free(run), sl_matcher_free(m), sl_grammar_free(g);
    }
    // A string of a schema needs one walk through the whole trie until 256 characters are left.
    sl_grammar *g = regex("[^x]{0,1000}x");
    sl_matcher *m;
    sl_grammar_run *run;
    CHECK_OK(sl_matcher_new(g, v.trie, 0, &m, &err), err);
    CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
    size_t bytes = 0;
    for (int n = 0; n < 1000 - SL_TWIN_BYTES; n++) {
        CHECK_OK(sl_grammar_allowed(run, bits, &err), err);
        CHECK_OK(sl_grammar_accept(run, e, &err), err);
        if (n == 1) bytes = sl_matcher_bytes(m);
    }
    CHECK(sl_matcher_bytes(m) < 20 * bytes);
    sl_grammar_run_free(run), sl_matcher_free(m), sl_grammar_free(g);
    free(bits);
    unload(&v);
}

// Near the limit of depth, too, a set holds what the run accepts: tokens like "th" enter two rules.
static void depth_of_tokens(void) {
    sl_grammar *g = gbnf("root ::= ([^th] | \"t\" root \"e\" | \"h\" root \"n\")*");
    vocabulary v;
    sl_matcher *m;
    sl_grammar_run *run;
    load(&v, "models/tiny", NULL);
    uint32_t *bits = malloc((size_t)v.n_words * sizeof *bits);
    int32_t t = token_of(&v, "t"), refused = 0;
    CHECK_OK(sl_matcher_new(g, v.trie, 0, &m, &err), err);
    CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
    for (int i = 0; !refused; i++) {
        if (i % 100 == 0 || i > SL_GRAMMAR_MOST_DEPTH - 5) check_accepts(&v, run, bits);
        refused = sl_grammar_accept(run, t, &err) != 0;
        CHECK(!refused || i == SL_GRAMMAR_MOST_DEPTH + 1);
    }
    sl_grammar_run_free(run), sl_matcher_free(m), sl_grammar_free(g);
    free(bits);
    unload(&v);
}

static void nulls(void) {
    sl_grammar_free(NULL), sl_token_trie_free(NULL), sl_matcher_free(NULL), sl_grammar_run_free(NULL);
}

// ---- a large vocabulary ----

static void add_tokens(const vocabulary *v, sl_grammar_run *run, uint32_t *bits, int n, sl_text *text) {
    for (int i = 0; i < n; i++) {
        CHECK_OK(sl_grammar_allowed(run, bits, &err), err);
        if (v->end >= 0) bits[v->end / 32] &= ~(1u << v->end % 32);
        int32_t id = pick(bits, v->n);
        if (id < 0) return;
        CHECK_OK(sl_token_bytes(v->tok, id, text, &err), err);
        CHECK_OK(sl_grammar_accept(run, id, &err), err);
    }
}

// With the vocabulary of Llama 3 every token of a set is the one that a walk of its bytes alone allows, and a set costs much
// less than a step of a model.
static void llama3(void) {
    char folder[300];
    vocabulary v;
    sl_grammar *g;
    sl_matcher *m;
    sl_grammar_run *run;
    sl_text text = {0};
    snprintf(folder, sizeof folder, "%s/tokenizers/llama3", test_shared());
    if (access(folder, R_OK)) TEST_SKIP("needs %s", folder);
    load(&v, folder, "<|eot_id|>");
    test_draw_from(test_seed + 3);
    uint32_t *bits = malloc((size_t)v.n_words * sizeof *bits);
    CHECK_OK(sl_grammar_new_json_object(&g, &err), err);
    CHECK_OK(sl_matcher_new(g, v.trie, 0, &m, &err), err);
    for (int k = 0; k < 6; k++) {
        CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
        add_tokens(&v, run, bits, 10 * k, &text);
        check_accepts(&v, run, bits);
        sl_grammar_run_free(run);
        text.n = 0;
    }
    sl_text_free(&text);
    sl_matcher_free(m), sl_grammar_free(g);
    free(bits);
    unload(&v);
}

// ---- vocabularies ----

// The ids of a SentencePiece model: its pieces are texts with blanks, its bytes are bytes, and no control token is allowed.
static void check_pieces(const char *folder, const char *kind) {
    vocabulary v;
    sl_matcher *m;
    sl_grammar_run *run;
    load(&v, folder, "</s>");
    CHECK_STR(sl_tokenizer_kind(v.tok), kind);
    uint32_t *bits = malloc((size_t)v.n_words * sizeof *bits);
    sl_grammar *g = regex(" ?the (\xc3\xa9|\xf0\x9f\x98\x80)");
    CHECK_OK(sl_matcher_new(g, v.trie, 0, &m, &err), err);
    CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
    check_accepts(&v, run, bits);
    CHECK(has(bits, 278) && has(bits, 1552) && !has(bits, 0) && !has(bits, 1) && !has(bits, 2)); // " the", "the", unk, bos, eos
    CHECK_OK(sl_grammar_accept(run, 278, &err), err);
    CHECK_OK(sl_grammar_accept(run, 29871, &err), err); // " "
    check_accepts(&v, run, bits);
    const int32_t first = 3, wanted[] = {first + 0xf0, first + 0x9f, first + 0x98, first + 0x80}; // <0x00> is token 3
    for (int i = 0; i < 4; i++) CHECK_OK(sl_grammar_accept(run, wanted[i], &err), err);
    CHECK(sl_grammar_must_end(run));
    check_accepts(&v, run, bits);
    CHECK(has(bits, v.end));
    sl_grammar_run_free(run), sl_matcher_free(m), sl_grammar_free(g);
    free(bits);
    unload(&v);
}

static void sentencepiece(void) {
    char path[300];
    snprintf(path, sizeof path, "%s/tokenizers/llama2/tokenizer.model", test_shared());
    if (access(path, R_OK)) TEST_SKIP("needs %s", path);
    tokens_link(path, "tokenizer.model");
    check_pieces(test_tmp(), "sentencepiece");
    *strrchr(path, '/') = 0;
    check_pieces(path, "bpe");
}

// A model may have more ids than the tokenizer, or fewer. Several end tokens are possible, and none.
static void sizes(void) {
    vocabulary v;
    sl_grammar *g = regex(".*");
    load(&v, "models/tiny", NULL);
    const int32_t ends[] = {v.end, 300, 1099};
    for (int n_vocab = 900; n_vocab <= 1100; n_vocab += 200)
        for (int n_ends = 0; n_ends <= 3; n_ends += 1 + n_ends) {
            sl_token_trie *trie;
            sl_matcher *m;
            sl_grammar_run *run;
            uint32_t bits[40], all = 0;
            int rc = sl_token_trie_new(v.tok, n_vocab, ends, n_ends, &trie, &err);
            if (n_ends > 0 && v.end >= n_vocab) {
                CHECK_ERR(rc, err, SL_ERR_ARG, "expected 0 to 899");
                continue;
            }
            CHECK_OK(rc, err);
            CHECK_OK(sl_matcher_new(g, trie, 0, &m, &err), err);
            CHECK_OK(sl_grammar_run_new(m, &run, &err), err);
            CHECK_OK(sl_grammar_allowed(run, bits, &err), err);
            for (int32_t id = 0; id < 32 * sl_token_trie_words(trie); id++) {
                int is_end = 0;
                for (int i = 0; i < n_ends; i++) is_end |= ends[i] == id;
                if (id >= n_vocab || (id >= v.n && !is_end)) CHECK(!has(bits, id));
                if (is_end) CHECK(has(bits, id));
                all += has(bits, id);
            }
            CHECK(all > 800);
            if (n_ends == 3) CHECK_OK(sl_grammar_accept(run, 300, &err), err);
            CHECK_INT(sl_grammar_must_end(run), n_ends == 3);
            CHECK_ERR(sl_grammar_accept(run, -1, &err), err, SL_ERR_ARG, n_ends == 3 ? "has ended" : "token -1");
            sl_grammar_run_free(run), sl_matcher_free(m), sl_token_trie_free(trie);
        }
    sl_grammar_free(g);
    unload(&v);
}

static const test_case cases[] = {
    {"random-grammars", 0, random_grammars},
    {"random-regexes", 0, random_regexes},
    {"little-memory", 0, little_memory},
    {"gbnf", 0, gbnf_texts},
    {"gbnf-json", 0, gbnf_json},
    {"gbnf-errors", 0, gbnf_errors},
    {"gbnf-schemas", 0, gbnf_schemas},
    {"tokens-by-id", 0, tokens_by_id},
    {"tokens-repeated", 0, tokens_repeated},
    {"regex", 0, regex_texts},
    {"regex-errors", 0, regex_errors},
    {"choices", 0, choices},
    {"depth", 0, depth},
    {"lists", 0, lists},
    {"ambiguity", 0, ambiguity},
    {"visits", 0, visits},
    {"depth-of-tokens", 0, depth_of_tokens},
    {"twins", 0, twins},
    {"nulls", 0, nulls},
    {"llama3", NEEDS_SHARED, llama3},
    {"sentencepiece", NEEDS_SHARED, sentencepiece},
    {"sizes", 0, sizes},
    {0},
};
extern const test_suite suite_grammar;
const test_suite suite_grammar = {"grammar", cases};
