/* Thin operations one after another, in one call: between two of them a caller would only hand over numbers, and wait for its interpreter. */

#include "thin.h"

enum { PRODUCT = 0, ATTENTION = 1, GATE = 2 };

void thin_program(team *all, const thin_operation *operations, int64_t num_operations, int64_t rows, const thin_step *const *steps) {
    for (int64_t at = 0; at < num_operations && !errand_is_dropped(); at++) {
        const thin_operation *operation = operations + at;
        switch (operation->kind) {
            case PRODUCT: thin_product(all, operation->operand, rows); break;
            case ATTENTION: thin_attention(all, operation->operand, steps[operation->step]); break;
            case GATE: thin_gate(all, operation->operand, rows); break;
        }
    }
}
