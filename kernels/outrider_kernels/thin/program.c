/* Thin operations one after another, in one call: between two of them a caller would only hand over numbers, and wait for its interpreter. */

#include "thin.h"

enum { PRODUCT = 0, ATTENTION = 1, GATE = 2 };

/* How many operations from the first on were done together, of `left`: 0, where it is done by itself. */
static int64_t joined(team *all, const thin_operation *operations, int64_t left, int64_t rows) {
    if (left < 2 || operations[0].kind != PRODUCT || operations[1].kind != GATE) return 0;
    const thin_call *next = left > 2 && operations[2].kind == PRODUCT ? operations[2].operand : 0;
    return thin_tiles_gate(all, operations[0].operand, operations[1].operand, next, rows);
}

void thin_program(team *all, const thin_operation *operations, int64_t num_operations, int64_t rows, const thin_step *const *steps) {
    for (int64_t at = 0, num; at < num_operations && !errand_is_dropped(); at += num ? num : 1) {
        const thin_operation *operation = operations + at;
        if ((num = joined(all, operation, num_operations - at, rows))) continue;
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
