// What is done with a record once its tag is computed.
#pragma once

#include "access.cuh"

// All threads of a block zero a range.
SEALIFT_INLINE void zero_range(u8* start, u32 nbytes) {
    const bool aligned = is_aligned(start);
    const uint4 zero = {0, 0, 0, 0};
    for (u32 block = threadIdx.x; block < blocks_of(nbytes); block += SEALIFT_THREADS)
        store_block(start, nbytes, block, zero, aligned);
}

// Compare a computed tag (in thread 0) and the received one without a branch on their
// bytes, write the verdict (1 genuine, 0 not), and zero the plaintext if it is not. The tag
// is read once, so nobody can show two threads two tags; one that came with the record's
// place was checked by whoever made the table.
SEALIFT_INLINE void judge(const sealift_record& record, uint4 tag, const u8* sealed,
                          u8* plain, u8* verdict) {
    __shared__ u32 genuine;
    const bool fits = has_lengths(record);
    if (threadIdx.x == 0) {
        u32 differs = 1;
        if (fits) {
            const u8* given = record.has_tag
                                  ? record.tag
                                  : sealed + record.sealed_offset + record.plaintext_bytes;
            const uint4 rest = xor_blocks(load_bytes(given, 16), tag);
            const u32 any = rest.x | rest.y | rest.z | rest.w;
            differs = (any | (0u - any)) >> 31;
        }
        genuine = 1 - differs;
        *verdict = (u8)genuine;
    }
    __syncthreads();
    if (genuine || !fits) return;  // of wrong lengths nothing was written
    zero_range(plain + record.plain_offset, record.plaintext_bytes);
}
