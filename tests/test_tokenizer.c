// tests/test_tokenizer.c - ids against outside authorities, round trips, streaming, refused files, speed.
//
// Real vocabularies and their vectors come from ../shared (five independent encoders agree on each vector); the embedded
// model's expected ids were made with Hugging Face's `tokenizers` 0.23.
#include "tests/test.h"
#include "tokenizer/tokenizer.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char tiny_dir[] = "models/tiny";
#ifdef __SANITIZE_ADDRESS__
enum { SLOWER = 10, MIN_RATE = 0 };
#else
enum { SLOWER = 1, MIN_RATE = 5 }; // times the limit; MB/s
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static sl_tokenizer *load(const char *dir) {
    sl_error err = {0};
    sl_tokenizer *tok = NULL;
    CHECK_OK(sl_tokenizer_load(dir, &tok, &err), err);
    return tok;
}

static void write_tmp(const char *name, const char *data, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n && !fclose(f));
}

static void shared_path(const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/tokenizers/%s", test_shared(), name) >= PATH_MAX || access(path, R_OK))
        TEST_SKIP("needs %s", path);
}

static sl_tokenizer *load_shared(const char *name) {
    char path[PATH_MAX];
    shared_path(name, path);
    return load(path);
}

static sl_tokenizer *load_model_alone(const char *name) { // a tokenizer.model without the tokenizer.json beside it
    char path[PATH_MAX], whole[PATH_MAX], link[512];
    shared_path(name, path);
    snprintf(link, sizeof link, "%s/tokenizer.model", test_tmp());
    CHECK(realpath(path, whole) && !symlink(whole, link));
    return load(test_tmp());
}

// ---- expected ids ----

static void expect_ids(const sl_tokenizer *tok, const char *text, size_t n_text, unsigned flags, const int32_t *want,
                       size_t n) {
    sl_error err = {0};
    sl_ids got = {0};
    CHECK_OK(sl_tokenize(tok, text, n_text, flags, &got, &err), err);
    for (size_t i = 0; i < n || i < got.n; i++)
        if (i >= n || i >= got.n || got.data[i] != want[i])
            FAIL("%.200s: id %zu is %d (of %zu), expected %d (of %zu)", text, i, i < got.n ? got.data[i] : -1, got.n,
                 i < n ? want[i] : -1, n);
    sl_ids_free(&got);
}

static void expect_text(const sl_tokenizer *tok, const int32_t *ids, size_t n_ids, const char *want, size_t n) {
    sl_error err = {0};
    sl_text whole = {0};
    CHECK_OK(sl_detokenize(tok, ids, n_ids, 1, &whole, &err), err);
    if (whole.n != n || memcmp(whole.data, want, n))
        FAIL("decoded to \"%.200s\" (%zu bytes), expected \"%.200s\" (%zu bytes)", whole.data, whole.n, want, n);
    sl_text_free(&whole);
}

static size_t ids_of(const json_t *list, int32_t *ids, size_t cap) {
    CHECK(json_array_size(list) <= cap);
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return json_array_size(list);
}

// Every line of one vector file. Llama 2's `ids` is what SentencePiece itself says, which knows no special strings.
static void check_vectors(const sl_tokenizer *tok, const char *name, int llama2) {
    char path[PATH_MAX], *line = NULL;
    size_t cap = 0, count = 0;
    shared_path(name, path);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    for (ssize_t length; (length = getline(&line, &cap, f)) > 0; count++) {
        int32_t ids[4096], others[4096];
        json_error_t e;
        json_t *v = json_loadb(line, (size_t)length, JSON_ALLOW_NUL, &e);
        if (!v) FAIL("%s: line %zu: %s", name, count + 1, e.text);
        const json_t *t = json_object_get(v, "text"), *first = json_object_get(v, "ids"),
                     *other = json_object_get(v, llama2 ? "ids_hf" : "ids_plain");
        const char *text = json_string_value(t);
        size_t n = json_string_length(t), n_ids = ids_of(first, ids, 4096),
               n_others = ids_of(other ? other : first, others, 4096);
        expect_ids(tok, text, n, llama2 ? SL_TOK_PLAIN : 0, ids, n_ids);
        expect_ids(tok, text, n, llama2 ? 0 : SL_TOK_PLAIN, others, n_others);
        expect_text(tok, ids, n_ids, text, n);
        json_decref(v);
    }
    free(line), fclose(f);
    CHECK(count >= 46);
}

