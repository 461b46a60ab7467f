// cli/rank_team.c - see rank_team.h.
#include "cli/rank_team.h"
#include "cli/process.h"

#include <string.h>
#include <sys/stat.h>

static int share_interrupt(void *ctx) {
    sl_comm *comm = ctx;
    int came = cli_interrupt_came();
    comm->broadcast(comm, &came, sizeof came);
    cli_set_interrupted(came);
    return 0;
}

sl_cancel cli_team_interrupt(sl_comm *comm) {
    return comm ? (sl_cancel){.fn = share_interrupt, .ctx = comm} : (sl_cancel){0};
}

int cli_team_share(sl_comm *comm, sl_text *text, int *number, sl_error *err) {
    long head[2] = {(long)text->n, *number};
    if (!comm) return 0;
    comm->broadcast(comm, head, sizeof head);
    if (comm->rank) {
        text->n = 0;
        for (long left = head[0]; left > 0;) { // room for the text
            static const char zeros[4096];
            size_t n = left < (long)sizeof zeros ? (size_t)left : sizeof zeros;
            int rc = sl_text_append(text, zeros, n, err);
            if (rc) return rc;
            left -= (long)n;
        }
        *number = (int)head[1];
    }
    if (head[0]) comm->broadcast(comm, text->data, (size_t)head[0]);
    return 0;
}

int cli_team_check_file(sl_comm *comm, const char *flag, const char *path, sl_error *err) {
    struct stat s;
    if (!comm || !path) return 0;
    if (strcmp(path, "-") && (stat(path, &s) || S_ISREG(s.st_mode) || S_ISDIR(s.st_mode))) return 0;
    return sl_fail(err, SL_ERR_ARG, "%s %.200s: expected a regular file, because each of the %d ranks reads it", flag, path,
                   comm->n);
}
