// All kernels of the CUDA engine as one module.
#include "gcm.cu"
#include "chacha.cu"
#include "memory.cu"
#include "refusal.cu"
#include "sums.cu"
