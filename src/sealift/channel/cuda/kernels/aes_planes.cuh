// Into bit planes and out of them.
#pragma once

#include "abi.cuh"

// One step of an 8 x 8 transposition: swap the bits of `high` under `mask` with those of
// `low` that stand `shift` further up.
SEALIFT_INLINE void swap_bits(u32& low, u32& high, u32 shift, u32 mask) {
    const u32 first = choose(mask, low, high << shift);
    high = choose(mask, low >> shift, high);
    low = first;
}

// Eight words as columns of 8 x 8 bits in each of their four bytes: bit i of word b
// becomes bit b of word i. Its own inverse.
SEALIFT_INLINE void transpose_bits(u32 w[8]) {
    SEALIFT_UNROLL
    for (u32 k = 0; k < 4; k++) swap_bits(w[2 * k], w[2 * k + 1], 1, 0x55555555u);
    SEALIFT_UNROLL
    for (u32 k = 0; k < 4; k++) {
        const u32 at = (k & 1) | ((k & 2) << 1);
        swap_bits(w[at], w[at + 2], 2, 0x33333333u);
    }
    SEALIFT_UNROLL
    for (u32 k = 0; k < 4; k++) swap_bits(w[k], w[k + 4], 4, 0x0f0f0f0fu);
}

// Byte r of word c becomes byte c of word r. Its own inverse.
SEALIFT_INLINE void transpose_bytes(u32& a, u32& b, u32& c, u32& d) {
    const u32 ab_low = pick_bytes(a, b, 0x5140), ab_high = pick_bytes(a, b, 0x7362);
    const u32 cd_low = pick_bytes(c, d, 0x5140), cd_high = pick_bytes(c, d, 0x7362);
    a = pick_bytes(ab_low, cd_low, 0x5410);
    b = pick_bytes(ab_low, cd_low, 0x7632);
    c = pick_bytes(ab_high, cd_high, 0x5410);
    d = pick_bytes(ab_high, cd_high, 0x7632);
}

// Planes to blocks: block i is word[4 * i] to word[4 * i + 3], little endian.
SEALIFT_INLINE void to_blocks(u32 plane[32], u32 word[32]) {
    SEALIFT_UNROLL
    for (u32 r = 0; r < 4; r++) {
        u32 w[8];
        SEALIFT_UNROLL
        for (u32 b = 0; b < 8; b++) w[b] = plane[4 * b + r];
        transpose_bits(w);
        SEALIFT_UNROLL
        for (u32 i = 0; i < 8; i++) word[4 * i + r] = w[i];
    }
    SEALIFT_UNROLL
    for (u32 i = 0; i < 8; i++)
        transpose_bytes(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
}

// The other way round.
SEALIFT_INLINE void to_planes(u32 word[32], u32 plane[32]) {
    SEALIFT_UNROLL
    for (u32 i = 0; i < 8; i++)
        transpose_bytes(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
    SEALIFT_UNROLL
    for (u32 r = 0; r < 4; r++) {
        u32 w[8];
        SEALIFT_UNROLL
        for (u32 i = 0; i < 8; i++) w[i] = word[4 * i + r];
        transpose_bits(w);
        SEALIFT_UNROLL
        for (u32 b = 0; b < 8; b++) plane[4 * b + r] = w[b];
    }
}

// 0xff where bit `bit` of `value` is set, else 0.
SEALIFT_INLINE u32 spread_bit(u32 value, u32 bit) { return (0u - ((value >> bit) & 1)) & 255; }

// Plane of bit b, row r, of one block (four words, little endian) that all eight share.
SEALIFT_INLINE u32 shared_plane(const u32 word[4], u32 b, u32 r) {
    u32 plane = 0;
    SEALIFT_UNROLL
    for (u32 c = 0; c < 4; c++) plane |= spread_bit(word[c], 8 * r + b) << (8 * c);
    return plane;
}

// Bit `bit` of the eight counters first, first + 128, ... as one byte.
SEALIFT_INLINE u32 counter_bits(u32 first, u32 bit) {
    if (bit < 7) return spread_bit(first, bit);  // the same in all: 128 is 2^7
    const u32 start = first >> 10;       // of counters, in units of eight times 128
    const u32 offset = (first >> 7) & 7;  // 0 or 1 where the kernels call this
    u32 bits = 0;
    if (bit < 10) {
        const u32 rising = bit == 7 ? 0xaa : bit == 8 ? 0xcc : 0xf0;
        const u32 later = bit == 7 ? 0x55 : bit == 8 ? 0x66 : 0x78;
        return offset ? later : rising;
    }
    bits = spread_bit(start, bit - 10) & (offset ? 0x7f : 0xff);
    return bits | (offset ? spread_bit(start + 1, bit - 10) & 0x80 : 0);
}

// Add the eight counters first, first + 128, ... (below 2^24, offset 0 or 1) to the
// planes: the last word of a counter block is a big-endian number in column 3.
SEALIFT_INLINE void add_counters(u32 plane[32], u32 first) {
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++)
        SEALIFT_UNROLL
        for (u32 r = 1; r < 4; r++)
            plane[4 * b + r] ^= counter_bits(first, 8 * (3 - r) + b) << 24;
}
