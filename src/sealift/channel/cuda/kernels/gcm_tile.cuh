// A tile of AES-256-GCM: eight rows of 128 blocks, eight blocks a thread.
//
// Thread t has blocks t, t + 128, ... of its segment. Its part of GHASH is Horner's rule
// in H^128, eight steps at a time: acc H^(128 n) + C0 H^(128 (n - 1)) + ... with one
// reduction; n is 8 but at the record's end.
#pragma once

#include "access.cuh"
#include "aes_planes.cuh"
#include "aes_rounds.cuh"
#include "ghash.cuh"

#define GCM_KEY_WORDS ((GCM_ROUNDS + 1) * 32)
#define GCM_TABLE_WORDS (GCM_KEY_WORDS + (GCM_TILE_ROWS + 1) * GCM_FACTOR_WORDS)

struct gcm_shared {
    uint4 rows[GCM_TILE_ROWS][SEALIFT_THREADS];  // each thread uses its own column only
    u64 products[GF_PRODUCTS][SEALIFT_THREADS];  // the same
    uint4 tables[GCM_TABLE_WORDS / 4];           // round keys, then factors
    u32 start[32];                               // planes of the nonce after round key 0
};

// Where a thread stands in its record.
struct gcm_walk {
    const u8* from;
    u8* to;
    u32 nbytes;
    bool from_aligned, to_aligned;
};

SEALIFT_INLINE void load_tables(gcm_shared& shared, const sealift_gcm_key& key,
                                const sealift_record& record) {
    const uint4* round_keys = (const uint4*)key.round_keys;
    const uint4* factors = (const uint4*)key.factors;
    for (u32 i = threadIdx.x; i < GCM_TABLE_WORDS / 4; i += SEALIFT_THREADS)
        shared.tables[i] = i < GCM_KEY_WORDS / 4 ? round_keys[i]
                                                 : factors[i - GCM_KEY_WORDS / 4];
    if (threadIdx.x < 32) {
        const uint4 nonce = load_bytes(record.nonce, 12);
        const u32 word[4] = {nonce.x, nonce.y, nonce.z, 0};
        shared.start[threadIdx.x] = shared_plane(word, threadIdx.x >> 2, threadIdx.x & 3) ^
                                    key.round_keys[0][threadIdx.x];
    }
}

// Fetch the rows of this thread's tile once; nothing reads them from `from` again, so
// what is hashed is what is opened, whoever else can write there.
SEALIFT_INLINE void fetch_rows(gcm_shared& shared, const gcm_walk& walk, u32 block, u32 rows) {
    SEALIFT_NO_UNROLL
    for (u32 i = 0; i < rows; i++, block += SEALIFT_THREADS) {
        uint4* slot = &shared.rows[i][threadIdx.x];
        if (walk.from_aligned && (block << 4) + 16 <= walk.nbytes)
            copy_block_async(slot, walk.from + (block << 4));
        else
            *slot = load_block(walk.from, walk.nbytes, block, false);
    }
}

// Keystream of counters block + 2, block + 130, ... (word[4 i] on: the i-th).
SEALIFT_INLINE void keystream(const gcm_shared& shared, u32 block, u32 word[32]) {
    u32 plane[32];
    SEALIFT_UNROLL
    for (u32 p = 0; p < 32; p++) plane[p] = shared.start[p];
    add_counters(plane, block + 2);
    aes_rounds(plane, (const u32(*)[32])shared.tables);
    to_blocks(plane, word);
}

