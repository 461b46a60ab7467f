// cli/options/manual.c - see manual.h.
#include "cli/options/manual.h"
#include "attention/attention.h"
#include "cli/options/all_options.h"
#include "cli/options/help.h"
#include "engine/sleigh.h"
#include "tokenizer/chat/chat.h"

#include <string.h>

// ---- the man page ----

// Prints n bytes as text of roff: a backslash and a minus keep their shape, and a line cannot begin a request.
static void roff(const char *text, size_t n, FILE *out) {
    if (n && (*text == '.' || *text == '\'')) fputs("\\&", out);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
    }
}

static void roff_line(const char *text, FILE *out) {
    roff(text, strlen(text), out);
    fputc('\n', out);
}

static void man_entry(const cli_help_entry *entry, FILE *out) {
    fputs(".TP\n.B ", out);
    roff_line(entry->left, out);
    roff_line(entry->text, out);
}

// Notes are paragraphs of full lines, and lists: an entry begins with two blanks, its name and more blanks; its other lines are
// indented deeper.
static void man_notes(const char *notes, FILE *out) {
    const char *request = ".PP\n"; // before the next line
    for (const char *line = notes; *line; line += strcspn(line, "\n") + 1) {
        size_t n = strcspn(line, "\n"), indent = strspn(line, " "), name = indent;
        while (name < n && strncmp(line + name, "  ", 2)) name++;
        if (n == 0) {
            request = ".PP\n";
        } else if (indent == 2 && name < n) {
            size_t text = name + strspn(line + name, " ");
            fputs(".TP\n.B ", out);
            roff(line + indent, name - indent, out);
            fputc('\n', out);
            roff(line + text, n - text, out);
            fputc('\n', out);
            request = ".PP\n";
        } else {
            if (indent == 0) fputs(request, out), request = "";
            roff(line + indent, n - indent, out);
            fputc('\n', out);
        }
    }
}

static void man_command(const cli_command *c, FILE *out) {
    const char *group = "";
    fprintf(out, ".SH \"SLEIGH ");
    for (const char *p = c->name; *p; p++) fputc(*p - ('a' <= *p && *p <= 'z' ? 'a' - 'A' : 0), out);
    fprintf(out, "\"\n.B sleigh %s\n", c->name);
    if (*c->args) roff_line(c->args, out);
    fputs(".PP\n", out);
    roff_line(c->summary, out);
    for (int i = 0; i < cli_n_options; i++) {
        const cli_option *opt = &cli_option_table[i];
        cli_help_entry entry;
        if (!(opt->commands & c->bit)) continue;
        if (strcmp(group, opt->group)) fprintf(out, ".SS %s\n", group = opt->group);
        cli_help_flag(opt, &entry);
        man_entry(&entry, out);
    }
    if (c->notes) fputs(".SS Notes\n", out), man_notes(c->notes, out);
}

void cli_manual_man(const cli_command *commands, int n, FILE *out) {
    fprintf(
        out,
        ".\\\" Made by `sleigh help --man`.\n"
        ".TH SLEIGH 1 \"\" \"sleigh %s\" \"User Commands\"\n.nh\n.ad l\n"
        ".SH NAME\nsleigh \\- run language models with exact and sampled attention\n"
        ".SH SYNOPSIS\n.B sleigh\n.I COMMAND\n[flags]\n.br\n.B sleigh\n.I COMMAND\n.B \\-\\-help\n"
        ".SH DESCRIPTION\n"
        "Sleigh runs language models of the Llama and Qwen families on a CPU or an NVIDIA GPU. It decodes long contexts with\n"
        "exact attention, or with methods that read a sample of the KV cache.\n.SH COMMANDS\n",
        SLEIGH_VERSION);
    for (int i = 0; i < n; i++) {
        fprintf(out, ".TP\n.B %s\n", commands[i].name);
        roff_line(commands[i].summary, out);
    }
    for (int i = 0; i < n; i++) man_command(&commands[i], out);
    fputs(".SH PARAMETERS OF METHODS\nThe methods that \\-\\-attn and \\-\\-attn\\-layer choose have these parameters.\n", out);
    cli_help_params(man_entry, out);
    fputs(".SH ENVIRONMENT\nEach flag has an environment variable, shown in brackets. The flag takes precedence.\n"
          ".TP\n.B SLEIGH_MODELS\nA folder in which \\-\\-model finds models by name.\n"
          ".SH FLAGS OF OTHER PROGRAMS\n.B sleigh help flags\nlists flags of llama.cpp and vLLM that Sleigh knows too.\n"
          ".SH FILES\n.TP\n.I ../share/sleigh/models\nThe installed models, beside the folder of the program. "
          "\\-\\-model tiny is the embedded model.\n"
          ".SH EXIT STATUS\n0: success. 2: usage error. 1: any other error.\n",
          out);
}

// ---- completion ----

static int is_word(const char *value, const char *word) { // SPEC or SPEC,...
    size_t n = strlen(word);
    return value && !strncmp(value, word, n) && (!value[n] || value[n] == ',');
}

