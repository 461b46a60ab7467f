// tokenizer/chat.c - the chat templates in C. A template is recognised if the reduced form of the model's Jinja text (jinja.h)
// is exactly a form of this file. All other texts are refused, even similar ones, because a wrong prompt is worse than no
// prompt.
#include "tokenizer/chat.h"
#include "engine/base/json.h"
#include "tokenizer/jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST_TEMPLATE = 65535 }; // bytes; no template is that long

typedef enum { FAMILY_LLAMA2, FAMILY_LLAMA3, FAMILY_MISTRAL, FAMILY_CHATML, FAMILY_QWEN3 } family;

struct sl_chat_template {
    const char *name;
    family family;
    const char *forms[2]; // the reduced Jinja text is one of these; none: the user names the template
    // Llama 3: the system block holds a date; today: the date of the clock
    int dated, today;
    // Mistral: the text before and after a user's turn, and before an assistant's turn
    const char *inst, *end_inst, *reply;
    enum { SYSTEM_REFUSED, SYSTEM_FIRST, SYSTEM_LAST, SYSTEM_OWN } system;
    int trim_reply;
    const char *default_system; // ChatML
    const char *thoughts;       // Qwen3: the text that the assistant's reply begins with
};

// The common beginning of Mistral v3's two templates. They differ in a blank after [INST].
#define MISTRAL_V3_BEGIN                                                                                                       \
    "{%if messages[0].role=='system'%}{%set system_message=messages[0].content%}"                                              \
    "{%set loop_messages=messages[1:]%}{%else%}{%set loop_messages=messages%}{%endif%}"                                        \
    "{%set tools=none%}"                                                                                                       \
    "{%set user_messages=loop_messages|selectattr('role','equalto','user')|list%}"                                             \
    "{%set ns=namespace()%}{%set ns.index=0%}{%for message in loop_messages%}"                                                 \
    "{%if (message.role=='user')!=(ns.index%2==0)%}"                                                                           \
    "{{raise_exception('After the optional system message, conversation roles must alternate "                                 \
    "user/assistant/user/assistant/...')}}"                                                                                    \
    "{%endif%}{%set ns.index=ns.index+1%}{%endfor%}{{bos_token}}{%for message in loop_messages%}"                              \
    "{%if message.role=='user'%}{%if loop.last and system_message is defined%}"

// The parts of Qwen3's templates. The first release and the later ones differ in the test for texts and in the name of a
// message's content.
#define QWEN3_BEGIN                                                                                                            \
    "{%if messages[0].role=='system'%}{{'<|im_start|>system\\n'+messages[0].content+'<|im_end|>\\n'}}{%endif%}"                \
    "{%set ns=namespace(multi_step_tool=true,last_query_index=messages|length-1)%}{%for message in messages[::-1]%}"           \
    "{%set index=(messages|length-1)-loop.index0%}{%if ns.multi_step_tool and message.role=='user' and "
#define QWEN3_LAST_QUERY                                                                                                       \
    "not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>'))%}"                    \
    "{%set ns.multi_step_tool=false%}{%set ns.last_query_index=index%}{%endif%}{%endfor%}{%for message in messages%}"
#define QWEN3_TURN(content)                                                                                                    \
    "{%if (message.role=='user') or(message.role=='system' and not loop.first)%}{{'<|im_start|>'+message.role+'\\n'+" content  \
    "+'<|im_end|>'+'\\n'}}{%elif message.role=='assistant'%}"
#define QWEN3_THOUGHTS(content)                                                                                                \
    "{%set reasoning_content=" content ".split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')%}"
#define QWEN3_ANSWER(content) "{%set content=" content ".split('</think>')[-1].lstrip('\\n')%}"
#define QWEN3_REPLY                                                                                                            \
    "{%endif%}{%if loop.index0>ns.last_query_index%}{%if loop.last or(not loop.last and reasoning_content)%}"                  \
    "{{'<|im_start|>'+message.role+'\\n<think>\\n'+reasoning_content.strip('\\n')+'\\n</think>\\n\\n'+content.lstrip('\\n')}}" \
    "{%else%}{{'<|im_start|>'+message.role+'\\n'+content}}{%endif%}{%else%}{{'<|im_start|>'+message.role+'\\n'+content}}"      \
    "{%endif%}{{'<|im_end|>\\n'}}{%endif%}{%endfor%}"
