// server/api/requests.c - the tables of fields, and the checks of a whole request; see requests.h.
#include "server/api/requests.h"
#include "server/api/api_input.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER(NAME, KIND, M, MIN, MAX)                                                                                        \
    { .name = NAME, .kind = KIND, .at = offsetof(api_request, M), .min = MIN, .max = MAX }
#define BOOL(NAME, M) MEMBER(NAME, API_BOOL, M, 0, 0)
#define STRING(NAME, M) MEMBER(NAME, API_STRING, M, 0, 0)
#define LIST(NAME, M) MEMBER(NAME, API_LIST, M, 0, 0)
#define INT(NAME, M, MIN, MAX) MEMBER(NAME, API_INT, M, MIN, MAX)
#define FLOAT(NAME, M, MIN, MAX) MEMBER(NAME, API_FLOAT, M, MIN, MAX)
#define READ(NAME, FN)                                                                                                         \
    { .name = NAME, .kind = API_READ, .read = FN }
#define TABLE(NAME, FIELDS)                                                                                                    \
    { .name = NAME, .kind = API_TABLE, .table = FIELDS }
#define IGNORED(NAME)                                                                                                          \
    { .name = NAME, .kind = API_IGNORED }
#define NEUTRAL(NAME, VALUE)                                                                                                   \
    { .name = NAME, .kind = API_NEUTRAL, .min = VALUE }
#define REFUSED(NAME, HINT)                                                                                                    \
    { .name = NAME, .kind = API_REFUSED, .hint = HINT }

enum { MOST_ANSWERS = 128, MOST_CHOICES = 4096, DEFAULT_COMPLETION = 16 };

// ---- tables ----

static const api_field common_fields[] = {
    // of every endpoint that generates
    STRING("model", model),
    BOOL("stream", stream),
    READ("attn", api_read_attn),
    READ("attn_prefill", api_read_attn_prefill),
    STRING("draft", draft),
    BOOL("ignore_eos", ignore_eos),
    INT("priority", priority, INT_MIN, INT_MAX),
    STRING("cache_salt", cache_salt),
    STRING("request_id", request_id),
    STRING("session_id", session_id),
    STRING("conversation_id", conversation_id),
    READ("seed", api_read_seed),
    FLOAT("top_p", sampling.top_p, 0, 1),
    INT("top_k", sampling.top_k, -1, INT_MAX),
    FLOAT("min_p", sampling.min_p, 0, 1),
    READ("structured_outputs", api_read_structured_outputs),
    READ("chat_template_kwargs", api_read_template_options),
    IGNORED("metadata"),
    IGNORED("service_tier"),
    {0},
};

static const api_field stream_options[] = {
    BOOL("include_usage", include_usage),
    BOOL("continuous_usage_stats", continuous_usage),
    IGNORED("include_obfuscation"),
    {0},
};

static const api_field openai_fields[] = {
    // of /v1/chat/completions and /v1/completions
    FLOAT("temperature", sampling.temp, 0, 2),
    INT("max_tokens", max_tokens, -1, INT_MAX),
    INT("n_predict", max_tokens, -1, INT_MAX),
    READ("stop", api_read_stop),
    INT("n", n, 1, MOST_ANSWERS),
    READ("logit_bias", api_read_logit_bias),
    FLOAT("presence_penalty", sampling.presence_penalty, -2, 2),
    FLOAT("frequency_penalty", sampling.frequency_penalty, -2, 2),
    FLOAT("repetition_penalty", sampling.repeat_penalty, 0.01, 10),
    FLOAT("repeat_penalty", sampling.repeat_penalty, 0.01, 10),
    INT("repeat_last_n", sampling.repeat_last_n, -1, INT_MAX),
    TABLE("stream_options", stream_options),
    READ("response_format", api_read_response_format),
    READ("json_schema", api_read_schema),
    READ("grammar", api_read_grammar),
    INT("id_slot", id_slot, -1, INT_MAX),
    IGNORED("user"),
    IGNORED("store"),
    IGNORED("safety_identifier"),
    IGNORED("prompt_cache_key"),
    IGNORED("prompt_cache_options"),
    IGNORED("prompt_cache_retention"),
    IGNORED("cache_prompt"),
    IGNORED("timings_per_token"),
    IGNORED("return_progress"),
    NEUTRAL("best_of", 1),
    NEUTRAL("use_beam_search", 0),
    NEUTRAL("length_penalty", 1),
    NEUTRAL("min_tokens", 0),
    NEUTRAL("skip_special_tokens", 1),
    NEUTRAL("spaces_between_special_tokens", 1),
    NEUTRAL("include_stop_str_in_output", 0),
    NEUTRAL("typical_p", 1),
    NEUTRAL("mirostat", 0),
    NEUTRAL("dry_multiplier", 0),
    NEUTRAL("xtc_probability", 0),
    NEUTRAL("dynatemp_range", 0),
    REFUSED("suffix", "this server does not fill gaps; expected no suffix"),
    {0},
};

