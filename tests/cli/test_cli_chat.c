// tests/cli/test_cli_chat.c - sleigh chat in a terminal (tests/support/pty.h): editing, history, pastes, commands, signals.
// What the chat understood is read from the file that /save writes.
#include "cli/chat/pastes.h"
#include "cli/chat/messages_file.h"
#include "cli/process.h"
#include "tests/support/pty.h"
#include "tests/support/run_cli.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHAT "chat", "-m", tiny(), "--chat-template", "zephyr"
#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"
#define PASTE(text) PASTE_BEGIN text PASTE_END
#define N_OF(list) (sizeof(list) / sizeof *(list))

static const char ready[] = "/help lists all commands", first_prompt[] = "> ";

static void open_chat(const char *n_predict) {
    PTY_START((pty_options){0}, CHAT, "-n", n_predict);
    pty_expect(ready);
    pty_expect(first_prompt);
}

static void check_restored(void) {
    CHECK(pty_modes_are_restored());
    CHECK(pty_count("\033[?2004h", 0) > 0);
    const char *last = pty_seen();
    for (const char *p = last; (p = strstr(p, "\033[?2004")) != NULL; p++) last = p;
    CHECK(!strncmp(last, "\033[?2004l", 8));
}

static void leave(void) {
    pty_type("/quit\r");
    CHECK_INT(pty_finish(), 0);
    check_restored();
}

// ---- what the chat understood ----

// Saves the conversation. Static: a failed check would leak it.
static json_t *saved(void) {
    static json_t *root;
    char line[300], path[256];
    json_error_t e;
    snprintf(path, sizeof path, "%s", in_tmp("saved.json"));
    snprintf(line, sizeof line, "/save %s\r", path);
    pty_type(line);
    pty_expect("saved ");
    json_decref(root);
    root = json_load_file(path, 0, &e);
    if (!root) FAIL("%s: %s", path, e.text);
    return root;
}

static const char *content(const json_t *root, size_t i, const char *role) {
    const json_t *message = json_array_get(root, i);
    if (!message) FAIL("message %zu of %zu", i, json_array_size(root));
    CHECK_STR(json_string_value(json_object_get(message, "role")), role);
    return json_string_value(json_object_get(message, "content"));
}

// ---- editing ----

static void editing(void) {
    static const struct {
        const char *keys, *want;
    } lines[] = {
        {"helo\033[Dl", "hello"},                                                  // left
        {"ab\033[D\033[D\033[Cx", "axb"},                                          // right
        {"bc\001a", "abc"},                                                        // Ctrl+A
        {"ab\002X", "aXb"},                                                        // Ctrl+B
        {"abc\001\004", "bc"},                                                     // Ctrl+D deletes forward
        {"ax\177b", "ab"},                                                         // backspace
        {"abc\033[H\033[3~", "bc"},                                                // Home, Delete
        {"x\033[Hy\033[Fz", "yxz"},                                                // End
        {"abcd\033[D\033[D\013", "ab"},                                            // Ctrl+K
        {"one two\027three", "one three"},                                         // Ctrl+W
        {"junk\025kept", "kept"},                                                  // Ctrl+U
        {"\303\244\344\270\255\360\237\230\200b\177\177", "\303\244\344\270\255"}, // backspace over an emoji
        {"\303\244\344\270\255\033[D\177x", "x\344\270\255"},                      // over a letter with two bytes
        {"a\377b", "a\357\277\275"
                   "b"}, // not UTF-8
        {"a\303b", "a\357\277\275"
                   "b"},                        // a character that ends too early: the next one stays
        {"first \\\rsecond", "first \nsecond"}, // a message of two lines
        {"a\033\rb", "a\nb"},                   // Alt+Enter
        {" /quit", " /quit"},                   // a blank makes a message of a command
    };
    open_chat("1");
    for (size_t i = 0; i < N_OF(lines); i++) {
        pty_type(lines[i].keys);
        pty_type("\r");
    }
    const json_t *root = saved();
    for (size_t i = 0; i < N_OF(lines); i++) CHECK_STR(content(root, 2 * i, "user"), lines[i].want);
    CHECK_INT(json_array_size(root), 2 * N_OF(lines));
    leave();
}