static void check_real(sl_tokenizer *tok, const char *kind, int n_vocab, int bos, const char *name) {
    char vectors[64];
    CHECK_STR(sl_tokenizer_kind(tok), kind);
    CHECK(sl_tokenizer_n_vocab(tok) == n_vocab && sl_tokenizer_bos(tok) == bos);
    snprintf(vectors, sizeof vectors, "%s/vectors.jsonl", name);
    check_vectors(tok, vectors, !strcmp(name, "llama2"));
    snprintf(vectors, sizeof vectors, "%s/vectors-extra.jsonl", name);
    check_vectors(tok, vectors, !strcmp(name, "llama2"));
    sl_tokenizer_free(tok);
}

static void llama3_json(void) {
    check_real(load_shared("llama3"), "bpe", 128256, 128000, "llama3");
}
static void llama3_tiktoken(void) {
    check_real(load_model_alone("llama3/tokenizer.model"), "tiktoken", 128256, 128000, "llama3");
}
static void llama2_sentencepiece(void) {
    check_real(load_model_alone("llama2/tokenizer.model"), "sentencepiece", 32000, 1, "llama2");
}

// ---- the embedded model: token i < 256 is byte i ----

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define TEXT(s) s, sizeof s - 1

static void tiny_ids(void) {
    const struct {
        const char *text;
        size_t n;
        unsigned flags;
        const int32_t *ids;
        size_t n_ids;
    } texts[] = {
        {TEXT(""), 0, NULL, 0},
        {TEXT(""), SL_TOK_BOS, IDS(1008)},
        {TEXT("Hello, world!"), SL_TOK_BOS, IDS(1008, 72, 284, 439, 44, 369, 108, 100, 33)},
        {TEXT("The quick brown fox's 12345 jumps.\n\n  def f(x):\n\treturn x"), 0,
         IDS(971, 468, 487, 273, 761, 274, 803, 39, 115, 32, 49, 50, 51, 52, 53, 415, 457, 112, 115, 331, 10, 32, 289, 101, 102,
             274, 40, 120, 41, 58, 10, 9, 689, 338, 110, 32, 120)},
        {TEXT("h\u00e9llo \u4f60\u597d \U0001f600"), 0,
         IDS(104, 195, 169, 108, 439, 32, 228, 189, 160, 229, 165, 189, 32, 240, 159, 152, 128)},
        {TEXT("<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"), 0, IDS(1010, 343, 256, 1011, 570, 104, 105, 1012)},
        {TEXT("a\0b"), 0, IDS(97, 0, 98)},
        {TEXT("I'LL don't   \r\n x "), 0, IDS(73, 39, 76, 76, 289, 264, 39, 116, 32, 32, 32, 13, 10, 32, 120, 32)},
    };
    sl_tokenizer *tok = load(tiny_dir);
    CHECK(sl_tokenizer_n_vocab(tok) == 1024 && sl_tokenizer_bos(tok) == 1008 && sl_tokenizer_eos(tok) == 1009);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect_ids(tok, texts[i].text, texts[i].n, texts[i].flags, texts[i].ids, texts[i].n_ids);
        if (!texts[i].flags) expect_text(tok, texts[i].ids, texts[i].n_ids, texts[i].text, texts[i].n);
    }
    sl_tokenizer_free(tok);
}

static void specials(void) {
    static const char text[] = "<|eot_id|<|eot_id|><|eot_id|>";
    sl_tokenizer *tok = load(tiny_dir);
    sl_error err = {0};
    sl_ids ids = {0};
    sl_text shown = {0};
    CHECK_OK(sl_tokenize(tok, TEXT(text), 0, &ids, &err), err);
    CHECK(ids.n > 2 && ids.data[ids.n - 1] == 1012 && ids.data[ids.n - 2] == 1012 && ids.data[ids.n - 3] != 1012);
    CHECK_OK(sl_detokenize(tok, ids.data, ids.n, 0, &shown, &err), err);
    CHECK_STR(shown.data, "<|eot_id|");
    sl_text_free(&shown);
    ids.n = 0;
    CHECK_OK(sl_tokenize(tok, TEXT(text), SL_TOK_PLAIN, &ids, &err), err);
    for (size_t i = 0; i < ids.n; i++) CHECK(!sl_tokenizer_is_special(tok, ids.data[i]));
    expect_text(tok, ids.data, ids.n, TEXT(text));
    for (int32_t id = -1; id <= 1024; id++) CHECK_INT(sl_tokenizer_is_special(tok, id), id >= 1008 && id < 1024);
    CHECK_INT(sl_tokenizer_find(tok, "nothing of the kind"), -1);
    CHECK_ERR(sl_detokenize(tok, IDS(65, 1024), 0, &shown, &err), err, SL_ERR_ARG, "1024");
    CHECK_ERR(sl_detokenize(tok, IDS(-1), 0, &shown, &err), err, SL_ERR_ARG, "-1");
    sl_text_free(&shown);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void round_trip(const sl_tokenizer *tok, const char *text, size_t n, unsigned flags) {
    sl_error err = {0};
    sl_ids ids = {0};
    CHECK_OK(sl_tokenize(tok, text, n, flags, &ids, &err), err);
    expect_text(tok, ids.data, ids.n, text, n);
    sl_ids_free(&ids);
}

static size_t put_utf8(char *s, unsigned c) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) s[i] = (char)(0x80 | (c & 63));
    s[0] = (char)(n == 1 ? c : (0xf00u >> n & 0xf0u) | c);
    return n;
}

