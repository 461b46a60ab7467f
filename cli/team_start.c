// cli/team_start.c - see team_start.h.
#include "cli/team_start.h"
#include "base/shared_comm.h"
#include "cli/options/command.h"
#include "cli/process.h"
#include "cli/rank_checks.h"

enum {
    SHARES_MODEL = CLI_RUNS | CLI_BENCH | CLI_COMPARE | CLI_PERPLEXITY | CLI_EVAL | CLI_SERVE,
    SHARES_WORK = CLI_PERPLEXITY | CLI_EVAL
};

static int check(const sl_ranks *r, int n, unsigned command, sl_error *err) {
    int n_ranks = sl_ranks_n(r);
    if (n != 1 && n != 2 && n != 4 && n != 8)
        return sl_fail(err, SL_ERR_ARG, "--tensor-parallel-size %d: expected 1, 2, 4 or 8", n);
    if (n > 1 && !(command & SHARES_MODEL))
        return sl_fail(err, SL_ERR_ARG,
                       "--tensor-parallel-size %d: expected 1 with this command; generate, chat, bench, compare, eval, "
                       "perplexity and serve share a model between processes",
                       n);
    if (r && n_ranks % n)
        return sl_fail(err, SL_ERR_ARG, "mpirun or srun has started %d ranks; expected a multiple of --tensor-parallel-size %d",
                       n_ranks, n);
    if (r && n > 1 && n_ranks > n && !(command & SHARES_WORK))
        return sl_fail(err, SL_ERR_ARG, "mpirun or srun has started %d ranks; expected %d, those of --tensor-parallel-size",
                       n_ranks, n);
    return 0;
}

int cli_team_open(sl_ranks **ranks, int n, unsigned command, sl_comm **comm, sl_error *err) {
    int rc = check(*ranks, n, command, err);
    *comm = NULL;
    if (rc || n == 1) return rc;
    if (!*ranks) rc = cli_ranks_fork(n, ranks, err);
    if (!rc) rc = sl_shared_comm_open(*ranks, sl_ranks_rank(*ranks) / n * n, n, comm, err);
    if (!rc) cli_share_interrupts();
    return rc;
}

void cli_team_close(sl_comm *comm) {
    sl_shared_comm_close(comm);
}
