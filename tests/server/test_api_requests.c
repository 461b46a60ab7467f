// tests/server/test_api_requests.c - bodies of clients: what they send, each field as null, of a wrong type and out of bounds.
#include "server/api/requests.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- a request as text ----

static void add(json_t *out, const char *name, json_t *value) {
    CHECK(!json_object_set_new(out, name, value));
}

static void add_number(json_t *out, const char *name, double x, double unset) {
    if (isnan(unset) ? !isnan(x) : x != unset) add(out, name, x == floor(x) ? json_integer((json_int_t)x) : json_real(x));
}

static void add_text(json_t *out, const char *name, const char *s) {
    if (s) add(out, name, json_string(s));
}

static json_t *prompts_json(const api_request *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_prompts; i++) {
        const api_prompt *p = &r->prompts[i];
        json_t *ids = json_array();
        for (size_t k = 0; k < p->n_ids; k++) json_array_append_new(ids, json_integer(p->ids[k]));
        json_array_append_new(list, p->text ? json_stringn(p->text, p->n) : json_incref(ids));
        json_decref(ids);
    }
    return list;
}

// What differs from a request that gives nothing.
static json_t *describe(const api_request *r) {
    json_t *out = json_object(), *stop = json_array(), *bias = json_array();
    const sl_sampling *s = &r->sampling;
    add_text(out, "model", r->model);
    if (r->messages) add(out, "messages", json_incref(r->messages));
    if (r->tools) add(out, "tools", json_incref(r->tools));
    if (r->options) add(out, "options", json_incref(r->options));
    if (r->documents) add(out, "documents", json_incref((json_t *)r->documents));
    if (r->prompts) add(out, "prompts", prompts_json(r));
    add_number(out, "temp", s->temp, NAN);
    add_number(out, "top_p", s->top_p, NAN);
    add_number(out, "min_p", s->min_p, NAN);
    add_number(out, "top_k", s->top_k, SL_UNSET);
    add_number(out, "repeat", s->repeat_penalty, NAN);
    add_number(out, "repeat_last_n", s->repeat_last_n, SL_UNSET);
    add_number(out, "presence", s->presence_penalty, NAN);
    add_number(out, "frequency", s->frequency_penalty, NAN);
    for (int i = 0; i < s->n_bias; i++)
        json_array_append_new(bias, json_pack("[i, f]", s->bias[i].id, (double)s->bias[i].bias));
    for (int i = 0; i < r->n_stop; i++) json_array_append_new(stop, json_string(r->stop[i]));
    if (s->n_bias) add(out, "bias", json_incref(bias));
    if (r->n_stop) add(out, "stop", json_incref(stop));
    if (r->has_seed) add(out, "seed", json_integer(r->seed));
    add_number(out, "max_tokens", r->max_tokens, -1);
    add_number(out, "n", r->n, 1);
    add_number(out, "n_logprobs", r->n_logprobs, -1);
    static const char *const formats[] = {"free", "json", "schema", "regex", "choice", "grammar"};
    if (r->format.kind) add(out, "format", json_pack("[s, O?, s]", formats[r->format.kind], r->format.value, r->format.field));
    static const char *const choices[] = {"auto", "none", "required", "named"};
    if (r->tool_choice) add_text(out, "tool_choice", choices[r->tool_choice]);
    add_text(out, "tool_name", r->tool_name);
    add_text(out, "attn", r->attn);
    add_text(out, "attn_prefill", r->attn_prefill);
    add_number(out, "priority", r->priority, 0);
    add_text(out, "cache_salt", r->cache_salt);
    add_text(out, "request_id", r->request_id);
    add_text(out, "session_id", r->session_id);
    const struct {
        const char *name;
        int value, unset;
    } flags[] = {{"add_generation_prompt", r->add_generation_prompt, 1},
                 {"continue_final", r->continue_final, 0},
                 {"add_special", r->add_special, 1},
                 {"parse_special", r->parse_special, 1},
                 {"ignore_eos", r->ignore_eos, 0},
                 {"echo", r->echo, 0},
                 {"parallel", r->parallel_tool_calls, 1},
                 {"include_reasoning", r->include_reasoning, 1},
                 {"raw_reasoning", r->raw_reasoning, 0},
                 {"stream", r->stream, 0},
                 {"include_usage", r->include_usage, 0},
                 {"continuous_usage", r->continuous_usage, 0},
                 {"with_pieces", r->with_pieces, 0},
                 {"with_strings", r->with_strings, 0}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) add_number(out, flags[i].name, flags[i].value, flags[i].unset);
    json_decref(stop);
    json_decref(bias);
    return out;
}

