// server/api/reply_events.c - JSON and events (SSE) as text; see reply_internal.h.
#include "server/api/reply_internal.h"

#include <stdlib.h>
#include <string.h>

int api_send_text(sl_text *out, const char *text, sl_error *err) {
    return sl_text_append(out, text, strlen(text), err);
}

int api_append_json(sl_text *out, json_t *v, sl_error *err) {
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    int rc = text ? api_send_text(out, text, err) : sl_fail(err, SL_ERR_MEMORY, "reply: out of memory");
    free(text);
    return rc;
}

int api_send(sl_text *out, const char *name, json_t *v, sl_error *err) {
    int rc = 0;
    if (name) {
        rc = api_send_text(out, "event: ", err);
        if (!rc) rc = api_send_text(out, name, err);
        if (!rc) rc = api_send_text(out, "\n", err);
    }
    if (!rc) rc = api_send_text(out, "data: ", err);
    if (rc) {
        json_decref(v);
        return rc;
    }
    rc = api_append_json(out, v, err);
    return rc ? rc : api_send_text(out, "\n\n", err);
}

json_t *api_part_text(const api_part *p) {
    return api_utf8_json(p->text.data ? p->text.data : "", p->text.n);
}
