// tests/tokenizer/test_tokenizer.c - compares ids with other encoders, and tests round trips, streaming, refused files, speed.
//
// Real vocabularies and their vectors come from ../shared (five independent encoders agree on each vector). Hugging Face's
// `tokenizers` 0.23 made the expected ids of the embedded model.
#include "tests/support/nulls.h"
#include "tests/test.h"
#include "tests/support/tokens.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/siphash.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char tiny_dir[] = "models/tiny";

static void shared_path(const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/tokenizers/%s", test_shared(), name) >= PATH_MAX || access(path, R_OK))
        TEST_SKIP("needs %s", path);
}

static sl_tokenizer *load_shared(const char *name) {
    char path[PATH_MAX];
    shared_path(name, path);
    return tokens_load(path);
}

static sl_tokenizer *load_model_alone(const char *name) { // a tokenizer.model without a tokenizer.json
    char path[PATH_MAX];
    shared_path(name, path);
    tokens_link(path, "tokenizer.model");
    return tokens_load(test_tmp());
}

// Llama 2's `ids` come from SentencePiece, which parses no special strings.
static void check_real(sl_tokenizer *tok, const char *kind, int n_vocab, int bos, const char *name) {
    static const char *const files[] = {"vectors", "vectors-extra"};
    int llama2 = !strcmp(name, "llama2");
    CHECK_STR(sl_tokenizer_kind(tok), kind);
    CHECK(sl_tokenizer_n_vocab(tok) == n_vocab && sl_tokenizer_bos(tok) == bos);
    for (int i = 0; i < 2; i++) {
        char file[64], path[PATH_MAX];
        snprintf(file, sizeof file, "%s/%s.jsonl", name, files[i]);
        shared_path(file, path);
        CHECK(tokens_check_vectors(tok, path, llama2 ? SL_TOK_PLAIN : 0, llama2 ? "ids_hf" : "ids_plain",
                                   llama2 ? 0 : SL_TOK_PLAIN, "text") >= 46);
    }
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
    sl_tokenizer *tok = tokens_load(tiny_dir);
    CHECK(sl_tokenizer_n_vocab(tok) == 1024 && sl_tokenizer_bos(tok) == 1008 && sl_tokenizer_eos(tok) == 1009);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tokens_expect_ids(tok, texts[i].text, texts[i].n, texts[i].flags, texts[i].ids, texts[i].n_ids);
        if (!texts[i].flags) tokens_expect_text(tok, texts[i].ids, texts[i].n_ids, texts[i].text, texts[i].n);
    }
    sl_tokenizer_free(tok);
}

