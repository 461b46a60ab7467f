// tests/models/test_fields.c - each field of tokenizer.json and tokenizer_config.json, missing and with a value of
// each kind.
#include "base/documents.h"
#include "base/hash.h"
#include "models/config.h"
#include "tests/test.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

// Each line of tests/goldens/fields.txt is about one field: the outcome of a load without the field, and with each of the
// values.
// "." is the result of the right value, "," is another result, and a letter is the first letter of the error. After a change of
// these outcomes on purpose, delete the file. The test then writes a new file and fails once.
static const char goldens[] = "tests/goldens/fields.txt";
static const char *const values[] = {"null", "true",  "false",        "0",  "7", "-1", "1.5",
                                     "\"\"", "\"x\"", "\"x\\u0000\"", "[]", "{}"};
enum { N_VALUES = sizeof values / sizeof *values };

static const char *const by_bytes =
    "{'added_tokens':[{'id':7,'content':'<s>','single_word':false,'lstrip':false,'rstrip':false,'normalized':false,'special':"
    "true}],"
    "'truncation':null,'padding':null,'normalizer':{'type':'NFC'},'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'"
    "Punctuation','behavior':'Isolated'},"
    "{'type':'Split','pattern':{'Regex':' ?[a-z]+|[0-9]'},'behavior':'Isolated','invert':false},"
    "{'type':'Digits','individual_digits':true},{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true,'use_regex':"
    "false}]},"
    "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},{'Sequence':{'id':'A','"
    "type_id':0}}],"
    "'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':[7],'tokens':['<s>']}}},'decoder':{'type':'ByteLevel','add_prefix_"
    "space':true,"
    "'trim_offsets':true,'use_regex':true},'model':{'type':'BPE','dropout':null,'unk_token':null,'continuing_subword_prefix':"
    "null,"
    "'end_of_word_suffix':null,'fuse_unk':false,'byte_fallback':false,'ignore_merges':false,'vocab':{'a':0,'b':1,'ab':2,'"
    "\xc4\xa0':3,'1':4,'2':5,'aba':6},"
    "'merges':['a b',['ab','a']]}}";
static const char *const by_chars =
    "{'added_tokens':[{'id':0,'content':'<unk>','single_word':false,'lstrip':false,'rstrip':false,'normalized':true,'special':"
    "true}],"
    "'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'\xe2\x96\x81'},{'type':'Replace','pattern':{'"
    "String':' '},"
    "'content':'\xe2\x96\x81'},{'type':'Strip','strip_left':false,'strip_right':true}]},'pre_tokenizer':null,'post_processor':"
    "null,'decoder':{'type':'Sequence','"
    "decoders':[{'type':'Replace',"
    "'pattern':{'String':'\xe2\x96\x81'},'content':' '},{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' "
    "','start':1,'stop':0}]},"
    "'model':{'type':'BPE','unk_token':'<unk>','fuse_unk':true,'byte_fallback':false,'vocab':{'<unk>':0,'a':1,'b':2,'ab':3,'"
    "\xe2\x96\x81':4,'1':5},'merges':['a b']}}";
static const char *const metaspace =
    "{'added_tokens':[],'pre_tokenizer':{'type':'Metaspace','replacement':'\xe2\x96\x81','prepend_scheme':'always','split':"
    "false},"
    "'decoder':{'type':'Metaspace','replacement':'\xe2\x96\x81','prepend_scheme':'always','split':false},"
    "'model':{'type':'BPE','unk_token':'<unk>','vocab':{'<unk>':0,'a':1,'b':2,'ab':3,'\xe2\x96\x81':4,'1':5},'merges':['a "
    "b']}}";
static const char *const config = "{'add_bos_token':true,'add_eos_token':false,'bos_token':'<s>','eos_token':{'content':'<s>','"
                                  "lstrip':false},'unk_token':null,'pad_token':null,"
                                  "'legacy':false,'add_prefix_space':true,'added_tokens_decoder':{'7':{'content':'<s>','lstrip'"
                                  ":false,'normalized':false,'rstrip':false,"
                                  "'single_word':false,'special':true}},'additional_special_tokens':['<s>'],'chat_template':'{{"
                                  " bos_token }}','tokenizer_class':'LlamaTokenizer',"
                                  "'clean_up_tokenization_spaces':false,'model_max_length':7,'sp_model_kwargs':{}}";

#define SHAPE                                                                                                                  \
    "'hidden_act':'silu','vocab_size':64,'hidden_size':32,'intermediate_size':48,'num_"                                        \
    "hidden_layers':2,"                                                                                                        \
    "'num_attention_heads':8,'num_key_value_heads':8,'head_dim':16,'max_position_embeddings':512,'rms_norm_eps':0.5,'tie_"     \
    "word_"                                                                                                                    \
    "embeddings':true,"                                                                                                        \
    "'rope_theta':10000.0,'bos_token_id':1,'attention_bias':false,'mlp_bias':false,'attention_dropout':0.0,'pretraining_tp':"  \
    "1,'use_cache':true,"