#define QWEN3                                                                                                                  \
    QWEN3_BEGIN "message.content is string and " QWEN3_LAST_QUERY "{%set content=message.content%}" QWEN3_TURN(                \
        "content") "{%set reasoning_content=''%}{%if '</think>' in content%}" QWEN3_THOUGHTS("content")                        \
        QWEN3_ANSWER("content") QWEN3_REPLY
#define QWEN3_FIRST                                                                                                            \
    QWEN3_BEGIN QWEN3_LAST_QUERY QWEN3_TURN(                                                                                   \
        "message.content") "{%set content=message.content%}{%set reasoning_content=''%}{%if '</think>' in "                    \
                           "message.content%}" QWEN3_ANSWER("message.content") QWEN3_THOUGHTS("message.content") QWEN3_REPLY

static const sl_chat_template templates[] = {
    {
        .name = "llama2",
        .forms = {"{%if messages[0].role=='system'%}{%set loop_messages=messages[1:]%}"
                  "{%set system_message=messages[0].content%}{%else%}{%set loop_messages=messages%}"
                  "{%set system_message=false%}{%endif%}{%for message in loop_messages%}"
                  "{%if (message.role=='user')!=(loop.index0%2==0)%}"
                  "{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}"
                  "{%endif%}{%if loop.index0==0 and system_message!=false%}"
                  "{%set content='<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message.content%}{%else%}"
                  "{%set content=message.content%}{%endif%}{%if message.role=='user'%}"
                  "{{bos_token+'[INST] '+content.strip()+' [/INST]'}}{%elif message.role=='assistant'%}"
                  "{{' '+content.strip()+' '+eos_token}}{%endif%}{%endfor%}"},
        .family = FAMILY_LLAMA2,
    },
    {
        .name = "llama3.2",
        .forms = {"{{bos_token}}{%if not tools_in_user_message is defined%}{%set tools_in_user_message=true%}"
                  "{%endif%}{%if not date_string is defined%}{%set date_string=strftime_now('%d %b %Y')%}"
                  "{%endif%}{%set tools=none%}{%if messages[0].role=='system'%}"
                  "{%set system_message=messages[0].content|trim%}{%set messages=messages[1:]%}{%else%}"
                  "{%set system_message=''%}{%endif%}"
                  "{{'<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n'}}"
                  "{{'Today Date: '+date_string+'\\n\\n'}}{{system_message}}{{'<|eot_id|>'}}"
                  "{%for message in messages%}"
                  "{{'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'}}"
                  "{%endfor%}{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}"},
        .family = FAMILY_LLAMA3,
        .dated = 1,
        .today = 1,
    },
    {
        .name = "llama3.1",
        .forms = {"{{bos_token}}{%if not tools_in_user_message is defined%}{%set tools_in_user_message=true%}"
                  "{%endif%}{%if not date_string is defined%}{%set date_string='26 Jul 2024'%}{%endif%}"
                  "{%set tools=none%}{%if messages[0].role=='system'%}"
                  "{%set system_message=messages[0].content|trim%}{%set messages=messages[1:]%}{%else%}"
                  "{%set system_message=''%}{%endif%}"
                  "{{'<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n'}}"
                  "{{'Today Date: '+date_string+'\\n\\n'}}{{system_message}}{{'<|eot_id|>'}}"
                  "{%for message in messages%}"
                  "{{'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'}}"
                  "{%endfor%}{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}"},
        .family = FAMILY_LLAMA3,
        .dated = 1,
    },
    {
        .name = "llama3",
        .forms =
            {"{%set loop_messages=messages%}{%for message in loop_messages%}"
             "{%set content='<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'%}"
             "{%if loop.index0==0%}{%set content=bos_token+content%}{%endif%}{{content}}{%endfor%}"
             "{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}",
             "{{bos_token}}{%for message in messages%}"
             "{{'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'}}"
             "{%endfor%}{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}"},
        .family = FAMILY_LLAMA3,
    },
    {.name = "mistral-v7",
     .forms = {"{{bos_token}}{%for message in messages%}{%if message.role=='user'%}"
               "{{'[INST] '+message.content+'[/INST]'}}{%elif message.role=='system'%}"
               "{{'[SYSTEM_PROMPT] '+message.content+'[/SYSTEM_PROMPT]'}}{%elif message.role=='assistant'%}"
               "{{' '+message.content+eos_token}}{%else%}"
               "{{raise_exception('Only user, system and assistant roles are supported!')}}{%endif%}"
               "{%endfor%}"},
     .family = FAMILY_MISTRAL,
     .inst = "[INST] ",
     .end_inst = "[/INST]",
     .reply = " ",
     .system = SYSTEM_OWN},
    {.name = "mistral-v3",
     .forms = {MISTRAL_V3_BEGIN
               "{{'[INST] '+system_message+'\\n\\n'+message.content+'[/INST]'}}{%else%}"
               "{{'[INST] '+message.content+'[/INST]'}}{%endif%}{%elif message.role=='assistant'%}"
               "{{' '+message.content|trim+eos_token}}{%else%}"
               "{{raise_exception('Only user and assistant roles are supported, with the exception of an initial optional "
               "system message!')}}"
               "{%endif%}{%endfor%}"},
     .family = FAMILY_MISTRAL,
     .inst = "[INST] ",
     .end_inst = "[/INST]",
     .reply = " ",
     .system = SYSTEM_LAST,
     .trim_reply = 1},
    {.name = "mistral-v3-tekken",
     .forms = {MISTRAL_V3_BEGIN
               "{{'[INST]'+system_message+'\\n\\n'+message.content+'[/INST]'}}{%else%}"
               "{{'[INST]'+message.content+'[/INST]'}}{%endif%}{%elif message.role=='assistant'%}"
               "{{message.content+eos_token}}{%else%}"
               "{{raise_exception('Only user and assistant roles are supported, with the exception of an initial optional "
               "system message!')}}"
               "{%endif%}{%endfor%}"},
     .family = FAMILY_MISTRAL,
     .inst = "[INST]",
     .end_inst = "[/INST]",
     .reply = "",
     .system = SYSTEM_LAST},
    {.name = "mistral-v1",
     .forms = {"{%if messages[0].role=='system'%}{%set system_message=messages[0].content%}"
               "{%set loop_messages=messages[1:]%}{%else%}{%set loop_messages=messages%}{%endif%}"
               "{{bos_token}}{%for message in loop_messages%}"
               "{%if (message.role=='user')!=(loop.index0%2==0)%}"
               "{{raise_exception('After the optional system message, conversation roles must alternate "
               "user/assistant/user/assistant/...')}}"
               "{%endif%}{%if message.role=='user'%}{%if loop.first and system_message is defined%}"
               "{{' [INST] '+system_message+'\\n\\n'+message.content+' [/INST]'}}{%else%}"
               "{{' [INST] '+message.content+' [/INST]'}}{%endif%}{%elif message.role=='assistant'%}"
               "{{' '+message.content+eos_token}}{%else%}"
               "{{raise_exception('Only user and assistant roles are supported, with the exception of an initial optional "
               "system message!')}}"
               "{%endif%}{%endfor%}"},
     .family = FAMILY_MISTRAL,
     .inst = " [INST] ",
     .end_inst = " [/INST]",
     .reply = " ",
     .system = SYSTEM_FIRST},
    {.name = "mistral-v0",
     .forms = {"{{bos_token}}{%for message in messages%}{%if (message.role=='user')!=(loop.index0%2==0)%}"
               "{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}"
               "{%endif%}{%if message.role=='user'%}{{'[INST] '+message.content+' [/INST]'}}"
               "{%elif message.role=='assistant'%}{{message.content+eos_token}}{%else%}"
               "{{raise_exception('Only user and assistant roles are supported!')}}{%endif%}{%endfor%}"},
     .family = FAMILY_MISTRAL,
     .inst = "[INST] ",
     .end_inst = " [/INST]",
     .reply = "",
     .system = SYSTEM_REFUSED},
    {.name = "qwen2.5",
     .forms = {"{%if messages[0].role=='system'%}"
               "{{'<|im_start|>system\\n'+messages[0].content+'<|im_end|>\\n'}}{%else%}"
               "{{'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n'}}"
               "{%endif%}{%for message in messages%}"
               "{%if (message.role=='user') or(message.role=='system' and not loop.first) or(message.role=='assistant' and not "
               "message.tool_calls)%}"
               "{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'}}"
               "{%elif message.role=='assistant'%}{{'<|im_start|>'+message.role}}{%if message.content%}"
               "{{'\\n'+message.content}}{%endif%}{%for tool_call in message.tool_calls%}"
               "{%if tool_call.function is defined%}{%set tool_call=tool_call.function%}{%endif%}"
               "{{'\\n<tool_call>\\n{\"name\": \"'}}{{tool_call.name}}{{'\", \"arguments\": '}}"
               "{{tool_call.arguments|tojson}}{{'}\\n</tool_call>'}}{%endfor%}{{'<|im_end|>\\n'}}{%endif%}"
               "{%endfor%}{{'<|im_start|>assistant\\n'}}"},
     .family = FAMILY_CHATML,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3",
     .forms = {QWEN3 "{{'<|im_start|>assistant\\n'}}", QWEN3_FIRST "{{'<|im_start|>assistant\\n'}}"},
     .family = FAMILY_QWEN3,
     .thoughts = ""},
    {.name = "qwen3-no-think", // the same Jinja text with enable_thinking=False
     .family = FAMILY_QWEN3,
     .thoughts = "<think>\n\n</think>\n\n"},
    {.name = "qwen3-thinking", // of the models that always think
     .forms = {QWEN3 "{{'<|im_start|>assistant\\n<think>\\n'}}"},
     .family = FAMILY_QWEN3,
     .thoughts = "<think>\n"},
    {
        .name = "chatml",
        .forms = {"{%for message in messages%}"
                  "{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>'+'\\n'}}{%endfor%}"
                  "{{'<|im_start|>assistant\\n'}}",
                  "{%for message in messages%}"
                  "{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'}}{%endfor%}"
                  "{{'<|im_start|>assistant\\n'}}"},
        .family = FAMILY_CHATML,
    },
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const char *sl_chat_role(const char *name) {
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i], name)) return roles[i];
    return NULL;
}