static void specials(void) {
    static const char text[] = "<|eot_id|<|eot_id|><|eot_id|>";
    sl_tokenizer *tok = tokens_load(tiny_dir);
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
    tokens_expect_text(tok, ids.data, ids.n, TEXT(text));
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
    tokens_expect_text(tok, ids.data, ids.n, text, n);
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
    sl_tokenizer *tok = tokens_load(tiny_dir);
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

// Texts that form one long piece, and texts that make the search for special tokens slow.
static void long_runs(void) {
    static const char *const units[] = {"a", " ", "\n", "7", "<", "<|", "\xe4\xbd\xa0", "\xff", "!\r", " \n", "\xcc\x81"};
    enum { SIZE = 1 << 20 };
    sl_tokenizer *tok = tokens_load(tiny_dir);
    char *text = malloc(SIZE);
    CHECK(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t len = strlen(units[u]), n = SIZE / len * len;
        for (size_t i = 0; i < n; i++) text[i] = units[u][i % len];
        double start = tokens_now();
        round_trip(tok, text, n, 0);
        if (tokens_now() - start > 2 * TOKENS_SLOWER)
            FAIL("1 MB of \"%s\" took %.2f s, expected less than 2", units[u], tokens_now() - start);
    }
    free(text);
    sl_tokenizer_free(tok);
}

// ---- streaming ----

static void stream_text(sl_tokenizer *tok, const char *text, size_t n) {
    sl_error err = {0};
    sl_ids ids = {0};
    tokens_check_stream(tok, text, n);
    CHECK_OK(sl_tokenize(tok, text, n, 0, &ids, &err), err);
    tokens_expect_text(tok, ids.data, ids.n, text, n);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void streaming(void) {
    stream_text(
        tokens_load(tiny_dir),
        TEXT("<|eot_id|> na\u00efve \u4f60\u597d \U0001f600\U0001f1e9\U0001f1ea \u0928\u092e\u0938\u094d a\u0301\0z \u05e9"));
}

static void streaming_sentencepiece(void) { // covers bytes without a piece, and the blank that decoding drops at the start
    stream_text(load_model_alone("llama2/tokenizer.model"), TEXT(" Hello \U0001f9a5\u0f40 world\n\u4f60\u1234"));
}

static void streaming_invalid(void) { // one U+FFFD for each maximal invalid part, as the Unicode standard recommends
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
        {"\xc1\xbf", "\ufffd\ufffd"},
        {"\xe0\x9f\xbf", "\ufffd\ufffd\ufffd"},
        {"\xf0\x8f\xbf\xbf", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xf5\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
    };
    sl_tokenizer *tok = tokens_load(tiny_dir);
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
        " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"\\\\s|(?:a|b)+|[^\\\\s]+\"}, \"behavior\": \"Isolated\", \"invert\": false},\n"
        "  {\"type\": \"ByteLevel\", \"use_regex\": false}]},\n"
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

static void write_changed(const char *from, const char *to) { // small_json with `from` replaced by `to`
    static char json[16384], changed[16384];
    small_json(json, sizeof json);
    const char *at = strstr(json, from);
    if (!at) FAIL("no %s in the base file", from);
    int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
    tokens_write("tokenizer.json", changed, (size_t)n);
}

static void small_file(void) {
    static const char text[] = "hello<s> hell<tool>";
    enum { SIZE = 1 << 20 };
    sl_error err = {0};
    sl_ids ids = {0};
    write_changed("null", "null");
    sl_tokenizer *tok = tokens_load(test_tmp());
    CHECK_INT(sl_tokenizer_n_vocab(tok), 261);
    tokens_expect_ids(tok, TEXT(text), SL_TOK_BOS, IDS(259, 258, 'o', 259, ' ', 258, 260));
    tokens_expect_ids(tok, TEXT(text), SL_TOK_PLAIN, IDS(258, 'o', '<', 's', '>', ' ', 258, 260));
    char *run = malloc(SIZE); // (?:a|b)+ stores a position for each letter, so PCRE2's default stack is too small
    CHECK(run != NULL);
    for (int i = 0; i < SIZE; i++) run[i] = "ab"[i % 3 == 0];
    CHECK_OK(sl_tokenize(tok, run, SIZE, 0, &ids, &err), err);
    CHECK_INT(ids.n, SIZE);
    free(run);
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
    write_changed("[\"h e\", \"l l\", [\"he\", \"ll\"]],\n  \"vocab\": {",
                  "[\"h e\", \"e l\", \"h e\"],\n  \"vocab\": {\"el\": 261, "); // the first merge of a pair counts
    tok = tokens_load(test_tmp());
    tokens_expect_ids(tok, TEXT("hel"), 0, IDS(256, 'l'));
    sl_tokenizer_free(tok);
    write_changed("[^\\\\s]+", "[]]|[^]\\\\s]+"); // a ] at the start of a class is a letter of the class
    tok = tokens_load(test_tmp());
    tokens_expect_ids(tok, TEXT("he]he"), 0, IDS(256, ']', 256));
    sl_tokenizer_free(tok);
    write_changed("\\\\s|(?:a|b)+|[^\\\\s]+", "(a+)+c|b"); // exponential time: the match limit stops it
    tok = tokens_load(test_tmp());
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
        {"\"ll\": 257", "\"ll\": 256", SL_ERR_FORMAT, "256"},
        {"\"ll\": 257", "\"ll\": -1", SL_ERR_FORMAT, "\"ll\""},
        {"\"ll\": 257", "\"ll\": 4294967296", SL_ERR_FORMAT, "\"ll\""},
        {"\"ll\": 257", "\"l l\": 257", SL_ERR_FORMAT, "merge 1 makes an unknown token"},
        {"\"ll\": 257", "\"he\": 257", SL_ERR_FORMAT, "merge 1 makes an unknown token"}, // the last \"he\" counts
        {"\"id\": 260", "\"id\": 259", SL_ERR_FORMAT, "259"},
        {"\"id\": 260", "\"id\": 4294967296", SL_ERR_FORMAT, "added_tokens"},
        {"\"id\": 260", "\"id\": -1", SL_ERR_FORMAT, "added_tokens"},
        {"\"id\": 260", "\"id\": \"x\"", SL_ERR_UNSUPPORTED, "added_tokens"},
        {"\"<tool>\"", "\"<s>\"", SL_ERR_FORMAT, "<s>"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", SL_ERR_UNSUPPORTED, "type NFKC: supported are NFC"},
        {"\"type\": \"Split\"", "\"type\": \"BertPreTokenizer\"", SL_ERR_UNSUPPORTED,
         "type BertPreTokenizer: supported are Split"},
        {"\"Isolated\"", "\"isolated\"", SL_ERR_UNSUPPORTED, "expected a behavior: Removed, Isolated"},
        {"{\"Regex\"", "{\"String\": \"a\", \"Regex\"", SL_ERR_UNSUPPORTED, "a pattern with a String or a Regex"},
        {"{\"Regex\": ", "{\"String\": \"\", \"x\": ", SL_ERR_UNSUPPORTED, "not empty"},
        {"\"ByteLevel\", \"use_regex\": false", "\"Whitespace\"", SL_ERR_UNSUPPORTED, "field decoder: expected ByteLevel with"},
        {"[^\\\\s]+", "[^\\\\s", SL_ERR_UNSUPPORTED, "pre_tokenizer pattern"},
        {"[^\\\\s]+", "[[:foo:]]", SL_ERR_UNSUPPORTED, "[:foo:]"},
        {"\"TemplateProcessing\"", "\"RobertaProcessing\"", SL_ERR_UNSUPPORTED, "RobertaProcessing"},
        {"\"type_id\": 0}}],", "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}],", SL_ERR_UNSUPPORTED,
         "single"},
        {"\"Sequence\": {\"id\": \"A\"", "\"Sequence\": {\"id\": \"B\"", SL_ERR_UNSUPPORTED, "single"},
        {"\"ids\": [259]", "\"ids\": [260]", SL_ERR_UNSUPPORTED, "<s>"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": 0.1", SL_ERR_UNSUPPORTED, "dropout"},
        {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", SL_ERR_UNSUPPORTED,
         "type WordPiece: Sleigh reads only BPE from tokenizer.json, and the folder has no tokenizer.model"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"unk_token\": \"<unk>\"", SL_ERR_FORMAT, "unk_token: \"<unk>\" is not in"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\"", SL_ERR_UNSUPPORTED, "end_of_word_suffix"},
        {"\"id\": 260, \"content\": \"<tool>\"", "\"id\": 260, \"content\": \"h\"", SL_ERR_FORMAT,
         "\"h\" has the id 260, but the vocabulary gives it 104"},
        {"\"id\": 260, \"content\": \"<tool>\"", "\"id\": 258, \"content\": \"<tool>\"", SL_ERR_FORMAT,
         "has the id 258 of another token"},
        {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": null", SL_ERR_UNSUPPORTED, "field decoder is missing"},
        {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": {\"type\": \"CTC\"}", SL_ERR_UNSUPPORTED,
         "field decoder: type CTC"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"ignore_merges\": \"no\"", SL_ERR_FORMAT, "ignore_merges is a string"},
        {"\"special\": true", "\"special\": 1", SL_ERR_FORMAT, "special is an integer, expected true or false"},
        {"\"lstrip\": false", "\"lstrip\": \"\"", SL_ERR_FORMAT, "lstrip is a string"},
        {"\"invert\": false", "\"invert\": 0", SL_ERR_FORMAT, "invert is an integer"},
        {"\"added_tokens\": [{", "\"added_tokens\": {}, \"x\": [{", SL_ERR_FORMAT,
         "added_tokens is an object, expected a list"},
        {"\"type\": \"TemplateProcessing\"", "\"type\": \"Sequence\", \"processors\": {}", SL_ERR_FORMAT,
         "processors is an object"},
        {"\"type\": \"Split\"", "\"type\": \"Sequence\", \"pretokenizers\": 1", SL_ERR_FORMAT, "pretokenizers is an integer"},
        {"\"type\": \"Split\"", "\"type\": \"ByteLevel\"", SL_ERR_UNSUPPORTED, "type ByteLevel: there are two of them"},
        {"\"h e\"", "\"h e\\u0000\"", SL_ERR_FORMAT, "model.merges: entry 0"},
        {"[\"he\", \"ll\"]", "[\"he\", \"ll\\u0000\"]", SL_ERR_FORMAT, "model.merges: entry 2"},
        {"{", "[", SL_ERR_FORMAT, "tokenizer.json"},
    };
    sl_tokenizer *tok = NULL;
    sl_error err = {0};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_changed(changes[i].from, changes[i].to);
        CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, changes[i].code, changes[i].says);
    }
    static char json[16384];
    size_t n = small_json(json, sizeof json);
    json_t *root = json_loadb(json, n, 0, NULL), *post = json_object_get(root, "post_processor");
    json_t *twice = json_pack("{s:s,s:[O,O]}", "type", "Sequence", "processors", post, post);
    CHECK(twice && !json_object_set_new(root, "post_processor", twice));
    char *text = json_dumps(root, 0);
    tokens_write("tokenizer.json", text, strlen(text));
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_UNSUPPORTED, "two templates");
    free(text);
    json_decref(root);
    for (size_t k = 0; k < 40; k++) {
        tokens_write("tokenizer.json", json, n * k / 40);
        CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT, "tokenizer.json: line ");
    }
}

