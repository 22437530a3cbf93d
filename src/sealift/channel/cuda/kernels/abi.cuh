// What host and kernels agree on. Python's side: geometry.py; tests compare the two.
#pragma once

#include "portable.cuh"

#define SEALIFT_THREADS 128u          // of every block
#define SEALIFT_MAX_PLAINTEXT 4194304u
#define SEALIFT_MAX_ASSOCIATED 256u

// One record of a batch; 64 bytes, little endian, an array in device memory.
struct sealift_record {
    u64 sealed_offset;    // of ciphertext || tag in the sealed memory
    u64 plain_offset;     // of the plaintext in the plain memory
    u32 plaintext_bytes;  // 0 to SEALIFT_MAX_PLAINTEXT
    u32 aad_bytes;        // 0 to SEALIFT_MAX_ASSOCIATED
    u64 aad_offset;       // in the memory of all associated data
    u8 nonce[12];
    u32 has_tag;          // whether `tag` counts, not the one behind the ciphertext
    u8 tag[16];
};

// Elements of GF(2^128) and of integers modulo 2^130 - 5, as they lie in memory.
struct alignas(16) sealift_gf {
    u32 word[4];  // GCM's bit string as one integer: bit 0 of the field is the top bit
};

#define GCM_ROUNDS 14u
#define GCM_TILE_ROWS 8u                                  // blocks of a thread in a tile
#define GCM_TILE_BLOCKS (GCM_TILE_ROWS * SEALIFT_THREADS)  // 1024 blocks: 16 KiB
#define GCM_MAX_TILES 256u
#define GCM_FACTOR_WORDS 48u  // 9 words of Karatsuba in 5 masks, and padding

// An expanded AES-256-GCM key.
struct alignas(16) sealift_gcm_key {
    u32 round_keys[GCM_ROUNDS + 1][32];         // bitsliced; see aes_rounds.cuh
    u32 factors[GCM_TILE_ROWS + 1][GCM_FACTOR_WORDS];  // H^(128 k) / x; see ghash.cuh
    sealift_gf lane[SEALIFT_THREADS + 1];       // H^k
    sealift_gf row[GCM_TILE_ROWS + 1];          // H^(128 k)
    sealift_gf tile[GCM_MAX_TILES + 1];         // H^(1024 k)
};

#define POLY_TILE_ROWS 4u
#define POLY_TILE_BLOCKS (POLY_TILE_ROWS * SEALIFT_THREADS)  // 512 blocks: 8 KiB
#define POLY_LIMBS 5u

// A ChaCha20-Poly1305 key, and what is made of it for each record.
struct alignas(16) sealift_chacha_key {
    u32 words[8];
};

struct alignas(16) sealift_poly_key {
    u32 lane[SEALIFT_THREADS + 1][POLY_LIMBS];  // r^k
    u32 row[POLY_TILE_ROWS + 1][POLY_LIMBS];    // r^(128 k)
    u32 pad[4];                                 // s, added last
    u32 reserved[2];
};

// A part of a record's hash: what one block computed of its segment.
struct alignas(16) sealift_part {
    u32 word[8];  // GHASH: 4; Poly1305: 5 limbs
};

// Scratch of a batch: u8 tags[num_records][16], sealift_part[num_records][segments],
// and for AES-GCM uint4 masks[num_records], for ChaCha20-Poly1305 sealift_poly_key
// [num_records]. Offsets in bytes.
SEALIFT_INLINE u64 tags_bytes(u32 num_records) { return 16ull * num_records; }
SEALIFT_INLINE u64 parts_bytes(u32 num_records, u32 segments) {
    return (u64)sizeof(sealift_part) * num_records * segments;
}

struct sealift_scratch {
    uint4* tags;
    sealift_part* parts;
    u8* suite;  // masks or one-time keys
};

SEALIFT_INLINE sealift_scratch scratch_of(u8* scratch, u32 num_records, u32 segments) {
    sealift_scratch found;
    found.tags = (uint4*)scratch;
    found.parts = (sealift_part*)(scratch + tags_bytes(num_records));
    found.suite = scratch + tags_bytes(num_records) + parts_bytes(num_records, segments);
    return found;
}
