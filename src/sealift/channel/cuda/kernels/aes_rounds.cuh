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

// Planes into which MixColumns carries x^8 = x^4 + x^3 + x + 1, beside the lowest.
SEALIFT_INLINE bool carries(u32 b) { return b == 1 || b == 3 || b == 4; }

// MixColumns (twice each row plus three times the next, plus the other two), and a round
// key that `spread_key` made: gates that have an input left take it in.
SEALIFT_INLINE void mix_and_add(u32 plane[32], const u32* key) {
    u32 pair[32], rest_of_key[32];  // pair: row r plus row r + 1
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) {
        const uint4 four = ((const uint4*)key)[b];
        const u32 k[4] = {four.x, four.y, four.z, four.w};
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++) {
            const u32 next = plane[4 * b + ((r + 1) & 3)];
            pair[4 * b + r] = carries(b) ? plane[4 * b + r] ^ next
                                         : xor3(plane[4 * b + r], next, k[r]);
            rest_of_key[4 * b + r] = k[r];
        }
    }
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) {
        u32 mixed[4];
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++) {
            const u32 next = plane[4 * b + ((r + 1) & 3)];
            const u32 others = pair[4 * b + ((r + 2) & 3)];
            const u32 doubled = pair[4 * ((b + 7) & 7) + r];
            mixed[r] = carries(b) ? xor3(xor3(next, others, rest_of_key[4 * b + r]), doubled,
                                         pair[4 * 7 + r])
                                  : xor3(next, others, doubled);
        }
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++) plane[4 * b + r] = mixed[r];
    }
}

// A round key as `mix_and_add` wants it. What is added to the pair of row r in plane b
// arrives in row r + 2 of plane b, in row r of plane b + 1, and from plane 7 in row r of
// the planes that carry; so the pairs of five planes can bring the key of those planes,
// and the other three get theirs with what arrived there taken off.
SEALIFT_INLINE void spread_key(u32 key[32]) {
    u32 out[32];
    SEALIFT_UNROLL
    for (u32 i = 0; i < 5; i++) {
        const u32 b = i == 0 ? 2 : (i + 4) & 7;  // 2, 5, 6, 7, 0
        SEALIFT_UNROLL
        for (u32 r = 0; r < 4; r++)
            out[4 * b + ((r + 2) & 3)] =
                key[4 * b + r] ^ (i < 2 ? 0 : out[4 * ((b + 7) & 7) + r]);
    }
    SEALIFT_UNROLL
    for (u32 r = 0; r < 4; r++) {
        out[4 + r] = xor3(key[4 + r], out[r], out[28 + r]);
        out[12 + r] = xor3(key[12 + r], out[8 + r], out[28 + r]);
        out[16 + r] = key[16 + r] ^ out[28 + r];
    }
    SEALIFT_UNROLL
    for (u32 p = 0; p < 32; p++) key[p] = out[p];
}

SEALIFT_INLINE void add_key(u32 plane[32], const u32* key) {
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) {
        const uint4 k = ((const uint4*)key)[b];
        plane[4 * b] ^= k.x, plane[4 * b + 1] ^= k.y;
        plane[4 * b + 2] ^= k.z, plane[4 * b + 3] ^= k.w;
    }
}

// All rounds but the first addition of a key, which the caller has made. Keys 1 to 13
// are spread.
SEALIFT_INLINE void aes_rounds(u32 plane[32], const u32 (*keys)[32]) {
    SEALIFT_NO_UNROLL
    for (u32 round = 1; round < GCM_ROUNDS; round++) {
        sub_and_shift(plane);
        mix_and_add(plane, keys[round]);
    }
    sub_and_shift(plane);
    add_key(plane, keys[GCM_ROUNDS]);
}
