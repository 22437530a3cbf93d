// ChaCha20-Poly1305 (RFC 8439, 2.8).
#include "chacha_tags.cuh"

// Bring a key into words. One block.
SEALIFT_KERNEL(1) sealift_chacha_key_expand(const u8* __restrict__ raw_key,
                                            sealift_chacha_key* key) {
    if (threadIdx.x < 8) key->words[threadIdx.x] = load_bytes(raw_key + 4 * threadIdx.x, 4).x;
}

// The first power is there; each step doubles how many are.
SEALIFT_INLINE void extend_powers(u32 (*powers)[POLY_LIMBS], u32 count) {
    for (u32 known = 1; known < count; known *= 2) {
        __syncthreads();
        const u32 to = known + threadIdx.x + 1;
        if (threadIdx.x < known && to <= count)
            store_poly(powers[to], poly_multiply(load_poly(powers[known]),
                                                 load_poly(powers[threadIdx.x + 1])));
    }
    __syncthreads();
}

// The one-time key of each record, and powers of its r. One block a record.
SEALIFT_KERNEL(4) sealift_chacha_prepare(const sealift_record* __restrict__ records,
                                         u32 num_records, u32 segments,
                                         const sealift_chacha_key* __restrict__ key,
                                         u8* scratch_start) {
    __shared__ sealift_poly_key made;
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const u32 t = threadIdx.x;
    if (t == 0) {
        const uint4 bytes = load_bytes(records[blockIdx.x].nonce, 12);
        const u32 nonce[3] = {bytes.x, bytes.y, bytes.z};
        u32 word[16];
        chacha20_block(key->words, 0, nonce, word);
        store_poly(made.lane[0], poly_one());
        store_poly(made.row[0], poly_one());
        store_poly(made.lane[1], clamp(word));
        for (u32 i = 0; i < 4; i++) made.pad[i] = word[4 + i];
        made.reserved[0] = made.reserved[1] = 0;
    }
    extend_powers(made.lane, SEALIFT_THREADS);
    if (t == 0) store_poly(made.row[1], load_poly(made.lane[SEALIFT_THREADS]));
    extend_powers(made.row, POLY_TILE_ROWS);
    uint4* to = (uint4*)((sealift_poly_key*)scratch.suite + blockIdx.x);
    for (u32 i = t; i < sizeof(sealift_poly_key) / 16; i += SEALIFT_THREADS)
        to[i] = ((const uint4*)&made)[i];
}

// Encrypt or decrypt one segment, and hash its ciphertext as if it were a whole text.
template <bool sealing>
SEALIFT_INLINE void chacha_segment(const sealift_record& record, u32 first_tile, u32 tiles,
                                   const sealift_chacha_key& key,
                                   const sealift_poly_key& poly_key, const u8* in, u8* out,
                                   sealift_part* part) {
    __shared__ chacha_shared shared;
    load_chacha(shared, key, record, poly_key);
    __syncthreads();
    const u8* from = in + (sealing ? record.plain_offset : record.sealed_offset);
    u8* to = out + (sealing ? record.sealed_offset : record.plain_offset);
    const bool from_aligned = is_aligned(from), to_aligned = is_aligned(to);
    const u32 nbytes = record.plaintext_bytes, blocks = blocks_of(nbytes);
    const u32 t = threadIdx.x;
    const u32 last_tile = first_tile + tiles;
    const u32 end = blocks < last_tile * POLY_TILE_BLOCKS ? blocks
                                                          : last_tile * POLY_TILE_BLOCKS;
    poly sum = poly_zero();
    u32 ending = 0;  // blocks from this thread's last block on
    SEALIFT_NO_UNROLL
    for (u32 tile = first_tile; tile * POLY_TILE_BLOCKS < end; tile++) {
        const u32 block = tile * POLY_TILE_BLOCKS + t;
        const u32 left = block < end ? (end - block + SEALIFT_THREADS - 1) / SEALIFT_THREADS : 0;
        const u32 rows = left < POLY_TILE_ROWS ? left : POLY_TILE_ROWS;
        uint4 text[POLY_TILE_ROWS];  // read once: what is hashed is what is opened
        SEALIFT_UNROLL
        for (u32 i = 0; i < POLY_TILE_ROWS; i++) {
            const uint4 none = {0, 0, 0, 0};
            text[i] = none;
            if (i < rows)
                text[i] = load_block(from, nbytes, block + i * SEALIFT_THREADS, from_aligned);
        }
        if (4 * (tile * CHACHA_BLOCKS + t) < end) make_stream(shared, tile);
        __syncthreads();
        if (rows == 0) continue;
        poly row[POLY_TILE_ROWS];
        SEALIFT_UNROLL
        for (u32 i = 0; i < POLY_TILE_ROWS; i++) {
            row[i] = poly_zero();
            if (i < rows) {
                const u32 here = i * SEALIFT_THREADS + t;
                const uint4 stream = shared.stream[tile & 1][stream_place(here >> 2, here & 3)];
                const uint4 other = xor_blocks(text[i], stream);
                const u32 at = block + i * SEALIFT_THREADS;
                store_block(to, nbytes, at, other, to_aligned);
                row[i] = to_poly(sealing ? cut_block(other, nbytes, at) : text[i], 1);
            }
        }
        sum = sum_rows(shared, sum, row, rows);
        ending = end - (block + (rows - 1) * SEALIFT_THREADS);
    }
    if (ending) sum = poly_multiply(sum, load_poly(poly_key.lane[ending]));
    const poly total = sum_of_threads(shared, sum);
    if (t == 0) store_poly(part->word, total);
}