static unsigned random_char(uint64_t *rng) { // many scripts, white space, marks, emoji; never a surrogate
    static const unsigned from[] = {0, 0x20, 0x80, 0x300, 0x600, 0x900, 0x2000, 0x4e00, 0xac00, 0x1f300, 0xe000, 0};
    static const unsigned span[] = {0x80, 0x5f, 0x200, 0x100, 0x100, 0x200, 0x70, 0x5000, 0x2000, 0x300, 0x2000, 0xd800};
    int k = (int)(test_uniform(rng) * 12);
    return from[k] + (unsigned)(test_uniform(rng) * span[k]);
}

static void round_trips(void) {
    sl_tokenizer *tok = load(tiny_dir);
    uint64_t rng = test_seed;
    for (int i = 0; i < 2000; i++) {
        char text[512];
        size_t n = 0, want = (size_t)(test_uniform(&rng) * 500);
        while (n < want) {
            if (i % 2)
                text[n++] = (char)(test_uniform(&rng) * 256);
            else
                n += put_utf8(text + n, random_char(&rng));
        }
        round_trip(tok, text, n, i % 3 ? 0 : SL_TOK_PLAIN);
    }
    sl_tokenizer_free(tok);
}

// Runs that make one piece of the whole text, or take the search for special tokens to its worst.
static void long_runs(void) {
    static const char *const units[] = {"a", " ", "\n", "7", "<", "<|", "\xe4\xbd\xa0", "\xff", "!\r", " \n", "\xcc\x81"};
    enum { SIZE = 1 << 20 };
    sl_tokenizer *tok = load(tiny_dir);
    char *text = malloc(SIZE);
    CHECK(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t len = strlen(units[u]), n = SIZE / len * len;
        for (size_t i = 0; i < n; i++) text[i] = units[u][i % len];
        double start = now();
        round_trip(tok, text, n, 0);
        if (now() - start > 2 * SLOWER) FAIL("1 MB of \"%s\" took %.2f s, expected less than 2", units[u], now() - start);
    }
    free(text);
    sl_tokenizer_free(tok);
}

// ---- streaming ----

static size_t whole_characters(const char *s, size_t n) { // bytes of valid UTF-8 before an unfinished last character
    size_t back = 0;
    while (back < 3 && back < n && ((unsigned char)s[n - 1 - back] & 0xc0) == 0x80) back++;
    unsigned char lead = back < n ? (unsigned char)s[n - 1 - back] : 0;
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return need > back + 1 ? n - back - 1 : n;
}

// After any number of tokens the stream has written all whole characters of what they decode to, and nothing else.
static void check_stream(const sl_tokenizer *tok, const int32_t *ids, size_t n) {
    sl_error err = {0};
    sl_text streamed = {0}, whole = {0};
    sl_detok_stream s = sl_detok_begin(tok, 1, 1);
    for (size_t i = 0; i < n; i++) {
        CHECK_OK(sl_detok_next(&s, ids[i], &streamed, &err), err);
        whole.n = 0;
        CHECK_OK(sl_detokenize(tok, ids, i + 1, 1, &whole, &err), err);
        CHECK_INT(streamed.n, whole_characters(whole.data, whole.n));
        CHECK(!streamed.n || !memcmp(streamed.data, whole.data, streamed.n));
    }
    CHECK_OK(sl_detok_end(&s, &streamed, &err), err);
    CHECK_INT(streamed.n, whole.n);
    sl_text_free(&streamed);
    sl_text_free(&whole);
}

