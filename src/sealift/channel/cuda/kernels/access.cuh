// Sixteen bytes at a time: whole blocks as vectors, the last block of a record by bytes.
#pragma once

#include "abi.cuh"

SEALIFT_INLINE u32 blocks_of(u32 nbytes) { return (nbytes + 15) >> 4; }

SEALIFT_INLINE bool is_aligned(const void* address) {
    return ((u64)address & 15) == 0;
}

// At most 16 bytes, zero-padded. Rare, so a loop: it keeps the kernels small.
SEALIFT_INLINE uint4 load_bytes(const u8* from, u32 nbytes) {
    uint4 out = {0, 0, 0, 0};
    SEALIFT_NO_UNROLL
    for (u32 i = nbytes; i-- > 0;) {
        out.w = (out.w << 8) | (out.z >> 24);
        out.z = (out.z << 8) | (out.y >> 24);
        out.y = (out.y << 8) | (out.x >> 24);
        out.x = (out.x << 8) | from[i];
    }
    return out;
}

SEALIFT_INLINE void store_bytes(u8* to, uint4 value, u32 nbytes) {
    SEALIFT_NO_UNROLL
    for (u32 i = 0; i < nbytes; i++) {
        to[i] = (u8)value.x;
        value.x = (value.x >> 8) | (value.y << 24);
        value.y = (value.y >> 8) | (value.z << 24);
        value.z = (value.z >> 8) | (value.w << 24);
        value.w >>= 8;
    }
}

// Block number `block` of `nbytes` bytes; `aligned` says that vectors may be used.
SEALIFT_INLINE uint4 load_block(const u8* from, u32 nbytes, u32 block, bool aligned) {
    const u32 start = block << 4;
    if (aligned && start + 16 <= nbytes) return *(const uint4*)(from + start);
    const u32 rest = nbytes - start;
    return load_bytes(from + start, rest < 16 ? rest : 16);
}

SEALIFT_INLINE void store_block(u8* to, u32 nbytes, u32 block, uint4 value, bool aligned) {
    const u32 start = block << 4;
    if (aligned && start + 16 <= nbytes) {
        *(uint4*)(to + start) = value;
        return;
    }
    const u32 rest = nbytes - start;
    store_bytes(to + start, value, rest < 16 ? rest : 16);
}

// The first bytes of a word, the others zero.
SEALIFT_INLINE u32 cut_word(u32 word, u32 nbytes) {
    return nbytes >= 4 ? word : word & ((1u << (8 * nbytes)) - 1);
}

// Zeroes behind the record's end, as the hash takes the last block.
SEALIFT_INLINE uint4 cut_block(uint4 value, u32 nbytes, u32 block) {
    const u32 rest = nbytes - (block << 4);
    if (rest >= 16) return value;
    value.x = cut_word(value.x, rest);
    value.y = cut_word(value.y, rest > 4 ? rest - 4 : 0);
    value.z = cut_word(value.z, rest > 8 ? rest - 8 : 0);
    value.w = cut_word(value.w, rest > 12 ? rest - 12 : 0);
    return value;
}

SEALIFT_INLINE uint4 xor_blocks(uint4 a, uint4 b) {
    a.x ^= b.x, a.y ^= b.y, a.z ^= b.z, a.w ^= b.w;
    return a;
}

// Lengths that the kernels are made for; others never get a good verdict.
SEALIFT_INLINE bool has_lengths(const sealift_record& record) {
    return record.plaintext_bytes <= SEALIFT_MAX_PLAINTEXT &&
           record.aad_bytes <= SEALIFT_MAX_ASSOCIATED;
}
