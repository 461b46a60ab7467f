// tests/cli/test_prompt_cache.c - --prompt-cache of generate and chat: fewer tokens to prefill, and the same answer.
#include "tests/support/run_cli.h"
#include "tests/support/session_bytes.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GENERATE(text, ...) RUN("generate", "-m", tiny(), "-p", text, "-n", "6", "--ignore-eos", __VA_ARGS__)

// A prompt of n sentences and a question.
static const char *prompt_of(int n) {
    static char text[8][20000];
    static int next;
    char *to = text[next++ % 8];
    snprintf(to, sizeof text[0], "%s %s", long_text(n), question);
    return to;
}

// in_tmp, in memory that later calls do not overwrite.
static const char *file_of(const char *name) {
    static char paths[8][300];
    static int next;
    char *to = paths[next++ % 8];
    snprintf(to, sizeof paths[0], "%s", in_tmp(name));
    return to;
}

static long size_of(const char *path) {
    struct stat st;
    return stat(path, &st) ? -1 : (long)st.st_size;
}

// The second run prefills nothing; a longer prompt only its rest; another prompt only what differs. Each answer is that of a
// run without the flag.
static void generate(void) {
    static const char *const prefills[] = {"dense", "streaming:window=128"};
    for (int i = 0; i < 2; i++) {
        const char *file = file_of(i ? "b" : "a"), *text = prompt_of(20), *longer = prompt_of(30);
#define WITH(text, ...)                                                                                                        \
    GENERATE(text, "--attn", "santa-pps:S=8", "--attn-prefill", prefills[i], "--prefill-segment", "256", ##__VA_ARGS__)
        result plain = WITH(text), first = WITH(text, "--prompt-cache", file);
        long size = size_of(file);
        result second = WITH(text, "--prompt-cache", file);
        check_same(&plain, &first);
        check_same(&plain, &second);
        int n = stat_count(&plain, "prefill");
        CHECK_INT(stat_count(&first, "prefill"), n);
        CHECK_INT(stat_count(&second, "prefill"), 0);
        char said[2][400];
        for (int k = 0; k < 2; k++) snprintf(said[k], 400, "prompt cache: %d tokens %s %s\n", n, k ? "from" : "to", file);
        CHECK(strstr(first.err, said[0]) && !strstr(first.err, said[1]));
        CHECK(!strstr(second.err, said[0]) && strstr(second.err, said[1])); // the file stays
        CHECK_INT(size_of(file), size);
        result grown = WITH(longer), kept = WITH(longer, "--prompt-cache", file, "--prompt-cache-ro");
        check_same(&grown, &kept);
        CHECK_INT(size_of(file), size);
        if (i == 0) { // the file has all tokens of this prompt
            result begin = WITH(long_text(10), "--prompt-cache", file);
            CHECK_GOOD(begin);
            CHECK_INT(size_of(file), size);
        }
        int rest = stat_count(&kept, "prefill"), all = stat_count(&grown, "prefill");
        if (rest <= 0 || rest >= all - n / 2) FAIL("%s: %d of %d tokens prefilled", prefills[i], rest, all);
        result shorter = WITH("The harbor", "--prompt-cache", file); // replaces the file: its prompt begins with other tokens
        CHECK_GOOD(shorter);
        CHECK(size_of(file) < size);
#undef WITH
    }
}

// Set-up B keeps the rows of the prefilled tokens only.
static void dense_prefix(void) {
    const char *file = file_of("c"), *text = prompt_of(10);
    result plain = GENERATE(text, "--attn", "santa:S=4", "--dense-prefix", "50"),
           first = GENERATE(text, "--attn", "santa:S=4", "--dense-prefix", "50", "--prompt-cache", file),
           second = GENERATE(text, "--attn", "santa:S=4", "--dense-prefix", "50", "--prompt-cache", file);
    check_same(&plain, &first);
    check_same(&plain, &second);
    CHECK_INT(stat_count(&second, "prefill"), 0);
    CHECK_INT(stat_count(&second, "feed"), stat_count(&plain, "feed"));
}

#define CHAT(TEXT, ...) RUN_IN(TEXT, "chat", "-m", tiny(), "-n", "8", "--temp", "0", __VA_ARGS__)

// A conversation of two processes has the answers of one process, and its tokens are not prefilled again.
static void chat(void) {
    const char *file = file_of("d");
    static const char one[] = "The hidden number of the harbor is 48213.\n",
                      two[] = "The hidden number of the mill is 7.\n/stats\n";
    char text[256];
    snprintf(text, sizeof text, "%s%s", one, two);
    result whole = CHAT(text, "--system-prompt", "s"), first = CHAT(one, "--system-prompt", "s", "--prompt-cache", file);
    long size = size_of(file);
    CHECK_GOOD(first);
    CHECK(size > 0 && !strstr(first.err, "goes on"));
    result second = CHAT(two, "--prompt-cache", file, "--prompt-cache-ro");
    CHECK_GOOD(second);
    CHECK_HAS(second.err, "goes on after 3 messages; /clear begins another");
    CHECK(!strncmp(whole.out, first.out, strlen(first.out)));
    CHECK_STR(second.out, whole.out + strlen(first.out));
    CHECK_INT(stat_count(&second, "prefill"), stat_count(&whole, "prefill"));
    CHECK_INT(size_of(file), size);
    second = CHAT(two, "--prompt-cache", file);
    CHECK_GOOD(second);
    result third = CHAT("/clear\n/system\n/regen\n", "--system-prompt", "t", "--prompt-cache", file);
    CHECK_HAS(third.err, "goes on after 5 messages");
    CHECK_HAS(third.err, "/regen: the conversation has no message to answer");
    CHECK_HAS(third.err, "system message: t");
}

// A file of `generate` has rows and no messages. Messages that JSON cannot hold leave the file as it is. Bad messages are
// refused.
static void chat_files(void) {
    const char *file = file_of("h");
    CHECK_GOOD(GENERATE(question, "--prompt-cache", file));
    result r = CHAT("a\n", "--prompt-cache", file);
    CHECK_GOOD(r);
    CHECK(!strstr(r.err, "goes on"));
    r = CHAT("\377\n", "--prompt-cache", file);
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "goes on after 2 messages");
    CHECK_HAS(r.err, "is not written: message 3 is not UTF-8, so JSON cannot hold it");
    r = CHAT("b\n", "--prompt-cache", file);
    CHECK_GOOD(r);
    CHECK_HAS(r.err, "goes on after 2 messages");
    size_t n;
    char *data = slurp(file, &n), *at = memmem(data, n, "[{\"role\":\"user\"", 15);
    CHECK(at);
    memcpy(at, "[{\"role\":\"usre\"", 15);
    seal_session(data, n);
    spill(file, data, n);
    r = CHAT("c\n", "--prompt-cache", file);
    check_error(&r, 1, "message 1: expected \"role\" system, user or assistant, found usre");
    at[0] = '{';
    seal_session(data, n);
    spill(file, data, n);
    r = CHAT("c\n", "--prompt-cache", file);
    check_error(&r, 1, "tensor messages: line 1");
}

