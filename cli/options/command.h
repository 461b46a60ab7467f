// cli/options/command.h - a command as the help, the parser and the dispatch see it.
#ifndef SLEIGH_COMMAND_H
#define SLEIGH_COMMAND_H

enum { // the bit of each command in cli_option.commands
    CLI_GENERATE = 1,
    CLI_CHAT = 2,
    CLI_TOKENIZE = 4,
    CLI_DETOKENIZE = 8,
    CLI_LOGITS = 16,
    CLI_INSPECT = 32,
    CLI_METHODS = 64,
    CLI_VERSION = 128,
    CLI_BENCH = 256,
    CLI_COMPARE = 512,
    CLI_PERPLEXITY = 1024,
    CLI_EVAL = 2048,
    CLI_PLOT = 4096,
    CLI_TUNE = 8192,
    CLI_SERVE = 16384,
    CLI_QUANTIZE = 32768,
    // groups of commands
    CLI_RUNS = CLI_GENERATE | CLI_CHAT,
    CLI_SAMPLES = CLI_RUNS | CLI_COMPARE,
    CLI_DECODES = CLI_RUNS | CLI_PERPLEXITY | CLI_SERVE, // with one attention plan: --attn and its flags
    CLI_ENGINES = CLI_SAMPLES | CLI_DECODES | CLI_LOGITS | CLI_BENCH | CLI_EVAL | CLI_TUNE,
    CLI_LOADS = CLI_ENGINES | CLI_TOKENIZE | CLI_DETOKENIZE | CLI_INSPECT | CLI_QUANTIZE
};

typedef struct cli_command {
    const char *name, *args, *summary;
    unsigned bit;
    const char *notes; // paragraphs at the end of the help; NULL: none
} cli_command;

#endif