static int read_text(api_endpoint e, const char *body, json_t **out, api_error *err) {
    api_request r;
    *err = (api_error){0};
    *out = NULL;
    int rc = api_request_read(e, body, strlen(body), &r, err);
    if (!rc) *out = describe(&r);
    api_request_free(&r);
    return rc;
}

static json_t *accepted(api_endpoint e, const char *body) {
    json_t *out;
    api_error err;
    if (read_text(e, body, &out, &err)) FAIL("%s: %s: %s", api_path(e), body, err.why.message);
    return out;
}

static void refused(api_endpoint e, const char *body, const char *param, const char *text) {
    json_t *out;
    api_error err;
    if (!read_text(e, body, &out, &err)) FAIL("%s: %s: expected an error with %s", api_path(e), body, text);
    CHECK_INT(err.status, 400);
    if (strcmp(err.param, param)) FAIL("%s: the error names %s, expected %s: %s", body, err.param, param, err.why.message);
    if (!strstr(err.why.message, text)) FAIL("%s: %s lacks \"%s\"", body, err.why.message, text);
}

static void expect(api_endpoint e, const char *body, const char *want) {
    json_t *got = accepted(e, body), *wanted = json_loads(want, 0, NULL);
    CHECK(wanted != NULL);
    if (!json_equal(got, wanted)) FAIL("%s: got %s, expected %s", body, json_dumps(got, 0), want);
    json_decref(got);
    json_decref(wanted);
}

// ---- bodies of clients ----

