/* silu(gate) * up of each row: out[m][n] = g / (1 + e^-g) * u. */

#include "thin.h"

/* thin_gate.py has the same fields in the same order. */
struct thin_gate_call {
    const float *gate_up; /* [rows][2][length] */
    float *out;           /* [rows][length] */
    int64_t length;
};

#define BLOCK 128 /* columns; a multiple of WIDTH, so that vectors begin where they do in a whole row */

/* Blocks from which they are shared out. Measured, two threads on Zen 4, us one -> two: 21 blocks (3 rows of 896) 1.04 -> 1.04, 28 blocks 1.37 -> 1.13,
   56 blocks 2.72 -> 2.01. */
#define SHARED_BLOCKS 24

typedef struct {
    const thin_gate_call *call;
    int64_t num_parts, num_chunks; /* parts: blocks of all rows */
} job_of_gate;

INLINE int64_t blocks_of(int64_t length) { return (length + BLOCK - 1) / BLOCK; }

static void run_part(const thin_gate_call *call, int64_t part) {
    const int64_t length = call->length, row = part / blocks_of(length), first = part % blocks_of(length) * BLOCK, end = min(first + BLOCK, length);
    const float *gate = call->gate_up + row * 2 * length, *up = gate + length;
    float *to = call->out + row * length;
    int64_t at = first;
    for (; at + WIDTH <= end; at += WIDTH) {
        const wide g = *(const wide *)(gate + at);
        *(wide *)(to + at) = g / (wide_splat(1.0f) + exp_of_wide(-g)) * *(const wide *)(up + at);
    }
    for (; at < end; at++) {
        const wide g = wide_splat(gate[at]);
        to[at] = (g / (wide_splat(1.0f) + exp_of_wide(-g)))[0] * up[at];
    }
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
