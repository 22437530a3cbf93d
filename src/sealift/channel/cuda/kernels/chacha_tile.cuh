// A tile of ChaCha20-Poly1305: 128 keystream blocks, four rows of 128 Poly1305 blocks.
//
// A thread makes 64 bytes of keystream and leaves them in shared memory, so that rows are
// read and written side by side. Its part of Poly1305 is Horner's rule in r^128, four
// steps at a time with one chain of carries.
#pragma once

#include "access.cuh"
#include "chacha20.cuh"
#include "poly1305.cuh"

#define CHACHA_BLOCKS SEALIFT_THREADS  // of 64 bytes in a tile

struct chacha_shared {
    uint4 stream[2][POLY_TILE_BLOCKS];  // of alternating tiles
    uint4 factors[POLY_TILE_ROWS + 1][3];  // r^(128 k): five limbs, then their fives
    u32 sums[SEALIFT_THREADS * POLY_LIMBS];
    u32 key[8], nonce[4];
};

// Where piece `piece` of keystream block `block` lies: neighbours in different banks.
SEALIFT_INLINE u32 stream_place(u32 block, u32 piece) {
    return 4 * block + (piece ^ ((block >> 1) & 3));
}

SEALIFT_INLINE void load_chacha(chacha_shared& shared, const sealift_chacha_key& key,
                                const sealift_record& record, const sealift_poly_key& poly) {
    const u32 t = threadIdx.x;
    if (t < 8) shared.key[t] = key.words[t];
    if (t < 3) shared.nonce[t] = load_bytes(record.nonce + 4 * t, 4).x;
    u32* factors = (u32*)shared.factors;
    if (t < 12 * (POLY_TILE_ROWS + 1)) {
        const u32 row = t / 12, i = t % 12;
        u32 word = 0;
        if (i < POLY_LIMBS) word = poly.row[row][i];
        if (i >= POLY_LIMBS && i < 2 * POLY_LIMBS) word = 5 * poly.row[row][i - POLY_LIMBS];
        factors[t] = word;
    }
}

// Leave this thread's part of a tile's keystream in shared memory.
SEALIFT_INLINE void make_stream(chacha_shared& shared, u32 tile) {
    u32 word[16];
    chacha20_block(shared.key, tile * CHACHA_BLOCKS + threadIdx.x + 1, shared.nonce, word);
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) {
        const uint4 piece = {word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]};
        shared.stream[tile & 1][stream_place(threadIdx.x, i)] = piece;
    }
}

SEALIFT_INLINE void add_step(poly_sums& sums, const poly& x, const uint4* factor) {
    const uint4 first = factor[0], second = factor[1], third = factor[2];
    const u32 b[POLY_LIMBS] = {first.x, first.y, first.z, first.w, second.x};
    const u32 fives[POLY_LIMBS] = {second.y, second.z, second.w, third.x, third.y};
    add_product(sums, x, b, fives);
}

// The sum after `rows` more rows (1 to 4); those behind are zero.
SEALIFT_INLINE poly sum_rows(const chacha_shared& shared, const poly& sum,
                             const poly row[POLY_TILE_ROWS], u32 rows) {
    poly_sums sums = no_sums();
    add_step(sums, sum, shared.factors[rows]);
    poly last = row[0];
    SEALIFT_UNROLL
    for (u32 k = 1; k < POLY_TILE_ROWS; k++) {
        const bool inside = k < rows;
        poly step = row[k - 1];
        SEALIFT_UNROLL
        for (u32 i = 0; i < POLY_LIMBS; i++) {
            step.limb[i] = inside ? step.limb[i] : 0;
            last.limb[i] = inside ? row[k].limb[i] : last.limb[i];
        }
        add_step(sums, step, shared.factors[inside ? rows - k : 0]);
    }
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) sums.limb[i] += last.limb[i];
    return carry(sums);
}

// Sum of all threads' numbers, in thread 0.
SEALIFT_INLINE poly sum_of_threads(chacha_shared& shared, const poly& mine) {
    const u32 t = threadIdx.x;
    __syncthreads();
    store_poly(shared.sums + POLY_LIMBS * t, mine);
    __syncthreads();
    u32 sum = 0;
    const u32 group = t / POLY_LIMBS, limb = t % POLY_LIMBS;
    if (group < 8)
        for (u32 i = 0; i < 16; i++) sum += shared.sums[POLY_LIMBS * (16 * group + i) + limb];
    __syncthreads();
    if (group < 8) shared.sums[t] = sum;
    __syncthreads();
    poly_sums total = no_sums();
    if (t == 0)
        for (u32 g = 0; g < 8; g++)
            SEALIFT_UNROLL
            for (u32 i = 0; i < POLY_LIMBS; i++)
                total.limb[i] += shared.sums[POLY_LIMBS * g + i];
    return carry(total);
}