// The candidates for the value of a flag, as an assignment in bash; NULL: any text.
static const char *candidates(const cli_option *opt, char buf[512]) {
    if (!cli_option_takes_value(opt)) return NULL;
    if (opt->field == offsetof(cli_options, run.model.path) || opt->field == offsetof(cli_options, run.drafts.model))
        return "kind=model";
    if (opt->field == offsetof(cli_options, run.device.name)) return "words='auto cpu cuda'";
    if (is_word(opt->value, "SPEC")) return "words=$methods";
    if (is_word(opt->value, "DRAFT")) return "words='ngram self model ngram+self ngram+model auto none'";
    if (is_word(opt->value, "FILE") || is_word(opt->value, "DIR")) return "kind=file";
    const char *list = opt->type == OPT_CHOICE                                        ? opt->value
                       : opt->field == offsetof(cli_options, run.model.chat_template) ? sl_chat_names()
                                                                                      : NULL;
    if (!list) return NULL;
    int n = snprintf(buf, 512, "words='");
    for (; *list && n < 500; list++)
        if (*list != ' ') buf[n++] = *list == ',' ? ' ' : *list;
    snprintf(buf + n, 512 - n, "'");
    return buf;
}

static void bash_params(const cli_help_entry *entry, FILE *out) {
    fprintf(out, " %.*s", (int)strcspn(entry->left, " "), entry->left);
}

// The flags of a command, and a case for each flag with a value.
static void bash_command(const cli_command *c, FILE *out) {
    char word[32], buf[512];
    fprintf(out, "    %s)\n        flags='", c->name);
    const char *blank = "";
    for (int i = 0; i < cli_n_options; i++) {
        const cli_option *opt = &cli_option_table[i];
        if (!(opt->commands & c->bit)) continue;
        fprintf(out, "%s%s", blank, opt->names), blank = " ";
        if (opt->type == OPT_SWITCH) fprintf(out, " --no-%s", cli_option_long_name(opt, word) + 2);
    }
    if (c->bit & CLI_DECODES) cli_help_params(bash_params, out);
    fputs("'\n", out);
    if (c->bit == CLI_BENCH) fputs("        [ \"$COMP_CWORD\" != 2 ] || flags=\"decode attn draft linear $flags\"\n", out);
    fputs("        case $prev in\n", out);
    for (int i = 0; i < cli_n_options; i++) {
        const cli_option *opt = &cli_option_table[i];
        if (!(opt->commands & c->bit) || !cli_option_takes_value(opt)) continue;
        for (int j = 0; cli_option_name(opt->names, j, word, sizeof word); j++)
            fprintf(out, "%s%s", j ? " | " : "        ", word);
        const char *values = candidates(opt, buf);
        fprintf(out, ") %s ;;\n", values ? values : "kind=text");
    }
    fprintf(out, "        esac\n        ;;\n");
}

// clang-format off
static const char bash_head[] =
    "# Completion of bash for sleigh. Made by `sleigh help --bash`.\n"
    "_sleigh_models() { # the names of the installed models; $1: the program\n"
    "    local program folder config\n"
    "    program=$(readlink -f -- \"$(type -P -- \"$1\")\")\n"
    "    for folder in \"${SLEIGH_MODELS:-/nowhere}\" \"${program%/*}\"/{../share/sleigh,..,../..}/models; do\n"
    "        for config in \"$folder\"/*/config.json; do\n"
    "            [ -e \"$config\" ] && config=${config%/*} && echo \"${config##*/}\"\n"
    "        done\n"
    "    done\n"
    "}\n"
    "_sleigh() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}\n"
    "    local methods flags='' words='' kind='' head='' IFS=$' \\t\\n'\n"
    "    # bash splits --attn=dense into three words\n"
    "    [ \"$cur\" != = ] || cur=''\n"
    "    [ \"$prev\" != = ] || prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    COMPREPLY=()\n";
static const char bash_tail[] =
    "    esac\n"
    "    case $kind in\n"
    "    text) return ;;\n"
    "    file) words=$(compgen -f -- \"$cur\") ;;\n"
    "    model) words=$(compgen -d -- \"$cur\"; _sleigh_models \"${COMP_WORDS[0]}\") ;;\n"
    "    *)\n"
    "        [ -n \"$words\" ] || words=$flags\n"
    "        case $cur in *,*) head=${cur%,*}, cur=${cur##*,} ;; esac # the last method of a list\n"
    "        ;;\n"
    "    esac\n"
    "    if [ -n \"$kind\" ]; then\n"
    "        IFS=$'\\n' # names of files may hold blanks\n"
    "        compopt -o filenames 2>/dev/null\n"
    "    fi\n"
    "    COMPREPLY=($(compgen -P \"$head\" -W \"$words\" -- \"$cur\"))\n"
    "}\n"
    "complete -F _sleigh sleigh\n";
// clang-format on

void cli_manual_bash(const cli_command *commands, int n, FILE *out) {
    fprintf(out, "%s    methods='auto", bash_head);
    for (const sl_attn_method *const *m = sl_attn_methods; *m; m++) fprintf(out, " %s", (*m)->name);
    fputs("'\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        command='' words='help --help --version", out);
    for (int i = 0; i < n; i++) fprintf(out, " %s", commands[i].name);
    fputs("'\n    elif [ \"$COMP_CWORD\" = 2 ] && [ \"$command\" = help ]; then\n        words='flags", out);
    for (int i = 0; i < n; i++) fprintf(out, " %s", commands[i].name);
    fputs("'\n    fi\n    case $command in\n", out);
    for (int i = 0; i < n; i++) bash_command(&commands[i], out);
    fputs(bash_tail, out);
}