// Syntax that Sleigh does not know, or for which Oniguruma has rules of its own, must be refused, and the message must contain
// the pattern. The suite patterns tests what the other patterns match.
static void foreign_patterns(void) {
    static const char *const refused[] = {
        "a\\Rb",   "\\X",      "a\\Kb",         "\\Ga",          "\\V",     "\\N",  "\\Qa.b\\E", "\\cA",    "\\012",
        "(a)\\1",  "\\xE9",    "\\x",           "\\p{Letter}",   "\\pL",    "\\p",  "\\p{",      "(?m)a.b", "(?s:.)",
        "(?x) a",  "a(?i)b|c", "(?#x)a",        "(?P<n>a)",      "(*UCP)a", "(?R)", "(?|a|b)",   "(?(1)a)", "(?<=a+)b",
        "(?i:ss)", "(?i:STa)", "(?i:\xc3\xa9)", "(?i:[\\p{L}])", "[]",      "[a",   "[a-\\d]",   "[\\d-a]", "[z-a]",
        "[a-[b]]", "[&&a]",    "[a&&]",         "[[:foo:]]",     "a**",     "*a",   "{1}",       "a{3,1}",  "a{1001}",
        "(a",      "a)",       "\\x{d800}",
    };
    static const char *const taken[] = {
        "\\p{L}+|\\P{Lu}", "(?i:'s|'t)|.", "(?i)ab|cd",  "(?<=ab)c|(?<!d)e", "(?>a|b)+c", "a++b|[a]?+c",  "\\p{N}{1,3}|a{2,}?",
        "[\\x41\\x{e9}]",  "[^$^(){}?*]",  "\\[\\^\\$a", "a{|b{x}",          "(a)b",      "\\d\\D\\t\\A", "[&a]&&",
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
            CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_UNSUPPORTED, "pre_tokenizer pattern");
            if (!strstr(err.message, regex)) FAIL("\"%s\" does not name the pattern %s", err.message, regex);
        } else {
            sl_tokenizer_free(tokens_load(test_tmp()));
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
    CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_IO,
              "neither tokenizer.json nor tokenizer.model");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        tokens_write("tokenizer.model", files[i].data, strlen(files[i].data));
        CHECK_ERR(sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err), err, SL_ERR_FORMAT, files[i].says);
    }
}

