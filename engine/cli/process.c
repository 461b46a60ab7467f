// engine/cli/process.c - see process.h.
#include "engine/cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

// The wrong direction for 0 and 1: an empty input or a lost output must not look like a good one.
static void open_standard(void) {
    static const int flags[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", flags[fd]) != fd) _exit(1); // nowhere to say why
}

void cli_process_begin(void) {
    open_standard();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}