static const api_field template_fields[] = {
    // of what a chat template makes of messages
    READ("messages", api_read_messages),
    READ("tools", api_read_tools),
    LIST("documents", documents),
    BOOL("add_generation_prompt", add_generation_prompt),
    BOOL("continue_final_message", continue_final),
    {0},
};

static const api_field chat_fields[] = {
    INT("max_completion_tokens", max_tokens, -1, INT_MAX),
    BOOL("logprobs", logprobs),
    INT("top_logprobs", top_logprobs, 0, SL_MAX_LOGPROBS),
    READ("tool_choice", api_read_tool_choice),
    BOOL("parallel_tool_calls", parallel_tool_calls),
    BOOL("include_reasoning", include_reasoning),
    READ("reasoning_format", api_read_reasoning_format),
    IGNORED("reasoning_effort"),
    IGNORED("verbosity"),
    IGNORED("prediction"),
    READ("modalities", api_read_modalities),
    NEUTRAL("echo", 0),
    NEUTRAL("add_special_tokens", 0),
    REFUSED("audio", "this server writes text only"),
    REFUSED("functions", "expected tools"),
    REFUSED("function_call", "expected tool_choice"),
    {0},
};

static const api_field completion_fields[] = {
    READ("prompt", api_read_prompt),
    BOOL("echo", echo),
    INT("logprobs", n_logprobs, 0, SL_MAX_LOGPROBS),
    BOOL("add_special_tokens", add_special),
    {0},
};

static const api_field reasoning_fields[] = {
    READ("effort", api_read_effort),
    IGNORED("summary"),
    IGNORED("generate_summary"),
    {0},
};

static const api_field text_fields[] = {
    READ("format", api_read_response_format),
    IGNORED("verbosity"),
    {0},
};

static const api_field responses_fields[] = {
    READ("input", api_read_input),
    READ("instructions", api_read_instructions),
    READ("tools", api_read_responses_tools),
    READ("tool_choice", api_read_tool_choice),
    BOOL("parallel_tool_calls", parallel_tool_calls),
    INT("max_output_tokens", max_tokens, 1, INT_MAX),
    FLOAT("temperature", sampling.temp, 0, 2),
    TABLE("reasoning", reasoning_fields),
    TABLE("text", text_fields),
    TABLE("stream_options", stream_options),
    READ("truncation", api_read_truncation),
    IGNORED("client_metadata"),
    IGNORED("include"),
    IGNORED("max_tool_calls"),
    IGNORED("prompt_cache_key"),
    IGNORED("prompt_cache_options"),
    IGNORED("prompt_cache_retention"),
    IGNORED("safety_identifier"),
    IGNORED("store"),
    IGNORED("user"),
    NEUTRAL("top_logprobs", 0),
    NEUTRAL("background", 0),
    REFUSED("previous_response_id", "this server keeps no responses; send the whole conversation as input"),
    REFUSED("conversation", "this server keeps no conversations; send the whole conversation as input"),
    REFUSED("prompt", "this server keeps no prompts; send instructions and input"),
    {0},
};

static const api_field output_config[] = {
    READ("format", api_read_response_format),
    IGNORED("effort"),
    {0},
};

static const api_field anthropic_fields[] = {
    READ("messages", api_read_anthropic_messages),
    READ("system", api_read_system),
    READ("tools", api_read_anthropic_tools),
    READ("tool_choice", api_read_anthropic_choice),
    INT("max_tokens", max_tokens, 1, INT_MAX),
    READ("stop_sequences", api_read_stop),
    FLOAT("temperature", sampling.temp, 0, 2),
    READ("thinking", api_read_thinking),
    READ("output_format", api_read_response_format),
    TABLE("output_config", output_config),
    IGNORED("context_management"),
    IGNORED("cache_control"),
    IGNORED("container"),
    IGNORED("mcp_servers"),
    IGNORED("betas"),
    IGNORED("speed"),
    IGNORED("diagnostics"),
    IGNORED("inference_geo"),
    IGNORED("user_profile_id"),
    IGNORED("workspace_id"),
    {0},
};

