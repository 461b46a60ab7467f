// cli/team_start.h - the start of the ranks that share a model (cli/rank_team.h).
#ifndef SLEIGH_TEAM_START_H
#define SLEIGH_TEAM_START_H

#include "base/comm.h"
#include "base/ranks.h"

// Groups the ranks of the launcher into teams of n; without a launcher, starts n - 1 ranks. *comm: NULL: n is 1. Errors of
// cli_ranks_open. SL_ERR_ARG: the number of ranks is no multiple of n. command: its bit; it must be able to share a model, and
// to share its work if there are several teams.
int cli_team_open(sl_ranks **ranks, int n, unsigned command, sl_comm **comm, sl_error *err);
void cli_team_close(sl_comm *comm);

#endif
