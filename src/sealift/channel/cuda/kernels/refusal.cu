// One answer for all records of a batch: on the device, before anything queued later runs.
#include "verdict.cuh"

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
