// cli/rank_team.h - a team: the ranks that share one model (--tensor-parallel-size). All ranks of a team run the same command
// with the same flags, token by token. Only the first one has standard input and writes.
#ifndef SLEIGH_RANK_TEAM_H
#define SLEIGH_RANK_TEAM_H

#include "base/arrays.h"
#include "base/comm.h"

// The callback of engines: tells all ranks whether Ctrl+C came to the first one (cli_set_interrupted). It never cancels.
sl_cancel cli_team_interrupt(sl_comm *comm); // comm NULL: no callback
// The first rank's text and number replace those of the others. Without a team, does nothing.
int cli_team_share(sl_comm *comm, sl_text *text, int *number, sl_error *err);
// A file that every rank of a team reads. SL_ERR_ARG if it can be read only once, as a pipe. flag: for the message. path NULL:
// no file; a path that does not exist is left to its reader.
int cli_team_check_file(sl_comm *comm, const char *flag, const char *path, sl_error *err);

#endif