// The text is UTF-8, whatever the locale says.
static void locale(void) {
    const char *const env[] = {"LC_ALL=C", NULL};
    PTY_START((pty_options){.env = env}, CHAT, "-n", "1");
    pty_expect(ready);
    pty_expect(first_prompt);
    pty_type("x\303\244\177\303\274\r/temp 1.5\r");
    CHECK_STR(content(saved(), 0, "user"), "x\303\274");
    CHECK(pty_count("temp: 1.5\r\n", 0) == 1);
    leave();
}

// Up recalls messages, also those of an earlier chat and those of several lines. The file is private.
static void history(void) {
    struct stat st;
    open_chat("1");
    pty_type("first \303\244\r" PASTE("two\rlines") "\r\033[A\033[A\r"); // the message before the last one
    const json_t *root = saved();
    CHECK_STR(content(root, 0, "user"), "first \303\244");
    CHECK_STR(content(root, 2, "user"), "two\nlines");
    CHECK_STR(content(root, 4, "user"), "first \303\244");
    leave();
    CHECK(!stat(in_tmp("sleigh/chat_history"), &st));
    CHECK_INT(st.st_mode & 0777, 0600);
    CHECK(!stat(in_tmp("sleigh"), &st));
    CHECK_INT(st.st_mode & 0777, 0700);
    open_chat("1");
    pty_type("\033[A\033[A\033[A\033[A\r"); // above /quit, /save and the repeated message
    CHECK_STR(content(saved(), 0, "user"), "two\nlines");
    leave();
}

// A history that cannot be read or written does no harm.
static void history_unwritable(void) {
    const char *const env[] = {"XDG_STATE_HOME=/dev/null/x", NULL};
    PTY_START((pty_options){.env = env}, CHAT, "-n", "1");
    pty_expect(ready);
    pty_expect(first_prompt);
    pty_type("hello\r\033[A!\r");
    CHECK_STR(content(saved(), 2, "user"), "hello!");
    leave();
}

static void completion(void) {
    char keys[400];
    spill(in_tmp("question *.txt"), "From a file", 11);
    open_chat("1");
    pty_type("/\t");
    pty_expect("/system  ");
    pty_type("sy\tBe kind.\r");
    pty_expect("system message: Be kind.");
    snprintf(keys, sizeof keys, "/re\ta\t%s/que\t\r", test_tmp()); // /re: /regen, /reset or /read
    pty_type(keys);
    mkdir(in_tmp("two"), 0700);
    spill(in_tmp("two/\303\244"), "first", 5); // the names have only a part of a character in common
    spill(in_tmp("two/\303\266"), "second", 6);
    snprintf(keys, sizeof keys, "/read %s/two/\t\303\266\r", test_tmp());
    pty_type(keys);
    mkdir(in_tmp("three"), 0700);
    spill(in_tmp("three/name-17"), "third", 5); // one Tab inserts what the names have in common
    spill(in_tmp("three/name-18"), "fourth", 6);
    snprintf(keys, sizeof keys, "/read %s/three/n\t8\r", test_tmp());
    pty_type(keys);
    const json_t *root = saved();
    CHECK_STR(content(root, 0, "system"), "Be kind.");
    CHECK_STR(content(root, 1, "user"), "From a file");
    CHECK_STR(content(root, 3, "user"), "second");
    CHECK_STR(content(root, 5, "user"), "fourth");
    leave();
}

// ---- pastes ----

static const char *repeated(char c, size_t n) {
    static char text[100001];
    memset(text, c, n);
    text[n] = 0;
    return text;
}

