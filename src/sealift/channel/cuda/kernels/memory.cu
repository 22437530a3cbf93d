// What is done with memory: placing tags, counting what is left.
#include "access.cuh"

// Put the computed tag behind the ciphertext of each record. One thread a record.
SEALIFT_KERNEL(8) sealift_place_tags(const sealift_record* __restrict__ records,
                                     u32 num_records, const u8* __restrict__ scratch,
                                     u8* sealed) {
    const u32 index = blockIdx.x * SEALIFT_THREADS + threadIdx.x;
    if (index >= num_records) return;
    const sealift_record& record = records[index];
    if (!has_lengths(record)) return;
    const uint4 tag = ((const uint4*)scratch)[index];
    store_bytes(sealed + record.sealed_offset + record.plaintext_bytes, tag, 16);
}

SEALIFT_INLINE u32 nonzero_bytes(u32 word) {
    // The top bit of each byte: set if any of its bits is.
    const u32 low = (word & 0x7f7f7f7fu) + 0x7f7f7f7fu;
    const u32 marks = ((low | word) & 0x80808080u) >> 7;
    return (marks * 0x01010101u) >> 24;
}

SEALIFT_TOGETHER void add_atomically(u64* count, u64 value) {
#if SEALIFT_GPU
    atomicAdd(count, value);
#else
    *count += value;
#endif
}

// Add the number of bytes that are not zero to `*count`. Any grid.
SEALIFT_KERNEL(8) sealift_count_nonzero(const u8* target, u64 nbytes, u64* count) {
    const u64 step = (u64)gridDim.x * SEALIFT_THREADS * 16;
    const bool aligned = is_aligned(target);
    u64 found = 0;
    for (u64 at = ((u64)blockIdx.x * SEALIFT_THREADS + threadIdx.x) * 16; at < nbytes;
         at += step) {
        const u64 rest = nbytes - at;
        const uint4 block = aligned && rest >= 16
                                ? *(const uint4*)(target + at)
                                : load_bytes(target + at, rest < 16 ? (u32)rest : 16);
        found += nonzero_bytes(block.x) + nonzero_bytes(block.y) +
                 nonzero_bytes(block.z) + nonzero_bytes(block.w);
    }
    if (found) add_atomically(count, found);
}