static void stream_text(sl_tokenizer *tok, const char *text, size_t n) {
    sl_error err = {0};
    sl_ids ids = {0};
    CHECK_OK(sl_tokenize(tok, text, n, 0, &ids, &err), err);
    CHECK(ids.n > 12);
    check_stream(tok, ids.data, ids.n);
    expect_text(tok, ids.data, ids.n, text, n);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void streaming(void) {
    stream_text(
        load(tiny_dir),
        TEXT("<|eot_id|> na\u00efve \u4f60\u597d \U0001f600\U0001f1e9\U0001f1ea \u0928\u092e\u0938\u094d a\u0301\0z \u05e9"));
}

static void streaming_sentencepiece(void) { // bytes without a piece, and the blank that is not there at the start
    stream_text(load_model_alone("llama2/tokenizer.model"), TEXT(" Hello \U0001f9a5\u0f40 world\n\u4f60\u1234"));
}

static void streaming_invalid(void) { // one U+FFFD for each part that cannot go on, as the Unicode standard advises
    static const struct {
        const char *bytes, *want;
    } texts[] = {
        {"\xff", "\ufffd"},
        {"a\x80z", "a\ufffdz"},
        {"\xc3"
         "a",
         "\ufffd"
         "a"},
        {"\xe2\x82", "\ufffd"},
        {"\xf0\x9f\x98x", "\ufffdx"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xc0\x80", "\ufffd\ufffd"},
        {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xe2\xe2\x82\xac", "\ufffd\u20ac"},
        {"\xf0\x9f\xc3\xa9", "\ufffd\u00e9"},
        {"\xe0\x80", "\ufffd\ufffd"},
    };
    sl_tokenizer *tok = load(tiny_dir);
    sl_error err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_text got = {0};
        sl_detok_stream s = sl_detok_begin(tok, 0, 1);
        for (const char *p = texts[i].bytes; *p; p++) CHECK_OK(sl_detok_next(&s, (unsigned char)*p, &got, &err), err);
        CHECK_OK(sl_detok_end(&s, &got, &err), err);
        CHECK_STR(got.data, texts[i].want);
        sl_text_free(&got);
    }
    sl_tokenizer_free(tok);
}

// ---- files that are refused ----

// A tokenizer.json of 256 bytes, three merges and two added tokens.
static size_t small_json(char *out, size_t cap) {
    size_t n = (size_t)snprintf(
        out, cap,
        "{\"added_tokens\": [{\"id\": 259, \"content\": \"<s>\", \"lstrip\": false, \"special\": true},\n"
        "  {\"id\": 260, \"content\": \"<tool>\", \"lstrip\": false, \"special\": false}],\n \"normalizer\": null,\n"
        " \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s|(?:a|b)+|[^\\\\s]+\"}, \"behavior\": "
        "\"Isolated\", \"invert\": false},\n"
        " \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", "
        "\"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],\n  \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": "
        "[259]}}},\n"
        " \"decoder\": {\"type\": \"ByteLevel\"},\n \"model\": {\"type\": \"BPE\", \"merges\": [\"h e\", \"l l\", [\"he\", "
        "\"ll\"]],\n"
        "  \"vocab\": {\"he\": 256, \"ll\": 257, \"hell\": 258");
    for (unsigned b = 0, next = 256; b < 256; b++) {
        int own = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)snprintf(out + n, cap - n, ", \"%s", b == '"' || b == '\\' ? "\\" : "");
        n += put_utf8(out + n, own ? b : next++);
        n += (size_t)snprintf(out + n, cap - n, "\": %u", b);
    }
    n += (size_t)snprintf(out + n, cap - n, "}}}\n");
    CHECK(n < cap);
    return n;
}

static void write_changed(const char *from, const char *to) { // small_json with `from` (which it holds) replaced
    static char json[16384], changed[16384];
    small_json(json, sizeof json);
    const char *at = strstr(json, from);
    if (!at) FAIL("no %s in the base file", from);
    int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
    write_tmp("tokenizer.json", changed, (size_t)n);
}

static void small_file(void) {
    static const char text[] = "hello<s> hell<tool>";
    enum { SIZE = 1 << 20 };
    sl_error err = {0};
    sl_ids ids = {0};
    write_changed("null", "null");
    sl_tokenizer *tok = load(test_tmp());
    CHECK_INT(sl_tokenizer_n_vocab(tok), 261);
    expect_ids(tok, TEXT(text), SL_TOK_BOS, IDS(259, 258, 'o', 259, ' ', 258, 260));
    expect_ids(tok, TEXT(text), SL_TOK_PLAIN, IDS(258, 'o', '<', 's', '>', ' ', 258, 260));
    char *run = malloc(SIZE); // the pattern's (?:a|b)+ remembers a place per letter: more than PCRE2's own stack holds
    CHECK(run != NULL);
    for (int i = 0; i < SIZE; i++) run[i] = "ab"[i % 3 == 0];
    CHECK_OK(sl_tokenize(tok, run, SIZE, 0, &ids, &err), err);
    CHECK_INT(ids.n, SIZE);
    free(run);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
    write_changed("[^\\\\s]+", "[]]|[^]\\\\s]+"); // a first ] is a letter of its class
    tok = load(test_tmp());
    expect_ids(tok, TEXT("he]he"), 0, IDS(256, ']', 256));
    sl_tokenizer_free(tok);
    write_changed("\\\\s|(?:a|b)+|[^\\\\s]+", "(a+)+c|b"); // exponential: stopped, and the reason said
    tok = load(test_tmp());
    CHECK_ERR(sl_tokenize(tok, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40, 0, &ids, &err), err, SL_ERR_UNSUPPORTED,
              "match limit");
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void refused_json(void) {
    static const struct {
        const char *from, *to;
        int code;
        const char *says;
    } changes[] = {
        {"\"vocab\"", "\"words\"", SL_ERR_UNSUPPORTED, "model.vocab"},
        {"\"merges\"", "\"merge\"", SL_ERR_UNSUPPORTED, "model.merges"},
        {"\"h e\"", "\"h xyz\"", SL_ERR_FORMAT, "model.merges: entry 0"},
        {"\"h e\"", "\"he\"", SL_ERR_FORMAT, "model.merges: entry 0"},
        {"\"l l\"", "\"l o\"", SL_ERR_FORMAT, "merge 1"},
        {", \"A\": 65", "", SL_ERR_FORMAT, "0x41"},
        {"\"ll\": 257", "\"ll\": 256", SL_ERR_FORMAT, "256"},
        {"\"ll\": 257", "\"ll\": -1", SL_ERR_FORMAT, "\"ll\""},
        {"\"ll\": 257", "\"ll\": 4294967296", SL_ERR_FORMAT, "\"ll\""},
        {"\"ll\": 257", "\"l l\": 257", SL_ERR_FORMAT, "alphabet"},
        {"\"ll\": 257", "\"he\": 257", SL_ERR_FORMAT, "uplicate"},
        {"\"id\": 260", "\"id\": 259", SL_ERR_FORMAT, "259"},
        {"\"id\": 260", "\"id\": 4294967296", SL_ERR_FORMAT, "added_tokens"},
        {"\"id\": 260", "\"id\": \"x\"", SL_ERR_UNSUPPORTED, "added_tokens"},
        {"\"<tool>\"", "\"<s>\"", SL_ERR_FORMAT, "<s>"},
        {"\"lstrip\": false", "\"lstrip\": true", SL_ERR_UNSUPPORTED, "lstrip"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", SL_ERR_UNSUPPORTED, "NFC"},
        {"\"type\": \"Split\"", "\"type\": \"Whitespace\"", SL_ERR_UNSUPPORTED, "Whitespace"},
        {"\"Isolated\"", "\"Removed\"", SL_ERR_UNSUPPORTED, "Isolated"},
        {"[^\\\\s]+", "[^\\\\s", SL_ERR_UNSUPPORTED, "pre_tokenizer pattern"},
        {"[^\\\\s]+", "[\\\\S]", SL_ERR_UNSUPPORTED, "\\S"},
        {"[^\\\\s]+", "[a[b]]", SL_ERR_UNSUPPORTED, "character class"},
        {"\"TemplateProcessing\"", "\"RobertaProcessing\"", SL_ERR_UNSUPPORTED, "RobertaProcessing"},
        {"\"type_id\": 0}}],", "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}],", SL_ERR_UNSUPPORTED,
         "single"},
        {"\"Sequence\": {\"id\": \"A\"", "\"Sequence\": {\"id\": \"B\"", SL_ERR_UNSUPPORTED, "single"},
        {"\"ids\": [259]", "\"ids\": [260]", SL_ERR_UNSUPPORTED, "<s>"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"byte_fallback\": true", SL_ERR_UNSUPPORTED,
         "no tokenizer.model is beside it"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": 0.1", SL_ERR_UNSUPPORTED, "dropout"},
        {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", SL_ERR_UNSUPPORTED, "WordPiece"},
        {"{", "[", SL_ERR_FORMAT, "tokenizer.json"},
    };
    sl_tokenizer *tok = NULL;
    sl_error err = {0};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_changed(changes[i].from, changes[i].to);
        CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, changes[i].code, changes[i].says);
    }
    static char json[16384];
    size_t n = small_json(json, sizeof json);
    for (size_t k = 0; k < 40; k++) {
        write_tmp("tokenizer.json", json, n * k / 40);
        CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_FORMAT, "tokenizer.json: line ");
    }
}

// Patterns that PCRE2 reads in another way than Oniguruma or Rust's engines: refused, and the message holds the pattern. Those
// that all read alike: taken.
static void foreign_patterns(void) {
    static const char *const refused[] = {
        "\\h+",    "[\\h]",        "\\H",      "a\\Rb",        "\\X",      "a\\Kb",        "\\Ga",      "\\w+",
        "[\\w']",  "\\W",          "a\\b",     "\\B",          "\\v",      "\\V",          "\\N",       "\\Qa.b\\E",
        "\\cA",    "\\u0041",      "\\012",    "(a)\\11",      "\\xE9",    "\\x",          "\\p{Han}+", "\\p{Letter}",
        "\\pL",    "[\\P{Greek}]", "\\p{^L}",  "\\p",          "\\p{",     "^a",           "a$|b",      "(?m)a.b",
        "(?s:.)",  "(?x) a",       "a(?i)b|c", "(?#x)a",       "(?P<n>a)", "(*UCP)a",      "(?R)",      "(?|a|b)",
        "(?(1)a)", "a{,3}",        "a{2}?",    "\\p{N}{1,3}+", "[a&&b]",   "[a[:alpha:]]", "(?<=a+)b",  "(?<!a|b{1,2})c",
    };
    static const char *const taken[] = {
        "\\p{L}+|\\P{Lu}", "(?i:'s|'t)|.", "(?i)ab|cd",  "(?<=ab)c|(?<!d)e", "(?>a|b)+c", "a++b|[a]?+c",  "\\p{N}{1,3}|a{2,}?",
        "[\\x41\\x{e9}]",  "[^$^(){}?*]",  "\\[\\^\\$a", "a{|b{x}",          "(a)\\1",    "\\d\\D\\t\\A", "[&a]&&",
    };
    sl_tokenizer *tok = NULL;
    sl_error err = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused + sizeof taken / sizeof *taken; i++) {
        int bad = i < sizeof refused / sizeof *refused;
        const char *regex = bad ? refused[i] : taken[i - sizeof refused / sizeof *refused];
        char json[128] = "", *to = json;
        for (const char *p = regex; *p; p++) {
            if (*p == '\\') *to++ = '\\';
            *to++ = *p;
        }
        write_changed("\\\\s|(?:a|b)+|[^\\\\s]+", json);
        if (bad) {
            CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_UNSUPPORTED, "pre_tokenizer pattern");
            if (!strstr(err.message, regex)) FAIL("\"%s\" does not name the pattern %s", err.message, regex);
        } else {
            sl_tokenizer_free(load(test_tmp()));
        }
    }
}