static const api_field tokenize_fields[] = {
    STRING("model", model),
    READ("prompt", api_read_text_prompt),
    READ("content", api_read_text_prompt),
    BOOL("add_special_tokens", add_special),
    BOOL("add_special", add_special),
    BOOL("parse_special", parse_special),
    BOOL("with_pieces", with_pieces),
    BOOL("return_token_strs", with_strings),
    READ("chat_template_kwargs", api_read_template_options),
    {0},
};

static const api_field detokenize_fields[] = {
    STRING("model", model),
    READ("tokens", api_read_tokens),
    {0},
};

static const api_field *const chat_tables[] = {common_fields, openai_fields, template_fields, chat_fields, NULL};
static const api_field *const completion_tables[] = {common_fields, openai_fields, completion_fields, NULL};
static const api_field *const responses_tables[] = {common_fields, responses_fields, NULL};
static const api_field *const anthropic_tables[] = {common_fields, anthropic_fields, NULL};
static const api_field *const tokenize_tables[] = {tokenize_fields, template_fields, NULL};
static const api_field *const detokenize_tables[] = {detokenize_fields, NULL};

static const struct {
    const char *path;
    const api_field *const *tables;
} endpoints[API_N_ENDPOINTS] = {
    [API_CHAT] = {"/v1/chat/completions", chat_tables},
    [API_COMPLETIONS] = {"/v1/completions", completion_tables},
    [API_RESPONSES] = {"/v1/responses", responses_tables},
    [API_MESSAGES] = {"/v1/messages", anthropic_tables},
    [API_COUNT_TOKENS] = {"/v1/messages/count_tokens", anthropic_tables},
    [API_TOKENIZE] = {"/tokenize", tokenize_tables},
    [API_DETOKENIZE] = {"/detokenize", detokenize_tables},
    [API_APPLY_TEMPLATE] = {"/apply-template", chat_tables},
};

const char *api_path(api_endpoint e) {
    return endpoints[e].path;
}

int api_endpoint_find(const char *path) {
    for (int e = 0; e < API_N_ENDPOINTS; e++)
        if (!strcmp(endpoints[e].path, path)) return e;
    return -1;
}

const api_field *const *api_tables(api_endpoint e) {
    return endpoints[e].tables;
}

// ---- the whole request ----

static api_request unset(api_endpoint e) {
    const sl_sampling sampling = {.temp = NAN,
                                  .top_k = SL_UNSET,
                                  .top_p = NAN,
                                  .min_p = NAN,
                                  .repeat_penalty = NAN,
                                  .repeat_last_n = SL_UNSET,
                                  .presence_penalty = NAN,
                                  .frequency_penalty = NAN};
    return (api_request){.endpoint = e,
                         .sampling = sampling,
                         .max_tokens = SL_UNSET,
                         .n = 1,
                         .n_logprobs = -1,
                         .id_slot = -1,
                         .add_generation_prompt = 1,
                         .add_special = 1,
                         .parse_special = 1,
                         .parallel_tool_calls = 1,
                         .include_reasoning = 1};
}

static int missing(const char *name, api_error *err) {
    return api_fail(err, 400, name, "%s is missing", name);
}

static int check_messages(const api_request *r, const char *name, api_error *err) {
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!json_array_size(r->messages)) return r->messages ? api_fail(err, 400, name, "%s is empty", name) : missing(name, err);
    if (r->continue_final && (!role || strcmp(role, "assistant")))
        return api_fail(err, 400, "continue_final_message",
                        "continue_final_message: expected an assistant's message at the end, found the role %s", role);
    return 0;
}

static int check_tools(const api_request *r, api_error *err) {
    static const char name[] = "tool_choice";
    if (r->tool_choice == API_TOOLS_AUTO || r->tool_choice == API_TOOLS_NONE) return 0;
    if (!r->tools) return api_fail(err, 400, name, "%s: expected tools, because it asks for a call", name);
    if (r->format.kind != API_FORMAT_FREE)
        return api_fail(err, 400, name, "%s asks for a call, and %s for another format; expected one of them", name,
                        r->format.field);
    for (size_t i = 0; r->tool_name && i < json_array_size(r->tools); i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        if (!strcmp(json_string_value(json_object_get(function, "name")), r->tool_name)) return 0;
    }
    return r->tool_name ? api_fail(err, 400, name, "%s: found the name %.60s, which is in no tool", name, r->tool_name) : 0;
}

