// AES-256-GCM (NIST SP 800-38D) with 96-bit nonces and whole tags.
#include "aes_key.cuh"
#include "gcm_tags.cuh"

// The first power is there; each step doubles how many are.
SEALIFT_INLINE void extend_powers(sealift_gf* powers, u32 count) {
    for (u32 known = 1; known < count; known *= 2) {
        __syncthreads();
        if (threadIdx.x < known)
            powers[known + threadIdx.x + 1] =
                gf_multiply(powers[known], powers[threadIdx.x + 1]);
    }
    __syncthreads();
}

SEALIFT_INLINE void write_factors(sealift_gcm_key* key) {
    for (u32 i = threadIdx.x; i < (GCM_TILE_ROWS + 1) * GF_PRODUCTS; i += SEALIFT_THREADS) {
        const u32 row = i / GF_PRODUCTS, q = i % GF_PRODUCTS;
        const sealift_gf power = divide_by_x(key->row[row]);
        u32 masked[GF_MASKS];
        split(karatsuba_word(power.word, q), masked);
        for (u32 j = 0; j < 4; j++) key->factors[row][4 * q + j] = masked[j];
        key->factors[row][4 * GF_PRODUCTS + q] = masked[4];
        if (q < GCM_FACTOR_WORDS - 45) key->factors[row][45 + q] = 0;
    }
}

// Expand a key: round keys, then powers of H. One block.
SEALIFT_KERNEL(1) sealift_gcm_key_expand(const u8* __restrict__ raw_key,
                                         sealift_gcm_key* key) {
    __shared__ u32 words[60];
    alignas(16) __shared__ u32 planes[GCM_ROUNDS + 1][32];  // read as vectors
    const u32 t = threadIdx.x;
    if (t == 0) {
        for (u32 i = 0; i < 32; i += 4)
            words[i / 4] = load_bytes(raw_key + i, 4).x;
        expand_words(words);
    }
    __syncthreads();
    for (u32 i = t; i < GCM_KEY_WORDS; i += SEALIFT_THREADS)
        planes[i >> 5][i & 31] = key_plane(words, i >> 5, i & 31);
    __syncthreads();
    if (t > 0 && t < GCM_ROUNDS) spread_key(planes[t]);
    __syncthreads();
    for (u32 i = t; i < GCM_KEY_WORDS; i += SEALIFT_THREADS)
        key->round_keys[i >> 5][i & 31] = planes[i >> 5][i & 31];
    if (t == 0) {
        u32 plane[32], word[32];
        for (u32 p = 0; p < 32; p++) plane[p] = planes[0][p];
        aes_rounds(plane, planes);
        to_blocks(plane, word);
        const uint4 block = {word[0], word[1], word[2], word[3]};
        key->lane[0] = key->row[0] = key->tile[0] = gf_one();
        key->lane[1] = to_gf(block);
    }
    extend_powers(key->lane, SEALIFT_THREADS);
    if (t == 0) key->row[1] = key->lane[SEALIFT_THREADS];
    extend_powers(key->row, GCM_TILE_ROWS);
    if (t == 0) key->tile[1] = key->row[GCM_TILE_ROWS];
    extend_powers(key->tile, GCM_MAX_TILES);
    write_factors(key);
    for (u32 i = t; i < GCM_KEY_WORDS; i += SEALIFT_THREADS) planes[i >> 5][i & 31] = 0;
    if (t < 60) words[t] = 0;
}

