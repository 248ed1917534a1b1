/* silu(gate) * up of each row: out[m][n] = g / (1 + e^-g) * u. */

#include "thin.h"

/* gate_up: [rows][2][length]; out: [rows][length]. */
void thin_gate(const float *gate_up, float *out, int64_t rows, int64_t length) {
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = gate_up + row * 2 * length, *up = gate + length;
        float *to = out + row * length;
        int64_t at = 0;
        for (; at + LANES <= length; at += LANES) {
            const lanes g = *(const lanes *)(gate + at);
            *(lanes *)(to + at) = g / (splat(1.0f) + exp_of(-g)) * *(const lanes *)(up + at);
        }
        for (; at < length; at++) {
            const lanes g = splat(gate[at]);
            to[at] = (g / (splat(1.0f) + exp_of(-g)))[0] * up[at];
        }
    }
}
