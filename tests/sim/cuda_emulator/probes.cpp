// Arithmetic of the kernels, one function at a time.
#include "aes_key.cuh"
#include "chacha20.cuh"
#include "ghash.cuh"
#include "poly1305.cuh"

#define PROBE extern "C" void

// 256 bytes: S(0) to S(255).
PROBE probe_sbox(u8* out) {
    for (u32 v = 0; v < 256; v += 4)
        *(u32*)(out + v) = sub_word(v | (v + 1) << 8 | (v + 2) << 16 | (v + 3) << 24);
}

// 60 words, of which the first eight are the key.
PROBE probe_expand_words(u32* words) { expand_words(words); }

// Eight blocks under an expanded key, in place.
PROBE probe_encrypt(const u32* words, u32* blocks) {
    alignas(16) u32 keys[GCM_ROUNDS + 1][32];
    u32 plane[32];
    for (u32 i = 0; i < (GCM_ROUNDS + 1) * 32; i++)
        keys[i >> 5][i & 31] = key_plane(words, i >> 5, i & 31);
    for (u32 round = 1; round < GCM_ROUNDS; round++) spread_key(keys[round]);
    to_planes(blocks, plane);
    add_key(plane, keys[0]);
    aes_rounds(plane, keys);
    to_blocks(plane, blocks);
}

// The counter blocks of eight counters, without nonce.
PROBE probe_counters(u32 first, u32* blocks) {
    u32 plane[32] = {};
    add_counters(plane, first);
    to_blocks(plane, blocks);
}

PROBE probe_gf_multiply(const sealift_gf* a, const sealift_gf* b, sealift_gf* out) {
    *out = gf_multiply(*a, *b);
}

// a * b + c * d without carries, 64 bits.
PROBE probe_carryless(u32 a, u32 b, u32 c, u32 d, u64* out) {
    u32 b_masked[GF_MASKS], d_masked[GF_MASKS];
    split(b, b_masked);
    split(d, d_masked);
    gf_sums sums;
    clear(sums);
    add_products(sums, a, b_masked, c, d_masked);
    *out = gather(sums);
}

PROBE probe_quarter_round(u32* x) { quarter_round(x[0], x[1], x[2], x[3]); }

PROBE probe_chacha20(const u32* key, u32 counter, const u32* nonce, u32* out) {
    chacha20_block(key, counter, nonce, out);
}

// Limbs of any value below 2^28, as sums of blocks have.
PROBE probe_poly_multiply(const u32* a, const u32* b, u32* out) {
    store_poly(out, poly_multiply(load_poly(a), load_poly(b)));
}

PROBE probe_finish_poly(const u32* limbs, const u32* pad, uint4* out) {
    *out = finish_poly(load_poly(limbs), pad);
}
