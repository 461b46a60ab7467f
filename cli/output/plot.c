// cli/output/plot.c - see plot.h.
#include "cli/output/plot.h"
#include "cli/output/plot_data.h"
#include "cli/output/plot_script.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };
extern char **environ;

// Runs gnuplot on the script; its messages go to a file. *status: as from waitpid. Returns 0 or an errno; ENOENT: no gnuplot.
static int run_gnuplot(FILE *script, FILE *complaints, int *status) {
    char *const args[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    fflush(script);
    lseek(fileno(script), 0, SEEK_SET);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(complaints), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(complaints), STDERR_FILENO);
    int rc = posix_spawnp(&pid, "gnuplot", &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    while (!rc && waitpid(pid, status, 0) < 0)
        if (errno != EINTR) rc = errno;
    return rc;
}

// The first line that holds a message.
static void first_complaint(FILE *complaints, char *buf, int size) {
    rewind(complaints);
    *buf = 0;
    while (fgets(buf, size, complaints))
        if (buf[strspn(buf, " \t\r\n^")]) break;
    buf[strcspn(buf, "\n")] = 0;
}

// *missing: 1 if gnuplot is not installed.
static int run_script(const char *file, FILE *script, FILE *complaints, int *missing, sl_error *err) {
    char why[256];
    int status = 0, rc = run_gnuplot(script, complaints, &status);
    *missing = rc == ENOENT;
    if (*missing) return 0;
    if (rc) return sl_fail(err, SL_ERR_IO, "cannot run gnuplot: %s", strerror(rc));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    first_complaint(complaints, why, sizeof why);
    return sl_fail(err, SL_ERR_IO, "gnuplot could not draw %s: %s", file, why);
}

int cli_plot_check(const char *file, const char *flag, sl_error *err) {
    char folder[MAX_PATH];
    if (!cli_plot_ending(file))
        return sl_fail(err, SL_ERR_ARG, "%s %.200s: expected a file name that ends in .svg, .pdf or .png", flag, file);
    if (snprintf(folder, sizeof folder, "%s", file) >= MAX_PATH - 8)
        return sl_fail(err, SL_ERR_ARG, "%s: expected a path of at most %d characters", flag, MAX_PATH - 8);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    if (!access(slash ? folder : ".", W_OK)) return 0;
    return sl_fail(err, SL_ERR_IO, "%s %.200s: cannot write to its folder: %s", flag, file, strerror(errno));
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The path of `file` with another ending.
static void with_ending(const char *file, const char *ending, char path[MAX_PATH]) {
    snprintf(path, MAX_PATH, "%.*s%s", (int)(strrchr(file, '.') - file), file, ending);
}

// Writes the script for a machine with gnuplot. The script names the picture without its folder.
static int keep_script(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err) {
    char path[MAX_PATH];
    with_ending(file, ".gp", path);
    FILE *f = fopen(path, "w");
    if (!f) return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    cli_plot_script(f, name_of(file), title, panels, n);
    int failed = ferror(f);
    if (fclose(f) || failed) return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    fprintf(stderr, "plot: %s was not drawn, because gnuplot is not installed; `gnuplot %s` in its folder draws it\n", file,
            name_of(path));
    return 0;
}

int cli_plot_draw(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err) {
    int rc, missing = 0;
    FILE *script = tmpfile(), *complaints = tmpfile();
    if (script && complaints) {
        cli_plot_script(script, file, title, panels, n);
        rc = run_script(file, script, complaints, &missing, err);
    } else {
        rc = sl_fail(err, SL_ERR_IO, "cannot create a temporary file for the gnuplot script: %s", strerror(errno));
    }
    if (script) fclose(script);
    if (complaints) fclose(complaints);
    return missing ? keep_script(file, title, panels, n, err) : rc;
}

int cli_plot(const char *file, const char *title, const cli_panel *panels, int n, sl_error *err) {
    char data[MAX_PATH];
    int rc = cli_plot_check(file, "--plot", err);
    if (rc) return rc;
    with_ending(file, ".dat", data);
    rc = cli_plot_write(data, title, panels, n, err);
    return rc ? rc : cli_plot_draw(file, title, panels, n, err);
}