static const char *const llama3 =
    "{'model_type':'llama','architectures':['LlamaForCausalLM']," SHAPE
    "'eos_token_id':[2,3],'rope_scaling':{'rope_type':'llama3','factor':8.0,'low_freq_factor':1.0,"
    "'high_freq_factor':4.0,'original_max_position_embeddings':256},'quantization_config':null,'sliding_window':null}";
static const char *const yarn =
    "{'model_type':'qwen2','architectures':['Qwen2ForCausalLM']," SHAPE
    "'eos_token_id':2,'rope_parameters':{'rope_type':'yarn','rope_theta':10000.0,'factor':4.0,'"
    "original_max_position_embeddings':128,"
    "'beta_fast':32,'beta_slow':1,'mscale':1.0,'mscale_all_dim':0.5,'truncate':true,'attention_factor':1.5},'use_sliding_"
    "window':true,'sliding_window':64,"
    "'max_window_layers':0,'layer_types':['sliding_attention','sliding_attention']}";
static const char *const generation = "{'eos_token_id':[2,4],'bos_token_id':1,'temperature':0.5,'top_p':0.75,'top_k':20,'min_p'"
                                      ":0.125,'repetition_penalty':1.5,'do_sample':true}";
static const char *const tekken =
    "{'config':{'pattern':' "
    "?[a-z]+|[0-9]|[^a-z0-9]','num_vocab_tokens':256,'default_vocab_size':260,'default_num_special_tokens':4,'version':'v11'},"
    "'special_tokens':[{'rank':0,'token_str':'<unk>','is_control':true},{'rank':1,'token_str':'<s>','is_control':true},"
    "{'rank':2,'token_str':'</s>','is_control':true},{'rank':3,'token_str':'[B]','is_control':true}]}";

static json_t *parse(const char *text) {
    char copy[4000];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = copy; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *root = json_loads(copy, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!root) FAIL("no JSON: %s", copy);
    return root;
}

static sl_error err;

static char letter(int rc) {
    return rc == SL_ERR_FORMAT ? 'F' : rc == SL_ERR_UNSUPPORTED ? 'U' : '?';
}

static char load_config(json_t *files, uint64_t *hash) {
    sl_config c;
    int rc = sl_config_load(&(sl_documents){"files", files}, &c, &err);
    if (rc) return letter(rc);
    const int32_t ints[] = {c.n_ctx, c.n_trained, c.window, c.n_scaled, c.bos, c.n_eos, c.gen_top_k, c.gen_do_sample};
    const float floats[] = {c.rope_attention, c.gen_temp, c.gen_top_p, c.gen_min_p, c.gen_repeat_penalty};
    *hash = sl_fnv1a(sl_config_hash(&c), ints, sizeof ints);
    *hash = sl_fnv1a(*hash, c.eos, (size_t)c.n_eos * sizeof *c.eos);
    *hash = sl_fnv1a(*hash, floats, sizeof floats);
    return '.';
}

// What the tokenizer of {name of a file: JSON} makes of a text, or the letter of an error.
static char load(json_t *files, uint64_t *hash) {
    static const char text[] = " ab a <s> ba<s>1 <unk> b 12e\xcc\x81"
                               "Ab 2,1 22a1 [B] ";
    sl_tokenizer *tok;
    sl_text back = {0};
    *hash = SL_FNV1A_START;
    if (json_object_get(files, "config.json")) return load_config(files, hash);
    int rc = sl_tokenizer_load(&(sl_documents){"files", files}, &tok, &err);
    if (rc) return letter(rc);
    for (unsigned flags = 0; flags < 4; flags++) {
        sl_ids ids = {0};
        CHECK_OK(sl_tokenize(tok, text, sizeof text - 1, flags, &ids, &err), err);
        if (ids.n) *hash = sl_fnv1a(*hash, ids.data, ids.n * sizeof *ids.data);
        for (size_t i = 0; i < ids.n; i++) (void)sl_token_bytes(tok, ids.data[i], &back, NULL);
        sl_ids_free(&ids);
    }
    if (back.n) *hash = sl_fnv1a(*hash, back.data, back.n);
    const int32_t ends[2] = {sl_tokenizer_bos(tok), sl_tokenizer_eos(tok)};
    *hash = sl_fnv1a(*hash, ends, sizeof ends);
    sl_text_free(&back);
    sl_tokenizer_free(tok);
    return '.';
}