static void pastes(void) {
    char text[512] = "";
    open_chat("1");
    pty_type("What is ");
    pty_type(PASTE_BEGIN);
    for (int i = 1; i <= 20; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "line %d%s", i, i < 20 ? "\r" : "");
    }
    pty_type(text);
    pty_type(PASTE_END);
    pty_expect("[paste 1: 20 lines, ");
    pty_type(" ?\r");
    pty_type(PASTE("one line") " and typed\r");
    pty_type(PASTE("a\r\nb\nc\r") "\r");             // line breaks of every kind; the last one is not part of the message
    pty_type(PASTE("x\ry") PASTE("x\rz") "\177w\r"); // backspace deletes a whole paste
    pty_type("\\\r" PASTE("/* a\rcomment */") "\r"); // no command
    pty_type(PASTE("/quit\rnot") "\r");
    const json_t *root = saved();
    for (char *p = text; *p; p++)
        if (*p == '\r') *p = '\n';
    char want[600];
    snprintf(want, sizeof want, "What is %s ?", text);
    CHECK_STR(content(root, 0, "user"), want);
    CHECK_STR(content(root, 2, "user"), "one line and typed");
    CHECK_STR(content(root, 4, "user"), "a\nb\nc");
    CHECK_STR(content(root, 6, "user"), "x\nyw");
    CHECK_STR(content(root, 8, "user"), "\n/* a\ncomment */");
    CHECK_STR(content(root, 10, "user"), "/quit\nnot");
    leave();
}

// Long lines arrive whole. They go into the system message, because a prefill of so many tokens is slow.
static void long_lines(void) {
    open_chat("1");
    pty_type("/system " PASTE_BEGIN);
    pty_type(repeated('p', 9000));
    pty_type(PASTE_END "\r");
    pty_expect("1 line, 9,000 bytes]");
    CHECK_STR(content(saved(), 0, "system"), repeated('p', 9000));
    pty_type("/system ");
    pty_type(repeated('t', 9000)); // typed, or pasted in a terminal without bracketed paste
    pty_type("\r");
    CHECK_STR(content(saved(), 0, "system"), repeated('t', 9000));
    pty_type("/system " PASTE_BEGIN);
    pty_type(repeated('h', 100000));
    pty_type(PASTE_END "\r");
    CHECK_STR(content(saved(), 0, "system"), repeated('h', 100000));
    leave();
    char text[9100];
    snprintf(text, sizeof text, "/system %.9000s\n/system\n", repeated('q', 9000));
    result r = RUN_IN(text, CHAT); // not a terminal
    CHECK_GOOD(r);
    CHECK_HAS(r.err, repeated('q', 9000));
}

// A paste while the model answers waits until the answer is complete.
static void paste_during_answer(void) {
    open_chat("200");
    pty_type("Hello\r");
    pty_expect("Hello\r\n");
    pty_expect_bytes(1);
    pty_type("/system " PASTE_BEGIN);
    pty_type(repeated('p', 20000));
    pty_type(PASTE_END "\r");
    const json_t *root = saved();
    CHECK_STR(content(root, 0, "system"), repeated('p', 20000));
    CHECK_STR(content(root, 1, "user"), "Hello");
    leave();
}

// ---- the end, signals, the size and the colours of the terminal ----

static void ctrl_c(void) {
    PTY_START((pty_options){0}, CHAT, "-n", "20000", "--ignore-eos");
    pty_expect(ready);
    pty_expect(first_prompt);
    pty_type("a message of \\\rabc"); // two lines
    pty_expect(". abc");
    pty_type("\003");
    pty_expect("(/quit or Ctrl+D ends the chat)");
    pty_expect(first_prompt);
    pty_type(PASTE_BEGIN "a paste without an end");
    pty_type("\003");
    pty_expect("(/quit or Ctrl+D ends the chat)");
    pty_expect(first_prompt);
    pty_type("def\r");
    pty_expect("def\r\n");
    pty_expect_bytes(3);
    pty_type("\003");
    pty_expect("interrupted");
    pty_expect(first_prompt);
    const json_t *root = saved();
    CHECK_STR(content(root, 0, "user"), "def");
    CHECK(*content(root, 1, "assistant")); // what was said
    leave();
}

// Ctrl+C discards the typed input at different moments: the chat waits for this input, or reads it, or has read it.
static void ctrl_c_races(void) {
    open_chat("1");
    for (int i = 0; i < 4000; i++) {
        pty_type(PASTE_BEGIN "a paste without an end");
        for (double end = sl_now_ms() + 1e-4 * (i % 1000); sl_now_ms() < end;) continue; // up to 0.1 ms
        pty_type("\003");
        pty_expect("(/quit or Ctrl+D ends the chat)");
        pty_expect(first_prompt);
    }
    leave();
}