static void refusals(void) {
    const char *file = file_of("e");
    spill(file, "not a session", 13);
    result bad = GENERATE(question, "--prompt-cache", file);
    check_error(&bad, 1, file);
    CHECK_STR(slurp(file, &(size_t){0}), "not a session"); // an unknown file is not replaced
    result none = GENERATE(question, "--prompt-cache", file_of("none/f"));
    check_error(&none, 1, "cannot write");
    spill(in_tmp("lines"), "{\"prompt\":\"x\"}\n", 15);
    result lines = RUN("generate", "-m", tiny(), "--jsonl", file_of("lines"), "--prompt-cache", file);
    check_error(&lines, 2, "--prompt-cache cannot be used with --jsonl");
    result missing = GENERATE(question, "--prompt-cache", file_of("g"), "--prompt-cache-ro");
    CHECK_GOOD(missing);
    CHECK_HAS(missing.err, "does not exist");
    CHECK_INT(size_of(in_tmp("g")), -1);
}

static const test_case cases[] = {
    {"generate", 0, generate},     {"dense-prefix", 0, dense_prefix}, {"chat", 0, chat},
    {"chat-files", 0, chat_files}, {"refusals", 0, refusals},         {0},
};
const test_suite suite_prompt_cache = {"prompt_cache", cases};