static int check_logprobs(api_request *r, api_error *err) {
    if (r->logprobs) r->n_logprobs = r->top_logprobs;
    if (r->logprobs || !r->top_logprobs) return 0;
    return api_fail(err, 400, "top_logprobs", "top_logprobs is %d: expected logprobs true with it", r->top_logprobs);
}

static int check_max_tokens(api_request *r, api_error *err) {
    int is_echo = r->endpoint == API_COMPLETIONS && r->echo;
    if (r->max_tokens == SL_UNSET) r->max_tokens = r->endpoint == API_COMPLETIONS ? DEFAULT_COMPLETION : -1;
    if (r->max_tokens != 0 || is_echo) return 0;
    return api_fail(err, 400, "max_tokens", "max_tokens is 0, expected at least 1, or -1 for no limit%s",
                    r->endpoint == API_COMPLETIONS ? "; 0 needs echo" : "");
}

// llama.cpp's names come with llama.cpp's default.
static int check_tokenize(api_request *r, api_error *err) {
    const json_t *body = r->body;
    int is_llama = sl_json_get(body, "content") != NULL;
    if ((r->prompts != NULL) + (r->messages != NULL) != 1)
        return api_fail(err, 400, "prompt", "expected one of prompt, content and messages");
    if (is_llama && !sl_json_get(body, "add_special") && !sl_json_get(body, "add_special_tokens")) r->add_special = 0;
    return r->messages ? check_messages(r, "messages", err) : 0;
}

static int check(api_request *r, api_error *err) {
    int rc = 0;
    switch (r->endpoint) {
    case API_CHAT:
    case API_APPLY_TEMPLATE:
        rc = check_messages(r, "messages", err);
        if (!rc) rc = check_logprobs(r, err);
        break;
    case API_COMPLETIONS:
        rc = r->prompts ? 0 : missing("prompt", err);
        if (!rc && r->n_prompts > MOST_CHOICES / r->n)
            rc = api_fail(err, 400, "n", "n %d with %d prompts: expected at most %d answers", r->n, r->n_prompts, MOST_CHOICES);
        break;
    case API_RESPONSES:
        rc = sl_json_get(r->body, "input") ? check_messages(r, "input", err) : missing("input", err);
        break;
    case API_MESSAGES:
    case API_COUNT_TOKENS:
        rc = sl_json_get(r->body, "messages") ? check_messages(r, "messages", err) : missing("messages", err);
        if (!rc && r->endpoint == API_MESSAGES && r->max_tokens == SL_UNSET) rc = missing("max_tokens", err);
        break;
    case API_TOKENIZE:
        return check_tokenize(r, err);
    case API_DETOKENIZE:
        return r->prompts ? 0 : missing("tokens", err);
    case API_N_ENDPOINTS:
        break;
    }
    if (!rc) rc = check_tools(r, err);
    sl_sampling *s = &r->sampling;
    if (s->top_k == -1) s->top_k = 0; // vLLM's value for off
    // vLLM's penalty sees the whole context.
    if (s->repeat_last_n == SL_UNSET && sl_json_get(r->body, "repetition_penalty")) s->repeat_last_n = -1;
    return rc ? rc : check_max_tokens(r, err);
}

int api_request_read(api_endpoint e, const char *body, size_t n, api_request *out, api_error *err) {
    json_error_t why;
    *out = unset(e);
    out->body = json_loadb(body, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    int rc = 0;
    if (!out->body)
        rc = api_fail(err, 400, NULL, "the body is no JSON: line %d, column %d: %s", why.line, why.column, why.text);
    else if (!json_is_object(out->body))
        rc = api_fail(err, 400, NULL, "the body is %s, expected a JSON object", sl_json_type(out->body));
    if (!rc) rc = api_fields_read(endpoints[e].tables, out->body, "", out, err);
    if (!rc) rc = check(out, err);
    if (rc) api_request_free(out);
    return rc;
}

void api_request_free(api_request *r) {
    for (int i = 0; i < r->n_prompts; i++) free(r->prompts[i].ids);
    free(r->prompts);
    free((sl_logit_bias *)r->sampling.bias);
    free(r->stop);
    free(r->attn);
    free(r->attn_prefill);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->options);
    json_decref(r->body);
    *r = (api_request){0};
}
