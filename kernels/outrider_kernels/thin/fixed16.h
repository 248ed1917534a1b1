/* How rows lie that are rounded by blocks, for products with 256 bits (fixed16.c) and with 512 (fixed16_wide.c). */

#ifndef THIN_FIXED16_H
#define THIN_FIXED16_H

#include "thin.h"

#define BLOCK 32 /* inputs that share a scale, as in thin_matrix.py */
#define BLOCK_PAIRS (BLOCK / 2)

INLINE int64_t fixed16_blocks_of(int64_t inputs) { return (inputs + BLOCK - 1) / BLOCK; }

/* Numbers of a row: the pairs of whole blocks, then the blocks' scales, up to the end of a line. */
INLINE int64_t fixed16_row_len(int64_t inputs) {
    const int64_t blocks = fixed16_blocks_of(inputs);
    return blocks * BLOCK_PAIRS + (blocks + BLOCK_PAIRS - 1) / BLOCK_PAIRS * BLOCK_PAIRS;
}

/* Of a matrix in FIXED16 and rows that are rounded already; only where thin_multiplies_fixed16_wide. */
int thin_multiplies_fixed16_wide(void);
void thin_fixed16_wide(team *all, const thin_call *call, int64_t rows);

#endif
