// cli/output/plot_style.c - see plot_style.h.
#include "cli/output/plot_style.h"

#include <string.h>

enum { // pointtypes of gnuplot's SVG and cairo terminals
    PLUS = 1,
    CROSS,
    STAR,
    OPEN_SQUARE,
    SQUARE,
    OPEN_CIRCLE,
    CIRCLE,
    OPEN_UP,
    UP,
    OPEN_DOWN,
    DOWN,
    OPEN_DIAMOND,
    DIAMOND,
    OPEN_PENTAGON,
    PENTAGON
};
enum { SOLID = 1, DASHED, DOTTED, DASH_DOT, DASH_DOT_DOT };

// clang-format off
const cli_plot_style cli_plot_styles[] = {
    {"dense",            0x000000, SQUARE,        SOLID},
    {"dense-q",          0x8c8c8c, OPEN_SQUARE,   SOLID},
    {"santa",            0x56b4e9, OPEN_CIRCLE,   SOLID},
    {"santa-strat",      0x332288, OPEN_UP,       SOLID},
    {"santa-sys",        0x44aa99, OPEN_DOWN,     SOLID},
    {"santa-prop",       0x0072b2, CIRCLE,        SOLID},
    {"santa-flash",      0xe69f00, UP,            SOLID},
    {"santa-pps",        0xd55e00, DOWN,          SOLID},
    {"santa-is",         0x009e73, DIAMOND,       SOLID},
    {"bernoulli",        0x882255, PLUS,          SOLID},
    {"bernoulli-group",  0xaa4499, CROSS,         SOLID},
    {"streaming",        0x999933, OPEN_DIAMOND,  SOLID},
    {"topk",             0xcc79a7, PENTAGON,      SOLID},
    {"topp",             0x8b4513, OPEN_PENTAGON, SOLID},
    {"quest",            0x6a5acd, STAR,          SOLID},
    {"magicpig",         0xcc3366, OPEN_CIRCLE,   SOLID},
    {"saap",             0xff7f0e, SQUARE,        SOLID},
    {"saap-kmeans",      0x1b7fbd, OPEN_UP,       SOLID},
    {"saap-is",          0xd62728, CIRCLE,        SOLID},
    {"vattention",       0x117733, OPEN_SQUARE,   SOLID},
    {"random",           0xb0a090, CROSS,         SOLID},
    {"auto",             0x5c4033, OPEN_DOWN,     SOLID},
    // prefill
    {"sample",           0x004d40, CIRCLE,        SOLID},
    {"vertical-slash",   0xd81b60, UP,            SOLID},
    {"xattention",       0x1e5bff, DOWN,          SOLID},
    {"threshold",        0xffb000, PENTAGON,      SOLID},
    {"oracle",           0x404040, STAR,          DASHED},
    {"bigbird",          0x7cae00, SQUARE,        SOLID},
    {"hash-sparse",      0xc77cff, DIAMOND,       SOLID},
    {"hyperattention",   0x00a5b5, OPEN_PENTAGON, SOLID},
    // peers: dashed, with open markers
    {"cuDNN",            0xc08a00, OPEN_UP,       DASHED},
    {"FlashAttention-3", 0xa0307a, OPEN_CIRCLE,   DASHED},
    {"FlashAttention-2", 0x5b7f95, OPEN_DOWN,     DASHED},
    {"FlashInfer",       0x7a9e4f, OPEN_DIAMOND,  DASHED},
    {"vLLM",             0xa04000, OPEN_CIRCLE,   DASHED},
    {"llama.cpp",        0x6b4c9a, OPEN_UP,       DASHED},
    // the time to read the bytes of a step: "bytes of K+V"
    {"bytes",            0x606060, 0,             DOTTED},
    {0},
};
// clang-format on

static const cli_plot_style spare[] = {
    {"", 0x2f4f4f, OPEN_PENTAGON, DASH_DOT}, {"", 0x556b2f, PENTAGON, DASH_DOT}, {"", 0x7b3294, DIAMOND, DASH_DOT},
    {"", 0x1f78b4, STAR, DASH_DOT},          {"", 0xb15928, UP, DASH_DOT},       {"", 0xe7298a, DOWN, DASH_DOT},
};
enum { N_SPARE = sizeof spare / sizeof *spare };

const unsigned cli_plot_shades[CLI_PLOT_SHADES] = {0x440154, 0x481567, 0x482677, 0x453781, 0x404788, 0x39568c, 0x33638d,
                                                   0x2d708e, 0x287d8e, 0x238a8d, 0x1f968b, 0x20a387, 0x29af7f, 0x3cbb75,
                                                   0x55c667, 0x73d055, 0x95d840, 0xb8de29, 0xdce319, 0xfde725};

int cli_plot_first_word(const char *curve) {
    return (int)strcspn(curve, ":,+ ");
}

static const cli_plot_style *find(const char *curve) {
    size_t n = (size_t)cli_plot_first_word(curve);
    unsigned hash = 2166136261u;
    for (const cli_plot_style *s = cli_plot_styles; s->name; s++)
        if (strlen(s->name) == n && !memcmp(s->name, curve, n)) return s;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)curve[i]) * 16777619u; // FNV-1a
    return &spare[hash % N_SPARE];
}

static unsigned lighter(unsigned rgb, int percent) {
    unsigned out = 0;
    for (int shift = 0; shift < 24; shift += 8) {
        unsigned x = rgb >> shift & 255;
        out |= (x + (255 - x) * (unsigned)percent / 100) << shift;
    }
    return out;
}

cli_plot_style cli_plot_style_of(const char *curve, int variation) {
    static const int light[] = {0, 30, 48, 60, 68}, next[] = {0, DASHED, DASH_DOT, DASH_DOT_DOT, DOTTED, SOLID};
    enum { N_DASHES = 5 };
    cli_plot_style s = *find(curve);
    s.rgb = lighter(s.rgb, light[variation < 4 ? variation : 4]);
    for (int i = 0; i < variation % N_DASHES; i++) s.dash = next[s.dash];
    if (s.marker) s.marker = (s.marker - 1 + variation / N_DASHES) % PENTAGON + 1;
    return s;
}
