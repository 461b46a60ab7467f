// tests/cli/test_cli_quantize.c - sleigh quantize: the folder has the bits of --weights and the numbers of its formats
// (scripts/check/check_quantised.py), and after an error nothing is left of it.
#include "tests/support/gguf_file.h"
#include "tests/support/run_cli.h"
#include "tests/support/tensor_file.h"
#include "tests/support/venv.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PATH = 300 };

// A path in the folder of the case; valid for the next 31 calls.
static const char *path_of(const char *name) {
    static char paths[32][PATH];
    static int next;
    char *path = paths[next++ % 32];
    snprintf(path, PATH, "%s", in_tmp(name));
    return path;
}

static void delete (const char *name) {
    char line[PATH + 16];
    snprintf(line, sizeof line, "rm -r '%s'", in_tmp(name));
    CHECK_INT(system(line), 0);
}

// Nothing in the folder of the case begins with `name`.
static void check_nothing(const char *name) {
    DIR *dir = opendir(in_tmp("."));
    const struct dirent *entry;
    CHECK(dir != NULL);
    while ((entry = readdir(dir)))
        if (!strncmp(entry->d_name, name, strlen(name))) FAIL("%s is left", entry->d_name);
    closedir(dir);
}

static void check_equal_files(const char *a, const char *b) {
    size_t n_a, n_b;
    const char *x = slurp(a, &n_a), *y = slurp(b, &n_b);
    if (n_a != n_b || memcmp(x, y, n_a)) FAIL("%s and %s differ", a, b);
}

static void logits(const char *model, const char *weights, const char *head, const char *out) {
    spill(in_tmp("ids"), "1 84 104 101 230 17 5 9 301 2", 29);
    result r = weights
                   ? RUN("logits", "-m", model, "--weights", weights, "--weights-head", head, "--ids", in_tmp("ids"), "-o", out)
                   : RUN("logits", "-m", model, "--ids", in_tmp("ids"), "-o", out);
    CHECK_GOOD(r);
}

// ---- good folders ----

static const char *const prose = "models/prose";

// The folder gives the logits, to the bit, that its source gives with --weights.
static void same_bits(void) {
    static const struct {
        const char *model, *weights, *head;
    } cases[] = {{NULL, "int4", "bf16"},
                 {NULL, "int8", "int4:group=64"},
                 {NULL, "fp8", "int8"},
                 {"models/prose", "int4", "bf16"},
                 {"models/prose", "fp8", "bf16"},
                 {"tests/goldens/gqa", "int4:group=16", "fp8"},
                 {"tests/goldens/gqa", "int8", "int8"},
                 {"tests/goldens/f16", "int4:group=16", "bf16"},
                 {"tests/goldens/f32", "int8", "bf16"},
                 {"tests/goldens/f32", "int4:group=16", "int4:group=32"},
                 {"tests/goldens/qwen2", "int8", "bf16"},
                 {"tests/goldens/qwen3", "int4:group=16", "bf16"},
                 {"tests/goldens/sharded", "int4:group=16", "bf16"},
                 {"tests/goldens/tied", "int8", "bf16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *model = cases[i].model ? cases[i].model : tiny(), *out = path_of("out");
        result r = RUN("quantize", "-m", model, "--out", out, "--weights", cases[i].weights, "--weights-head", cases[i].head);
        CHECK_GOOD(r);
        logits(model, cases[i].weights, cases[i].head, path_of("source.npy"));
        logits(out, NULL, NULL, path_of("folder.npy"));
        check_equal_files(in_tmp("source.npy"), in_tmp("folder.npy"));
        delete ("out");
    }
}

// The other files are copied, weights of other programs and of Sleigh are not. A copy of the folder generates text.
static void other_files(void) {
    static const char *const copied[] = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "generation_config.json",
                                         "additional_chat_templates/rag.jinja",
                                         "chat_template.jinja"};
    static const char *const left_out[] = {
        "saap.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json", "original/consolidated.00.pth", "original",
        "model.gguf",       ".gitattributes",    "model.safetensors.index.json"};
    char line[1200], a[2 * PATH], b[2 * PATH];
    const char *source = path_of("source"), *out = path_of("out");
    snprintf(line, sizeof line,
             "cp -rL %s '%s' && cd '%s' && mkdir original additional_chat_templates && touch .gitattributes && echo x > "
             "pytorch_model.bin && echo {} > pytorch_model.bin.index.json && echo x > original/consolidated.00.pth && echo x > "
             "model.gguf && echo '{{ x }}' > additional_chat_templates/rag.jinja && echo '{{ y }}' > chat_template.jinja",
             tiny(), source, source);
    CHECK_INT(system(line), 0);
    result r = RUN("quantize", "-m", source, "--out", out, "--weights", "int8");
    CHECK_GOOD(r);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        snprintf(a, sizeof a, "%s/%s", source, copied[i]), snprintf(b, sizeof b, "%s/%s", out, copied[i]);
        check_equal_files(a, b);
    }
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
        snprintf(a, sizeof a, "%s/%s", out, left_out[i]);
        if (!access(a, F_OK)) FAIL("%s is copied", left_out[i]);
    }
    r = RUN("generate", "-m", out, "-p", question, "-n", "8", "--temp", "0");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "48213");
}