// Bytes that are not UTF-8 form a separate piece, so no merge joins these bytes with their neighbours. U+0031 is "1".
static void invalid_bytes(void) {
    static const struct {
        const char *bytes;
        int valid;
    } texts[] = {
        {"\xc2\x80", 1},
        {"\xdf\xbf", 1},
        {"\xe0\xa0\x80", 1},
        {"\xed\x9f\xbf", 1},
        {"\xee\x80\x80", 1},
        {"\xef\xbf\xbf", 1},
        {"\xf0\x90\x80\x80", 1},
        {"\xf4\x8f\xbf\xbf", 1},
        {"\xc0\xb1", 0},
        {"\xc1\xbf", 0},
        {"\xe0\x80\xb1", 0},
        {"\xe0\x9f\xbf", 0}, // overlong
        {"\xf0\x80\x80\xb1", 0},
        {"\xf0\x8f\xbf\xbf", 0},
        {"\xed\xa0\x80", 0},
        {"\xed\xbf\xbf", 0}, // surrogates
        {"\xf4\x90\x80\x80", 0},
        {"\xf5\x80\x80\x80", 0},
        {"\xf7\xbf\xbf\xbf", 0},
        {"\xf8\x88\x80\x80\x80", 0},
        {"\x80", 0},
        {"\xbf", 0},
        {"\xff", 0},
        {"\xc3", 0},
        {"\xe2\x82", 0},
        {"\xf0\x9f\x98", 0},
        {"\xe2\x31\xac", 0},
        {"\xc3\xc3", 0},
    };
    static char json[32768];
    json_t *root = json_loadb(json, small_json(json, sizeof json), 0, NULL), *vocab, *merges;
    json_t *model = json_object_get(root, "model"), *pattern = json_pack("{s:s}", "Regex", "[^x]+");
    CHECK(root && pattern && !json_object_set_new(json_object_get(root, "pre_tokenizer"), "pattern", pattern));
    vocab = json_object_get(model, "vocab"), merges = json_object_get(model, "merges");
    for (int b = 128; b < 256; b++) { // "1" with a byte beyond ASCII is token 300 + the byte
        const char *key;
        json_t *value;
        char letter[8] = "", joined[16], merge[16];
        json_object_foreach(vocab, key, value) {
            if (json_integer_value(value) == b) snprintf(letter, sizeof letter, "%s", key);
        }
        snprintf(joined, sizeof joined, "1%s", letter);
        snprintf(merge, sizeof merge, "1 %s", letter);
        CHECK(!json_object_set_new(vocab, joined, json_integer(300 + b)));
        CHECK(!json_array_append_new(merges, json_string(merge)));
    }
    char *text = json_dumps(root, 0);
    tokens_write("tokenizer.json", text, strlen(text));
    sl_tokenizer *tok = tokens_load(test_tmp());
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char whole[16];
        sl_error err = {0};
        sl_ids ids = {0};
        int n = snprintf(whole, sizeof whole, "1%s", texts[i].bytes);
        CHECK_OK(sl_tokenize(tok, whole, (size_t)n, 0, &ids, &err), err);
        if (ids.data[0] != (texts[i].valid ? 300 + (unsigned char)whole[1] : '1'))
            FAIL("case %zu: the first id is %d: the bytes are %s UTF-8", i, ids.data[0], texts[i].valid ? "" : "not");
        sl_ids_free(&ids);
        round_trip(tok, whole, (size_t)n, 0);
    }
    sl_tokenizer_free(tok);
    free(text);
    json_decref(root);
}

