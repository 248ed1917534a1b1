/* silu(gate) * up of each row: out[m][n] = g / (1 + e^-g) * u. */

#include "thin.h"

/* thin_gate.py has the same fields in the same order. */
struct thin_gate_call {
    const float *gate_up; /* [rows][2][length] */
    float *out;           /* [rows][length] */
    int64_t length;
};

void thin_gate(const thin_gate_call *call, int64_t rows) {
    const int64_t length = call->length;
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = call->gate_up + row * 2 * length, *up = gate + length;
        float *to = call->out + row * length;
        int64_t at = 0;
        for (; at + WIDTH <= length; at += WIDTH) {
            const wide g = *(const wide *)(gate + at);
            *(wide *)(to + at) = g / (wide_splat(1.0f) + exp_of_wide(-g)) * *(const wide *)(up + at);
        }
        for (; at < length; at++) {
            const wide g = wide_splat(gate[at]);
            to[at] = (g / (wide_splat(1.0f) + exp_of_wide(-g)))[0] * up[at];
        }
    }
}
