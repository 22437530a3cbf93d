// AES-256 on eight blocks at once, in bit planes (FIPS 197's rounds).
//
// plane[4 * b + r] holds bit b of row r: its byte c is column c, and bit i of that byte
// is block i. SubBytes works on the eight planes of a row, ShiftRows rotates planes by
// whole bytes, MixColumns adds planes of different rows. Nothing here looks anything up
// at an address, or takes a branch, that depends on key or text.
#pragma once

#include "abi.cuh"
#include "aes_sbox.cuh"

SEALIFT_INLINE void sub_and_shift(u32 plane[32]) {
    SEALIFT_UNROLL
    for (u32 r = 0; r < 4; r++) {
        u32 x[8];
        SEALIFT_UNROLL
        for (u32 b = 0; b < 8; b++) x[b] = plane[4 * b + r];
        sbox(x);
        SEALIFT_UNROLL
        for (u32 b = 0; b < 8; b++) plane[4 * b + r] = rotate_right(x[b], 8 * r);
    }
}

// Adds a round key, too: twice each row plus three times the next, plus the other two.
SEALIFT_INLINE void mix_and_add(u32 plane[32], const u32* key) {
    u32 pair[32];  // row r plus row r + 1
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++)
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++)
            pair[4 * b + r] = plane[4 * b + r] ^ plane[4 * b + ((r + 1) & 3)];
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) {
        u32 mixed[4];
        const uint4 round_key = ((const uint4*)key)[b];
        const u32 k[4] = {round_key.x, round_key.y, round_key.z, round_key.w};
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++) {
            const u32 next = plane[4 * b + ((r + 1) & 3)];
            const u32 others = pair[4 * b + ((r + 2) & 3)];
            const u32 doubled = pair[4 * ((b + 7) & 7) + r];
            mixed[r] = xor3(next, others, k[r]) ^ doubled;
            if (b == 1 || b == 3 || b == 4) mixed[r] ^= pair[4 * 7 + r];
        }
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++) plane[4 * b + r] = mixed[r];
    }
}

SEALIFT_INLINE void add_key(u32 plane[32], const u32* key) {
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) {
        const uint4 k = ((const uint4*)key)[b];
        plane[4 * b] ^= k.x, plane[4 * b + 1] ^= k.y;
        plane[4 * b + 2] ^= k.z, plane[4 * b + 3] ^= k.w;
    }
}

// All rounds but the first addition of a key, which the caller has made.
SEALIFT_INLINE void aes_rounds(u32 plane[32], const u32 (*keys)[32]) {
    SEALIFT_NO_UNROLL
    for (u32 round = 1; round < GCM_ROUNDS; round++) {
        sub_and_shift(plane);
        mix_and_add(plane, keys[round]);
    }
    sub_and_shift(plane);
    add_key(plane, keys[GCM_ROUNDS]);
}
