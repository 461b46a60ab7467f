// cli/options/help.c - the help text of a command, from the table of flags and the registry of methods.
#include "cli/options/help.h"
#include "attention/attention.h"

#include <stdio.h>
#include <string.h>

// Prints `left` in the first column, and `text` in the second column, broken at blanks.
static void print_entry(const cli_help_entry *entry, FILE *out) {
    enum { INDENT = 39, WIDTH = 120 };
    const char *text = entry->text;
    int column = fprintf(out, "  %-36s", entry->left);
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (!strncmp(text, "(default: ", 10)) n = 10 + (int)strcspn(text + 10, " "); // keep the value with its label
        if (column + 1 + n > WIDTH && column > INDENT) column = fprintf(out, "\n%*s", INDENT - 1, "") - 1;
        column += fprintf(out, " %.*s", n, text);
        text += n + (text[n] == ' ');
    }
    fputc('\n', out);
}

void cli_help_flag(const cli_option *opt, cli_help_entry *out) {
    char *left = out->left, *text = out->text, word[32], env[48];
    int n = 0;
    for (int i = 0; cli_option_name(opt->names, i, word, sizeof word); i++) {
        const char *no = opt->type == OPT_SWITCH && !strncmp(word, "--", 2) ? "[no-]" : "";
        n += snprintf(left + n, sizeof out->left - n, "%s%s", i ? ", " : "", *no ? "--" : word);
        if (*no) n += snprintf(left + n, sizeof out->left - n, "%s%s", no, word + 2);
    }
    if (opt->value) snprintf(left + n, sizeof out->left - n, " %s", opt->value);
    const char *def = opt->type == OPT_SWITCH       ? (*opt->def == '1' ? "yes" : "no")
                      : cli_option_takes_value(opt) ? opt->def
                                                    : NULL;
    n = snprintf(text, sizeof out->text, "%s", opt->help);
    if (def) n += snprintf(text + n, sizeof out->text - n, " (default: %s)", def);
    if (cli_option_has_env(opt)) snprintf(text + n, sizeof out->text - n, " [%s]", cli_option_env(opt, env));
}

void cli_help_params(void (*fn)(const cli_help_entry *entry, FILE *out), FILE *out) {
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) {
        for (const sl_attn_param *p = (*m)->params; p && p->name; p++) {
            int seen = 0;
            for (const sl_attn_method *const *before = sl_attn_methods; before != m; before++)
                for (const sl_attn_param *q = (*before)->params; q && q->name; q++) seen |= !strcmp(q->name, p->name);
            if (seen) continue;
            cli_help_entry e;
            char def[64];
            const char *value = p->choices ? p->choices : p->type == SL_PARAM_INT ? "N" : "X";
            snprintf(e.left, sizeof e.left, "--%s %s", p->name, value);
            int n = snprintf(e.text, sizeof e.text, "%s (", p->help);
            const char *comma = "";
            for (const sl_attn_method *const *other = m; *other; other++)
                for (const sl_attn_param *q = (*other)->params; q && q->name; q++) {
                    if (strcmp(q->name, p->name)) continue;
                    sl_attn_param_format(q, q->def, def, sizeof def);
                    n += snprintf(e.text + n, sizeof e.text - n, "%s%s: %s", comma, (*other)->name, def), comma = ", ";
                }
            snprintf(e.text + n, sizeof e.text - n, ")");
            fn(&e, out);
        }
    }
}

void cli_help_command(const cli_command *c, FILE *out) {
    fprintf(out, "usage: sleigh %s %s\n\n%s\n", c->name, c->args, c->summary);
    const char *group = "";
    for (int i = 0; i < cli_n_options; i++) {
        if (!(cli_option_table[i].commands & c->bit)) continue;
        if (strcmp(group, cli_option_table[i].group)) fprintf(out, "\n%s:\n", group = cli_option_table[i].group);
        cli_help_entry entry;
        cli_help_flag(&cli_option_table[i], &entry);
        print_entry(&entry, out);
    }
    if (c->bit & CLI_DECODES) {
        fprintf(out, "\nParameters of the methods that --attn and --attn-layer choose (each with the methods that have it and "
                     "their defaults):\n");
        cli_help_params(print_entry, out);
    }
    if (c->notes) fprintf(out, "\n%s", c->notes);
    fprintf(out, "\nEach flag has an environment variable, shown in brackets; the flag takes precedence. In numbers, k and K "
                 "mean 1024.\n`sleigh help flags` lists flags of llama.cpp and vLLM that Sleigh knows too.\n");
}