static void ctrl_d(void) {
    open_chat("1");
    pty_type("\004");
    CHECK_INT(pty_finish(), 0);
    check_restored();
}

static void termination(void) {
    static const int signals[] = {SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < N_OF(signals); i++) {
        open_chat("1");
        pty_signal(signals[i]);
        CHECK_INT(pty_finish(), -signals[i]);
        check_restored();
    }
    PTY_START((pty_options){0}, CHAT, "-n", "20000", "--ignore-eos");
    pty_expect(first_prompt);
    pty_type("Hello\r");
    pty_expect("Hello\r\n");
    pty_expect_bytes(3);
    pty_signal(SIGTERM); // during an answer
    CHECK_INT(pty_finish(), -SIGTERM);
    check_restored();
}

// An error that ends the program at once: a cut file of weights.
static void sudden_end(void) {
    char cmd[1024], dir[256], path[300];
    struct stat st;
    snprintf(dir, sizeof dir, "%s", in_tmp("model"));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(cmd, sizeof cmd, "mkdir -p '%s' && cp %s/* '%s' && chmod u+w '%s'/*", dir, tiny(), dir, dir);
    CHECK_INT(system(cmd), 0);
    PTY_START((pty_options){0}, "chat", "-m", dir, "--chat-template", "zephyr", "-n", "1");
    pty_expect(ready);
    pty_expect(first_prompt);
    CHECK(!stat(path, &st) && !truncate(path, st.st_size / 8));
    pty_type("Hello\r");
    pty_expect("sleigh: error: ");
    CHECK_INT(pty_finish(), 1);
    check_restored();
}

// Ctrl+Z restores the terminal for the shell. The line is there again when the chat continues.
static void suspension(void) {
    PTY_START((pty_options){0}, CHAT, "-n", "20000", "--ignore-eos");
    pty_expect(ready);
    pty_expect(first_prompt);
    pty_type("half");
    pty_expect("half");
    pty_type("\032");
    pty_expect_stop();
    pty_expect("\033[?2004l");
    check_restored();
    pty_continue();
    pty_expect("> half");
    pty_type(" done\r");
    pty_expect("done\r\n");
    pty_expect_bytes(3);
    pty_type("\032"); // during an answer
    pty_expect_stop();
    pty_expect("\033[?2004l");
    check_restored();
    pty_continue();
    pty_expect("\033[?2004h");
    pty_type("\003");
    pty_expect("interrupted");
    pty_expect(first_prompt);
    CHECK_STR(content(saved(), 0, "user"), "half done");
    leave();
}

static void resize(void) {
    open_chat("1");
    pty_type("a line that is too long for a terminal of thirty columns");
    pty_expect("columns");
    pty_resize(20, 30);
    pty_expect("\033[J> a line");
    pty_type("!\r");
    CHECK_STR(content(saved(), 0, "user"), "a line that is too long for a terminal of thirty columns!");
    leave();
}

static void colours(void) {
    static const struct {
        const char *env[2];
        int coloured, marked;
    } terminals[] = {{{"NO_COLOR"}, 1, 1}, {{"NO_COLOR="}, 1, 1}, {{"NO_COLOR=1"}, 0, 1}, {{"TERM=dumb", "NO_COLOR"}, 0, 0}};
    for (size_t i = 0; i < N_OF(terminals); i++) {
        const char *const env[] = {terminals[i].env[0], terminals[i].env[1], NULL};
        PTY_START((pty_options){.env = env}, CHAT, "-n", "1");
        pty_expect(ready);
        pty_type("\u4e00"); // a character of two columns: the line is drawn whole, if the terminal can
        pty_expect("\u4e00");
        pty_type("\177/temp\r/temp x\r/quit\r");
        CHECK_INT(pty_finish(), 0);
        CHECK_INT(pty_count("\033", 0) > 0, terminals[i].marked);
        CHECK(pty_modes_are_restored());
        CHECK_INT(pty_count("\033[0;32m>", 0) > 0, terminals[i].coloured);
        CHECK_INT(pty_count("\033[1;31merror:\033[0m ", 0), terminals[i].coloured);
        CHECK_INT(pty_count("\033[?2004", 0), 2 * terminals[i].marked);
    }
}