const sl_chat_template *sl_chat_find(const char *name) {
    for (int i = 0; i < N_TEMPLATES; i++)
        if (!strcmp(templates[i].name, name)) return &templates[i];
    return NULL;
}

const char *sl_chat_name(const sl_chat_template *t) {
    return t->name;
}

const char *sl_chat_names(void) {
    return "llama2, llama3, llama3.1, llama3.2, mistral-v0, mistral-v1, mistral-v3, mistral-v3-tekken, mistral-v7, chatml, "
           "qwen2.5, qwen3, qwen3-no-think, qwen3-thinking";
}

// ---- recognition ----

static int matches(const sl_chat_template *t, const sl_text *form) {
    for (int i = 0; i < 2 && t->forms[i]; i++)
        if (!strcmp(t->forms[i], form->data)) return 1;
    return 0;
}

int sl_chat_detect(const char *jinja, const sl_chat_template **out, sl_error *err) {
    sl_text form = {0};
    *out = NULL;
    int rc = sl_jinja_reduce(jinja, &form, err);
    for (int i = 0; !rc && !*out && i < N_TEMPLATES; i++)
        if (matches(&templates[i], &form)) *out = &templates[i];
    sl_text_free(&form);
    if (rc == SL_ERR_MEMORY || *out) return rc;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "the model's chat template is not one that Sleigh knows; pass {template_name} with one of: %s",
                   sl_chat_names());
}

