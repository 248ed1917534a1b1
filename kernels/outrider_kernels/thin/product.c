/* Thin matrix products: few rows times a large matrix that was packed once.

   out[m][n] (+)= sum over k of y[m][k] * w[k][n] (+ bias[n]), where y is x, or x divided by its root mean square and times a scale (RMSNorm).
   The matrix lies in panels of PANEL columns, each [inputs][PANEL], as float, as bfloat16 (the upper half of a float's bits) or as int8, whose
   sums are multiplied by their column's scale at the end; products and sums are float always. Every element is one chain of fused
   multiply-adds over k = 0, 1, 2, ..., whatever the number of rows, their place and the number of threads: a row's bits depend on nothing but
   the row and the matrix. thin_product.py packs and calls. */

#include <math.h>

#include "thin.h"

#define PANEL 16
#define MAX_TILE_ROWS 6
/* Weights fetched ahead: at a page's border the processor would begin anew. Between 256 and 3072, measured: a fifth to a quarter less for 2 to
   12 rows. Past the end nothing is fetched and nothing breaks. */
#define PREFETCH 3072
#define PREFETCH_ONE_ROW 1024

enum { FLOATS = 0, HALVES = 1, BYTES = 2 }; /* as in thin_product.py */

typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4)));

INLINE int64_t size_of(const int format) { return format == FLOATS ? 4 : format == HALVES ? 2 : 1; }

/* Written out because compilers make one instruction of the list, and many of a conversion between vectors of such different elements. */
INLINE lanes widened(const int8_t *from) {
    const integers values = {from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7]};
    return __builtin_convertvector(values, lanes);
}

/* The PANEL weights at `at`. Halves lie in pairs, column n below column n + LANES, so that one load gives both. */
INLINE void load_panel(const void *panels, int64_t at, const int format, lanes *left, lanes *right) {
    if (format == HALVES) {
        const bits pairs = *(const bits *)((const uint16_t *)panels + at);
        *left = (lanes)(pairs << 16);
        *right = (lanes)(pairs & 0xFFFF0000u);
    } else if (format == BYTES) {
        *left = widened((const int8_t *)panels + at);
        *right = widened((const int8_t *)panels + at + LANES);
    } else {
        *left = *(const lanes *)((const float *)panels + at);
        *right = *(const lanes *)((const float *)panels + at + LANES);
    }
}

/* What stays the same from call to call; thin_product.py has the same fields in the same order. */
struct thin_call {
    const float *x;            /* [rows][inputs] */
    const void *panels;        /* [panels][inputs][PANEL] */
    const float *column_scale; /* [outputs], of BYTES; else null */
    const float *bias;         /* [outputs] or null */
    const float *scale;        /* [inputs] or null: of RMSNorm */
    float *normed;             /* [rows][inputs]: where RMSNorm puts its result; null without a scale */
    float *out;                /* [rows][outputs] */
    int64_t inputs, outputs;
    float epsilon;
    int32_t format, adds;
};

typedef struct {
    thin_call call;
    int64_t rows, num_groups, num_chunks; /* groups of panels; chunks of groups */
    int group_len;                        /* panels that are computed side by side */
} product;

/* Sums of LANES columns from `column` on, or of as many as there are, to where they belong. With a scale it is one multiply-add, whatever
   stands around it: bits must not depend on where a compiler finds two operations to fuse. */
INLINE void put(const thin_call *call, lanes sum, int64_t row, int64_t column, const int format) {
    float *to = call->out + row * call->outputs + column;
    const int64_t left = call->outputs - column;
    if (left >= LANES) {
        if (format == BYTES) {
            lanes start = call->adds ? *(lanes *)to : splat(0.0f);
            if (call->bias) start += *(const lanes *)(call->bias + column);
            *(lanes *)to = sum * *(const lanes *)(call->column_scale + column) + start;
        } else {
            if (call->bias) sum += *(const lanes *)(call->bias + column);
            if (call->adds) sum += *(lanes *)to;
            *(lanes *)to = sum;
        }
        return;
    }
    for (int64_t lane = 0; lane < left; lane++) {
        if (format == BYTES) {
            float start = call->adds ? to[lane] : 0.0f;
            if (call->bias) start += call->bias[column + lane];
            to[lane] = sum[lane] * call->column_scale[column + lane] + start;
        } else {
            float value = sum[lane];
            if (call->bias) value += call->bias[column + lane];
            to[lane] = call->adds ? to[lane] + value : value;
        }
    }
}