// --quiet leaves out the description at the start, but not the dialogue.
static void quiet(void) {
    PTY_START((pty_options){0}, CHAT, "-n", "1", "--quiet");
    pty_expect(first_prompt);
    CHECK_LACKS(pty_seen(), "backend:");
    pty_type("/temp\r/temp x\r");
    pty_expect("temp: 0 (greedy)");
    pty_expect("error: /temp x");
    leave();
}

// ---- commands ----

static void commands(void) {
    static const struct {
        const char *keys, *want;
    } steps[] = {
        {"/help", "/quit, /exit"},
        {"/stats", "stopped: not begun"},
        {"/regen", "error: /regen: the conversation has no message to answer"},
        {"/save x", "error: /save: the conversation has no messages"},
        {"/save", "error: /save: expected a file name"},
        {"/system", "no system message"},
        {"/system Be kind.", "system message: Be kind."},
        {"/temp", "temp: 0 (greedy)"},
        {"/temp 1.5", "temp: 1.5"},
        {"/temp x", "error: /temp x: expected a number from 0 to 1000000"},
        {"/temp -1", "error: /temp -1: expected a number"},
        {"/temp nan", "error: /temp nan: expected a number"},
        {"/ctx 2k", "context: 0 of 2048 tokens"},
        {"/ctx 0", "error: /ctx 0: expected a number from 1 to "},
        {"/attn topk:k=4", "attention: topk:k=4"},
        {"/attn nope", "error: "},
        {"/regn", "error: unknown command /regn; did you mean /regen"},
        {"/load /no/such/file", "error: cannot open /no/such/file"},
        {"/read /no/such/file", "error: cannot open /no/such/file"},
        {"Hello", "limit of 6 tokens: the answer is not complete"},
        {"/stats", "6 generated"},
        {"/ctx", "of 2048 tokens"},
    };
    PTY_START((pty_options){0}, CHAT, "-n", "6", "--ignore-eos");
    pty_expect(ready);
    pty_expect(first_prompt);
    for (size_t i = 0; i < N_OF(steps); i++) {
        pty_type(steps[i].keys);
        pty_type("\r");
        pty_expect(steps[i].want);
    }
    const json_t *root = saved();
    CHECK_INT(json_array_size(root), 3);
    CHECK_STR(content(root, 0, "system"), "Be kind.");
    pty_type("/clear\r/system\r");
    pty_expect("system message: Be kind.");
    pty_type("/system \"\"\r");
    pty_expect("no system message");
    pty_type("/save x\r");
    pty_expect("error: /save: the conversation has no messages");
    pty_type("/exit\r");
    CHECK_INT(pty_finish(), 0);
    check_restored();
}

// /regen answers the last message again. The answer differs, because the random numbers differ, and it can be repeated.
// Outside a terminal the first wrong command ends the chat, as a wrong flag does.
static void piped_errors(void) {
    static const char *const names[] = {"/ctx 0", "/temp x", "/save", "/nothing"};
    for (size_t i = 0; i < N_OF(names); i++) {
        char lines[64], part[64];
        snprintf(lines, sizeof lines, "%s\n/quit\n", names[i]);
        snprintf(part, sizeof part, "%s%s", strcmp(names[i], "/nothing") ? "sleigh: error: " : "unknown command ", names[i]);
        result r = RUN_IN(lines, CHAT);
        CHECK_INT(r.code, 2);
        CHECK_HAS(r.err, part);
    }
}

static void regeneration(void) {
    char first[2][256], second[2][256];
    for (int i = 0; i < 2; i++) {
        open_chat("8");
        pty_type("/temp 2\rHello\r");
        snprintf(first[i], sizeof first[i], "%s", content(saved(), 1, "assistant"));
        pty_type("/regen\r");
        const json_t *root = saved();
        CHECK_INT(json_array_size(root), 2);
        CHECK_STR(content(root, 0, "user"), "Hello");
        snprintf(second[i], sizeof second[i], "%s", content(root, 1, "assistant"));
        pty_type("/temp 0\r/regen\r");
        pty_expect("temp is 0: the answer can be the same");
        leave();
    }
    CHECK(strcmp(first[0], second[0]));
    CHECK_STR(first[0], first[1]);
    CHECK_STR(second[0], second[1]);
}

