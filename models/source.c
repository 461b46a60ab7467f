// models/source.c - see source.h.
#include "models/source.h"
#include "models/gguf_documents.h"
#include "models/gguf_tensors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_PATH = 3000 }; // bytes, so that the paths of all files fit into their buffers

struct sl_source {
    char *path;   // the folder, or the GGUF file
    char *folder; // of the file; NULL: path is a folder
    sl_documents documents;
};

// ---- the GGUF file of a folder ----

static int is_gguf_name(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return *entry->d_name != '.' && n > 5 && !strcmp(entry->d_name + n - 5, ".gguf");
}

// 1: a part after the first one, NAME-00002-of-00003.gguf.
static int is_later_part(const char *name) {
    size_t n = strlen(name), n_end = strlen("-00001-of-00001.gguf");
    int no, of, end = 0;
    if (n < n_end) return 0;
    return sscanf(name + n - n_end, "-%5d-of-%5d.gguf%n", &no, &of, &end) == 2 && end == (int)n_end && no > 1;
}

static int choose(const char *dir, const char *part, struct dirent **entries, int n, char *path, size_t size, sl_error *err) {
    char list[600] = "";
    size_t at = 0;
    int found = 0;
    for (int i = 0; i < n; i++) {
        if (is_later_part(entries[i]->d_name) || (part && !strcasestr(entries[i]->d_name, part))) continue;
        if (!found++) snprintf(path, size, "%s/%s", dir, entries[i]->d_name);
        if (at < sizeof list) at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", entries[i]->d_name);
    }
    if (found == 0 && n > 0 && !part) // parts, but not the first one
        snprintf(path, size, "%s/%s", dir, entries[0]->d_name);
    if (found < 2) return 0;
    *path = 0;
    return sl_fail(err, SL_ERR_ARG, "%.300s: the folder holds %d GGUF models, expected the path of one of them: %s", dir, found,
                   list);
}

int sl_source_find_gguf(const char *dir, const char *part, char *path, size_t size, sl_error *err) {
    struct dirent **entries;
    int n = scandir(dir, &entries, is_gguf_name, alphasort);
    *path = 0;
    if (n < 0) return 0;
    int rc = choose(dir, part, entries, n, path, size, err);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    return rc;
}

// ---- documents of a GGUF file ----

static int set_document(const sl_gguf *g, json_t *made, const char *name, json_t *document, sl_error *err) {
    return json_object_set_new(made, name, document) ? sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", g->path) : 0;
}

static int make_documents(const sl_gguf *g, json_t *made, sl_error *err) {
    json_t *config, *tokenizer, *tokenizer_config;
    sl_text model = {0};
    int rc = sl_gguf_config(g, &config, err);
    if (!rc) rc = set_document(g, made, "config.json", config, err);
    if (!rc) rc = sl_gguf_tokenizer_config(g, &tokenizer_config, err);
    if (!rc) rc = set_document(g, made, "tokenizer_config.json", tokenizer_config, err);
    if (!rc) rc = sl_gguf_tokenizer(g, &tokenizer, &model, err);
    if (!rc && tokenizer) rc = set_document(g, made, "tokenizer.json", tokenizer, err);
    if (!rc && model.n) rc = set_document(g, made, "tokenizer.model", json_stringn_nocheck(model.data, model.n), err); // bytes
    sl_text_free(&model);
    return rc;
}

static int open_gguf(sl_source *s, sl_error *err) {
    sl_gguf g;
    const char *slash = strrchr(s->path, '/');
    s->folder = slash == s->path ? strdup("/") : slash ? strndup(s->path, (size_t)(slash - s->path)) : strdup(".");
    s->documents = (sl_documents){.path = s->path, .made = json_object()};
    if (!s->folder || !s->documents.made) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", s->path);
    int rc = sl_gguf_open(s->path, &g, err);
    if (!rc) rc = make_documents(&g, s->documents.made, err);
    sl_gguf_close(&g);
    return rc;
}

// ---- a source ----

static int open_path(sl_source *s, sl_error *err) {
    char file[MOST_PATH + 300];
    struct stat st;
    if (!stat(s->path, &st) && S_ISDIR(st.st_mode)) {
        snprintf(file, sizeof file, "%s/config.json", s->path);
        int rc = access(file, F_OK) ? sl_source_find_gguf(s->path, NULL, file, sizeof file, err) : 0;
        if (rc) return rc;
        if (!access(file, F_OK) && !sl_gguf_is(file)) *file = 0; // config.json
        if (!*file) {
            s->documents = SL_FOLDER(s->path);
            return 0;
        }
        free(s->path);
        s->path = strdup(file);
        if (!s->path) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file);
    } else if (!sl_gguf_is(s->path)) { // errors of the folder's files name them
        s->documents = SL_FOLDER(s->path);
        return 0;
    }
    return open_gguf(s, err);
}

int sl_source_open(const char *path, sl_source **out, sl_error *err) {
    if (strlen(path) > MOST_PATH) return sl_fail(err, SL_ERR_ARG, "%.200s...: the path is too long", path);
    sl_source *s = calloc(1, sizeof *s);
    if (s) s->path = strdup(path);
    int rc = s && s->path ? open_path(s, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    if (rc) {
        sl_source_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sl_source_close(sl_source *s) {
    if (!s) return;
    json_decref(s->documents.made);
    free(s->folder);
    free(s->path);
    free(s);
}

const sl_documents *sl_source_documents(const sl_source *s) {
    return &s->documents;
}

const char *sl_source_folder(const sl_source *s) {
    return s->folder ? s->folder : s->path;
}

int sl_source_tensors(const sl_source *s, int keep_blocks, sl_tensors **out, sl_error *err) {
    sl_gguf g;
    if (!s->folder) return sl_tensors_open(s->path, out, err);
    const json_t *config = json_object_get(s->documents.made, "config.json");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    int permuted = !strcmp(type, "llama") || !strcmp(type, "mistral");
    int n_heads = (int)json_integer_value(json_object_get(config, "num_attention_heads"));
    int n_kv_heads = (int)json_integer_value(json_object_get(config, "num_key_value_heads"));
    int rc = sl_gguf_open(s->path, &g, err);
    if (!rc)
        rc = sl_gguf_tensors(&g, permuted ? n_heads : 0, permuted ? n_kv_heads : 0, keep_blocks, SL_GGUF_MOST_FP32, out, err);
    sl_gguf_close(&g);
    return rc;
}
