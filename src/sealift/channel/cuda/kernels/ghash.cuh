// GHASH without tables and without carry-less multiplication instructions.
//
// An element is a 128-bit integer whose top bit is the coefficient of x^0 (GCM's order,
// bytes swapped). Carry-less products are made of integer multiplications: each operand
// is split by five masks that keep every fifth bit, so that the sums of up to 31 bits in
// a product stay in their own five bits; the lowest of each five is the sum modulo two.
// Integer multipliers take the same time for all operands, and they are beside the units
// that AES's logic keeps busy. Karatsuba's method needs 9 products of 32 bits for 128.
// Multiplying by H^k / x instead of H^k makes up for the integer's reversed order.
#pragma once

#include "abi.cuh"

#define GF_PRODUCTS 9u
#define GF_MASKS 5u

// Bits j, j + 5, j + 10, ... of a word.
SEALIFT_INLINE u32 fifth_bits(u32 j) {
    // Bits 0, 5, ..., 30 moved up; for j > 1 the last would leave the word.
    return 0x42108421u << j;
}

// Masks of the bits of a 64-bit product that belong to class k: its upper word.
SEALIFT_INLINE u32 fifth_bits_above(u32 k) { return fifth_bits((k + 3) % 5); }

// Word q of Karatsuba's nine operands.
SEALIFT_INLINE u32 karatsuba_word(const u32 w[4], u32 q) {
    if (q < 4) return w[q];
    if (q == 4) return w[0] ^ w[1];
    if (q == 5) return w[2] ^ w[3];
    if (q == 6) return w[0] ^ w[2];
    if (q == 7) return w[1] ^ w[3];
    return xor3(w[0], w[1], w[2]) ^ w[3];
}

// Sums of products by class, modulo two where it counts; the other bits are of no
// meaning.
struct gf_sums {
    u32 low[GF_MASKS], high[GF_MASKS];
};

SEALIFT_INLINE void clear(gf_sums& sums) {
    SEALIFT_UNROLL
    for (u32 k = 0; k < GF_MASKS; k++) sums.low[k] = sums.high[k] = 0;
}

// The products of one class. Class 1 holds bit 31, where all 32 pairs meet: one more
// than fits. So it comes in two sums.
struct gf_class {
    u64 sum, rest;
};

SEALIFT_INLINE gf_class multiply_class(const u32 a[GF_MASKS], const u32 b[GF_MASKS], u32 k) {
    gf_class found = {0, 0};
    SEALIFT_UNROLL
    for (u32 i = 0; i < GF_MASKS; i++) {
        const u64 product = (u64)a[i] * b[(k + GF_MASKS - i) % GF_MASKS];
        if (k == 1 && i >= 2)
            found.rest += product;
        else
            found.sum += product;
    }
    return found;
}

SEALIFT_INLINE void split(u32 a, u32 masked[GF_MASKS]) {
    SEALIFT_UNROLL
    for (u32 j = 0; j < GF_MASKS; j++) masked[j] = a & fifth_bits(j);
}

// Add a * b + c * d, where b and d are split already.
SEALIFT_INLINE void add_products(gf_sums& sums, u32 a, const u32 b[GF_MASKS], u32 c,
                                 const u32 d[GF_MASKS]) {
    u32 a_masked[GF_MASKS], c_masked[GF_MASKS];
    split(a, a_masked);
    split(c, c_masked);
    SEALIFT_UNROLL
    for (u32 k = 0; k < GF_MASKS; k++) {
        const gf_class first = multiply_class(a_masked, b, k);
        const gf_class second = multiply_class(c_masked, d, k);
        sums.low[k] = xor3(sums.low[k], (u32)first.sum, (u32)second.sum);
        sums.high[k] = xor3(sums.high[k], (u32)(first.sum >> 32), (u32)(second.sum >> 32));
        if (k == 1) {
            sums.low[k] = xor3(sums.low[k], (u32)first.rest, (u32)second.rest);
            sums.high[k] =
                xor3(sums.high[k], (u32)(first.rest >> 32), (u32)(second.rest >> 32));
        }
    }
}

SEALIFT_INLINE u32 merge(const u32 sums[GF_MASKS], u32 m0, u32 m1, u32 m2, u32 m3) {
    const u32 first = choose(m0, sums[0], sums[1]);
    const u32 second = choose(m2, sums[2], sums[3]);
    return choose(m0 | m1 | m2 | m3, choose(m0 | m1, first, second), sums[4]);
}