static void saving(void) {
    char keys[900], path[256];
    size_t n;
    static const char conversation[] =
        "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"Hi \\u00e4\", "
        "\"name\": \"x\"}]";
    snprintf(path, sizeof path, "%s", in_tmp("conversation.json"));
    spill(path, conversation, strlen(conversation));
    spill(in_tmp("bad.json"), "[{\"role\": \"user\", \"content\": 1}]", 32);
    spill(in_tmp("other.txt"), "mine", 4);
    open_chat("1");
    pty_type("Hello\r/load ~/bad.json\r");
    pty_expect("message 1: expected a string in \"content\", found an integer");
    CHECK_STR(content(saved(), 0, "user"), "Hello"); // unchanged
    snprintf(keys, sizeof keys, "/load %s\r", path);
    pty_type(keys);
    pty_expect("loaded 2 messages; the last one has no answer: /regen answers it");
    pty_type("/regen\r");
    const json_t *root = saved();
    CHECK_INT(json_array_size(root), 3);
    CHECK_STR(content(root, 0, "system"), "S");
    CHECK_STR(content(root, 1, "user"), "Hi \303\244");
    content(root, 2, "assistant");
    pty_type("/save ~/other.txt\r");
    pty_expect("other.txt exists and is not a saved conversation; it is not replaced");
    CHECK_STR(slurp(in_tmp("other.txt"), &n), "mine");
    pty_type("/save /no/such/folder/x\r");
    pty_expect("error: cannot write /no/such/folder/x: No such file");
    pty_type("/save ~/conversation.json\r");
    pty_expect("saved 3 messages");
    leave();
}

// ---- the parts ----

static void turn_files(void) {
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "line 1"},
        {"{}", "expected a list of messages, found an object"},
        {"[1]", "message 1: expected an object"},
        {"[{}]", "message 1: expected \"role\" system, user or assistant, found missing"},
        {"[{\"role\": \"tool\", \"content\": \"\"}]", "found tool"},
        {"[{\"role\": \"user\"}]", "expected a string in \"content\", found missing"},
        {"[{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"system\", \"content\": \"\"}]",
         "message 2: expected user or assistant"},
    };
    sl_messages turns = {0}, again = {0};
    sl_error e;
    for (size_t i = 0; i < N_OF(bad); i++) {
        spill(in_tmp("turns.json"), bad[i].text, strlen(bad[i].text));
        CHECK_ERR(cli_messages_read(in_tmp("turns.json"), &turns, &e), e, SL_ERR_FORMAT, bad[i].message);
        CHECK_INT(turns.n, 0);
    }
    unlink(in_tmp("turns.json"));
    CHECK_OK(sl_messages_push(&turns, "user", "a\0b", 3, &e), e);
    CHECK_OK(sl_messages_push(&turns, "assistant", "", 0, &e), e);
    CHECK_OK(sl_messages_set_system(&turns, "s", 1, &e), e);
    CHECK_OK(sl_messages_set_system(&turns, "t", 1, &e), e);
    CHECK_STR(sl_messages_system(&turns)->content, "t");
    CHECK_OK(cli_messages_write(in_tmp("turns.json"), &turns, &e), e);
    CHECK_OK(cli_messages_read(in_tmp("turns.json"), &again, &e), e);
    CHECK_INT(again.n, 3);
    CHECK(again.items[1].n == 3 && !memcmp(again.items[1].content, "a\0b", 3));
    CHECK_OK(sl_messages_set_system(&again, NULL, 0, &e), e);
    CHECK_INT(again.n, 2);
    CHECK(!sl_messages_system(&again) && sl_messages_last_is(&again, "assistant"));
    sl_messages_clear(&again);
    sl_messages_pop(&turns);
    CHECK_OK(sl_messages_push(&turns, "assistant", "\377", 1, &e), e);
    CHECK_ERR(cli_messages_write(in_tmp("turns.json"), &turns, &e), e, SL_ERR_FORMAT, "message 3 is not UTF-8");
    sl_messages_clear(&turns);
}