// What is added to the hash of each record: its nonce with counter 1, encrypted. Eight
// records a thread.
SEALIFT_INLINE void write_masks(const sealift_record* records, u32 num_records,
                                const sealift_gcm_key& key, uint4* masks) {
    const u32 first = (blockIdx.x * SEALIFT_THREADS + threadIdx.x) * 8;
    if (first >= num_records) return;
    u32 word[32], plane[32];
    SEALIFT_UNROLL
    for (u32 i = 0; i < 8; i++) {
        const u32 index = first + i < num_records ? first + i : first;
        const uint4 nonce = load_bytes(records[index].nonce, 12);
        word[4 * i] = nonce.x, word[4 * i + 1] = nonce.y, word[4 * i + 2] = nonce.z;
        word[4 * i + 3] = 0x01000000u;
    }
    to_planes(word, plane);
    add_key(plane, key.round_keys[0]);
    aes_rounds(plane, key.round_keys);
    to_blocks(plane, word);
    SEALIFT_UNROLL
    for (u32 i = 0; i < 8; i++) {
        const uint4 mask = {word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]};
        if (first + i < num_records) masks[first + i] = mask;
    }
}

SEALIFT_INLINE u32 mask_blocks(u32 num_records) {
    return (num_records + 8 * SEALIFT_THREADS - 1) / (8 * SEALIFT_THREADS);
}

// Encrypt or decrypt one segment, and hash its ciphertext as if it were a whole text.
template <bool sealing>
SEALIFT_INLINE void crypt_segment(const sealift_record& record, u32 first, u32 end,
                                  const sealift_gcm_key& key, const u8* in, u8* out,
                                  sealift_part* part) {
    __shared__ gcm_shared shared;
    load_tables(shared, key, record);
    __syncthreads();
    gcm_walk walk;
    walk.from = in + (sealing ? record.plain_offset : record.sealed_offset);
    walk.to = out + (sealing ? record.sealed_offset : record.plain_offset);
    walk.nbytes = record.plaintext_bytes;
    walk.from_aligned = is_aligned(walk.from);
    walk.to_aligned = is_aligned(walk.to);
    sealift_gf sum = gf_zero();
    u32 ending = 0;  // blocks from this thread's last block on
    SEALIFT_NO_UNROLL
    for (u32 block = first + threadIdx.x; block < end; block += GCM_TILE_BLOCKS) {
        const u32 left = (end - block + SEALIFT_THREADS - 1) / SEALIFT_THREADS;
        const u32 rows = left < GCM_TILE_ROWS ? left : GCM_TILE_ROWS;
        const bool plain_tile = is_plain_tile(walk, block);
        fetch_rows(shared, walk, block, rows, plain_tile);
        u32 word[32];
        keystream(shared, block, word);
        const sealift_gf last =
            plain_tile ? apply_rows<sealing, true>(shared, walk, block, rows, word)
                       : apply_rows<sealing, false>(shared, walk, block, rows, word);
        sum = hash_rows(shared, sum, rows, last);
        ending = end - (block + (rows - 1) * SEALIFT_THREADS);
    }
    if (ending) sum = gf_multiply(sum, key.lane[ending]);
    const sealift_gf total = sum_of_threads(&shared.words[0][0][0], sum);
    if (threadIdx.x < 4) part->word[threadIdx.x + 4] = 0;
    if (threadIdx.x == 0)
        for (u32 i = 0; i < 4; i++) part->word[i] = total.word[i];
}

template <bool sealing>
SEALIFT_INLINE void gcm_crypt(const sealift_record* records, u32 num_records, u32 segments,
                              u32 segment_tiles, u32 first_item, const sealift_gcm_key* key,
                              const u8* in, u8* out, u8* scratch_start) {
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const u32 masking = first_item ? 0 : mask_blocks(num_records);
    if (blockIdx.x < masking) {
        write_masks(records, num_records, *key, (uint4*)scratch.suite);
        return;
    }
    const u32 item = first_item + blockIdx.x - masking;
    const sealift_record& record = records[item / segments];
    const u32 blocks = blocks_of(record.plaintext_bytes);
    const u32 first = (item % segments) * segment_tiles * GCM_TILE_BLOCKS;
    if (!has_lengths(record) || first >= blocks) return;
    const u32 rest = blocks - first, most = segment_tiles * GCM_TILE_BLOCKS;
    crypt_segment<sealing>(record, first, first + (rest < most ? rest : most), *key, in, out,
                           scratch.parts + item);
}