/* `rows` rows from x on, `panels` panels from `first` on. rows and panels are constants wherever this is expanded. */
INLINE void tile(const product *job, int64_t row, int64_t first, const int rows, const int panels, const int format) {
    lanes sums[MAX_TILE_ROWS][8];
    const thin_call *call = &job->call;
    const int64_t inputs = call->inputs, stride = inputs * PANEL;
    const float *x = call->x + row * inputs;
    const int64_t base = first * stride, ahead = rows == 1 ? PREFETCH_ONE_ROW : PREFETCH;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < 2 * panels; n++) sums[m][n] = splat(0.0f);
    for (int64_t k = 0; k < inputs; k++) {
        for (int panel = 0; panel < panels; panel++) {
            const int64_t at = base + panel * stride + k * PANEL;
            lanes left, right;
            load_panel(call->panels, at, format, &left, &right);
            __builtin_prefetch((const char *)call->panels + (at + ahead) * size_of(format));
            for (int m = 0; m < rows; m++) {
                const lanes value = splat(x[m * inputs + k]);
                sums[m][2 * panel] += value * left;
                sums[m][2 * panel + 1] += value * right;
            }
        }
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < 2 * panels; n++) put(call, sums[m][n], row + m, first * PANEL + n * LANES, format);
}

#define TILE(ROWS, PANELS)                                                  \
    do {                                                                    \
        switch (job->call.format) {                                         \
            case BYTES: tile(job, row, first, ROWS, PANELS, BYTES); break;  \
            case HALVES: tile(job, row, first, ROWS, PANELS, HALVES); break; \
            default: tile(job, row, first, ROWS, PANELS, FLOATS);           \
        }                                                                   \
    } while (0)

static void tile_of(const product *job, int64_t row, int64_t first, int rows, int panels) {
    if (panels == 4) { TILE(1, 4); return; }
    if (panels == 2) {
        switch (rows) {
            case 1: TILE(1, 2); return;
            default: TILE(2, 2); return;
        }
    }
    switch (rows) {
        case 1: TILE(1, 1); return;
        case 2: TILE(2, 1); return;
        case 3: TILE(3, 1); return;
        case 4: TILE(4, 1); return;
        case 5: TILE(5, 1); return;
        default: TILE(6, 1); return;
    }
}

static void run_chunk(const void *argument, int64_t chunk) {
    const product *job = argument;
    const int64_t num_panels = (job->call.outputs + PANEL - 1) / PANEL;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, end = (chunk + 1) * job->num_groups / job->num_chunks;
    const int64_t num_tiles = (job->rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    for (int64_t group = begin; group < end; group++) {
        int64_t first = group * job->group_len;
        const int64_t last = first + job->group_len < num_panels ? first + job->group_len : num_panels;
        while (first < last) {
            const int panels = last - first >= job->group_len ? job->group_len : (last - first >= 2 && job->group_len >= 2 ? 2 : 1);
            for (int64_t at = 0; at < num_tiles; at++) {
                const int64_t row = at * job->rows / num_tiles, next = (at + 1) * job->rows / num_tiles;
                tile_of(job, row, first, (int)(next - row), panels);
            }
            first += panels;
        }
    }
}

/* A row's sum of squares in one fixed order, whatever stands beside it. */
static void norm(const thin_call *call, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) {
        const float *x = call->x + row * call->inputs;
        float *y = call->normed + row * call->inputs;
        lanes squares = splat(0.0f);
        int64_t k = 0;
        for (; k + LANES <= call->inputs; k += LANES) squares += *(const lanes *)(x + k) * *(const lanes *)(x + k);
        float sum = 0.0f;
        for (int lane = 0; lane < LANES; lane++) sum += squares[lane];
        for (; k < call->inputs; k++) sum += x[k] * x[k];
        const float factor = 1.0f / sqrtf(sum / (float)call->inputs + call->epsilon);
        for (k = 0; k < call->inputs; k++) y[k] = x[k] * factor * call->scale[k];
    }
}

void thin_product(team *all, const thin_call *call, int64_t rows) {
    if (rows <= 0) return;
    product job = {*call, rows, 0, 0, rows == 1 ? 4 : rows == 2 ? 2 : 1};
    if (call->scale) {
        norm(call, rows);
        job.call.x = call->normed;
    }
    const int64_t num_panels = (call->outputs + PANEL - 1) / PANEL;
    job.num_groups = (num_panels + job.group_len - 1) / job.group_len;
    job.num_chunks = team_chunks(all, job.num_groups);
    team_run(all, run_chunk, &job, job.num_chunks);
}
