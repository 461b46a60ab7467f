// cli/rank_checks.h - a command that mpirun or srun has started as several ranks (base/ranks.h): its start, and what must be
// equal in all ranks, so that their results can be put together.
#ifndef SLEIGH_RANK_CHECKS_H
#define SLEIGH_RANK_CHECKS_H

#include "base/ranks.h"
#include "cli/options/all_options.h"
#include "cli/run/run.h"

#include <jansson.h>

// Connects the ranks, if the launcher has started several; else *out is NULL. From then on, only rank 0 writes to standard
// output and standard error; an error of any rank ends all of them. SL_ERR_ARG: binaries, arguments or SLEIGH_ variables
// differ.
int cli_ranks_open(int argc, char **argv, sl_ranks **out, sl_error *err);
// Starts n - 1 ranks on this host (sl_ranks_fork), with the same consequences.
int cli_ranks_fork(int n, sl_ranks **out, sl_error *err);
// SL_ERR_ARG: this command does not share its work between ranks. command: its bit
int cli_ranks_check_command(const sl_ranks *r, unsigned command, sl_error *err);
// Every rank gets the seed that rank 0 has drawn (--seed -1). Without ranks, does nothing.
int cli_ranks_share_seed(sl_ranks *r, uint32_t *seed, sl_error *err);
// The GPU of --device cuda for this rank: GPU i for the rank i of its host, modulo the number of GPUs. NULL: that of one
// process.
const char *cli_ranks_gpu(const sl_ranks *r);
// SL_ERR_ARG: ranks of a launcher have different models, or CPUs of different instruction sets.
int cli_ranks_compare_model(sl_ranks *r, const cli_model_options *model, sl_error *err);
// Compares the settings of all ranks by key. SL_ERR_ARG names the rank, the key and both values. Without ranks, does nothing.
int cli_ranks_compare(sl_ranks *r, const json_t *settings, sl_error *err);
// Of a team (cli/rank_team.h): SL_ERR_ARG: a flag of the command that several ranks cannot follow. Only the first rank writes
// files: the others get other paths.
int cli_ranks_check_team(cli_options *o, sl_error *err);
// SL_ERR_ARG: the path is standard input (NULL or "-"), which only rank 0 has.
int cli_ranks_check_file(const sl_ranks *r, const char *path, const char *flag, sl_error *err);
// SL_ERR_ARG: a method is auto, which each rank might choose in another way, from its own times.
int cli_ranks_check_plans(const sl_ranks *r, const cli_run *run, sl_error *err);

// What a run of several ranks says on standard error: which rank does what. unit: "text", "window"
// team: ranks that share a model
void cli_ranks_describe(const sl_ranks *r, int team, int n_units, const char *unit);

#endif