template <bool sealing>
SEALIFT_INLINE void chacha_crypt(const sealift_record* records, u32 num_records,
                                 u32 segments, u32 segment_tiles, u32 first_item,
                                 const sealift_chacha_key* key, const u8* in, u8* out,
                                 u8* scratch_start) {
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const u32 item = first_item + blockIdx.x, index = item / segments;
    const sealift_record& record = records[index];
    const u32 first = (item % segments) * segment_tiles;
    if (!has_lengths(record) ||
        first * POLY_TILE_BLOCKS >= blocks_of(record.plaintext_bytes))
        return;
    const sealift_poly_key* poly_key = (const sealift_poly_key*)scratch.suite + index;
    chacha_segment<sealing>(record, first, segment_tiles, *key, *poly_key, in, out,
                            scratch.parts + item);
}

// An item is a segment; a record has `segments`, one block each.
SEALIFT_KERNEL(5) sealift_chacha_seal(const sealift_record* __restrict__ records,
                                      u32 num_records, u32 segments, u32 segment_tiles,
                                      u32 first_item,
                                      const sealift_chacha_key* __restrict__ key,
                                      const u8* plain, u8* sealed, u8* scratch) {
    chacha_crypt<true>(records, num_records, segments, segment_tiles, first_item, key, plain,
                       sealed, scratch);
}

SEALIFT_KERNEL(5) sealift_chacha_open(const sealift_record* __restrict__ records,
                                      u32 num_records, u32 segments, u32 segment_tiles,
                                      u32 first_item,
                                      const sealift_chacha_key* __restrict__ key,
                                      const u8* sealed, u8* plain, u8* scratch) {
    chacha_crypt<false>(records, num_records, segments, segment_tiles, first_item, key,
                        sealed, plain, scratch);
}

// The tag of this block's record, in thread 0.
SEALIFT_INLINE uint4 chacha_tag(const sealift_record& record, const sealift_scratch& scratch,
                                u32 segments, u32 segment_tiles, const u8* aad) {
    __shared__ chacha_shared shared;
    const sealift_poly_key& key = ((const sealift_poly_key*)scratch.suite)[blockIdx.x];
    const sealift_part* parts = scratch.parts + (u64)segments * blockIdx.x;
    const u32 blocks = blocks_of(record.plaintext_bytes);
    const u32 each = segment_tiles * POLY_TILE_BLOCKS;
    const u32 used = (blocks + each - 1) / each;
    const poly associated = hash_associated(shared, record, aad, key);
    poly sum = associated;
    if (used) sum = sum_before_last(shared, associated, parts, used, segment_tiles, key);
    uint4 tag = {0, 0, 0, 0};
    if (threadIdx.x != 0) return tag;
    const u32 last_blocks = used ? blocks - (used - 1) * each : 0;
    const sealift_part* last = used ? parts + used - 1 : parts;
    return finish_tag(sum, last, record, last_blocks, key);
}

// The tag of each record to the scratch's beginning. One block a record.
SEALIFT_KERNEL(4) sealift_chacha_tags(const sealift_record* __restrict__ records,
                                      u32 num_records, u32 segments, u32 segment_tiles,
                                      const u8* __restrict__ aad, u8* scratch_start) {
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const sealift_record& record = records[blockIdx.x];
    if (!has_lengths(record)) return;
    const uint4 tag = chacha_tag(record, scratch, segments, segment_tiles, aad);
    if (threadIdx.x == 0) scratch.tags[blockIdx.x] = tag;
}

// The verdict of each record, and zeroes over its plaintext if it is not genuine. One
// block a record.
SEALIFT_KERNEL(4) sealift_chacha_judge(const sealift_record* __restrict__ records,
                                       u32 num_records, u32 segments, u32 segment_tiles,
                                       const u8* __restrict__ aad, u8* scratch_start,
                                       const u8* sealed, u8* plain, u8* verdicts) {
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const sealift_record& record = records[blockIdx.x];
    uint4 tag = {0, 0, 0, 0};
    if (has_lengths(record))
        tag = chacha_tag(record, scratch, segments, segment_tiles, aad);
    judge(record, tag, sealed, plain, verdicts + blockIdx.x);
}