// The fields of config.json stay as they are in the text.
static void config(void) {
    size_t n;
    const char *out = path_of("out");
    result r = RUN("quantize", "-m", "tests/goldens/gqa", "--out", out, "--weights", "int8", "--weights-head", "fp8");
    CHECK_GOOD(r);
    const char *before = slurp("tests/goldens/gqa/config.json", &n), *after = slurp(in_tmp("out/config.json"), &n);
    CHECK(!strncmp(before, after, strlen(before) - 10) && strlen(after) > strlen(before));
    json_t *root = json_loads(after, 0, NULL), *q = json_object_get(root, "quantization_config");
    CHECK_STR(json_string_value(json_object_get(q, "quant_method")), "compressed-tensors");
    CHECK_STR(json_string_value(json_object_get(q, "format")), "mixed-precision");
    CHECK_INT(json_array_size(json_object_get(q, "ignore")), 0);
    CHECK_INT(json_object_size(json_object_get(q, "config_groups")), 2);
    json_decref(root);
}

// Two runs write the same bytes, with any number of threads. With a limit of bytes there are several files.
static void same_bytes(void) {
    const char *a = path_of("a"), *b = path_of("b"), *c = path_of("c");
    result r = RUN("quantize", "-m", prose, "--out", a, "--weights", "int4", "-t", "1");
    CHECK_GOOD(r);
    r = RUN("quantize", "-m", prose, "--out", b, "--weights", "int4", "-t", "3");
    CHECK_GOOD(r);
    check_equal_files(path_of("a/model.safetensors"), path_of("b/model.safetensors"));
    check_equal_files(path_of("a/config.json"), path_of("b/config.json"));
    r = RUN("quantize", "-m", prose, "--out", c, "--weights", "int4", "--max-shard-size", "1M");
    CHECK_GOOD(r);
    CHECK_HAS(r.err, " files of weights");
    CHECK(!access(path_of("c/model.safetensors.index.json"), F_OK) && access(path_of("c/model.safetensors"), F_OK));
    logits(a, NULL, NULL, path_of("a.npy"));
    logits(c, NULL, NULL, path_of("c.npy"));
    check_equal_files(in_tmp("a.npy"), in_tmp("c.npy"));
}

// An empty folder may exist.
static void empty_folder(void) {
    char line[PATH + 16];
    snprintf(line, sizeof line, "mkdir '%s'", in_tmp("out"));
    CHECK_INT(system(line), 0);
    const char *out = path_of("out/");
    result r = RUN("quantize", "-m", "tests/goldens/gqa", "--out", out, "--weights", "fp8");
    CHECK_GOOD(r);
    CHECK(!access(path_of("out/model.safetensors"), F_OK));
}

