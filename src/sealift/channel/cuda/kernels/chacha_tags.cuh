// From the parts of a record's Poly1305 to its tag.
#pragma once

#include "chacha_tile.cuh"
#include "verdict.cuh"

// Hash of the associated data, in thread 0.
SEALIFT_INLINE poly hash_associated(chacha_shared& shared, const sealift_record& record,
                                    const u8* aad, const sealift_poly_key& key) {
    const u32 blocks = blocks_of(record.aad_bytes), t = threadIdx.x;
    poly mine = poly_zero();
    if (t < blocks) {
        const uint4 block = load_block(aad + record.aad_offset, record.aad_bytes, t, false);
        mine = poly_multiply(to_poly(block, 1), load_poly(key.lane[blocks - t]));
    }
    return sum_of_threads(shared, mine);
}

// r^(512 * tiles), tiles at most 512.
SEALIFT_INLINE poly tile_power(const sealift_poly_key& key, u32 tiles) {
    return poly_power(load_poly(key.row[POLY_TILE_ROWS]), tiles, 10);
}

// Everything before the last segment, moved up to where that begins. In thread 0.
SEALIFT_INLINE poly sum_before_last(chacha_shared& shared, const poly& associated,
                                    const sealift_part* parts, u32 used, u32 segment_tiles,
                                    const sealift_poly_key& key) {
    poly_sums mine = no_sums();
    SEALIFT_NO_UNROLL
    for (u32 i = threadIdx.x; i < used; i += SEALIFT_THREADS) {
        const poly term = i ? load_poly(parts[i - 1].word) : associated;
        const poly moved =
            poly_multiply(term, tile_power(key, (used - 1 - i) * segment_tiles));
        SEALIFT_UNROLL
        for (u32 k = 0; k < POLY_LIMBS; k++) mine.limb[k] += moved.limb[k];
    }
    return sum_of_threads(shared, carry(mine));
}

// Past the last segment, the lengths, the last multiplication with r, and s.
SEALIFT_INLINE uint4 finish_tag(poly sum, const sealift_part* last,
                                const sealift_record& record, u32 last_blocks,
                                const sealift_poly_key& key) {
    sum = poly_multiply(sum, tile_power(key, last_blocks / POLY_TILE_BLOCKS));
    SEALIFT_NO_UNROLL
    for (u32 i = 0; i < 3; i++) {
        const u32* by = key.lane[1];
        if (i == 0) by = key.row[last_blocks % POLY_TILE_BLOCKS / SEALIFT_THREADS];
        if (i == 1) by = key.lane[last_blocks % SEALIFT_THREADS];
        if (i == 2) {
            if (last_blocks) sum = poly_add(sum, load_poly(last->word));
            const uint4 lengths = {record.aad_bytes, 0, record.plaintext_bytes, 0};
            sum = poly_add(sum, to_poly(lengths, 1));
        }
        sum = poly_multiply(sum, load_poly(by));
    }
    return finish_poly(sum, key.pad);
}