typedef struct walk {
    json_t *files;
    uint64_t right; // the hash of the file without a change
    FILE *out;
} walk;

static char outcome(const walk *w) {
    uint64_t hash;
    char c = load(w->files, &hash);
    return c == '.' && hash != w->right ? ',' : c;
}

static void visit(const walk *w, json_t *at, const char *path);

static void visit_field(const walk *w, json_t *in, const char *key, size_t index, const char *path) {
    json_t *old = json_incref(key ? json_object_get(in, key) : json_array_get(in, index));
    char to[300], line[N_VALUES + 2] = "";
    if (key)
        snprintf(to, sizeof to, "%s.%s", path, key);
    else
        snprintf(to, sizeof to, "%s.%zu", path, index);
    for (int i = -1; i < N_VALUES; i++) {
        json_t *v = i < 0 ? NULL : json_loads(values[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (key)
            i < 0 ? json_object_del(in, key) : json_object_set_new(in, key, v);
        else
            json_array_set_new(in, index, i < 0 ? json_null() : v);
        line[i + 1] = outcome(w);
    }
    key ? json_object_set(in, key, old) : json_array_set(in, index, old);
    fprintf(w->out, "%s %s\n", to, line);
    visit(w, old, to);
    json_decref(old);
}

static void visit(const walk *w, json_t *at, const char *path) {
    const char *keys[64];
    size_t n = 0;
    const char *key;
    json_t *v;
    json_object_foreach(at, key, v) keys[n++] = key;
    for (size_t i = 0; i < n; i++) keys[i] = strdup(keys[i]); // deleting the field frees its name
    for (size_t i = 0; i < n; i++) visit_field(w, at, keys[i], 0, path), free((char *)keys[i]);
    for (size_t i = 0; i < json_array_size(at); i++) visit_field(w, at, NULL, i, path);
}

static void every_field(void) {
    static const struct {
        const char *name, *file;
        const char *const *text;
        const char *other; // the file beside it
        const char *const *beside;
    } bases[] = {{"bytes", "tokenizer.json", &by_bytes, NULL, NULL},
                 {"chars", "tokenizer.json", &by_chars, NULL, NULL},
                 {"metaspace", "tokenizer.json", &metaspace, NULL, NULL},
                 {"config", "tokenizer_config.json", &config, "tokenizer.json", &by_bytes},
                 {"tekken", "tekken.json", &tekken, NULL, NULL},
                 {"llama3", "config.json", &llama3, NULL, NULL},
                 {"yarn", "config.json", &yarn, NULL, NULL},
                 {"generation", "generation_config.json", &generation, "config.json", &llama3}};
    char *got = NULL;
    size_t size;
    FILE *out = open_memstream(&got, &size);
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        json_t *root = parse(*bases[i].text), *files = json_object(), *vocab = json_array();
        walk w = {files, 0, out};
        json_object_set_new(files, bases[i].file, root);
        if (bases[i].other) json_object_set_new(files, bases[i].other, parse(*bases[i].beside));
        for (int b = 0; b < 256; b++) {
            static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            const char text[] = {digits[b >> 2], digits[(b & 3) << 4], '=', '=', 0};
            json_array_append_new(vocab, json_pack("{s:i,s:s}", "rank", b, "token_bytes", text));
        }
        if (bases[i].text == &tekken) json_object_set(root, "vocab", vocab);
        if (load(files, &w.right) != '.') FAIL("%s: %s", bases[i].name, err.message);
        if (bases[i].text == &tekken) {
            visit(&w, json_object_get(root, "config"), "tekken.config");
            visit(&w, json_object_get(root, "special_tokens"), "tekken.special_tokens");
            visit(&w, json_array_get(vocab, 0), "tekken.vocab.0");
            visit(&w, json_array_get(vocab, 255), "tekken.vocab.255");
        } else {
            visit(&w, root, bases[i].name);
        }
        json_decref(files), json_decref(vocab);
    }
    fclose(out);
    FILE *f = fopen(goldens, "rb");
    char line[400];
    const char *at = got;
    if (!f && (f = fopen(goldens, "wb"))) fputs(got, f), fclose(f), f = NULL;
    if (!f) FAIL("%s was missing and is now what Sleigh does", goldens);
    for (int n = 1; fgets(line, sizeof line, f); n++, at += strcspn(at, "\n") + 1)
        if (strncmp(at, line, strlen(line)))
            FAIL("%s line %d: %.*s, expected %s", goldens, n, (int)strcspn(at, "\n"), at, line);
    fclose(f);
    CHECK(!*at);
    free(got);
}

static const test_case cases[] = {{"every-field", NEEDS_NOTHING, every_field}, {0}};
const test_suite suite_fields = {"fields", cases};