// ---- the numbers ----

static int check_numbers(const char *python, const char *model, const char *out) {
    char line[4 * PATH];
    snprintf(line, sizeof line, "'%s' scripts/check/check_quantised.py '%s' '%s' '%s' > '%s' 2>&1", python, model, out,
             path_of("table"), path_of("faults"));
    return system(line);
}

static void numbers(void) {
    static const struct {
        const char *model, *weights, *head;
    } cases[] = {{NULL, "int4", "bf16"},
                 {NULL, "int8", "int4"},
                 {NULL, "fp8", "fp8"},
                 {"models/prose", "int4:group=32", "bf16"},
                 {"tests/goldens/f32", "int4:group=16", "int8"},
                 {"tests/goldens/f16", "fp8", "bf16"},
                 {"tests/goldens/qwen2", "int8", "bf16"}};
    const char *python = venv_python("numpy");
    size_t n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *model = cases[i].model ? cases[i].model : tiny();
        result r = RUN("quantize", "-m", model, "--out", path_of("out"), "--weights", cases[i].weights, "--weights-head",
                       cases[i].head, "-o", "json", "--max-shard-size", i % 2 ? "64K" : "5G");
        CHECK_GOOD(r);
        spill(path_of("table"), r.out, r.n_out);
        if (check_numbers(python, model, path_of("out"))) FAIL("case %zu: %s", i, slurp(in_tmp("faults"), &n));
        delete ("out");
    }
}

// The script sees one wrong number, and one wrong scale.
static void wrong_numbers(void) {
    static const struct {
        const char *part, *fault;
    } cases[] = {{"weight_packed", "1 numbers are not the nearest ones"},
                 {"weight_scale", "scales are not the best candidates"}};
    const char *python = venv_python("numpy"), *model = "tests/goldens/gqa";
    size_t n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = RUN("quantize", "-m", model, "--out", path_of("out"), "--weights", "int4:group=16", "-o", "json");
        CHECK_GOOD(r);
        spill(path_of("table"), r.out, r.n_out);
        char *bytes = slurp(path_of("out/model.safetensors"), &n), name[80], end;
        uint64_t n_header;
        memcpy(&n_header, bytes, sizeof n_header);
        snprintf(name, sizeof name, "model.layers.1.mlp.up_proj.%s", cases[i].part);
        end = bytes[8 + n_header], bytes[8 + n_header] = 0;
        json_t *header = json_loads(bytes + 8, 0, NULL);
        bytes[8 + n_header] = end;
        size_t at =
            (size_t)json_integer_value(json_array_get(json_object_get(json_object_get(header, name), "data_offsets"), 0));
        json_decref(header);
        bytes[8 + n_header + at] ^= i ? 0x40 : 0x08;
        spill(path_of("out/model.safetensors"), bytes, n);
        CHECK(check_numbers(python, model, path_of("out")) != 0);
        CHECK_HAS(slurp(in_tmp("faults"), &n), cases[i].fault);
        delete ("out");
    }
}

// ---- refusals and faults ----