// The value of chat_template is a string, or a list of {name, template}; then the template "default" counts. NULL: not given.
static const json_t *template_of(const json_t *root) {
    const json_t *v = sl_json_get(root, "chat_template");
    if (!json_is_array(v)) return v;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *entry = json_array_get(v, i);
        const char *name = json_string_value(sl_json_get(entry, "name"));
        if (name && !strcmp(name, "default")) return sl_json_get(entry, "template");
    }
    return NULL;
}

static int detect(const sl_documents *d, const char *name, const char *text, size_t n, const sl_chat_template **out,
                  sl_error *err) {
    char path[SL_DOCUMENT_PATH];
    if (text && strlen(text) == n) return sl_chat_detect(text, out, err);
    sl_documents_path(d, name, path);
    return sl_fail(err, SL_ERR_FORMAT,
                   "%s: the chat template is not a string without NUL; pass {template_name} with one of: %s", path,
                   sl_chat_names());
}

int sl_chat_load(const sl_documents *d, const sl_chat_template **out, sl_error *err) {
    static const char *const files[] = {"chat_template.json", "tokenizer_config.json"}, own[] = "chat_template.jinja";
    if (sl_documents_have(d, own)) {
        sl_text text = {0};
        int rc = sl_documents_text(d, own, MOST_TEMPLATE, &text, err);
        if (!rc) rc = detect(d, own, text.data, text.n, out, err);
        sl_text_free(&text);
        return rc;
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        json_t *root;
        int rc = sl_documents_json(d, files[i], 1, &root, err);
        if (rc) return rc;
        const json_t *jinja = template_of(root);
        rc = jinja ? detect(d, files[i], json_string_value(jinja), json_string_length(jinja), out, err) : 0;
        json_decref(root);
        if (jinja) return rc;
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: the model has no chat template; pass {template_name} with one of: %s", d->path,
                   sl_chat_names());
}

