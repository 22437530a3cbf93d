// Integers modulo 2^130 - 5 in five limbs of 26 bits (RFC 8439, 2.5).
//
// Products are sums of 32 x 32 bits in 64: no branch and no address depends on them.
// Limbs of what `carry` gives are below 2^26; limb 2 may be 2^26 itself.
#pragma once

#include "abi.cuh"

#define LIMB_MASK 0x3ffffffu

struct poly {
    u32 limb[POLY_LIMBS];
};

struct poly_sums {
    u64 limb[POLY_LIMBS];
};

SEALIFT_INLINE poly poly_zero() {
    const poly out = {{0, 0, 0, 0, 0}};
    return out;
}

SEALIFT_INLINE poly poly_one() {
    const poly out = {{1, 0, 0, 0, 0}};
    return out;
}

SEALIFT_INLINE poly_sums no_sums() {
    const poly_sums out = {{0, 0, 0, 0, 0}};
    return out;
}

SEALIFT_INLINE poly load_poly(const u32* limbs) {
    poly out;
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) out.limb[i] = limbs[i];
    return out;
}

SEALIFT_INLINE void store_poly(u32* limbs, const poly& x) {
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) limbs[i] = x.limb[i];
}

// 128 bits, and 2^128 where `top` is 1, as Poly1305 adds it to every block.
SEALIFT_INLINE poly to_poly(uint4 block, u32 top) {
    poly out;
    out.limb[0] = block.x & LIMB_MASK;
    out.limb[1] = ((block.x >> 26) | (block.y << 6)) & LIMB_MASK;
    out.limb[2] = ((block.y >> 20) | (block.z << 12)) & LIMB_MASK;
    out.limb[3] = ((block.z >> 14) | (block.w << 18)) & LIMB_MASK;
    out.limb[4] = (block.w >> 8) | (top << 24);
    return out;
}

SEALIFT_INLINE poly poly_add(poly a, const poly& b) {
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) a.limb[i] += b.limb[i];
    return a;
}

// sums += a * b, with b's limbs below 2^26 and their fives at hand. The limbs of a may
// have 28 bits: four such products stay below 2^62.
SEALIFT_INLINE void add_product(poly_sums& sums, const poly& a, const u32 b[POLY_LIMBS],
                                const u32 five_b[POLY_LIMBS]) {
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++)
        SEALIFT_UNROLL
        for (u32 j = 0; j < POLY_LIMBS; j++) {
            const u32 factor = i + j < POLY_LIMBS ? b[j] : five_b[j];
            sums.limb[(i + j) % POLY_LIMBS] += (u64)a.limb[i] * factor;
        }
}

SEALIFT_INLINE poly carry(poly_sums sums) {
    poly out;
    u64 over = 0;
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) {
        const u64 limb = sums.limb[i] + over;
        out.limb[i] = (u32)limb & LIMB_MASK;
        over = limb >> 26;
    }
    const u64 low = out.limb[0] + 5 * over;
    out.limb[0] = (u32)low & LIMB_MASK;
    const u64 next = out.limb[1] + (low >> 26);
    out.limb[1] = (u32)next & LIMB_MASK;
    out.limb[2] += (u32)(next >> 26);
    return out;
}

SEALIFT_INLINE poly poly_multiply(const poly& a, const poly& b) {
    u32 five[POLY_LIMBS];
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) five[i] = 5 * b.limb[i];
    poly_sums sums = no_sums();
    add_product(sums, a, b.limb, five);
    return carry(sums);
}

// x^exponent; the exponent, a matter of lengths, is public and below 2^bits.
SEALIFT_INLINE poly poly_power(const poly& x, u32 exponent, u32 bits) {
    poly out = poly_one();
    SEALIFT_NO_UNROLL
    for (u32 bit = bits; bit-- > 0;) {
        out = poly_multiply(out, out);
        const poly by = (exponent >> bit) & 1 ? x : poly_one();
        out = poly_multiply(out, by);
    }
    return out;
}

// r of a one-time key, clamped.
SEALIFT_INLINE poly clamp(const u32 word[4]) {
    const uint4 block = {word[0] & 0x0fffffffu, word[1] & 0x0ffffffcu,
                         word[2] & 0x0ffffffcu, word[3] & 0x0ffffffcu};
    return to_poly(block, 0);
}

// The number modulo 2^130 - 5, then plus s modulo 2^128.
SEALIFT_INLINE uint4 finish_poly(const poly& x, const u32 pad[4]) {
    poly_sums sums;
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) sums.limb[i] = x.limb[i];
    poly h = carry(sums);
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) sums.limb[i] = h.limb[i];
    h = carry(sums);
    u32 over = 5, less[POLY_LIMBS];  // h + 5: from 2^130 on, h is too large by the modulus
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) {
        over += h.limb[i];
        less[i] = over & LIMB_MASK;
        over >>= 26;
    }
    const u32 mask = 0u - over;
    SEALIFT_UNROLL
    for (u32 i = 0; i < POLY_LIMBS; i++) h.limb[i] = choose(mask, less[i], h.limb[i]);
    const u32 word[4] = {h.limb[0] | (h.limb[1] << 26), (h.limb[1] >> 6) | (h.limb[2] << 20),
                         (h.limb[2] >> 12) | (h.limb[3] << 14),
                         (h.limb[3] >> 18) | (h.limb[4] << 8)};
    u32 tag[4];
    u64 total = 0;
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) {
        total = (total >> 32) + word[i] + pad[i];
        tag[i] = (u32)total;
    }
    const uint4 out = {tag[0], tag[1], tag[2], tag[3]};
    return out;
}
