/* Thin operations one after another, in one call: between two of them a caller would only hand over numbers, and wait for its interpreter. */

#include "thin.h"

enum { PRODUCT = 0, ATTENTION = 1, GATE = 2 };

/* Whether the operation at `at` was done together with the one behind it. */
static int is_gated(team *all, const thin_operation *operations, int64_t num_operations, int64_t at, int64_t rows) {
    if (at + 1 >= num_operations || operations[at].kind != PRODUCT || operations[at + 1].kind != GATE) return 0;
    return thin_tiles_gate(all, operations[at].operand, operations[at + 1].operand, rows);
}

void thin_program(team *all, const thin_operation *operations, int64_t num_operations, int64_t rows, const thin_step *const *steps) {
    for (int64_t at = 0; at < num_operations && !errand_is_dropped(); at++) {
        const thin_operation *operation = operations + at;
        if (is_gated(all, operations, num_operations, at, rows)) {
            at++;
            continue;
        }
        switch (operation->kind) {
            case PRODUCT: thin_product(all, operation->operand, rows); break;
            case ATTENTION: thin_attention(all, operation->operand, steps[operation->step]); break;
            case GATE: thin_gate(all, operation->operand, rows); break;
        }
    }
}

/* The same from outside, where the caller's thread goes on to other things: to those of a library, perhaps, that multiplies tiles of its own, and
   leaves them in no state that ours could go on with. */
void thin_program_once(team *all, const thin_operation *operations, int64_t num_operations, int64_t rows, const thin_step *const *steps) {
    thin_program(all, operations, num_operations, rows, steps);
    thin_tiles_rest();
}

void thin_product_once(team *all, const thin_call *call, int64_t rows) {
    thin_product(all, call, rows);
    thin_tiles_rest();
}