static void refusals(void) {
    static const struct {
        const char *args[9];
        int code;
        const char *part;
    } cases[] = {
        {{"-m", "M", "--weights", "int4"}, 2, "flag --out is required"},
        {{"-m", "M", "--out", "O"}, 2, "flag --weights is required: give fp8, int8, int4 or int4:group=N"},
        {{"--weights", "int4", "--out", "O"}, 2, "flag --model is required"},
        {{"-m", "M", "--out", "O", "--weights", "q4_0"}, 2, "--weights q4_0: expected fp8, int8, int4"},
        {{"-m", "M", "--out", "O", "--weights", "bf16"}, 2, "--weights bf16: expected fp8, int8, int4"},
        {{"-m", "M", "--out", "O", "--weights", "int8", "--weights-head", "f16"}, 2, "--weights-head f16: expected bf16, fp8"},
        {{"-m", "models/prose", "--out", "O", "--weights", "int4:group=256"},
         2,
         "has 384 columns, expected a multiple of the group; int4:group=128 fits"},
        {{"-m", "tests/goldens/gqa", "--out", "O", "--weights", "int4"},
         2,
         "columns, expected a multiple of the group; int4:group=16 fits"},
        {{"-m", "models/prose", "--out", "O", "--weights", "int8", "--weights-head", "int8"},
         2,
         "--weights-head int8: compressed-tensors has no rounded embedding, and tensor model.embed_tokens.weight of "},
        {{"-m", "M", "--out", "O/x/y", "--weights", "int8"}, 1, "cannot make the folder "},
        {{"-m", "M", "--out", "FULL", "--weights", "int8"}, 2, "expected a new or an empty folder, found one with files"},
        {{"-m", "M", "--out", "FILE", "--weights", "int8"}, 2, "expected a new or an empty folder, found a file"},
        {{"-m", "models/llama-3.2-1b", "--out", "O", "--weights", "int8"}, 1, "neither model.safetensors nor"},
    };
    char line[PATH + 40];
    snprintf(line, sizeof line, "mkdir '%s' && touch '%s/x'", in_tmp("full"), in_tmp("full"));
    CHECK_INT(system(line), 0);
    spill(in_tmp("file"), "x", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[11] = {"quantize"}, *place;
        for (int j = 0; j < 9 && (place = cases[i].args[j]); j++)
            args[j + 1] = !strcmp(place, "M")       ? tiny()
                          : !strcmp(place, "O")     ? path_of("out")
                          : !strcmp(place, "O/x/y") ? path_of("out/x/y")
                          : !strcmp(place, "FULL")  ? path_of("full")
                          : !strcmp(place, "FILE")  ? path_of("file")
                                                    : place;
        result r = run_args(NULL, args);
        check_error(&r, cases[i].code, cases[i].part);
        check_nothing("out");
        check_nothing("full.tmp");
    }
}

// The command refuses sources whose weights are quantised already.
static void quantised_sources(void) {
    gguf_file f = {0};
    gguf_file_config(&f, "tests/goldens/gqa");
    gguf_file_tensors(&f, "tests/goldens/gqa", 0, INT32_MAX);
    gguf_file_write(&f, "model.gguf");
    result r = RUN("quantize", "-m", path_of("model.gguf"), "--out", path_of("out"), "--weights", "int8");
    check_error(&r, 1, "model.gguf is a GGUF file; expected a folder of Hugging Face");
    r = RUN("quantize", "-m", "tests/goldens/gqa", "--out", path_of("first"), "--weights", "int8");
    CHECK_GOOD(r);
    r = RUN("quantize", "-m", path_of("first"), "--out", path_of("out"), "--weights", "int4");
    check_error(&r, 2, "--weights int4: the weights of ");
    CHECK_HAS(r.err, "are quantised already (compressed-tensors)");
    check_nothing("out");
    // the plain head of such a folder can be rounded at a load, but not a rounded head
    r = RUN("inspect", "-m", path_of("first"), "--weights-head", "int8");
    CHECK_GOOD(r);
    r = RUN("quantize", "-m", "tests/goldens/gqa", "--out", path_of("second"), "--weights", "int8", "--weights-head", "fp8");
    CHECK_GOOD(r);
    r = RUN("inspect", "-m", path_of("second"), "--weights-head", "int8");
    check_error(&r, 2, "--weights-head int8: the head of this model is quantised already (compressed-tensors)");
}

