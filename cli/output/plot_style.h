// cli/output/plot_style.h - the colour, marker and line of each method, the same in every picture.
//
// The name of a curve starts with a method or a peer: "santa-prop:S=128, batch 4" is santa-prop. A table gives this first word
// a colour of its own, a marker and a line. Curves of one panel with the same first word differ in a variation (0, 1, ... in
// the order of the panel): a later variation has a lighter shade of the colour and another dash. After five variations the
// marker changes, because there are five dashes. A first word that is not in the table gets one of a few spare styles, and the
// same one in every picture.
//
// The hues are those of Okabe and Ito's palette, which colour-blind readers can tell apart, and darker or greyer relatives of
// them. Markers and dashes tell curves apart in print without colour.
#ifndef SLEIGH_PLOT_STYLE_H
#define SLEIGH_PLOT_STYLE_H

typedef struct cli_plot_style {
    const char *name; // first word of the curves; the table ends with NULL
    unsigned rgb;     // 0xRRGGBB
    int marker;       // gnuplot's pointtype; 0: none
    int dash;         // gnuplot's dashtype of variation 0: 1 is solid
} cli_plot_style;

extern const cli_plot_style cli_plot_styles[];

// Length of the first word of a curve's name: up to a colon, comma, plus sign or blank.
int cli_plot_first_word(const char *curve);
cli_plot_style cli_plot_style_of(const char *curve, int variation);

// Colours of heat maps from the lowest to the highest value, at equal distances: viridis, whose lightness grows evenly.
enum { CLI_PLOT_SHADES = 20 };
extern const unsigned cli_plot_shades[CLI_PLOT_SHADES];

#endif