// An item is a segment; a record has `segments`, one block each, some of them with nothing
// to do. Blocks: mask_blocks(num_records) if `first_item` is 0, then an item each.
SEALIFT_KERNEL(4) sealift_gcm_seal(const sealift_record* __restrict__ records,
                                   u32 num_records, u32 segments, u32 segment_tiles,
                                   u32 first_item, const sealift_gcm_key* __restrict__ key,
                                   const u8* plain, u8* sealed, u8* scratch) {
    gcm_crypt<true>(records, num_records, segments, segment_tiles, first_item, key, plain,
                    sealed, scratch);
}

SEALIFT_KERNEL(4) sealift_gcm_open(const sealift_record* __restrict__ records,
                                   u32 num_records, u32 segments, u32 segment_tiles,
                                   u32 first_item, const sealift_gcm_key* __restrict__ key,
                                   const u8* sealed, u8* plain, u8* scratch) {
    gcm_crypt<false>(records, num_records, segments, segment_tiles, first_item, key, sealed,
                     plain, scratch);
}

// The tag of this block's record, in thread 0.
SEALIFT_INLINE uint4 gcm_tag(const sealift_record& record, const sealift_scratch& scratch,
                             u32 segments, u32 segment_tiles, const sealift_gcm_key& key,
                             const u8* aad) {
    __shared__ u32 shared[4 * SEALIFT_THREADS];
    const u32 blocks = blocks_of(record.plaintext_bytes);
    const u32 each = segment_tiles * GCM_TILE_BLOCKS;
    const u32 used = (blocks + each - 1) / each;
    const sealift_part* parts = scratch.parts + (u64)segments * blockIdx.x;
    const sealift_gf associated = hash_associated(shared, record, aad, key);
    sealift_gf sum = associated;
    if (used) sum = sum_before_last(shared, associated, parts, used, segment_tiles, key);
    uint4 tag = {0, 0, 0, 0};
    if (threadIdx.x != 0) return tag;
    const u32 last_blocks = used ? blocks - (used - 1) * each : 0;
    const sealift_part* last = used ? parts + used - 1 : parts;
    const uint4 mask = ((const uint4*)scratch.suite)[blockIdx.x];
    return finish_tag(sum, last, record, last_blocks, key, mask);
}

// The tag of each record to the scratch's beginning. One block a record.
SEALIFT_KERNEL(2) sealift_gcm_tags(const sealift_record* __restrict__ records,
                                   u32 num_records, u32 segments, u32 segment_tiles,
                                   const sealift_gcm_key* __restrict__ key,
                                   const u8* __restrict__ aad, u8* scratch_start) {
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const sealift_record& record = records[blockIdx.x];
    if (!has_lengths(record)) return;
    const uint4 tag = gcm_tag(record, scratch, segments, segment_tiles, *key, aad);
    if (threadIdx.x == 0) scratch.tags[blockIdx.x] = tag;
}

// The verdict of each record, and zeroes over its plaintext if it is not genuine. One
// block a record.
SEALIFT_KERNEL(2) sealift_gcm_judge(const sealift_record* __restrict__ records,
                                    u32 num_records, u32 segments, u32 segment_tiles,
                                    const sealift_gcm_key* __restrict__ key,
                                    const u8* __restrict__ aad, u8* scratch_start,
                                    const u8* sealed, u8* plain, u8* verdicts) {
    const sealift_scratch scratch = scratch_of(scratch_start, num_records, segments);
    const sealift_record& record = records[blockIdx.x];
    uint4 tag = {0, 0, 0, 0};
    if (has_lengths(record))
        tag = gcm_tag(record, scratch, segments, segment_tiles, *key, aad);
    judge(record, tag, sealed, plain, verdicts + blockIdx.x);
}
