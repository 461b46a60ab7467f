// cli/cmd_version.c - sleigh version: prints version, commit, compiler and backend of this build.
#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/error_text.h"
#include "cli/io.h"
#include "engine/engine.h"

#ifndef SLEIGH_COMMIT
#define SLEIGH_COMMIT ""
#endif

#if defined __clang__
#define COMPILER "clang " __clang_version__
#elif defined __GNUC__
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

const char *cli_commit(void) {
    return SLEIGH_COMMIT;
}

const char *cli_version(void) {
    return *SLEIGH_COMMIT ? SLEIGH_VERSION " (commit " SLEIGH_COMMIT ")" : SLEIGH_VERSION;
}

int cmd_version(sl_error *err) {
    const sl_backend *backend;
    char buf[256];
    int rc = sl_cpu_open(0, &backend, err);
    if (rc) return rc;
    backend->describe(backend, buf, sizeof buf);
    backend->free(backend);
    rc = cli_printf(err, "sleigh %s\n", cli_version());
    if (!rc) rc = cli_printf(err, "compiler: %s\nbackend: cpu: %s\n", COMPILER, buf);
    sl_error why;
    if (!rc) rc = cli_printf(err, "gpu: %s\n", sl_device_check("cuda", &why) ? cli_error_text(&why) : "found");
    return rc;
}