// ---- null ----

static void describe(char *out, size_t size) {
    static const char text[] = "hello<s> hell<tool>  aab\xff";
    sl_error err = {0};
    sl_tokenizer *tok;
    sl_ids ids = {0};
    if (sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err)) {
        snprintf(out, size, "%s", err.message);
        return;
    }
    CHECK_OK(sl_tokenize(tok, TEXT(text), SL_TOK_BOS, &ids, &err), err);
    CHECK_OK(sl_tokenize(tok, TEXT(text), SL_TOK_PLAIN, &ids, &err), err);
    int n = snprintf(out, size, "%d %d %d:", sl_tokenizer_n_vocab(tok), sl_tokenizer_bos(tok), sl_tokenizer_eos(tok));
    for (size_t i = 0; i < ids.n; i++) n += snprintf(out + n, size - (size_t)n, " %d", ids.data[i]);
    for (int32_t id = 256; id < sl_tokenizer_n_vocab(tok); id++)
        n += snprintf(out + n, size - (size_t)n, " %d", sl_tokenizer_is_special(tok, id));
    sl_ids_free(&ids);
    sl_tokenizer_free(tok);
}

static void nulls(void) {
    static const char *const maps[] = {"vocab", "special_tokens", NULL};
    static const char config[] = "{\"add_bos_token\":false,\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"<tool>\"}}";
    static char json[16384];
    json_t *root = json_loadb(json, small_json(json, sizeof json), 0, NULL), *other = json_loads(config, 0, NULL);
    json_t *model = json_object_get(root, "model"), *pre = json_object_get(root, "pre_tokenizer");
    static const char *const flags[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 3; i++) CHECK(!json_object_set_new(model, flags[i], json_null()));
    CHECK(!json_object_set_new(model, "ignore_merges", json_true()) &&
          !json_object_set_new(model, "byte_fallback", json_false()));
    json_t *list = json_pack("{s:s,s:[O]}", "type", "Sequence", "pretokenizers", pre);
    CHECK(list && !json_object_set_new(root, "pre_tokenizer", list));
    json_t *post = json_pack("{s:s,s:[O]}", "type", "Sequence", "processors", json_object_get(root, "post_processor"));
    CHECK(post && !json_object_set_new(root, "post_processor", post));
    CHECK_INT(test_nulls(root, "tokenizer.json", maps, describe), 47);
    char made[1024];
    char *text = json_dumps(root, 0);
    tokens_write("tokenizer.json", text, strlen(text));
    describe(made, sizeof made);
    CHECK(!strncmp(made, "261 259 -1: 259 258 111 259", 27)); // the unchanged file loads
    CHECK_INT(test_nulls(other, "tokenizer_config.json", maps, describe), 4);
    free(text);
    json_decref(other);
    json_decref(root);
}