// The carry-less product that the sums hold.
SEALIFT_INLINE u64 gather(const gf_sums& sums) {
    const u32 low = merge(sums.low, fifth_bits(0), fifth_bits(1), fifth_bits(2),
                          fifth_bits(3));
    const u32 high = merge(sums.high, fifth_bits_above(0), fifth_bits_above(1),
                           fifth_bits_above(2), fifth_bits_above(3));
    return wide(high, low);
}

// Karatsuba's three products of 64 bits to one of 128.
SEALIFT_INLINE void join_half(u64 low, u64 high, u64 middle, u32 word[4]) {
    const u64 cross = middle ^ low ^ high;
    word[0] = (u32)low;
    word[1] = (u32)(low >> 32) ^ (u32)cross;
    word[2] = (u32)high ^ (u32)(cross >> 32);
    word[3] = (u32)(high >> 32);
}

// Nine products of 32 bits to one of 256.
SEALIFT_INLINE void join(const u64 product[GF_PRODUCTS], u32 word[8]) {
    u32 middle[4];
    join_half(product[0], product[1], product[4], word);
    join_half(product[2], product[3], product[5], word + 4);
    join_half(product[6], product[7], product[8], middle);
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) middle[i] = xor3(middle[i], word[i], word[i + 4]);
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) word[i + 2] ^= middle[i];
}

// Modulo x^128 + x^7 + x^2 + x + 1. Bit 255 is the coefficient of x^0.
SEALIFT_INLINE sealift_gf reduce(u32 word[8]) {
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) {
        const u32 w = word[i];
        word[i + 4] ^= xor3(w, w >> 1, w >> 2) ^ (w >> 7);
        word[i + 3] ^= xor3(w << 31, w << 30, w << 25);
    }
    sealift_gf out;
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) out.word[i] = word[i + 4];
    return out;
}

// An element divided by x: what a factor is kept as.
SEALIFT_INLINE sealift_gf divide_by_x(const sealift_gf& x) {
    const u32 lost = 0u - (x.word[3] >> 31);
    sealift_gf out;
    out.word[3] = ((x.word[3] << 1) | (x.word[2] >> 31)) ^ (lost & 0xc2000000u);
    out.word[2] = (x.word[2] << 1) | (x.word[1] >> 31);
    out.word[1] = (x.word[1] << 1) | (x.word[0] >> 31);
    out.word[0] = (x.word[0] << 1) ^ (lost & 1);
    return out;
}

// a * b, both as they are: for keys and for what is done once a record.
SEALIFT_INLINE sealift_gf gf_multiply(const sealift_gf& a, const sealift_gf& b) {
    const sealift_gf factor = divide_by_x(b);
    u64 product[GF_PRODUCTS];
    const u32 zero[GF_MASKS] = {0, 0, 0, 0, 0};
    SEALIFT_UNROLL
    for (u32 q = 0; q < GF_PRODUCTS; q++) {
        u32 masked[GF_MASKS];
        split(karatsuba_word(factor.word, q), masked);
        gf_sums sums;
        clear(sums);
        add_products(sums, karatsuba_word(a.word, q), masked, 0, zero);
        product[q] = gather(sums);
    }
    u32 word[8];
    join(product, word);
    return reduce(word);
}

SEALIFT_INLINE sealift_gf gf_add(sealift_gf a, const sealift_gf& b) {
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) a.word[i] ^= b.word[i];
    return a;
}

SEALIFT_INLINE sealift_gf gf_zero() {
    const sealift_gf out = {{0, 0, 0, 0}};
    return out;
}

SEALIFT_INLINE sealift_gf gf_one() {
    const sealift_gf out = {{0, 0, 0, 0x80000000u}};
    return out;
}

// Sixteen bytes as they lie in memory to an element, and back.
SEALIFT_INLINE sealift_gf to_gf(uint4 block) {
    const sealift_gf out = {{swap_bytes(block.w), swap_bytes(block.z), swap_bytes(block.y),
                             swap_bytes(block.x)}};
    return out;
}

SEALIFT_INLINE uint4 from_gf(const sealift_gf& x) {
    const uint4 out = {swap_bytes(x.word[3]), swap_bytes(x.word[2]), swap_bytes(x.word[1]),
                       swap_bytes(x.word[0])};
    return out;
}