static void paste_labels(void) {
    static const struct {
        const char *text, *want;
        int is_short;
    } texts[] = {{"a\r\nb\r\n", "a\nb", 0}, {"a\rb\n\n", "a\nb\n", 0}, {"one", "one", 1}, {"\r", "", 1}, {"\n\r", "\n", 0}};
    cli_pastes all = {0};
    sl_error e;
    for (size_t i = 0; i < N_OF(texts); i++) {
        sl_text text = {0};
        CHECK_OK(sl_text_append(&text, texts[i].text, strlen(texts[i].text), &e), e);
        cli_paste_clean(&text);
        CHECK_STR(text.data, texts[i].want);
        CHECK_INT(cli_paste_is_short(&text), texts[i].is_short);
        sl_text_free(&text);
    }
    const char *labels[2];
    for (int i = 0; i < 2; i++) {
        sl_text text = {0};
        CHECK_OK(sl_text_append(&text, repeated('a' + i, 1234567 % 100000), 1234567 % 100000, &e), e);
        CHECK_OK(cli_pastes_add(&all, &text, &labels[i], &e), e);
    }
    labels[0] = all.items[0].label;
    CHECK_STR(labels[0], "[paste 1: 1 line, 34,567 bytes]");
    CHECK_STR(labels[1], "[paste 2: 1 line, 34,567 bytes]");
    sl_text out = {0};
    CHECK_OK(cli_pastes_expand(&all, "[[paste 2: 1 line, 34,567 bytes]x[paste 3: 1 line, 34,567 bytes]", &out, &e), e);
    CHECK_INT(out.n, 1 + 34567 + 1 + 31);
    CHECK(out.data[0] == '[' && out.data[1] == 'b' && out.data[34567] == 'b' && !strncmp(out.data + 34568, "x[paste 3", 9));
    sl_text_free(&out);
    CHECK_INT(cli_pastes_label_at_end(&all, "a[paste 1: 1 line, 34,567 bytes]", 32), 31);
    CHECK_INT(cli_pastes_label_at_end(&all, "a[paste 1: 1 line, 34,567 bytes]b", 33), 0);
    cli_pastes_clear(&all);
}

// A text of one line and up to 1000 bytes is typed into the line.
static void paste_sizes(void) {
    char bytes[1002];
    memset(bytes, 'a', sizeof bytes);
    sl_text text = {.data = bytes, .n = 1000};
    CHECK(cli_paste_is_short(&text));
    text.n = 1001;
    CHECK(!cli_paste_is_short(&text));
    text.n = 10, bytes[9] = '\n';
    CHECK(!cli_paste_is_short(&text));
}

static const test_case cases[] = {
    {"paste_sizes", NEEDS_NOTHING, paste_sizes},
    {"editing", NEEDS_NOTHING, editing},
    {"locale", NEEDS_NOTHING, locale},
    {"history", NEEDS_NOTHING, history},
    {"history_unwritable", NEEDS_NOTHING, history_unwritable},
    {"completion", NEEDS_NOTHING, completion},
    {"pastes", NEEDS_NOTHING, pastes},
    {"long_lines", NEEDS_NOTHING, long_lines},
    {"paste_during_answer", NEEDS_NOTHING, paste_during_answer},
    {"ctrl_c", NEEDS_NOTHING, ctrl_c},
    {"ctrl_c_races", NEEDS_NOTHING, ctrl_c_races},
    {"ctrl_d", NEEDS_NOTHING, ctrl_d},
    {"termination", NEEDS_NOTHING, termination},
    {"sudden_end", NEEDS_NOTHING, sudden_end},
    {"suspension", NEEDS_NOTHING, suspension},
    {"resize", NEEDS_NOTHING, resize},
    {"colours", NEEDS_NOTHING, colours},
    {"quiet", NEEDS_NOTHING, quiet},
    {"commands", NEEDS_NOTHING, commands},
    {"piped_errors", NEEDS_NOTHING, piped_errors},
    {"regeneration", NEEDS_NOTHING, regeneration},
    {"saving", NEEDS_NOTHING, saving},
    {"turn_files", NEEDS_NOTHING, turn_files},
    {"paste_labels", NEEDS_NOTHING, paste_labels},
    {0},
};
extern const test_suite suite_cli_chat;
const test_suite suite_cli_chat = {"cli_chat", cases};