// ---- tokens that collide ----

static void siphash(void) { // CPython 3.11's hash() of these bytes with PYTHONHASHSEED=0; the last value is from Rust's tests
    static const struct {
        size_t n;
        uint64_t want;
    } known[] = {{1, 0x68a914128e01e473}, {7, 0x2f098ab0c751325a},  {8, 0xead411e67ebe2eea},
                 {9, 0x75927f9d95124362}, {16, 0x8972188433a5c5b7}, {31, 0x169739443111d49b}};
    static const sl_hash_key zero, counted = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
    unsigned char bytes[32];
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) CHECK(sl_siphash(&zero, bytes, known[i].n) == known[i].want);
    CHECK(sl_siphash(&counted, bytes, 0) == 0xabac0158050fc4dc);
}

static size_t put_rank(char *to, const unsigned char *bytes, size_t n, int rank) { // a line of a rank file
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = 0;
    for (size_t i = 0; i < n; i += 3) {
        unsigned x = 0;
        for (size_t j = 0; j < 3; j++) x = x << 8 | (i + j < n ? bytes[i + j] : 0);
        for (size_t j = 0; j < 4; j++) to[at++] = i + j > n ? '=' : digit[x >> (18 - 6 * j) & 63];
    }
    return at + (size_t)sprintf(to + at, " %d\n", rank);
}