static void refused_model(void) {
    static const struct {
        const char *data, *says;
    } files[] = {
        {"", "tokenizer.model"},
        {"\x01\x02garbage\xff\xff", "SentencePiece"},
        {"\n\x0egarbage\xff\xff", "SentencePiece"},
        {"QQ== 0\nQg== 1\nQ!== 2\n", "line 3"},
        {"QQ== 0\nQg 1\n", "line 2"},
        {"QQ==\n", "line 1"},
        {"QQ== 0 \n", "line 1"},
        {"QQ== 4294967296\n", "line 1"},
        {"QQ== 99999999999999999999\n", "line 1"},
        {"QQ== -1\n", "line 1"},
        {"QQ== 0\nQg== 0\n", "token id 0"},
        {"QQ== 0\nQQ== 1\n", "same bytes"},
        {"QQ== 0\nQg== 1\n", "no token for byte 0x00"},
    };
    sl_tokenizer *tok = NULL;
    sl_error err = {0};
    CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_IO, "neither tokenizer.json nor tokenizer.model");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_tmp("tokenizer.model", files[i].data, strlen(files[i].data));
        CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_FORMAT, files[i].says);
    }
}

// A rank file of the 256 bytes and "he", with this end of line; `last`: the last line has it too.
static size_t small_ranks(char *out, size_t cap, const char *end, int last) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    for (int b = 0; b < 256; b++)
        n += (size_t)snprintf(out + n, cap - n, "%c%c== %d%s", digit[b >> 2], digit[(b & 3) << 4], b, end);
    n += (size_t)snprintf(out + n, cap - n, "aGU= 256%s", last ? end : "");
    CHECK(n < cap);
    return n;
}

