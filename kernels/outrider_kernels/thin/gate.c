/* silu(gate) * up of each row: out[m][n] = g / (1 + e^-g) * u, as floats, or as the bfloat16 numbers that the next product takes. */

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "thin.h"

#define BLOCK 128 /* columns; a multiple of WIDTH, so that vectors begin where they do in a whole row */

/* Blocks from which they are shared out. Measured, two threads on Zen 4, us one -> two: 21 blocks (3 rows of 896) 1.04 -> 1.04, 28 blocks 1.37 -> 1.13,
   56 blocks 2.72 -> 2.01. */
#define SHARED_BLOCKS 24

typedef struct {
    const thin_gate_call *call;
    int64_t num_parts, num_chunks; /* parts: blocks of all rows */
} job_of_gate;

INLINE int64_t blocks_of(int64_t length) { return (length + BLOCK - 1) / BLOCK; }

INLINE wide gated(wide gate, wide up) { return gate / (wide_splat(1.0f) + exp_of_wide(-gate)) * up; }

#ifdef __AVX512BF16__
/* Columns [first, end) of a row. */
static void put_halves(const float *gate, const float *up, int64_t first, int64_t end, uint16_t *to) {
    int64_t at = first;
    for (; at + WIDTH <= end; at += WIDTH) {
        const wide values = gated(*(const wide *)(gate + at), *(const wide *)(up + at));
        _mm256_storeu_si256((__m256i *)(to + at), (__m256i)_mm512_cvtneps_pbh((__m512)values));
    }
    if (at == end) return;
    const __mmask16 some = (__mmask16)((1u << (end - at)) - 1);
    const wide values = gated((wide)_mm512_maskz_loadu_ps(some, gate + at), (wide)_mm512_maskz_loadu_ps(some, up + at));
    _mm256_mask_storeu_epi16(to + at, some, (__m256i)_mm512_cvtneps_pbh((__m512)values));
}
#else
static void put_halves(const float *gate, const float *up, int64_t first, int64_t end, uint16_t *to) {
    (void)gate, (void)up, (void)first, (void)end, (void)to; /* thin_product.py packs no pairs here */
}
#endif

static void put_floats(const float *gate, const float *up, int64_t first, int64_t end, float *to) {
    int64_t at = first;
    for (; at + WIDTH <= end; at += WIDTH) *(wide *)(to + at) = gated(*(const wide *)(gate + at), *(const wide *)(up + at));
    for (; at < end; at++) to[at] = gated(wide_splat(gate[at]), wide_splat(up[at]))[0];
}

void thin_gate_tile(const float *gate, const float *up, int rows, uint16_t *to, int64_t apart) {
    for (int m = 0; m < rows; m++) put_halves(gate + m * PANEL, up + m * PANEL, 0, PANEL, to + m * apart);
}

static void run_part(const thin_gate_call *call, int64_t part) {
    const int64_t length = call->length, row = part / blocks_of(length), first = part % blocks_of(length) * BLOCK;
    const int64_t end = min(first + BLOCK, length);
    const float *gate = call->gate_up + row * 2 * length, *up = gate + length;
    if (call->halves) put_halves(gate, up, first, end, call->halves + row * 2 * pairs_apart(length));
    else put_floats(gate, up, first, end, call->out + row * length);
}

static void run_chunk(const void *argument, int64_t chunk) {
    const job_of_gate *job = argument;
    const int64_t end = (chunk + 1) * job->num_parts / job->num_chunks;
    for (int64_t part = chunk * job->num_parts / job->num_chunks; part < end; part++) run_part(job->call, part);
}

void thin_gate(team *all, const thin_gate_call *call, int64_t rows) {
    const int64_t num_parts = rows * blocks_of(call->length);
    const job_of_gate job = {call, num_parts, num_parts < SHARED_BLOCKS ? 1 : team_chunks(all, num_parts)};
    team_run(all, run_chunk, &job, job.num_chunks);
}