// With the key 0, all tokens of this rank file fall into one 64th of the hash table (merges: one 8th). With its random key the
// loader finds each entry near its first slot. The ids do not depend on the key.
static void collisions(void) {
    enum { N_LONG = 20000, SLOTS = 1 << 16, MERGE_SLOTS = 1 << 14 };
    static const sl_hash_key zero;
    char *file = malloc(1 << 20);
    size_t n = 0, n_entries;
    int rank = 0, n_pairs = 0;
    uint64_t rng = test_seed;
    CHECK(file != NULL);
    for (int b = 0; b < 256; b++) n += put_rank(file + n, &(unsigned char){(unsigned char)b}, 1, rank++);
    for (int32_t left = 0; left < 256; left++)
        for (int32_t right = 0; right < 256; right++) {
            if (sl_siphash(&zero, (int32_t[]){left, right}, 8) % MERGE_SLOTS >= MERGE_SLOTS / 8) continue;
            n += put_rank(file + n, (unsigned char[]){(unsigned char)left, (unsigned char)right}, 2, rank++);
            n_pairs++;
        }
    CHECK(n_pairs > 7500 && n_pairs < 9000);
    for (uint64_t word = 0; rank < 256 + n_pairs + N_LONG; word++) {
        uint64_t bytes = word * 0x9E3779B97F4A7C15u;
        if (sl_siphash(&zero, &bytes, 8) % SLOTS < SLOTS / 64) n += put_rank(file + n, (unsigned char *)&bytes, 8, rank++);
    }
    CHECK(n < 1 << 20);
    tokens_write("tokenizer.model", file, n);
    free(file);

    char text[4096];
    sl_ids first = {0};
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(256 * test_uniform(&rng));
    for (int run = 0; run < 3; run++) {
        sl_error err = {0};
        sl_tokenizer *tok = tokens_load(test_tmp());
        // At most half of the slots are full: the mean distance is at most 1/2 (1 / (1 - 1/2) - 1) = 1/2 slots.
        uint64_t displaced = sl_bpe_displaced(tok->bpe, &n_entries);
        CHECK((int)n_entries >= rank + n_pairs);
        if (displaced > 2 * n_entries)
            FAIL("%zu entries lie %llu slots from their own, expected at most %zu", n_entries, (unsigned long long)displaced,
                 2 * n_entries);
        if (run == 0)
            CHECK_OK(sl_tokenize(tok, text, sizeof text, 0, &first, &err), err);
        else
            tokens_expect_ids(tok, text, sizeof text, 0, first.data, first.n);
        sl_tokenizer_free(tok);
    }
    CHECK(first.n < sizeof text); // some pairs were merged
    sl_ids_free(&first);
}

// Makes one to three random edits in a file. Loading must succeed, or fail with a message.
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
        for (size_t e = 0; e < edits; e++) { // most edits are near the start of the file, where the fields are
            size_t at = (size_t)(pow(test_uniform(&rng), 2) * (double)m), cut = (size_t)(test_uniform(&rng) * 4), put;
            const char *bit = bits[(size_t)(test_uniform(&rng) * (sizeof bits / sizeof *bits))];
            if (cut > m - at) cut = m - at;
            put = test_uniform(&rng) < 0.5 ? strlen(bit) : 0;
            memmove(copy + at + put, copy + at + cut, m - at - cut);
            memcpy(copy + at, bit, put);
            m += put - cut;
        }
        tokens_write("tokenizer.json", copy, m);
        sl_error err = {0};
        sl_tokenizer *tok = NULL;
        sl_ids ids = {0};
        int rc = sl_tokenizer_load(&SL_FOLDER(test_tmp()), &tok, &err);
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

// ---- includes within tokenizer/ ----

// A file and its header are one part. No part of tokenizer/ may include itself through other parts.
enum { MOST_PARTS = 64 };
typedef struct parts {
    char name[MOST_PARTS][32];
    int n, includes[MOST_PARTS][MOST_PARTS], seen[MOST_PARTS]; // seen: 1 being visited, 2 done
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

static void prose_speed(void) {
    sl_tokenizer *tok = load_shared("llama3");
    double rate = tokens_prose_rate(tok, 51200, 4000000);
    printf("      llama3 tokenizer.json on prose: %.1f MB/s\n", rate);
    if (rate < TOKENS_MIN_RATE) FAIL("%.1f MB/s, expected at least %d", rate, TOKENS_MIN_RATE);
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
    {"invalid_bytes", NEEDS_NOTHING, invalid_bytes},
    {"nulls", NEEDS_NOTHING, nulls},
    {"siphash", NEEDS_NOTHING, siphash},
    {"collisions", NEEDS_NOTHING, collisions},
    {"mutations", NEEDS_NOTHING, mutations},
    {"no_include_circle", NEEDS_NOTHING, no_include_circle},
    {"prose_speed", NEEDS_SHARED, prose_speed},
    {0},
};
extern const test_suite suite_tokenizer;
const test_suite suite_tokenizer = {"tokenizer", cases};
