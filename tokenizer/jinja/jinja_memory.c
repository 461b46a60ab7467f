// tokenizer/jinja/jinja_memory.c - the arena of a parse or a run, its limits, and the way out after an error.
#include "tokenizer/jinja/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct j_block {
    j_block *next;
    size_t used, size;
    max_align_t data[];
};

void sl_j_fail(j_base *b, sl_err code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->text, sizeof b->text, fmt, ap);
    va_end(ap);
    b->code = code;
    longjmp(b->out, 1);
}

int sl_j_try(j_base *b, void (*fn)(void *ctx), void *ctx) {
    jmp_buf outer;
    int depth = b->depth;
    memcpy(outer, b->out, sizeof outer);
    int failed = setjmp(b->out);
    if (!failed) fn(ctx);
    memcpy(b->out, outer, sizeof outer);
    if (failed) b->depth = depth;
    return failed;
}

static j_block *new_block(j_base *b, size_t size) {
    if (size > b->most_bytes - b->n_bytes)
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "the template needs more than %zu MiB of memory", b->most_bytes >> 20);
    j_block *block = malloc(sizeof *block + size);
    if (!block) sl_j_fail(b, SL_ERR_MEMORY, "out of memory");
    b->n_bytes += size;
    block->size = size;
    block->used = 0;
    return block;
}

void *sl_j_alloc(j_base *b, size_t n) {
    enum { BLOCK = 1 << 16 };
    if (n > SIZE_MAX / 2) sl_j_fail(b, SL_ERR_UNSUPPORTED, "a value of %zu bytes is too large", n);
    n = (n + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    j_block *block = b->blocks;
    if (!block || n > block->size - block->used) {
        if (n > BLOCK / 4 && block) { // large pieces have blocks of their own, behind the first block, which is still in use
            j_block *own = new_block(b, n);
            own->used = n;
            own->next = block->next;
            block->next = own;
            return own->data;
        }
        block = new_block(b, n > BLOCK ? n : BLOCK);
        block->next = b->blocks;
        b->blocks = block;
    }
    void *p = (char *)block->data + block->used;
    block->used += n;
    return p;
}

void *sl_j_grow(j_base *b, void *old, size_t n_old, size_t n_new) {
    void *p = sl_j_alloc(b, n_new);
    if (n_old) memcpy(p, old, n_old);
    return p;
}

void sl_j_free_all(j_block *blocks) {
    for (j_block *next; blocks; blocks = next) {
        next = blocks->next;
        free(blocks);
    }
}

void sl_j_step(j_base *b, size_t n) {
    if (n > b->most_steps - b->n_steps)
        sl_j_fail(b, SL_ERR_UNSUPPORTED, "the template takes more than %zu steps", b->most_steps);
    b->n_steps += n;
}

void sl_j_enter(j_base *b) {
    if (++b->depth > b->most_depth) sl_j_fail(b, SL_ERR_UNSUPPORTED, "nested more than %d levels deep", b->most_depth);
}
