// What has to happen on the device between other kernels: nonces that only grow, also
// when a captured graph is replayed, and one answer for all records of a batch.
#include "access.cuh"

// State of one sealer; 48 bytes, little endian (sequence.py).
struct sealift_sealer {
    u64 sequence;  // of the next record
    u64 index;     // of the next record
    u64 limit;     // sequences from here on are refused
    u32 lane;
    u32 refused;  // set once, for ever
    u8 mask[12];
    u32 reserved;
};

#define INDEX_OFFSET 32u  // in the associated data: header hash, index, final bit
#define FINAL_OFFSET 40u
#define PREFIX_BYTES 16u

SEALIFT_INLINE void put_big_endian(u8* to, u64 value, u32 nbytes) {
    for (u32 i = 0; i < nbytes; i++) to[i] = (u8)(value >> (8 * (nbytes - 1 - i)));
}

SEALIFT_INLINE void give_nonce(sealift_record* record, const sealift_sealer* state,
                               u64 sequence, u64 index, u8* text, u8* prefix) {
    u8 told[12];
    put_big_endian(told, state->lane, 4);
    put_big_endian(told + 4, sequence, 8);
    for (u32 i = 0; i < 12; i++) record->nonce[i] = told[i] ^ state->mask[i];
    put_big_endian(text + INDEX_OFFSET, index, 8);
    put_big_endian(prefix, record->plaintext_bytes + 16, 4);
    for (u32 i = 0; i < 12; i++) prefix[4 + i] = told[i];
    prefix[4] |= (u8)((text[FINAL_OFFSET] & 1) << 7);
}

// A record that must not be sealed: no kernel touches one of such lengths.
SEALIFT_INLINE void take_away(sealift_record* record, u8* prefix) {
    record->aad_bytes = 0xffffffffu;
    for (u32 i = 0; i < PREFIX_BYTES; i++) prefix[i] = 0;
}

// Give every record of a batch the next nonce, index and frame prefix. One block.
SEALIFT_KERNEL(8) sealift_sequence(sealift_record* records, u32 num_records, u8* aad,
                                   sealift_sealer* state, u8* prefixes) {
    const u64 sequence = state->sequence, index = state->index, limit = state->limit;
    const bool refused =
        state->refused || limit < num_records || sequence > limit - num_records;
    for (u32 i = threadIdx.x; i < num_records; i += SEALIFT_THREADS) {
        u8* prefix = prefixes + (u64)PREFIX_BYTES * i;
        if (refused)
            take_away(records + i, prefix);
        else
            give_nonce(records + i, state, sequence + i, index + i,
                       aad + records[i].aad_offset, prefix);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (refused) {
        state->refused = 1;
    } else {
        state->sequence = sequence + num_records;
        state->index = index + num_records;
    }
}

// All threads of a block zero a range.
SEALIFT_INLINE void zero_range(u8* start, u32 nbytes) {
    const bool aligned = is_aligned(start);
    const uint4 zero = {0, 0, 0, 0};
    for (u32 block = threadIdx.x; block < blocks_of(nbytes); block += SEALIFT_THREADS)
        store_block(start, nbytes, block, zero, aligned);
}

// Whoever writes, writes the same.
SEALIFT_TOGETHER void raise_flag(u32* flag) { *flag = 1; }

// Whether the (at most) sixteen verdicts of a block are all 1.
SEALIFT_INLINE bool are_genuine(const u8* verdicts, u32 count, u32 block, bool aligned) {
    const uint4 ones = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    const uint4 differs = xor_blocks(load_block(verdicts, count, block, aligned),
                                     cut_block(ones, count, block));
    return (differs.x | differs.y | differs.z | differs.w) == 0;
}

// If any record of a batch is not genuine, zero the plaintext of all. Any grid: each block
// looks at all verdicts once, and takes its share of the records.
SEALIFT_KERNEL(8) sealift_refuse_batch(const sealift_record* __restrict__ records,
                                       u32 num_records,
                                       const u8* __restrict__ verdicts, u8* plain) {
    __shared__ u32 wrong;
    if (threadIdx.x == 0) wrong = 0;
    __syncthreads();
    const bool aligned = is_aligned(verdicts);
    for (u32 block = threadIdx.x; block < blocks_of(num_records); block += SEALIFT_THREADS)
        if (!are_genuine(verdicts, num_records, block, aligned)) raise_flag(&wrong);
    __syncthreads();
    if (!wrong) return;
    for (u32 i = blockIdx.x; i < num_records; i += gridDim.x) {
        const sealift_record record = records[i];
        if (has_lengths(record))
            zero_range(plain + record.plain_offset, record.plaintext_bytes);
    }
}
