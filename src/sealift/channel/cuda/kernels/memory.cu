// What is done with memory: verdicts, placing tags, counting what is left.
#include "access.cuh"

// Compare computed and received tags without a branch on their bytes; write one verdict
// a record (1 genuine, 0 not), and zero the plaintext of those that are not. One block a
// record. The tag is read once, so nobody can show two threads two tags; one that came
// with the record's place was checked by whoever made the table.
SEALIFT_KERNEL(8) sealift_verdicts(const sealift_record* __restrict__ records,
                                   u32 num_records, const u8* __restrict__ scratch,
                                   const u8* sealed, u8* plain, u8* verdicts) {
    const sealift_record& record = records[blockIdx.x];
    const u32 nbytes = record.plaintext_bytes;
    __shared__ u32 genuine;
    if (threadIdx.x == 0) {
        u32 differs = !has_lengths(record);
        if (!differs) {
            const u8* tag = record.has_tag ? record.tag
                                           : sealed + record.sealed_offset + nbytes;
            const u8* expected = scratch + 16ull * blockIdx.x;
            for (u32 i = 0; i < 16; i++) differs |= tag[i] ^ expected[i];
        }
        genuine = (differs - 1) >> 31;  // differs < 256: the borrow is the answer
        verdicts[blockIdx.x] = (u8)genuine;
    }
    __syncthreads();
    if (genuine || !has_lengths(record)) return;  // of wrong lengths nothing was written
    u8* start = plain + record.plain_offset;
    const bool aligned = is_aligned(start);
    const uint4 zero = {0, 0, 0, 0};
    for (u64 at = 16ull * threadIdx.x; at < nbytes; at += 16ull * SEALIFT_THREADS) {
        const u32 rest = nbytes - (u32)at;
        if (aligned && rest >= 16)
            *(uint4*)(start + at) = zero;
        else
            store_bytes(start + at, zero, rest < 16 ? rest : 16);
    }
}

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
