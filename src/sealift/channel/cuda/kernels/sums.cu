// Sums of gradients that lie on the device. Each operation is rounded by itself, to nearest
// even and with subnormal numbers kept, so the bits are those that a processor gets. Only the
// bits of a NaN may differ. Memory begins at a multiple of an element's size.
#include "access.cuh"

SEALIFT_INLINE float f32_of(u32 bits) {
#if SEALIFT_GPU
    return __uint_as_float(bits);
#else
    float out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
#endif
}

SEALIFT_INLINE double f64_of(u64 bits) {
#if SEALIFT_GPU
    return __longlong_as_double((long long)bits);
#else
    double out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
#endif
}

SEALIFT_INLINE u64 first_element() {
    return (u64)blockIdx.x * SEALIFT_THREADS + threadIdx.x;
}

SEALIFT_INLINE u64 all_threads() { return (u64)gridDim.x * SEALIFT_THREADS; }

// Add `part` to `total`, element by element. Any grid.
SEALIFT_KERNEL(8) sealift_add_f32(float* total, const float* part, u64 count) {
    for (u64 at = first_element(); at < count; at += all_threads())
        total[at] = total[at] + part[at];
}

SEALIFT_KERNEL(8) sealift_add_f64(double* total, const double* part, u64 count) {
    for (u64 at = first_element(); at < count; at += all_threads())
        total[at] = total[at] + part[at];
}

// Write `part` times a factor (its bits) to `total`. Each element is read once. Any grid.
SEALIFT_KERNEL(8) sealift_weigh_f32(float* total, const float* part, u64 count, u32 factor) {
    const float by = f32_of(factor);
    for (u64 at = first_element(); at < count; at += all_threads())
        total[at] = part[at] * by;
}

SEALIFT_KERNEL(8) sealift_weigh_f64(double* total, const double* part, u64 count,
                                    u64 factor) {
    const double by = f64_of(factor);
    for (u64 at = first_element(); at < count; at += all_threads())
        total[at] = part[at] * by;
}

SEALIFT_TOGETHER void raise_atomically(u64* most, u64 value) {
#if SEALIFT_GPU
    atomicMax(most, value);
#else
    if (value > *most) *most = value;
#endif
}

// Raise `*found` to `count` minus the index of the first element whose exponent is all ones:
// an infinity or no number. Any grid.
SEALIFT_KERNEL(8) sealift_find_odd_f32(const u32* target, u64 count, u64* found) {
    for (u64 at = first_element(); at < count; at += all_threads())
        if ((target[at] & 0x7f800000u) == 0x7f800000u) {
            raise_atomically(found, count - at);
            return;  // the first of this thread's
        }
}

SEALIFT_KERNEL(8) sealift_find_odd_f64(const u64* target, u64 count, u64* found) {
    const u64 exponent = 0x7ff0000000000000ull;
    for (u64 at = first_element(); at < count; at += all_threads())
        if ((target[at] & exponent) == exponent) {
            raise_atomically(found, count - at);
            return;
        }
}
