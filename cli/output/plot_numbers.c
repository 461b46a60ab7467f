// cli/output/plot_numbers.c - see plot_numbers.h.
#include "cli/output/plot_numbers.h"

#include <math.h>
#include <stdlib.h>

typedef struct box { // pixels from the lower left corner of the plot area
    double left, right, low, high;
} box;

typedef struct boxes {
    box *at;
    int n;
} boxes;

static box box_at(double x, double y, double width, double height) {
    return (box){x - 0.5 * width, x + 0.5 * width, y - 0.5 * height, y + 0.5 * height};
}

static int is_free(const boxes *taken, const box *b, int width) {
    if (b->left < 0 || b->right > width || b->low < 0 || b->high > CLI_PLOT_HEIGHT) return 0;
    for (int i = 0; i < taken->n; i++) {
        const box *a = &taken->at[i];
        if (a->left < b->right && b->left < a->right && a->low < b->high && b->low < a->high) return 0;
    }
    return 1;
}

// The points themselves, with room for 2 * n boxes.
static boxes boxes_of(const cli_panel *p, const cli_axis *x, const cli_axis *y, int width) {
    enum { MARKER = 10 };
    boxes out = {0};
    int n = 0;
    for (int i = 0; i < p->n_curves; i++) n += p->curves[i].n;
    out.at = malloc((n ? 2 * (size_t)n : 1) * sizeof *out.at);
    for (int i = 0; out.at && i < p->n_curves; i++)
        for (int j = 0; j < p->curves[i].n; j++) {
            const cli_point *at = &p->curves[i].points[j];
            if (cli_plot_drawable(p, at))
                out.at[out.n++] =
                    box_at(width * cli_plot_place(x, at->x), CLI_PLOT_HEIGHT * cli_plot_place(y, at->y), MARKER, MARKER);
        }
    return out;
}

// Beside the point first, because an error bar may lie above and below it. Where no place is free, there is no number.
static void put_number(FILE *f, boxes *taken, double x, double y, double number, int width, unsigned colour) {
    static const int places[][2] = {{1, 1}, {1, -1}, {-1, 1}, {-1, -1}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}}; // x, y
    char text[32];
    double wide = cli_plot_text_width((size_t)cli_plot_number(number, text), CLI_PLOT_NUMBER);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        box b = box_at(x + places[i][0] * (0.5 * wide + 6), y + places[i][1] * (places[i][0] ? 8 : 14), wide, CLI_PLOT_NUMBER);
        if (!is_free(taken, &b, width)) continue;
        taken->at[taken->n++] = b;
        fprintf(f, "set label '%s' at graph %.6f, graph %.6f center font ',%d' tc rgb '#%06x' front\n", text,
                0.5 * (b.left + b.right) / width, 0.5 * (b.low + b.high) / CLI_PLOT_HEIGHT, CLI_PLOT_NUMBER, colour);
        return;
    }
}

void cli_plot_put_numbers(FILE *f, const cli_panel *p, const cli_axis *x, const cli_axis *y, int width,
                          const unsigned *colours) {
    boxes taken = boxes_of(p, x, y, width);
    for (int i = 0; taken.at && i < p->n_curves; i++)
        for (int j = 0; j < p->curves[i].n; j++) {
            const cli_point *at = &p->curves[i].points[j];
            if (cli_plot_drawable(p, at) && at->number > 0 && isfinite(at->number))
                put_number(f, &taken, width * cli_plot_place(x, at->x), CLI_PLOT_HEIGHT * cli_plot_place(y, at->y), at->number,
                           width, colours[i]);
        }
    free(taken.at);
}