// ---- rendering ----

typedef struct span {
    const char *s;
    size_t n;
} span;

static int is_white(unsigned c) { // Python's str.isspace, which Jinja's trim uses
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static unsigned char_at(const unsigned char *s, size_t n, size_t *len) { // white space has at most 3 bytes
    *len = 1;
    if (s[0] < 0x80) return s[0];
    if ((s[0] & 0xe0) == 0xc0 && n >= 2) return *len = 2, (s[0] & 31u) << 6 | (s[1] & 63u);
    if ((s[0] & 0xf0) == 0xe0 && n >= 3) return *len = 3, (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
    return 0xfffd;
}

static span trim(span x) {
    size_t len;
    while (x.n > 0 && is_white(char_at((const unsigned char *)x.s, x.n, &len))) x.s += len, x.n -= len;
    while (x.n > 0) {
        size_t back = 1;
        while (back < x.n && back < 3 && ((unsigned char)x.s[x.n - back] & 0xc0) == 0x80) back++;
        if (!is_white(char_at((const unsigned char *)x.s + x.n - back, back, &len)) || len != back) break;
        x.n -= back;
    }
    return x;
}

static span strip_newlines(span x, int start, int end) {
    for (; start && x.n > 0 && x.s[0] == '\n'; x.s++) x.n--;
    while (end && x.n > 0 && x.s[x.n - 1] == '\n') x.n--;
    return x;
}

static int begins_with(const sl_message *m, const char *s) {
    return m->n >= strlen(s) && !memcmp(m->content, s, strlen(s));
}
static int ends_with(const sl_message *m, const char *s) {
    return m->n >= strlen(s) && !memcmp(m->content + m->n - strlen(s), s, strlen(s));
}

static span content(const sl_message *m) {
    return (span){m->content, m->n};
}
static int is_role(const sl_message *m, const char *role) {
    return !strcmp(m->role, role);
}
static int put(sl_text *out, const char *s, sl_error *err) {
    return sl_text_append(out, s, strlen(s), err);
}
static int put_span(sl_text *out, span s, sl_error *err) {
    return sl_text_append(out, s.s, s.n, err);
}

static int put3(sl_text *out, const char *a, span b, const char *c, sl_error *err) {
    int rc = put(out, a, err);
    if (!rc) rc = put_span(out, b, err);
    return rc ? rc : put(out, c, err);
}

// After an optional system message the roles must be user, assistant, user, ...
static int check_turns(const sl_chat_template *t, const sl_message *m, int n, sl_error *err) {
    for (int i = 0; i < n; i++)
        if (!is_role(&m[i], i % 2 ? "assistant" : "user"))
            return sl_fail(err, SL_ERR_ARG, "chat template %s: message %d has role \"%s\", expected \"%s\"", t->name, i,
                           m[i].role, i % 2 ? "assistant" : "user");
    return 0;
}

static int render_llama3(const sl_chat_template *t, const sl_message *m, int n, const char *date, sl_text *out, sl_error *err) {
    static const char open[] = "<|start_header_id|>", close[] = "<|end_header_id|>\n\n";
    char now[32] = "26 Jul 2024";
    int rc = put(out, "<|begin_of_text|>", err), from = 0;
    if (t->dated) {
        time_t clock = time(NULL);
        struct tm tm;
        if (t->today && localtime_r(&clock, &tm)) strftime(now, sizeof now, "%d %b %Y", &tm);
        span system = {"", 0};
        if (n > 0 && is_role(&m[0], "system")) system = trim(content(&m[from++]));
        if (!rc)
            rc = put3(out, "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ",
                      (span){date ? date : now, strlen(date ? date : now)}, "\n\n", err);
        if (!rc) rc = put3(out, "", system, "<|eot_id|>", err);
    }
    for (int i = from; !rc && i < n; i++) {
        rc = put3(out, open, (span){m[i].role, strlen(m[i].role)}, close, err);
        if (!rc) rc = put3(out, "", trim(content(&m[i])), "<|eot_id|>", err);
    }
    return rc ? rc : put(out, "<|start_header_id|>assistant<|end_header_id|>\n\n", err);
}

static int render_llama2(const sl_chat_template *t, const sl_message *m, int n, sl_text *out, sl_error *err) {
    int has_system = n > 0 && is_role(&m[0], "system"), rc = check_turns(t, m + has_system, n - has_system, err);
    for (int i = has_system; !rc && i < n; i++) {
        sl_text whole = {0};
        if (is_role(&m[i], "assistant")) {
            rc = put3(out, " ", trim(content(&m[i])), " </s>", err);
            continue;
        }
        if (i == 1 && has_system) rc = put3(&whole, "<<SYS>>\n", content(&m[0]), "\n<</SYS>>\n\n", err);
        if (!rc) rc = put_span(&whole, content(&m[i]), err);
        if (!rc) rc = put3(out, "<s>[INST] ", trim((span){whole.data, whole.n}), " [/INST]", err);
        sl_text_free(&whole);
    }
    return rc;
}

static int render_mistral(const sl_chat_template *t, const sl_message *m, int n, sl_text *out, sl_error *err) {
    int has_system = n > 0 && is_role(&m[0], "system") && t->system != SYSTEM_OWN, rc = 0;
    if (has_system && t->system == SYSTEM_REFUSED)
        return sl_fail(err, SL_ERR_ARG, "chat template %s takes no system message", t->name);
    if (t->system != SYSTEM_OWN) rc = check_turns(t, m + has_system, n - has_system, err);
    if (!rc) rc = put(out, "<s>", err);
    for (int i = has_system; !rc && i < n; i++) {
        if (is_role(&m[i], "user")) {
            int carries = has_system && i == (t->system == SYSTEM_FIRST ? 1 : n - 1);
            rc = put(out, t->inst, err);
            if (!rc && carries) rc = put3(out, "", content(&m[0]), "\n\n", err);
            if (!rc) rc = put3(out, "", content(&m[i]), t->end_inst, err);
        } else if (is_role(&m[i], "assistant")) {
            rc = put3(out, t->reply, t->trim_reply ? trim(content(&m[i])) : content(&m[i]), "</s>", err);
        } else if (is_role(&m[i], "system")) {
            rc = put3(out, "[SYSTEM_PROMPT] ", content(&m[i]), "[/SYSTEM_PROMPT]", err);
        } else {
            rc = sl_fail(err, SL_ERR_ARG, "chat template %s: message %d has role \"%s\", expected system, user or assistant",
                         t->name, i, m[i].role);
        }
    }
    return rc;
}

// Splits an assistant's content into the thoughts of its <think> block and the answer after the block.
static void split_thoughts(span whole, span *thoughts, span *answer) {
    static const char begin[] = "<think>", end[] = "</think>";
    const char *at = whole.s, *stop = whole.s + whole.n, *next;
    *thoughts = (span){"", 0};
    *answer = whole;
    if (!(next = memmem(at, whole.n, end, sizeof end - 1))) return;
    *thoughts = (span){at, (size_t)(next - at)};
    for (; next; next = memmem(at, (size_t)(stop - at), end, sizeof end - 1)) at = next + sizeof end - 1;
    *answer = strip_newlines((span){at, (size_t)(stop - at)}, 1, 0);
    *thoughts = strip_newlines(*thoughts, 0, 1);
    at = thoughts->s, stop = thoughts->s + thoughts->n;
    while ((next = memmem(at, (size_t)(stop - at), begin, sizeof begin - 1))) at = next + sizeof begin - 1;
    *thoughts = strip_newlines((span){at, (size_t)(stop - at)}, 1, 1);
}

// The index of the last message of the user that is not a tool's response; n - 1: none
static int last_query(const sl_message *m, int n) {
    for (int i = n - 1; i >= 0; i--)
        if (is_role(&m[i], "user") && !(begins_with(&m[i], "<tool_response>") && ends_with(&m[i], "</tool_response>")))
            return i;
    return n - 1;
}

// Writes the thoughts of replies after the last query only. Earlier replies are written without thoughts.
static int render_qwen3(const sl_chat_template *t, const sl_message *m, int n, sl_text *out, sl_error *err) {
    int rc = 0, query = last_query(m, n);
    for (int i = 0; !rc && i < n; i++) {
        span thoughts = {0}, answer = content(&m[i]);
        int is_reply = is_role(&m[i], "assistant");
        if (!is_reply && !is_role(&m[i], "user") && !is_role(&m[i], "system"))
            return sl_fail(err, SL_ERR_ARG, "chat template %s: message %d has role \"%s\", expected system, user or assistant",
                           t->name, i, m[i].role);
        if (is_reply) split_thoughts(answer, &thoughts, &answer);
        rc = put3(out, "<|im_start|>", (span){m[i].role, strlen(m[i].role)}, "\n", err);
        if (!rc && is_reply && i > query && (i == n - 1 || thoughts.n > 0)) {
            rc = put3(out, "<think>\n", thoughts, "\n</think>\n\n", err);
            answer = strip_newlines(answer, 1, 0);
        }
        if (!rc) rc = put3(out, "", answer, "<|im_end|>\n", err);
    }
    if (!rc) rc = put(out, "<|im_start|>assistant\n", err);
    return rc ? rc : put(out, t->thoughts, err);
}

static int render_chatml(const sl_chat_template *t, const sl_message *m, int n, sl_text *out, sl_error *err) {
    int rc = 0;
    if (t->default_system && !(n > 0 && is_role(&m[0], "system")))
        rc = put3(out, "<|im_start|>system\n", (span){t->default_system, strlen(t->default_system)}, "<|im_end|>\n", err);
    for (int i = 0; !rc && i < n; i++) {
        rc = put3(out, "<|im_start|>", (span){m[i].role, strlen(m[i].role)}, "\n", err);
        if (!rc) rc = put3(out, "", content(&m[i]), "<|im_end|>\n", err);
    }
    return rc ? rc : put(out, "<|im_start|>assistant\n", err);
}

int sl_chat_render(const sl_chat_template *t, const sl_message *messages, int n, const char *date, sl_text *out,
                   sl_error *err) {
    int rc = put(out, "", err); // a text, where nothing is written too
    if (rc) return rc;
    switch (t->family) {
    case FAMILY_LLAMA3:
        return render_llama3(t, messages, n, date, out, err);
    case FAMILY_LLAMA2:
        return render_llama2(t, messages, n, out, err);
    case FAMILY_MISTRAL:
        return render_mistral(t, messages, n, out, err);
    case FAMILY_QWEN3:
        return render_qwen3(t, messages, n, out, err);
    default:
        return render_chatml(t, messages, n, out, err);
    }
}