// Apply the keystream, store the other text, leave the ciphertext's elements in
// shared.rows but the last, which is returned. Rows that are not there are zero.
template <bool sealing>
SEALIFT_INLINE sealift_gf apply_rows(gcm_shared& shared, const gcm_walk& walk, u32 block,
                                     u32 rows, const u32 word[32]) {
    sealift_gf last = gf_zero();
    SEALIFT_UNROLL
    for (u32 i = 0; i < GCM_TILE_ROWS; i++, block += SEALIFT_THREADS) {
        uint4* slot = &shared.rows[i][threadIdx.x];
        sealift_gf element = gf_zero();
        if (i < rows) {
            const uint4 stream = {word[4 * i], word[4 * i + 1], word[4 * i + 2],
                                  word[4 * i + 3]};
            const uint4 text = *slot;
            const uint4 other = xor_blocks(text, stream);
            store_block(walk.to, walk.nbytes, block, other, walk.to_aligned);
            element = to_gf(sealing ? cut_block(other, walk.nbytes, block) : text);
        }
        const bool keep = i + 1 < rows;
        if (i + 1 == rows) last = element;
        if (!keep) element = gf_zero();
        const uint4 kept = {element.word[0], element.word[1], element.word[2],
                            element.word[3]};
        *slot = kept;
    }
    return last;
}

// Word q of the operands of step `step`: the sum so far, then the rows.
SEALIFT_INLINE u32 operand(const gcm_shared& shared, const sealift_gf& sum, u32 step, u32 q) {
    if (step == 0) return karatsuba_word(sum.word, q);
    const uint4 row = shared.rows[step - 1][threadIdx.x];
    const u32 word[4] = {row.x, row.y, row.z, row.w};
    return karatsuba_word(word, q);
}

SEALIFT_INLINE void load_factor(const uint4* factor, u32 q, u32 masked[GF_MASKS]) {
    const uint4 first = factor[q];
    masked[0] = first.x, masked[1] = first.y, masked[2] = first.z, masked[3] = first.w;
    masked[4] = ((const u32*)factor)[4 * GF_PRODUCTS + q];
}

// The sum after `rows` more rows (1 to 8), of which the last is `last`.
SEALIFT_INLINE sealift_gf hash_rows(gcm_shared& shared, const sealift_gf& sum, u32 rows,
                                    const sealift_gf& last) {
    // Step k has the factor H^(128 (rows - k)). Behind the last row operands are zero,
    // and what is read as a factor there, from before the factors, does not matter.
    const uint4* factors =
        shared.tables + GCM_KEY_WORDS / 4 + rows * (GCM_FACTOR_WORDS / 4);
    SEALIFT_NO_UNROLL
    for (u32 q = 0; q < GF_PRODUCTS; q++) {
        gf_sums sums;
        clear(sums);
        SEALIFT_UNROLL
        for (u32 k = 0; k < GCM_TILE_ROWS; k += 2) {
            u32 b[GF_MASKS], d[GF_MASKS];
            load_factor(factors - k * (GCM_FACTOR_WORDS / 4), q, b);
            load_factor(factors - (k + 1) * (GCM_FACTOR_WORDS / 4), q, d);
            add_products(sums, operand(shared, sum, k, q), b,
                         operand(shared, sum, k + 1, q), d);
        }
        shared.products[q][threadIdx.x] = gather(sums);
    }
    u64 product[GF_PRODUCTS];
    SEALIFT_UNROLL
    for (u32 q = 0; q < GF_PRODUCTS; q++) product[q] = shared.products[q][threadIdx.x];
    u32 word[8];
    join(product, word);
    return gf_add(reduce(word), last);
}

// Sum of all threads' elements, in thread 0. Overwrites shared.rows.
SEALIFT_INLINE sealift_gf sum_of_threads(gcm_shared& shared, const sealift_gf& mine) {
    u32* words = (u32*)shared.rows;
    const u32 t = threadIdx.x;
    __syncthreads();
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) words[4 * t + i] = mine.word[i];
    __syncthreads();
    u32 sum = 0;
    if (t < 64)
        for (u32 i = 0; i < 8; i++) sum ^= words[(t & 3) + 4 * (8 * (t >> 2) + i)];
    __syncthreads();
    if (t < 64) words[t] = sum;
    __syncthreads();
    sealift_gf total = gf_zero();
    if (t == 0)
        for (u32 i = 0; i < 64; i += 4)
            SEALIFT_UNROLL
            for (u32 w = 0; w < 4; w++) total.word[w] ^= words[i + w];
    return total;
}
