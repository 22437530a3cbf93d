// The AES S-box on bit planes: no table, no branch, the same steps for every input.
//
// Inversion in GF(2^8) over GF(2^4) over GF(2^2), with the signals of Boyar and Peralta's
// circuit of depth 16 (2011), which has 113 gates of two inputs. Here it is arranged for
// gates of three: 73. The affine constant 0x63 is left out: round keys contain it.
#pragma once

#include "portable.cuh"

// What the multiplications in GF(2^4) take from the input: linear forms of it.
struct sbox_forms {
    u32 a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17;
};

// x[7] is the highest bit.
SEALIFT_INLINE sbox_forms sbox_linear(const u32 x[8]) {
    sbox_forms f;
    f.a14 = x[2] ^ x[4];
    f.a13 = x[1] ^ x[7];
    f.a9 = x[4] ^ x[7];
    f.a8 = x[2] ^ x[7];
    f.a1 = xor3(x[0], x[5], x[6]);
    f.a4 = x[4] ^ f.a1;
    f.a12 = f.a14 ^ f.a13;
    f.a2 = x[7] ^ f.a1;
    f.a5 = x[1] ^ f.a1;
    f.a3 = f.a8 ^ f.a5;
    f.a15 = xor3(x[1], x[3], f.a9);
    f.a6 = x[0] ^ f.a15;
    f.a10 = f.a1 ^ f.a6;
    f.a17 = xor3(x[1], x[5], f.a12);
    f.a11 = f.a10 ^ f.a17;
    f.a7 = x[0] ^ f.a11;
    f.a16 = f.a1 ^ f.a7;
    return f;
}

// The inverse in GF(2^4) of the norm, d to h, and the sums of its bits that products
// need.
struct sbox_inverse {
    u32 d, e, g, h, de, dh, eg, gh, all;
};

// The norm's bits p to s are sums of products and of linear forms. The forms are added to
// the products that two bits share, so that only one of them (x4 ^ x5) has to be made.
SEALIFT_INLINE sbox_inverse sbox_invert(const u32 x[8], const sbox_forms& f) {
    const u32 high = xor_and(x[0], f.a12, f.a15), middle = xor_and(f.a2, f.a13, f.a16);
    const u32 low = xor_and(f.a7, f.a9, f.a11);
    const u32 low_pr = xor_and(low, f.a14, f.a17), low_qs = xor_and(low, f.a8, f.a10);
    const u32 p = xor3(xor_and(high, f.a3, f.a6), low_pr, f.a9);
    const u32 q = xor3(xor_and(high, f.a4, x[0]), low_qs, x[4] ^ x[5]);
    const u32 r = xor3(xor_and(middle, f.a5, f.a1), low_pr, x[1]);
    const u32 s = xor_and(middle, f.a2, f.a7) ^ low_qs;
    const u32 s_pr = xor_and(s, p, r), q_pr = xor_and(q, p, r);
    const u32 either = choose(s_pr, q, s);
    sbox_inverse i;
    i.d = choose(s_pr, p, q);
    i.e = choose(q_pr, r, s);
    i.dh = choose(either, q_pr, p);
    i.eg = choose(either, s_pr, r);
    i.de = i.d ^ i.e;
    i.h = i.d ^ i.dh;
    i.g = i.e ^ i.eg;
    i.gh = i.g ^ i.h;
    i.all = i.de ^ i.gh;
    return i;
}

// x[0] is the plane of the lowest bits; the planes are replaced by those of S(x) ^ 0x63.
SEALIFT_INLINE void sbox(u32 x[8]) {
    const sbox_forms f = sbox_linear(x);
    const sbox_inverse i = sbox_invert(x, f);
    const u32 z2 = i.e & x[0], z3 = i.dh & f.a16, z5 = i.d & f.a7, z12 = i.dh & f.a13;
    const u32 z16 = i.all & f.a14;
    const u32 t46 = xor_and(z16, i.de, f.a9);
    const u32 t58 = xor_and(t46, i.h, f.a1);
    const u32 t63 = xor_and(xor_and(t58, i.eg, f.a12), i.g, f.a3);
    const u32 t66 = xor_and(t63, i.g, f.a6);
    const u32 t59 = xor_and(xor_and(z3, i.de, f.a11), i.all, f.a17);
    const u32 t64 = xor_and(t59, i.h, f.a1);
    const u32 t53 = xor_and(z3, i.eg, f.a15);
    const u32 t48 = xor_and(z5, i.h, f.a5);
    const u32 t57 = xor3(t53, z2, z12);
    const u32 t62 = xor_and(xor_and(t58, i.all, f.a17), i.gh, f.a10);
    const u32 t65 = xor3(t57, t62, i.d & f.a2);
    x[7] = t59 ^ t63;
    x[6] = xor3(t64, t53, t66);
    x[5] = xor_and(xor3(t64, t65, z16), i.gh, f.a8);
    x[4] = t53 ^ t66;
    x[3] = xor3(t66, z2, z5);
    x[2] = xor_and(xor_and(t65, i.g, f.a3), i.e, f.a4);
    x[1] = xor3(t62, t48, z12);
    x[0] = xor3(t48, t46, t57);
}