static void ends_of_line(void) {
    static const char *const ends[] = {"\n", "\r\n"};
    static char ranks[8192];
    sl_error err = {0};
    for (int i = 0; i < 4; i++) {
        write_tmp("tokenizer.model", ranks, small_ranks(ranks, sizeof ranks, ends[i % 2], i / 2));
        sl_tokenizer *tok = load(test_tmp());
        CHECK_STR(sl_tokenizer_kind(tok), "tiktoken");
        CHECK_INT(sl_tokenizer_n_vocab(tok), 257 + 256);
        expect_ids(tok, TEXT("he\r\n"), 0, IDS(256, '\r', '\n'));
        sl_tokenizer_free(tok);
    }
    sl_tokenizer *tok = NULL;
    static const char *const wrong[] = {"QQ== 0\r\r\nQg== 1\r\n", "QQ== 0\rQg== 1\r"};
    write_tmp("tokenizer.model", wrong[0], strlen(wrong[0]));
    CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_FORMAT, "tokenizer.model");
    write_tmp("tokenizer.model", wrong[1], strlen(wrong[1]));
    CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_FORMAT, "tokenizer.model");
    write_tmp("tokenizer.model", "QQ== 0\r\n\r\n", 10);
    CHECK_ERR(sl_tokenizer_load(test_tmp(), &tok, &err), err, SL_ERR_FORMAT, "line 2");
}