// A number that is not finite, and a file that ends too early.
static void damaged(void) {
    static const char name[] = "model.layers.1.mlp.up_proj.weight";
    uint16_t data[112 * 64] = {0};
    size_t n;
    data[70] = 0x7f80; // infinite
    test_write_model("tests/goldens/gqa", &(test_tensor){name, "BF16", "[112,64]", data, sizeof data}, 1);
    result r = RUN("quantize", "-m", in_tmp("."), "--out", path_of("out"), "--weights", "int8");
    check_error(&r, 1, "model.safetensors: tensor model.layers.1.mlp.up_proj.weight: a number is not finite");
    check_nothing("out");
    const char *bytes = slurp(path_of("model.safetensors"), &n);
    spill(path_of("model.safetensors"), bytes, n - 100);
    r = RUN("quantize", "-m", in_tmp("."), "--out", path_of("out"), "--weights", "int8");
    check_error(&r, 1, "(truncated?)");
    check_nothing("out");
}

// A limit on the size of a file stands for a full disk.
static void full_disk(void) {
    result r =
        RUN_SHELL("ulimit -f 200; exec \"$0\" \"$@\"", "quantize", "-m", tiny(), "--out", path_of("out"), "--weights", "int4");
    check_error(&r, 1, "cannot write ");
    CHECK_HAS(r.err, "model.safetensors: File too large");
    check_nothing("out");
    r = RUN_SHELL("ulimit -f 10; exec \"$0\" \"$@\"", "quantize", "-m", tiny(), "--out", path_of("out"), "--weights", "int4");
    check_error(&r, 1, "File too large"); // of a copied file
    check_nothing("out");
}

// Ctrl+C while a large head is rounded leaves nothing.
static void interrupted(void) {
    enum { N_VOCAB = 500000, HIDDEN = 64, BYTES = N_VOCAB * HIDDEN * 2, TRIES = 24000 };
    uint16_t *data = malloc(BYTES);
    char shape[40], begun[2 * PATH];
    for (size_t i = 0; i < BYTES / sizeof *data; i++) data[i] = (uint16_t)(0x3c00 + i * 2654435761u % 1024);
    snprintf(shape, sizeof shape, "[%d,%d]", N_VOCAB, HIDDEN);
    const test_tensor large[] = {{"model.embed_tokens.weight", "BF16", shape, data, BYTES},
                                 {"lm_head.weight", "BF16", shape, data, BYTES}};
    test_write_model("tests/goldens/gqa", large, 2);
    free(data);
    test_set_field("config.json", "vocab_size", "500000");
    const char *out = path_of("out");
    const char *const args[] = {"quantize",      "-m", in_tmp("."), "--out", out, "--weights", "int8", "--weights-head",
                                "int4:group=16", "-t", "1",         NULL};
    pid_t pid = start(NULL, 0, NULL, args);
    snprintf(begun, sizeof begun, "%s.tmp.%ld/model.safetensors.tmp.%ld", out, (long)pid, (long)pid);
    int i = 0;
    for (; i < TRIES && access(begun, F_OK) && !kill(pid, 0); i++) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    kill(pid, SIGINT);
    result r = finish(pid, NULL);
    check_error(&r, 1, "interrupted; ");
    CHECK_HAS(r.err, "/out is not written");
    check_nothing("out");
}

static const test_case cases[] = {
    {"same-bits", 0, same_bits},
    {"other-files", 0, other_files},
    {"config", 0, config},
    {"same-bytes", 0, same_bytes},
    {"empty-folder", 0, empty_folder},
    {"numbers", 0, numbers},
    {"wrong-numbers", 0, wrong_numbers},
    {"refusals", 0, refusals},
    {"quantised-sources", 0, quantised_sources},
    {"damaged", 0, damaged},
    {"full-disk", 0, full_disk},
    {"interrupted", 0, interrupted},
    {0},
};
extern const test_suite suite_cli_quantize;
const test_suite suite_cli_quantize = {"cli_quantize", cases};
