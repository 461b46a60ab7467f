// tests/cli/test_cli_grammar.c - --grammar, --json-schema, --regex and --choice of generate and chat: texts and files, many
// prompts, and what is refused.
#include "tests/support/run_cli.h"

static const char schema[] = "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"minimum\": 0}, \"s\": "
                             "{\"enum\": [\"a\", \"b\"]}}, \"required\": [\"n\", \"s\"]}";

static void check_json(const char *text) {
    json_t *v = json_loads(text, 0, NULL);
    if (!v || !json_is_integer(json_object_get(v, "n")) || !json_is_string(json_object_get(v, "s"))) FAIL("got %s", text);
    json_decref(v);
}

static const char *file_of(const char *text) {
    spill(in_tmp("file"), text, strlen(text));
    return in_tmp("file");
}

#define SAY(...) RUN("generate", "-q", "-m", tiny(), "-p", "The", "--temp", "2", __VA_ARGS__)

static void forms(void) {
    result r = SAY("-j", schema), again = SAY("--json-schema-file", file_of(schema));
    CHECK_GOOD(r);
    check_json(r.out);
    CHECK_STR(again.out, r.out);
    r = SAY("--grammar", "root ::= \"<\" [0-9]{3} \">\"");
    CHECK(strlen(r.out) == 5 && r.out[0] == '<' && r.out[4] == '>');
    again = SAY("--grammar-file", file_of("root ::= \"<\" d d d \">\" # a comment\nd ::= [0-9]\n"));
    CHECK_STR(again.out, r.out);
    r = SAY("--regex", "(ab){4}c?");
    CHECK(!strcmp(r.out, "abababab") || !strcmp(r.out, "ababababc"));
    r = SAY("--choice", "yes", "--choice", "\"no\"");
    CHECK(!strcmp(r.out, "yes") || !strcmp(r.out, "\"no\""));
    r = SAY("-n", "99", "--temp", "0", "--grammar-after", ".", "--choice", "<x>");
    CHECK_STR(strchr(r.out, '.') + 1, "<x>");
    r = RUN_IN("The lamp\nThe river\n", "chat", "-q", "-m", tiny(), "--chat-template", "zephyr", "--choice", "yes");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "yes");
}

static void many(void) {
    spill(in_tmp("prompts"), "The\nA river\nThe old\n", 20);
    result r = RUN("generate", "-q", "-m", tiny(), "--prompts", in_tmp("prompts"), "--temp", "2", "-j", schema),
           batch = RUN("generate", "-q", "-m", tiny(), "--prompts", in_tmp("prompts"), "--temp", "2", "-j", schema, "-np", "3");
    json_t *a = NULL, *b = NULL;
    CHECK_GOOD(r);
    CHECK_GOOD(batch);
    const char *x = r.out, *y = batch.out;
    for (int i = 0; i < 3; i++) {
        a = json_loads(x, JSON_DISABLE_EOF_CHECK, NULL), b = json_loads(y, JSON_DISABLE_EOF_CHECK, NULL);
        check_json(json_string_value(json_object_get(a, "text")));
        CHECK_STR(json_string_value(json_object_get(a, "stopped")), "eos");
        CHECK(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")));
        CHECK(json_equal(json_object_get(a, "logits"), json_object_get(b, "logits")));
        json_decref(a), json_decref(b);
        x = strchr(x, '\n') + 1, y = strchr(y, '\n') + 1;
    }
}

static void refused(void) {
    result r = SAY("--regex", "a", "--choice", "b");
    check_error(&r, 2, "flag --choice cannot be used with --regex");
    r = SAY("--grammar-after", "a");
    check_error(&r, 2, "flag --grammar-after needs");
    r = SAY("--grammar", "root ::= \"a\"\n  | [b");
    check_error(&r, 2, "--grammar: grammar: line 2, column 7: ");
    r = SAY("--grammar", file_of("root ::= x"));
    check_error(&r, 1, "file: grammar: line 1, column 10: rule x is not defined");
    r = SAY("--json-schema", in_tmp("none"));
    check_error(&r, 1, "none: No such file");
    r = SAY("--json-schema", file_of("{\"type\":\n 1}"));
    check_error(&r, 1, "file: schema#");
    r = SAY("--json-schema", file_of("{\"type\":\n }"));
    check_error(&r, 1, "file: schema: line 2, column 2");
    r = SAY("--json-schema", "{\"not\": {}}");
    check_error(&r, 2, "--json-schema: schema#: keyword \"not\" is not supported");
    r = SAY("--regex", "a\\b");
    check_error(&r, 2, "--regex: regex: column");
    r = SAY("--choice", "b", "--logit-bias", "98-inf");
    check_error(&r, 2, "--grammar: the logit biases leave no token that it allows");
}

static const test_case cases[] = {
    {"forms", NEEDS_NOTHING, forms},
    {"many", NEEDS_NOTHING, many},
    {"refused", NEEDS_NOTHING, refused},
    {0},
};
extern const test_suite suite_cli_grammar;
const test_suite suite_cli_grammar = {"cli_grammar", cases};