static const struct {
    const char *client;
    api_endpoint endpoint;
    const char *body, *want;
} bodies[] = {
    {"vllm bench serve, completions", API_COMPLETIONS,
     "{\"model\":\"m\",\"prompt\":\"p\",\"repetition_penalty\":1.0,\"max_tokens\":128,\"logprobs\":null,\"stream\":true,"
     "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true}",
     "{\"model\":\"m\",\"prompts\":[\"p\"],\"repeat\":1,\"repeat_last_n\":-1,\"max_tokens\":128,\"stream\":1,\"include_usage\":"
     "1,"
     "\"ignore_eos\":1}"},
    {"vllm bench serve, chat", API_CHAT,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"p\"}]}],"
     "\"max_completion_tokens\":9,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"temperature\":0.0}",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"max_tokens\":9,\"stream\":1,\"include_usage\":1,"
     "\"temp\":0}"},
    {"vllm bench serve, tokenize", API_TOKENIZE, "{\"model\":\"m\",\"prompt\":\"p\",\"add_special_tokens\":false}",
     "{\"model\":\"m\",\"prompts\":[\"p\"],\"max_tokens\":-2147483648,\"add_special\":0}"},
    {"vllm bench serve, detokenize", API_DETOKENIZE, "{\"model\":\"m\",\"tokens\":[1,2,3]}",
     "{\"model\":\"m\",\"prompts\":[[1,2,3]],\"max_tokens\":-2147483648}"},
    {"llama.cpp, tokenize", API_TOKENIZE, "{\"content\":\"p\",\"with_pieces\":true}",
     "{\"prompts\":[\"p\"],\"max_tokens\":-2147483648,\"add_special\":0,\"with_pieces\":1}"},
    {"guidellm", API_CHAT,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
     "\"text\":\"b\"}]}],\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},"
     "\"max_completion_tokens\":32,\"stop\":null,\"ignore_eos\":true}",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\\nb\"}],\"stream\":1,\"include_usage\":1,"
     "\"continuous_usage\":1,\"max_tokens\":32,\"ignore_eos\":1}"},
    {"genai-bench", API_CHAT,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"max_tokens\":8,\"temperature\":0,\"ignore_eos\":"
     "true,"
     "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"max_tokens\":8,\"temp\":0,\"ignore_eos\":1,"
     "\"stream\":1,\"include_usage\":1}"},
    {"lm-eval, loglikelihood", API_COMPLETIONS,
     "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"temperature\":0,\"max_tokens\":1,\"logprobs\":1,\"seed\":1234,\"echo\":true}",
     "{\"model\":\"m\",\"prompts\":[[1,2],[3]],\"temp\":0,\"max_tokens\":1,\"n_logprobs\":1,\"seed\":1234,\"echo\":1}"},
    {"lm-eval, generate_until", API_COMPLETIONS,
     "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"max_tokens\":256,\"temperature\":0,\"stop\":[\"\\n\\n\",\"Q:\"],\"seed\":"
     "1234}",
     "{\"model\":\"m\",\"prompts\":[\"a\",\"b\"],\"max_tokens\":256,\"temp\":0,\"stop\":[\"\\n\\n\",\"Q:\"],\"seed\":1234}"},
    {"Open WebUI", API_CHAT,
     "{\"stream\":true,\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
     "\"p\"}],"
     "\"stream_options\":{\"include_usage\":true},\"metadata\":{\"chat_id\":\"1\"}}",
     "{\"stream\":1,\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"p\"}"
     "],"
     "\"include_usage\":1}"},
    {"LangChain, with_structured_output", API_CHAT,
     "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"p\"}],\"model\":\"m\","
     "\"max_completion_tokens\":64,\"n\":1,\"parallel_tool_calls\":false,\"stream\":false,\"temperature\":0.7,"
     "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":true,\"schema\":{\"type\":"
     "\"object\"}}}}",
     "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"p\"}],\"model\":\"m\",\"max_"
     "tokens\":64,"
     "\"parallel\":0,\"temp\":0.69999998807907104,\"format\":[\"schema\",{\"type\":\"object\"},\"response_format\"]}"},
    {"LangChain, a call and its result", API_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":"
     "\"function\",\"id\":\"abc\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]},{\"role\":\"tool\","
     "\"content\":\"r\",\"tool_call_id\":\"abc\"}],\"model\":\"m\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
     "\"f\","
     "\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":{\"type\":\"function\",\"function\":{"
     "\"name\":"
     "\"f\"}}}",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
     "\"abc\","
     "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},{\"role\":\"tool\",\"content\":\"r\","
     "\"tool_call_id\":\"abc\",\"name\":\"f\"}],\"model\":\"m\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":\"named\",\"tool_name\":\"f\"}"},
    {"Codex CLI", API_RESPONSES,
     "{\"model\":\"m\",\"instructions\":\"i\",\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":"
     "\"input_text\",\"text\":\"d\"}]},{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
     "\"u\"}]},"
     "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}],"
     "\"encrypted_content\":null},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":"
     "\"a\"}]},"
     "{\"type\":\"function_call\",\"name\":\"shell\",\"arguments\":\"{\\\"cmd\\\":\\\"ls\\\"}\",\"call_id\":\"c1\"},"
     "{\"type\":\"function_call\",\"name\":\"shell\",\"arguments\":\"{broken\",\"call_id\":\"c2\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"x\"},{\"type\":\"function_call_output\",\"call_id\":"
     "\"c2\","
     "\"output\":[{\"type\":\"input_text\",\"text\":\"y\"}]}],\"tools\":[{\"type\":\"function\",\"name\":\"shell\","
     "\"description\":\"d\","
     "\"strict\":false,\"parameters\":{\"type\":\"object\"}},{\"type\":\"web_search\"},{\"type\":\"custom\",\"name\":\"apply_"
     "patch\"},"
     "{\"type\":\"namespace\",\"name\":\"n\"},{\"type\":\"image_generation\"}],\"tool_choice\":\"auto\",\"parallel_tool_"
     "calls\":true,"
     "\"reasoning\":{\"effort\":\"medium\",\"summary\":\"auto\"},\"store\":false,\"stream\":true,\"include\":["
     "\"reasoning.encrypted_content\"],\"prompt_cache_key\":\"k\",\"client_metadata\":{\"v\":\"1\"}}",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"i\"},{\"role\":\"system\",\"content\":\"d\"},{\"role\":"
     "\"user\","
     "\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"t\",\"tool_calls\":[{\"id\":\"c1\","
     "\"type\":"
     "\"function\",\"function\":{\"name\":\"shell\",\"arguments\":{\"cmd\":\"ls\"}}},{\"id\":\"c2\",\"type\":\"function\","
     "\"function\":{"
     "\"name\":\"shell\",\"arguments\":\"{broken\"}}]},{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"c1\",\"name\":"
     "\"shell\"},"
     "{\"role\":\"tool\",\"content\":\"y\",\"tool_call_id\":\"c2\",\"name\":\"shell\"}],\"tools\":[{\"type\":\"function\","
     "\"function\":{"
     "\"name\":\"shell\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},\"strict\":false}}],\"stream\":1}"},
    {"Responses, a text", API_RESPONSES,
     "{\"input\":\"u\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"x\",\"schema\":{}}},"
     "\"reasoning\":{\"effort\":\"none\"},\"max_output_tokens\":5}",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"format\":[\"schema\",{},\"text.format\"],\"options\":{"
     "\"enable_thinking\":false},\"max_tokens\":5}"},
    {"Claude Code", API_MESSAGES,
     "{\"model\":\"m\",\"max_tokens\":32000,\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: a=1; "
     "cch=9f\"},"
     "{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":[{\"role\":\"user\","
     "\"content\":[{"
     "\"type\":\"text\",\"text\":\"r\"},{\"type\":\"text\",\"text\":\"u\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":"
     "\"thinking\","
     "\"thinking\":\"t\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"tool_use\",\"id\":\"x1\",\"name\":"
     "\"Read\","
     "\"input\":{\"path\":\"p\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"x1\","
     "\"content\":[{"
     "\"type\":\"text\",\"text\":\"f\"}],\"is_error\":false},{\"type\":\"text\",\"text\":\"go\"}]},{\"role\":\"system\","
     "\"content\":"
     "\"mid\"},{\"role\":\"user\",\"content\":\"u2\"}],\"tools\":[{\"name\":\"Read\",\"description\":\"d\",\"input_schema\":{"
     "\"type\":"
     "\"object\"},\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}],"
     "\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true},\"metadata\":{\"user_id\":\"u\"},\"stream\":true,"
     "\"thinking\":{\"type\":\"adaptive\"},\"context_management\":{\"edits\":[]},\"output_config\":{\"effort\":\"high\"},"
     "\"temperature\":1}",
     "{\"model\":\"m\",\"max_tokens\":32000,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
     "\"content\":"
     "\"r\\nu\"},{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"t\",\"tool_calls\":[{\"id\":\"x1\",\"type\":"
     "\"function\",\"function\":{\"name\":\"Read\",\"arguments\":{\"path\":\"p\"}}}]},{\"role\":\"tool\",\"content\":\"f\","
     "\"tool_call_id\":\"x1\",\"name\":\"Read\"},{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"system\",\"content\":"
     "\"mid\"},{"
     "\"role\":\"user\",\"content\":\"u2\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"Read\",\"description\":"
     "\"d\","
     "\"parameters\":{\"type\":\"object\"}}}],\"parallel\":0,\"stream\":1,\"options\":{\"enable_thinking\":true},\"temp\":1}"},
    {"Claude Code, count_tokens", API_COUNT_TOKENS,
     "{\"model\":\"m\",\"system\":\"x-anthropic-billing-header: "
     "cch=1\\nrest\",\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{"
     "\"role\":\"assistant\",\"content\":\"{\"}]}",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"rest\"},{\"role\":\"user\",\"content\":\"u\"},{"
     "\"role\":"
     "\"assistant\",\"content\":\"{\"}],\"continue_final\":1}"},
    {"llama.cpp", API_COMPLETIONS,
     "{\"prompt\":\"p\",\"n_predict\":-1,\"repeat_penalty\":1.1,\"repeat_last_n\":64,\"top_k\":-1,\"min_p\":0.05,\"logit_"
     "bias\":[[5,-1]],"
     "\"cache_prompt\":true,\"typical_p\":1.0,\"mirostat\":0,\"grammar\":\"root ::= x\",\"id_slot\":-1}",
     "{\"prompts\":[\"p\"],\"repeat\":1.1000000238418579,\"repeat_last_n\":64,\"top_k\":0,\"min_p\":0.05000000074505806,"
     "\"bias\":[[5,-1.0]],\"format\":[\"grammar\",\"root ::= x\",\"grammar\"]}"},
    {"Sleigh", API_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"attn\":{\"name\":\"santa-prop\",\"S\":128,\"exact\":true,\"c\":0."
     "5,"
     "\"x\":null},\"attn_prefill\":\"threshold\",\"session_id\":\"s\",\"cache_salt\":\"t\",\"priority\":-3,\"request_id\":"
     "\"r\","
     "\"seed\":-1,\"logprobs\":true,\"top_logprobs\":5,\"logit_bias\":{\"7\":100},\"chat_template_kwargs\":{\"a\":[1]},"
     "\"reasoning_format\":\"none\",\"structured_outputs\":{\"choice\":[\"a\",\"b\"],\"regex\":null}}",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"attn\":\"santa-prop:S=128:exact=1:c=0.5\",\"attn_prefill\":"
     "\"threshold\",\"session_id\":\"s\",\"cache_salt\":\"t\",\"priority\":-3,\"request_id\":\"r\",\"n_logprobs\":5,\"bias\":[["
     "7,"
     "100.0]],\"options\":{\"a\":[1]},\"raw_reasoning\":1,\"format\":[\"choice\",[\"a\",\"b\"],\"structured_outputs\"]}"},
    {"completions without a limit", API_COMPLETIONS, "{\"prompt\":\"p\"}", "{\"prompts\":[\"p\"],\"max_tokens\":16}"},
};

static void clients(void) {
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) expect(bodies[i].endpoint, bodies[i].body, bodies[i].want);
}

// ---- every field of the tables ----

static const char *const least[API_N_ENDPOINTS] = {
    [API_CHAT] = "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}",
    [API_COMPLETIONS] = "{\"prompt\":\"p\"}",
    [API_RESPONSES] = "{\"input\":\"u\"}",
    [API_MESSAGES] = "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"max_tokens\":5}",
    [API_COUNT_TOKENS] = "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}",
    [API_TOKENIZE] = "{\"prompt\":\"p\"}",
    [API_DETOKENIZE] = "{\"tokens\":[1]}",
    [API_APPLY_TEMPLATE] = "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}",
};

typedef void (*field_fn)(api_endpoint e, const char *outer, const api_field *f);

static void each_field(field_fn fn) {
    for (int e = 0; e < API_N_ENDPOINTS; e++)
        for (const api_field *const *t = api_tables((api_endpoint)e); *t; t++)
            for (const api_field *f = *t; f->name; f++) {
                fn((api_endpoint)e, NULL, f);
                for (const api_field *g = f->table; g && g->name; g++) fn((api_endpoint)e, f->name, g);
            }
}

// The least body with this field, or with this field of the object `outer`.
static char *body_with(api_endpoint e, const char *outer, const char *name, const char *value) {
    json_t *body = json_loads(least[e], 0, NULL), *v = json_loads(value, JSON_DECODE_ANY, NULL);
    CHECK(body && v);
    if (outer) v = json_pack("{s:o}", name, v);
    json_object_set_new(body, outer ? outer : name, v);
    char *text = json_dumps(body, 0);
    json_decref(body);
    return text;
}

static void refuse_value(api_endpoint e, const char *outer, const api_field *f, const char *value, const char *text) {
    char param[160], *body = body_with(e, outer, f->name, value);
    snprintf(param, sizeof param, "%s%s%s", outer ? outer : "", outer ? "." : "", f->name);
    refused(e, body, param, text);
    free(body);
}

static void null_field(api_endpoint e, const char *outer, const api_field *f) {
    json_t *body = json_loads(least[e], 0, NULL);
    if (!outer && json_object_get(body, f->name)) {
        json_decref(body);
        return;
    }
    json_decref(body);
    char *text = body_with(e, outer, f->name, "null");
    json_t *got = accepted(e, text), *want = accepted(e, least[e]);
    if (!json_equal(got, want)) FAIL("%s: null is not as no field", text);
    json_decref(got);
    json_decref(want);
    free(text);
}

static void nulls(void) {
    each_field(null_field);
    for (int e = 0; e < API_N_ENDPOINTS; e++) { // all at once, and fields that no table has
        json_t *body = json_loads(least[e], 0, NULL);
        for (const api_field *const *t = api_tables((api_endpoint)e); *t; t++)
            for (const api_field *f = *t; f->name; f++)
                if (!json_object_get(body, f->name)) json_object_set_new(body, f->name, json_null());
        json_object_set_new(body, "no_such_field", json_null());
        char *text = json_dumps(body, 0);
        json_t *got = accepted((api_endpoint)e, text), *want = accepted((api_endpoint)e, least[e]);
        CHECK(json_equal(got, want));
        json_decref(got);
        json_decref(want);
        json_decref(body);
        free(text);
    }
}

static void wrong_type(api_endpoint e, const char *outer, const api_field *f) {
    if (f->kind == API_IGNORED) {
        char *text = body_with(e, outer, f->name, "[{\"a\":[1]}]");
        json_decref(accepted(e, text));
        free(text);
        return;
    }
    if (f->kind == API_REFUSED) {
        refuse_value(e, outer, f, "\"x\"", f->hint);
        return;
    }
    refuse_value(e, outer, f, f->kind == API_BOOL ? "1" : f->kind == API_NEUTRAL ? "\"x\"" : "true", f->name);
    if (f->kind != API_READ) refuse_value(e, outer, f, f->kind == API_LIST ? "{\"a\":1}" : "[{\"a\":1}]", f->name);
    if (f->kind == API_STRING) refuse_value(e, outer, f, "7", "an integer, expected a string");
    if (f->kind == API_INT) refuse_value(e, outer, f, "1.5", "a number, expected an integer");
}

static void wrong_types(void) {
    each_field(wrong_type);
}

static void bounds_of(api_endpoint e, const char *outer, const api_field *f) {
    char value[32];
    if (f->kind == API_NEUTRAL) {
        snprintf(value, sizeof value, "%g", f->min);
        char *text = body_with(e, outer, f->name, value);
        json_decref(accepted(e, text));
        free(text);
        snprintf(value, sizeof value, "%g", f->min + 1);
        refuse_value(e, outer, f, value, "supports no other value");
    }
    if (f->kind != API_INT && f->kind != API_FLOAT) return;
    snprintf(value, sizeof value, "%.17g", f->min - (f->kind == API_INT ? 1 : 1e-3));
    refuse_value(e, outer, f, value, "expected");
    snprintf(value, sizeof value, "%.17g", f->max + (f->kind == API_INT ? 1 : 1e-3));
    refuse_value(e, outer, f, value, "expected");
}

static void bounds(void) {
    each_field(bounds_of);
}

static void unknown(void) {
    for (int e = 0; e < API_N_ENDPOINTS; e++)
        refuse_value((api_endpoint)e, NULL, &(api_field){.name = "no_such_field"}, "1",
                     "no_such_field: this server does not know");
    refused(API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"stream_options\":{\"x\":1}}", "stream_options.x",
            "stream_options.x: this server does not know");
}

// ---- refusals by name ----

static void refusals(void) {
    static const struct {
        api_endpoint endpoint;
        const char *body, *param, *text;
    } rows[] = {
        {API_CHAT, "{}", "messages", "messages is missing"},
        {API_CHAT, "{\"messages\":[]}", "messages", "messages is empty"},
        {API_CHAT, "[1]", "", "the body is a list, expected a JSON object"},
        {API_CHAT, "", "", "the body is no JSON"},
        {API_CHAT, "{\"model\":\"\xff\"}", "", "the body is no JSON"}, // a body that is not UTF-8
        {API_CHAT, "{\"model\":\"\\ud800\"}", "", "the body is no JSON"},
        {API_CHAT, "{\"model\":\"a\\u0000b\"}", "model", "holds a NUL"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
         "messages[0].content[0]", "this server reads text only, no images, audio or files"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}", "messages[0].content[0]",
         "no images"},
        {API_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input[0][0]",
         "no images"},
        {API_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
         "messages[0].content[0]", "no images"},
        {API_MESSAGES,
         "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\","
         "\"content\":[{\"type\":\"image\"}]}]}]}",
         "messages[0].content[0][0]", "no images"},
        {API_CHAT, "{\"messages\":[{\"role\":\"narrator\",\"content\":\"p\"}]}", "messages[0]", "narrator"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "missing"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"max_tokens\":5,\"max_completion_tokens\":6}",
         "max_tokens", "same meaning"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"max_tokens\":0}", "max_tokens", "max_tokens is 0"},
        {API_COMPLETIONS, "{\"prompt\":\"p\",\"max_tokens\":0}", "max_tokens", "0 needs echo"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"top_logprobs\":2}", "top_logprobs",
         "logprobs true"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"tool_choice\":\"required\"}", "tool_choice",
         "expected tools"},
        {API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{"
         "\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
         "tool_choice", "g, which is in no tool"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"grammar\":\"x\",\"json_schema\":{}}", "json_schema",
         "another format"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"stop\":[\"\"]}", "stop", "empty string"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"seed\":4294967296}", "seed",
         "expected 0 to 4294967295"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"attn\":{\"name\":\"a:b\"}}", "attn",
         "name of a method"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"attn\":{\"name\":\"a\",\"S\":[1]}}", "attn",
         "a number or a word"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],\"continue_final_message\":true}",
         "continue_final_message", "assistant's message"},
        {API_COMPLETIONS, "{}", "prompt", "prompt is missing"},
        {API_COMPLETIONS, "{\"prompt\":[]}", "prompt", "0 prompts"},
        {API_COMPLETIONS, "{\"prompt\":[-1]}", "prompt", "token id -1"},
        {API_COMPLETIONS, "{\"prompt\":[[1],\"a\",{}]}", "prompt[2]", "an object"},
        {API_RESPONSES, "{\"input\":\"u\",\"previous_response_id\":\"resp_1\"}", "previous_response_id", "whole conversation"},
        {API_RESPONSES, "{\"input\":[{\"type\":\"item_reference\"}]}", "input[0]", "item_reference"},
        {API_RESPONSES, "{\"instructions\":\"i\"}", "input", "input is missing"},
        {API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}", "max_tokens", "max_tokens is missing"},
        {API_TOKENIZE, "{\"prompt\":\"p\",\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}", "prompt", "one of"},
        {API_TOKENIZE, "{}", "prompt", "one of"},
        {API_DETOKENIZE, "{}", "tokens", "missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(rows[i].endpoint, rows[i].body, rows[i].param, rows[i].text);
}

// The billing line changes with each request, and the conversation must not.
static void billing(void) {
    static const char *const systems[] = {
        "\"x-anthropic-billing-header: cch=%d\\ns\"",
        "[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=%d\"},{\"type\":\"text\","
        "\"text\":\"s\"}]",
        "[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=%d\\ns\"}]"};
    for (int i = 0; i < 3; i++)
        for (int turn = 0; turn < 3; turn++) {
            char system[256], body[512];
            snprintf(system, sizeof system, systems[i], turn);
            snprintf(body, sizeof body, "{\"max_tokens\":1,\"system\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"p\"}]}",
                     system);
            expect(API_MESSAGES, body,
                   "{\"max_tokens\":1,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
                   "\"p\"}]}");
        }
}

// ---- errors ----

static void errors(void) {
    static const struct {
        int status;
        const char *openai, *anthropic;
    } rows[] = {{400, "invalid_request_error", "invalid_request_error"},
                {401, "authentication_error", "authentication_error"},
                {404, "not_found_error", "not_found_error"},
                {413, "invalid_request_error", "request_too_large"},
                {429, "rate_limit_error", "rate_limit_error"},
                {500, "server_error", "api_error"},
                {503, "unavailable_error", "overloaded_error"}};
    api_error e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK(api_fail(&e, rows[i].status, "stop", "stop: %s", "why") < 0);
        json_t *v = api_error_json(&e, 0), *error = json_object_get(v, "error");
        CHECK_STR(json_string_value(json_object_get(error, "type")), rows[i].openai);
        CHECK_STR(json_string_value(json_object_get(error, "message")), "stop: why");
        CHECK_STR(json_string_value(json_object_get(error, "param")), "stop");
        CHECK_INT(json_integer_value(json_object_get(error, "code")), rows[i].status);
        json_decref(v);
        v = api_error_json(&e, 1), error = json_object_get(v, "error");
        CHECK_STR(json_string_value(json_object_get(v, "type")), "error");
        CHECK_STR(json_string_value(json_object_get(error, "type")), rows[i].anthropic);
        json_decref(v);
    }
    static const struct {
        sl_err code;
        int status;
    } codes[] = {{SL_ERR_ARG, 400},    {SL_ERR_UNSUPPORTED, 400}, {SL_ERR_FORMAT, 400},    {SL_ERR_CONTEXT, 400},
                 {SL_ERR_MEMORY, 503}, {SL_ERR_DEVICE, 500},      {SL_ERR_NOT_FINITE, 500}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        sl_error why;
        sl_fail(&why, codes[i].code, "%s", "9 tokens and 8");
        CHECK_INT(api_fail_of(&e, &why), codes[i].code);
        CHECK_INT(e.status, codes[i].status);
        json_t *v = api_error_json(&e, 0), *code = json_object_get(json_object_get(v, "error"), "code");
        CHECK(json_is_null(json_object_get(json_object_get(v, "error"), "param")));
        if (codes[i].code == SL_ERR_CONTEXT) CHECK_STR(json_string_value(code), "context_length_exceeded");
        json_decref(v);
    }
    char name[400]; // a name that is cut within a character
    for (size_t shift = 0; shift < 2; shift++) {
        strcpy(name, shift ? "a" : "");
        while (strlen(name) < 300) strcat(name, "é");
        api_fail(&e, 400, name, "x");
        json_t *v = api_error_json(&e, 0);
        CHECK(v != NULL);
        json_decref(v);
    }
}

static void paths(void) {
    for (int e = 0; e < API_N_ENDPOINTS; e++) CHECK_INT(api_endpoint_find(api_path((api_endpoint)e)), e);
    CHECK_INT(api_endpoint_find("/v1/embeddings"), -1);
}

// ---- the page ----

static char page[1 << 17];

static void on_page(api_endpoint e, const char *outer, const api_field *f) {
    char word[160];
    snprintf(word, sizeof word, "`%s%s%s`", outer ? outer : "", outer ? "." : "", f->name);
    if (!strstr(page, word)) FAIL("docs/api.md lacks %s of %s", word, api_path(e));
}

static void documented(void) {
    FILE *f = fopen("docs/api.md", "rb");
    if (!f) TEST_SKIP("needs docs/api.md");
    size_t n = fread(page, 1, sizeof page - 1, f);
    page[n] = 0;
    CHECK(n < sizeof page - 1 && !fclose(f));
    each_field(on_page);
    for (int e = 0; e < API_N_ENDPOINTS; e++) CHECK(strstr(page, api_path((api_endpoint)e)));
}

static const test_case cases[] = {
    {"clients", 0, clients},
    {"nulls", 0, nulls},
    {"wrong-types", 0, wrong_types},
    {"bounds", 0, bounds},
    {"unknown", 0, unknown},
    {"refusals", 0, refusals},
    {"billing", 0, billing},
    {"errors", 0, errors},
    {"paths", 0, paths},
    {"documented", 0, documented},
    {0},
};
extern const test_suite suite_api_requests;
const test_suite suite_api_requests = {"api_requests", cases};