// One to three random edits a file: nothing but success or an error with a message may come of it.
static void mutations(void) {
    static const char *const bits[] = {"\"", "{",  "}",    "[",    "]",       ",", "null", "-1", "999",
                                       "0",  "\\", "\xff", "true", "\\u0000", "(", "*",    "<s>"};
    static char json[16384], copy[20000];
    size_t n = small_json(json, sizeof json);
    uint64_t rng = test_seed;
    int loaded = 0;
    for (int i = 0; i < 800; i++) {
        size_t m = n, edits = 1 + (size_t)(test_uniform(&rng) * 3);
        memcpy(copy, json, n);
        for (size_t e = 0; e < edits; e++) { // most of them in the head of the file, where the fields are
            size_t at = (size_t)(pow(test_uniform(&rng), 2) * (double)m), cut = (size_t)(test_uniform(&rng) * 4), put;
            const char *bit = bits[(size_t)(test_uniform(&rng) * (sizeof bits / sizeof *bits))];
            if (cut > m - at) cut = m - at;
            put = test_uniform(&rng) < 0.5 ? strlen(bit) : 0;
            memmove(copy + at + put, copy + at + cut, m - at - cut);
            memcpy(copy + at, bit, put);
            m += put - cut;
        }
        write_tmp("tokenizer.json", copy, m);
        sl_error err = {0};
        sl_tokenizer *tok = NULL;
        sl_ids ids = {0};
        int rc = sl_tokenizer_load(test_tmp(), &tok, &err);
        CHECK(rc ? rc < 0 && err.message[0] : tok != NULL);
        if (!rc && !sl_tokenize(tok, "hello <s>\xff ab<tool>", 19, SL_TOK_BOS, &ids, &err)) {
            sl_text text = {0};
            CHECK_OK(sl_detokenize(tok, ids.data, ids.n, 1, &text, &err), err);
            sl_text_free(&text);
            loaded++;
        }
        sl_ids_free(&ids);
        sl_tokenizer_free(tok);
    }
    CHECK(loaded > 8);
}

// ---- the folder itself ----

// A file and its header are one part; no part of tokenizer/ may include its way back to itself.
enum { MOST_PARTS = 32 };
typedef struct parts {
    char name[MOST_PARTS][32];
    int n, includes[MOST_PARTS][MOST_PARTS], seen[MOST_PARTS]; // seen: 1 on the way, 2 done
} parts;

static int part_of(parts *p, const char *file) {
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->name[i], name)) return i;
    CHECK(p->n < MOST_PARTS);
    strcpy(p->name[p->n], name);
    return p->n++;
}

