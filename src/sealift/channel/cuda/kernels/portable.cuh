// What lets one source be compiled for a GPU (nvcc, NVRTC) and for tests (gcc).
//
// Under gcc, kernels are functions, shared memory is static, and whoever runs them
// (tests/sim/cuda_emulator) provides thread and block numbers and the barrier. One block
// runs at a time there. NVRTC has no system headers, so none are included for it.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

#define SEALIFT_GPU 1
#define SEALIFT_INLINE __device__ __forceinline__
#define SEALIFT_CALLED __device__ __noinline__
#define SEALIFT_CONSTANT __device__ constexpr
#define SEALIFT_TOGETHER SEALIFT_INLINE  // for what threads may do at the same time
// At most 128 threads a block; `blocks` of them are to fit on a multiprocessor at once.
#define SEALIFT_KERNEL(blocks) extern "C" __global__ void __launch_bounds__(128, blocks)
#define SEALIFT_UNROLL _Pragma("unroll")
#define SEALIFT_NO_UNROLL _Pragma("unroll 1")

#else

#define SEALIFT_GPU 0
#define SEALIFT_INLINE static inline
#define SEALIFT_CALLED static
#define SEALIFT_CONSTANT static constexpr
#define SEALIFT_TOGETHER __attribute__((no_sanitize("kernel-address"))) static
#define SEALIFT_KERNEL(blocks) extern "C" void
#define SEALIFT_UNROLL
#define SEALIFT_NO_UNROLL
#define __shared__ static
#define __restrict__ __restrict

struct alignas(16) uint4 {
    u32 x, y, z, w;
};

struct sealift_index {
    u32 x;
};
extern sealift_index threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();

#endif

// Gates of three inputs: one LOP3 each on a GPU, where compilers left alone would undo
// how circuits share them. `table` is the gate's truth table, as LOP3 takes it.
#if SEALIFT_GPU
#define SEALIFT_GATE(name, table, formula)                                        \
    SEALIFT_INLINE u32 name(u32 a, u32 b, u32 c) {                                \
        u32 out;                                                                  \
        asm("lop3.b32 %0, %1, %2, %3, " #table ";"                                \
            : "=r"(out)                                                           \
            : "r"(a), "r"(b), "r"(c));                                            \
        return out;                                                               \
    }
#else
#define SEALIFT_GATE(name, table, formula)                                        \
    static constexpr u32 name(u32 a, u32 b, u32 c) { return formula; }            \
    static_assert((name(0xf0, 0xcc, 0xaa) & 0xff) == table, "not its truth table");
#endif
SEALIFT_GATE(xor3, 0x96, a ^ b ^ c)
SEALIFT_GATE(xor_and, 0x78, a ^ (b & c))
SEALIFT_GATE(choose, 0xca, (a & b) | (~a & c))  // a ? b : c, bit by bit

SEALIFT_INLINE u32 rotate_right(u32 x, u32 n) {
#if SEALIFT_GPU
    return __funnelshift_r(x, x, n);
#else
    return n ? (x >> n) | (x << (32 - n)) : x;
#endif
}

SEALIFT_INLINE u32 rotate_left(u32 x, u32 n) { return rotate_right(x, 32 - n); }

// Four bytes of (high || low) by the nibbles of `selector`, lowest first.
SEALIFT_INLINE u32 pick_bytes(u32 low, u32 high, u32 selector) {
#if SEALIFT_GPU
    return __byte_perm(low, high, selector);
#else
    u64 both = ((u64)high << 32) | low;
    u32 out = 0;
    for (u32 i = 0; i < 4; i++)
        out |= (u32)((both >> (8 * ((selector >> (4 * i)) & 7))) & 255) << (8 * i);
    return out;
#endif
}

SEALIFT_INLINE u32 swap_bytes(u32 x) { return pick_bytes(x, 0, 0x0123); }

SEALIFT_INLINE u64 wide(u32 high, u32 low) { return ((u64)high << 32) | low; }
