// The ChaCha20 block function (RFC 8439, 2.1 to 2.3): additions, XORs, fixed rotations.
#pragma once

#include "portable.cuh"

SEALIFT_INLINE void quarter_round(u32& a, u32& b, u32& c, u32& d) {
    a += b, d = rotate_left(d ^ a, 16);
    c += d, b = rotate_left(b ^ c, 12);
    a += b, d = rotate_left(d ^ a, 8);
    c += d, b = rotate_left(b ^ c, 7);
}

// word[0..15] of the keystream block `counter`.
SEALIFT_INLINE void chacha20_block(const u32* key, u32 counter, const u32* nonce,
                                   u32 word[16]) {
    const u32 constants[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) word[i] = constants[i];
    SEALIFT_UNROLL
    for (u32 i = 0; i < 8; i++) word[4 + i] = key[i];
    word[12] = counter;
    SEALIFT_UNROLL
    for (u32 i = 0; i < 3; i++) word[13 + i] = nonce[i];
    SEALIFT_NO_UNROLL
    for (u32 round = 0; round < 10; round++) {
        SEALIFT_UNROLL
        for (u32 i = 0; i < 4; i++)
            quarter_round(word[i], word[4 + i], word[8 + i], word[12 + i]);
        SEALIFT_UNROLL
        for (u32 i = 0; i < 4; i++)
            quarter_round(word[i], word[4 + ((i + 1) & 3)], word[8 + ((i + 2) & 3)],
                          word[12 + ((i + 3) & 3)]);
    }
    SEALIFT_UNROLL
    for (u32 i = 0; i < 4; i++) word[i] += constants[i];
    SEALIFT_UNROLL
    for (u32 i = 0; i < 8; i++) word[4 + i] += key[i];
    word[12] += counter;
    SEALIFT_UNROLL
    for (u32 i = 0; i < 3; i++) word[13 + i] += nonce[i];
}
