// server/api/api_input.h - what the readers of requests share: messages, tools and values (requests.h).
#ifndef SLEIGH_API_INPUT_H
#define SLEIGH_API_INPUT_H

#include "server/api/requests.h"
#include "base/arrays.h"

// ---- fields with a form of their own (api_values.c): out is an api_request ----

int api_read_stop(void *out, const json_t *v, const char *name, api_error *err);
int api_read_seed(void *out, const json_t *v, const char *name, api_error *err);
int api_read_logit_bias(void *out, const json_t *v, const char *name, api_error *err);
int api_read_attn(void *out, const json_t *v, const char *name, api_error *err);
int api_read_attn_prefill(void *out, const json_t *v, const char *name, api_error *err);
int api_read_response_format(void *out, const json_t *v, const char *name, api_error *err);
int api_read_structured_outputs(void *out, const json_t *v, const char *name, api_error *err);
int api_read_schema(void *out, const json_t *v, const char *name, api_error *err);
int api_read_grammar(void *out, const json_t *v, const char *name, api_error *err);
int api_read_template_options(void *out, const json_t *v, const char *name, api_error *err);
int api_read_reasoning_format(void *out, const json_t *v, const char *name, api_error *err);
int api_read_effort(void *out, const json_t *v, const char *name, api_error *err);   // of /v1/responses
int api_read_thinking(void *out, const json_t *v, const char *name, api_error *err); // of /v1/messages
int api_read_modalities(void *out, const json_t *v, const char *name, api_error *err);
int api_read_truncation(void *out, const json_t *v, const char *name, api_error *err);
int api_read_prompt(void *out, const json_t *v, const char *name, api_error *err);      // a string, ids, or a list of them
int api_read_text_prompt(void *out, const json_t *v, const char *name, api_error *err); // a string
int api_read_tokens(void *out, const json_t *v, const char *name, api_error *err);

// ---- conversations ----

int api_read_messages(void *out, const json_t *v, const char *name, api_error *err); // OpenAI's (api_messages.c)
int api_read_tools(void *out, const json_t *v, const char *name, api_error *err);
int api_read_tool_choice(void *out, const json_t *v, const char *name, api_error *err);
int api_read_input(void *out, const json_t *v, const char *name, api_error *err); // api_responses_input.c
int api_read_instructions(void *out, const json_t *v, const char *name, api_error *err);
int api_read_responses_tools(void *out, const json_t *v, const char *name, api_error *err);
int api_read_anthropic_messages(void *out, const json_t *v, const char *name, api_error *err); // api_anthropic_input.c
int api_read_system(void *out, const json_t *v, const char *name, api_error *err);
int api_read_anthropic_tools(void *out, const json_t *v, const char *name, api_error *err);
int api_read_anthropic_choice(void *out, const json_t *v, const char *name, api_error *err);

// The name of a part of a list or object: "messages[3].content".
enum { API_NAME = 160 };
const char *api_item_name(char buf[API_NAME], const char *name, size_t i, const char *field);
// Calls read(out, item, "name[i]", err) for each item of the list v, until one call fails. Status 400: v is no list.
int api_read_items(void *out, const json_t *v, const char *name, api_read_fn read, api_error *err);
// r->messages, which is made if it is NULL. NULL: out of memory.
json_t *api_messages(api_request *r);

// Appends the text of a content to *out: a string, or a list of parts {type, text}, joined by newlines. types: the types of
// parts that hold text, ended by NULL. Images, audio and files are an error that says so.
int api_join_text(const json_t *content, const char *const *types, const char *name, sl_text *out, api_error *err);
json_t *api_text_json(const sl_text *text); // a new reference; NULL: out of memory

// Appends {role, content}, and reads the content. content NULL: "".
int api_add_message(json_t *list, const char *role, const json_t *content, const char *const *types, const char *name,
                    api_error *err);
// Appends a call to message.tool_calls. arguments: the text of a JSON object, or the object.
int api_add_call(json_t *message, const char *id, const char *function, const json_t *arguments, api_error *err);
// The name of the function of the call `id` in earlier messages; NULL: there is none.
const char *api_called_function(const json_t *messages, const char *id);
// Appends the result of a tool, and names its function where an earlier message has the call.
int api_add_result(json_t *list, const char *id, const json_t *content, const char *const *types, const char *name,
                   api_error *err);
// Appends a function to r->tools. Borrowed values may be NULL.
int api_add_tool(api_request *r, const json_t *function, const json_t *description, const json_t *parameters,
                 const json_t *strict, const char *name, api_error *err);
// Sets r->options[key].
int api_set_option(api_request *r, const char *key, json_t *value, api_error *err);
// Gives a format, unless another field has given one.
int api_set_format(api_request *r, api_format_kind kind, const json_t *value, const char *field, api_error *err);

#endif
