// From the parts of a record's hash to its tag.
#pragma once

#include "gcm_tile.cuh"
#include "verdict.cuh"

// Hash of the associated data, in thread 0.
SEALIFT_INLINE sealift_gf hash_associated(u32* shared, const sealift_record& record,
                                          const u8* aad, const sealift_gcm_key& key) {
    const u32 blocks = blocks_of(record.aad_bytes), t = threadIdx.x;
    sealift_gf mine = gf_zero();
    if (t < blocks) {
        const uint4 block = load_block(aad + record.aad_offset, record.aad_bytes, t, false);
        mine = gf_multiply(to_gf(block), key.lane[blocks - t]);
    }
    return sum_of_threads(shared, mine);
}

SEALIFT_INLINE sealift_gf load_part(const sealift_part& part) {
    const sealift_gf out = {{part.word[0], part.word[1], part.word[2], part.word[3]}};
    return out;
}

// Everything before the last segment, moved up to where that begins. In thread 0.
SEALIFT_INLINE sealift_gf sum_before_last(u32* shared, const sealift_gf& associated,
                                          const sealift_part* parts, u32 used,
                                          u32 segment_tiles, const sealift_gcm_key& key) {
    sealift_gf mine = gf_zero();
    SEALIFT_NO_UNROLL
    for (u32 i = threadIdx.x; i < used; i += SEALIFT_THREADS) {
        const sealift_gf term = i ? load_part(parts[i - 1]) : associated;
        mine = gf_add(mine, gf_multiply(term, key.tile[(used - 1 - i) * segment_tiles]));
    }
    return sum_of_threads(shared, mine);
}

// Past the last segment, the lengths and the last multiplication with H.
SEALIFT_INLINE uint4 finish_tag(sealift_gf sum, const sealift_part* last,
                                const sealift_record& record, u32 last_blocks,
                                const sealift_gcm_key& key, uint4 mask) {
    SEALIFT_NO_UNROLL
    for (u32 i = 0; i < 4; i++) {
        if (i == 3) {
            if (last_blocks) sum = gf_add(sum, load_part(*last));
            sum.word[2] ^= record.aad_bytes * 8;
            sum.word[0] ^= record.plaintext_bytes * 8;
        }
        // Powers of zero are one; of whole segments all but the first are.
        u32 power = 1;
        if (i == 0) power = last_blocks / GCM_TILE_BLOCKS;
        if (i == 1) power = last_blocks % GCM_TILE_BLOCKS / SEALIFT_THREADS;
        if (i == 2) power = last_blocks % SEALIFT_THREADS;
        if (power == 0) continue;
        const sealift_gf* by = (i == 0 ? key.tile : i == 1 ? key.row : key.lane) + power;
        sum = gf_multiply(sum, *by);
    }
    return xor_blocks(from_gf(sum), mask);
}
