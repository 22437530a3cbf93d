// FIPS 197's key expansion, once a key, by one thread, with the S-box of the rounds.
#pragma once

#include "aes_planes.cuh"
#include "aes_rounds.cuh"

// S(x) for the four bytes of a word.
SEALIFT_INLINE u32 sub_word(u32 word) {
    u32 x[8];
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) x[b] = (word >> b) & 0x01010101u;
    sbox(x);
    u32 out = 0x63636363u;
    SEALIFT_UNROLL
    for (u32 b = 0; b < 8; b++) out ^= (x[b] & 0x01010101u) << b;
    return out;
}

// `words` has room for 60; the first eight are the key, little endian.
SEALIFT_INLINE void expand_words(u32* words) {
    u32 round_constant = 1;
    SEALIFT_NO_UNROLL
    for (u32 i = 8; i < 60; i++) {
        u32 word = words[i - 1];
        if ((i & 7) == 0) {
            word = sub_word(rotate_right(word, 8)) ^ round_constant;
            round_constant <<= 1;  // at most 0x40 for keys of 256 bits
        } else if ((i & 7) == 4) {
            word = sub_word(word);
        }
        words[i] = words[i - 8] ^ word;
    }
}

// Word `p` of the bitsliced key of `round`. The S-box leaves out 0x63; it is here.
SEALIFT_INLINE u32 key_plane(const u32* words, u32 round, u32 p) {
    const u32 b = p >> 2, r = p & 3;
    const u32 constant = round > 0 ? 0u - ((0x63u >> b) & 1) : 0;
    return shared_plane(words + 4 * round, b, r) ^ constant;
}
