// backend/cuda/nccl.c - see nccl.h. The declarations are those of NCCL's interface, version 2.
#include "backend/cuda/nccl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { FLOAT32 = 7, SUM = 0 }; // ncclFloat32, ncclSum

typedef struct unique_id { // ncclUniqueId, which is passed by value
    char internal[SL_NCCL_ID];
} unique_id;

typedef struct nccl_library {
    int (*get_unique_id)(unique_id *id);
    int (*comm_init_rank)(void **comm, int n, unique_id id, int rank);
    int (*comm_abort)(void *comm);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, void *comm, cudaStream_t stream);
    int (*all_gather)(const void *from, void *to, size_t n, int type, void *comm, cudaStream_t stream);
    const char *(*get_error_string)(int rc);
} nccl_library;

struct sl_nccl {
    nccl_library library;
    void *comm;
};

static const char file[] = "libnccl.so.2";

static int load(nccl_library *out, sl_error *err) {
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"ncclGetUniqueId", &out->get_unique_id}, {"ncclCommInitRank", &out->comm_init_rank},
                   {"ncclCommAbort", &out->comm_abort},      {"ncclAllReduce", &out->all_reduce},
                   {"ncclAllGather", &out->all_gather},      {"ncclGetErrorString", &out->get_error_string}};
    setenv("NCCL_NVLS_ENABLE", "0", 1); // multicast over NVLink
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!lib) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(lib, symbols[i].name);
        if (!symbol) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: expected NCCL 2, which has %s", file, symbols[i].name);
        *(void **)symbols[i].to = symbol;
    }
    return 0;
}

static int check(const nccl_library *l, int rc, const char *what, sl_error *err) {
    return rc ? sl_fail(err, SL_ERR_DEVICE, "NCCL: %s: %s", what, l->get_error_string(rc)) : 0;
}

int sl_nccl_id(char id[SL_NCCL_ID], sl_error *err) {
    nccl_library l;
    unique_id made;
    int rc = load(&l, err);
    if (!rc) rc = check(&l, l.get_unique_id(&made), "the name of a communicator", err);
    if (!rc) memcpy(id, made.internal, SL_NCCL_ID);
    return rc;
}

int sl_nccl_open(const char id[SL_NCCL_ID], int rank, int n, sl_nccl **out, sl_error *err) {
    sl_nccl *c = calloc(1, sizeof *c);
    unique_id own;
    if (!c) return sl_fail(err, SL_ERR_MEMORY, "NCCL: out of memory");
    memcpy(own.internal, id, SL_NCCL_ID);
    int rc = load(&c->library, err);
    if (!rc) rc = check(&c->library, c->library.comm_init_rank(&c->comm, n, own, rank), "the start of a communicator", err);
    if (rc)
        free(c);
    else
        *out = c;
    return rc;
}

void sl_nccl_close(sl_nccl *c) {
    if (c) c->library.comm_abort(c->comm);
    free(c);
}

int sl_nccl_all_reduce(sl_nccl *c, float *data, size_t n, cudaStream_t stream, sl_error *err) {
    return check(&c->library, c->library.all_reduce(data, data, n, FLOAT32, SUM, c->comm, stream), "a sum", err);
}

int sl_nccl_all_gather(sl_nccl *c, const float *part, size_t n, float *all, cudaStream_t stream, sl_error *err) {
    return check(&c->library, c->library.all_gather(part, all, n, FLOAT32, c->comm, stream), "parts", err);
}
