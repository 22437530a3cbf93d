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

// words[q][k][t]: Karatsuba's word q of thread t's operand in Horner's step k. Before
// that, words[w][i][t] is word w of the text in row i; afterwards, words[q][0..1][t] is
// product q. No thread looks at another's words, so this needs no barrier; threads side
// by side use banks side by side.
struct gcm_shared {
    u32 words[GF_PRODUCTS][GCM_TILE_ROWS][SEALIFT_THREADS];
    uint4 tables[GCM_TABLE_WORDS / 4];  // round keys, then factors
    u32 start[32];                      // planes of the nonce after round key 0
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

// Whether all eight rows from `block` on are whole and may be moved as vectors.
SEALIFT_INLINE bool is_plain_tile(const gcm_walk& walk, u32 block) {
    const u32 last = block + (GCM_TILE_ROWS - 1) * SEALIFT_THREADS;
    return walk.from_aligned && walk.to_aligned && (last << 4) + 16 <= walk.nbytes;
}

SEALIFT_INLINE void keep_text(gcm_shared& shared, u32 row, uint4 text) {
    const u32 t = threadIdx.x;
    shared.words[0][row][t] = text.x, shared.words[1][row][t] = text.y;
    shared.words[2][row][t] = text.z, shared.words[3][row][t] = text.w;
}

// Fetch the rows of this thread's tile once; nothing reads them from `from` again, so
// what is hashed is what is opened, whoever else can write there.
SEALIFT_INLINE void fetch_rows(gcm_shared& shared, const gcm_walk& walk, u32 block, u32 rows,
                               bool plain_tile) {
    if (plain_tile) {
        uint4 text[GCM_TILE_ROWS];
        SEALIFT_UNROLL
        for (u32 i = 0; i < GCM_TILE_ROWS; i++)
            text[i] = ((const uint4*)walk.from)[block + i * SEALIFT_THREADS];
        SEALIFT_UNROLL
        for (u32 i = 0; i < GCM_TILE_ROWS; i++) keep_text(shared, i, text[i]);
        return;
    }
    SEALIFT_NO_UNROLL
    for (u32 i = 0; i < rows; i++)
        keep_text(shared, i, load_block(walk.from, walk.nbytes, block + i * SEALIFT_THREADS,
                                        walk.from_aligned));
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

// Leave an element as the operand of Horner's step `step`.
SEALIFT_INLINE void keep_operand(gcm_shared& shared, u32 step, const sealift_gf& element) {
    SEALIFT_UNROLL
    for (u32 q = 0; q < GF_PRODUCTS; q++)
        shared.words[q][step][threadIdx.x] = karatsuba_word(element.word, q);
}

// Apply the keystream, store the other text, leave the ciphertext's elements as operands
// of the steps behind their rows; the last is returned. Rows that are not there are zero.
// From the last row to the first, for an operand takes the place of the next row's text.
template <bool sealing, bool plain_tile>
SEALIFT_INLINE sealift_gf apply_rows(gcm_shared& shared, const gcm_walk& walk, u32 block,
                                     u32 rows, const u32 word[32]) {
    const u32 t = threadIdx.x;
    sealift_gf last = gf_zero();
    SEALIFT_UNROLL
    for (u32 i = GCM_TILE_ROWS; i-- > 0;) {
        sealift_gf element = gf_zero();
        if (plain_tile || i < rows) {
            const u32 at = block + i * SEALIFT_THREADS;
            const uint4 stream = {word[4 * i], word[4 * i + 1], word[4 * i + 2],
                                  word[4 * i + 3]};
            const uint4 text = {shared.words[0][i][t], shared.words[1][i][t],
                                shared.words[2][i][t], shared.words[3][i][t]};
            const uint4 other = xor_blocks(text, stream);
            if (plain_tile)
                ((uint4*)walk.to)[at] = other;
            else
                store_block(walk.to, walk.nbytes, at, other, walk.to_aligned);
            const bool whole = !sealing || plain_tile;
            element = to_gf(whole ? (sealing ? other : text)
                                  : cut_block(other, walk.nbytes, at));
        }
        if (i + 1 == (plain_tile ? GCM_TILE_ROWS : rows)) {
            last = element;
            element = gf_zero();
        }
        if (i + 1 < GCM_TILE_ROWS) keep_operand(shared, i + 1, element);
    }
    return last;
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
    const u32 t = threadIdx.x;
    keep_operand(shared, 0, sum);
    SEALIFT_NO_UNROLL
    for (u32 q = 0; q < GF_PRODUCTS; q++) {
        u32* operand = &shared.words[q][0][t];
        gf_sums sums;
        clear(sums);
        SEALIFT_UNROLL
        for (u32 k = 0; k < GCM_TILE_ROWS; k += 2) {
            u32 b[GF_MASKS], d[GF_MASKS];
            load_factor(factors - k * (GCM_FACTOR_WORDS / 4), q, b);
            load_factor(factors - (k + 1) * (GCM_FACTOR_WORDS / 4), q, d);
            add_products(sums, operand[k * SEALIFT_THREADS], b,
                         operand[(k + 1) * SEALIFT_THREADS], d);
        }
        const u64 product = gather(sums);
        operand[0] = (u32)product;
        operand[SEALIFT_THREADS] = (u32)(product >> 32);
    }
    u64 product[GF_PRODUCTS];
    SEALIFT_UNROLL
    for (u32 q = 0; q < GF_PRODUCTS; q++)
        product[q] = wide(shared.words[q][1][t], shared.words[q][0][t]);
    u32 word[8];
    join(product, word);
    return gf_add(reduce(word), last);
}

// Sum of all threads' elements, in thread 0; `words` are four a thread, in shared memory.
SEALIFT_INLINE sealift_gf sum_of_threads(u32* words, const sealift_gf& mine) {
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