static void read_includes(parts *p, const char *file) {
    static const char mark[] = "#include \"tokenizer/";
    char path[512], line[512];
    int from = part_of(p, file);
    snprintf(path, sizeof path, "tokenizer/%s", file);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, mark, sizeof mark - 1)) continue;
        int to = part_of(p, line + sizeof mark - 1);
        if (to != from) p->includes[from][to] = 1;
    }
    fclose(f);
}

static void follow(parts *p, int i) {
    p->seen[i] = 1;
    for (int j = 0; j < p->n; j++) {
        if (!p->includes[i][j]) continue;
        if (p->seen[j] == 1) FAIL("tokenizer/: %s includes %s, which includes it in turn", p->name[i], p->name[j]);
        if (p->seen[j] == 0) follow(p, j);
    }
    p->seen[i] = 2;
}

static void no_include_circle(void) {
    static parts p;
    memset(&p, 0, sizeof p);
    DIR *dir = opendir("tokenizer");
    if (!dir) TEST_SKIP("needs the source folder as working directory");
    for (struct dirent *e; (e = readdir(dir));)
        if (strstr(e->d_name, ".c") || strstr(e->d_name, ".h")) read_includes(&p, e->d_name);
    closedir(dir);
    for (int i = 0; i < p.n; i++) follow(&p, i);
    CHECK(p.n > 5);
}

// ---- speed ----

// Words of the vocabulary itself with a frequency that falls as 1 / id; one in six is glued from two, as rare words are.
static void make_prose(const sl_tokenizer *tok, sl_text *text, size_t size) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    uint64_t rng = test_seed;
    sl_error err = {0};
    for (int glued = 0; text->n < size;) {
        sl_text word = {0};
        int32_t id = (int32_t)(256 * exp(test_uniform(&rng) * log(200)));
        CHECK_OK(sl_detokenize(tok, &id, 1, 0, &word, &err), err);
        if (word.n > 1 && (word.data[0] == ' ') != glued && strspn(word.data + 1, letters) == word.n - 1) {
            CHECK_OK(sl_text_append(text, word.data, word.n, &err), err);
            glued = test_uniform(&rng) < 1.0 / 6;
            if (!glued && test_uniform(&rng) < 0.1) CHECK_OK(sl_text_append(text, ",", 1, &err), err);
        }
        sl_text_free(&word);
    }
}

static void prose_speed(void) {
    sl_tokenizer *tok = load_shared("llama3");
    sl_error err = {0};
    sl_text text = {0};
    make_prose(tok, &text, 4000000);
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        sl_ids ids = {0};
        double start = now();
        CHECK_OK(sl_tokenize(tok, text.data, text.n, 0, &ids, &err), err);
        if (now() - start < best) best = now() - start;
        sl_ids_free(&ids);
    }
    double rate = (double)text.n / best / 1e6;
    printf("      llama3 tokenizer.json on prose: %.1f MB/s\n", rate);
    if (rate < MIN_RATE) FAIL("%.1f MB/s, expected at least %d", rate, MIN_RATE);
    sl_text_free(&text);
    sl_tokenizer_free(tok);
}

static const test_case cases[] = {
    {"llama3_json", NEEDS_SHARED, llama3_json},
    {"llama3_tiktoken", NEEDS_SHARED, llama3_tiktoken},
    {"llama2_sentencepiece", NEEDS_SHARED, llama2_sentencepiece},
    {"tiny_ids", NEEDS_NOTHING, tiny_ids},
    {"specials", NEEDS_NOTHING, specials},
    {"round_trips", NEEDS_NOTHING, round_trips},
    {"long_runs", NEEDS_NOTHING, long_runs},
    {"streaming", NEEDS_NOTHING, streaming},
    {"streaming_sentencepiece", NEEDS_SHARED, streaming_sentencepiece},
    {"streaming_invalid", NEEDS_NOTHING, streaming_invalid},
    {"small_file", NEEDS_NOTHING, small_file},
    {"refused_json", NEEDS_NOTHING, refused_json},
    {"foreign_patterns", NEEDS_NOTHING, foreign_patterns},
    {"refused_model", NEEDS_NOTHING, refused_model},
    {"ends_of_line", NEEDS_NOTHING, ends_of_line},
    {"mutations", NEEDS_NOTHING, mutations},
    {"no_include_circle", NEEDS_NOTHING, no_include_circle},
    {"prose_speed", NEEDS_SHARED, prose_speed},
    {0},
};
extern const test_suite suite_tokenizer;
const test_suite suite_tokenizer = {"tokenizer", cases};
