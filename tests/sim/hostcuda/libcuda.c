// A libcuda.so.1 without a GPU: the calls that bindings.CudaDriver makes, on host memory.
//
// It makes NVIDIA's own Python bindings and our driver over them run in a test. It
// checks what a real driver checks and C would not: that a context is current, that
// addresses are its own, that launches name kernels that exist. Work is done at once.
// Kernels come from the library in SEALIFT_HOST_KERNELS (gcc, tests/sim/gcc_kernels.py).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, NOT_FOUND = 500 };
enum { HOST = 1, DEVICE = 2 };
#define MOST_BLOCKS 4096

typedef struct { int number; } context;
typedef struct { char *start; size_t nbytes; int kind; context *owner; } block;

static context contexts[8];
static int num_contexts = 1;
static __thread context *stack[16];
static __thread int depth;
static block blocks[MOST_BLOCKS];
static size_t used;
static int (*run_kernel)(const char *, uint32_t, uint32_t, uint32_t, void **);

static block *find(const void *address) {
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].start && (char *)address >= blocks[i].start &&
            (char *)address < blocks[i].start + blocks[i].nbytes)
            return blocks + i;
    return 0;
}

static int holds(uint64_t address, size_t nbytes, context *owner) {
    block *found = find((void *)address);
    return found && found->kind == DEVICE && found->owner == owner &&
           (char *)address + nbytes <= found->start + found->nbytes;
}

static int make(void **out, size_t nbytes, int kind, int fill) {
    if (!depth) return NO_CONTEXT;
    if (nbytes == 0) return INVALID;
    const char *limit = getenv("SEALIFT_HOST_CUDA_BYTES");
    if (kind == DEVICE && limit && used + nbytes > strtoull(limit, 0, 10))
        return NO_MEMORY;
    for (int i = 0; i < MOST_BLOCKS; i++) {
        if (blocks[i].start) continue;
        char *start = aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
        memset(start, fill, nbytes);
        blocks[i] = (block){start, nbytes, kind, stack[depth - 1]};
        if (kind == DEVICE) used += nbytes;
        *out = start;
        return OK;
    }
    return NO_MEMORY;
}

static int drop(void *address, int kind) {
    block *found = find(address);
    if (!depth) return NO_CONTEXT;
    if (!found || found->start != address || found->kind != kind) return INVALID;
    if (kind == DEVICE) used -= found->nbytes;
    free(found->start);
    found->start = 0;
    return OK;
}

#define NEEDS_CONTEXT \
    if (!depth) return NO_CONTEXT;
#define NOW (stack[depth - 1])

int f_cuInit(unsigned flags) { return flags ? INVALID : OK; }
int f_cuDriverGetVersion(int *out) {
    const char *said = getenv("SEALIFT_HOST_CUDA_VERSION");
    *out = said ? atoi(said) : 13000;
    return OK;
}
int f_cuGetErrorName(int code, const char **out) { *out = "CUDA_ERROR"; return code * 0; }
int f_cuDeviceGet(int *out, int ordinal) { *out = 0; return ordinal ? 101 : OK; }
int f_cuDeviceGetCount(int *out) { *out = 1; return OK; }
int f_cuDeviceGetUuid(unsigned char *out, int device) {
    for (int i = 0; i < 16; i++) out[i] = i;
    return device;
}
int f_cuDeviceGetName(char *out, int nbytes, int device) {
    snprintf(out, nbytes, "stand-in of the tests: libcuda without a GPU");
    return device;
}
int f_cuDeviceTotalMem(size_t *out, int device) { *out = 1 << 30; return device; }
int f_cuDeviceGetAttribute(int *out, int attribute, int device) {
    // compute capability 9.0, 4 multiprocessors, 2 copy engines
    *out = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 4
           : attribute == 40 ? 2 : -1;
    return *out < 0 ? INVALID : device;
}
int f_cuDevicePrimaryCtxRetain(context **out, int device) {
    *out = contexts;
    return device;
}
int f_cuDevicePrimaryCtxRelease(int device) { return device; }
int f_cuCtxCreate(context **out, void *parameters, unsigned flags, int device) {
    if (parameters || flags || num_contexts == 8) return INVALID;
    *out = stack[depth++] = contexts + num_contexts++;
    return device;
}
int f_cuCtxDestroy(context *gone) { return gone == contexts ? INVALID : OK; }
int f_cuCtxPushCurrent(context *next) {
    if (depth == 16) return INVALID;
    stack[depth++] = next;
    return OK;
}
int f_cuCtxPopCurrent(context **out) {
    NEEDS_CONTEXT
    *out = stack[--depth];
    return OK;
}
int f_cuMemAlloc(uint64_t *out, size_t nbytes) {
    return make((void **)out, nbytes, DEVICE, 0xA5);
}
int f_cuMemFree(uint64_t address) { return drop((void *)address, DEVICE); }
// Shareable memory is a memory file; a handle is its descriptor, and 1.
int f_cuMemGetAllocationGranularity(size_t *out, const int *prop, int option) {
    *out = 4096;
    return prop[0] == 1 && prop[1] == 1 && prop[2] == 1 && !prop[3] && !option ? OK : INVALID;
}
int f_cuMemCreate(uint64_t *out, size_t nbytes, const int *prop, uint64_t flags) {
    NEEDS_CONTEXT
    if (nbytes % 4096 || prop[0] != 1 || prop[1] != 1 || prop[2] != 1 || flags) return INVALID;
    int file = memfd_create("gpu", 0);
    if (ftruncate(file, nbytes)) return NO_MEMORY;
    *out = file + 1;
    return OK;
}
int f_cuMemExportToShareableHandle(int *out, uint64_t handle, int kind, uint64_t flags) {
    *out = dup(handle - 1);
    return kind == 1 && !flags && *out >= 0 ? OK : INVALID;
}
int f_cuMemImportFromShareableHandle(uint64_t *out, void *file, int kind) {
    int own = dup((int)(intptr_t)file);
    *out = own + 1;
    return kind == 1 && own >= 0 ? OK : INVALID;
}
int f_cuMemRelease(uint64_t handle) { return close(handle - 1) ? INVALID : OK; }
int f_cuMemAddressReserve(uint64_t *out, size_t nbytes, size_t aligned, uint64_t at,
                          uint64_t flags) {
    NEEDS_CONTEXT
    void *place = mmap(0, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *out = (uint64_t)place;
    return aligned || at || flags || place == MAP_FAILED ? INVALID : OK;
}
int f_cuMemMap(uint64_t at, size_t nbytes, size_t offset, uint64_t handle, uint64_t flags) {
    NEEDS_CONTEXT
    void *found = mmap((void *)at, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle - 1, 0);
    for (int i = 0; i < MOST_BLOCKS; i++) {
        if (blocks[i].start) continue;
        blocks[i] = (block){(char *)at, nbytes, DEVICE, NOW};
        return offset || flags || found == MAP_FAILED ? INVALID : OK;
    }
    return NO_MEMORY;
}
int f_cuMemSetAccess(uint64_t at, size_t nbytes, const int *rights, size_t count) {
    if (count != 1 || rights[0] != 1 || rights[1] || rights[2] != 3) return INVALID;
    return mprotect((void *)at, nbytes, PROT_READ | PROT_WRITE) ? INVALID : OK;
}
int f_cuMemUnmap(uint64_t at, size_t nbytes) {
    block *found = find((void *)at);
    if (!found || found->start != (char *)at || found->nbytes != nbytes) return INVALID;
    found->start = 0;
    return OK;
}
int f_cuMemAddressFree(uint64_t at, size_t nbytes) {
    return munmap((void *)at, nbytes) ? INVALID : OK;
}
int f_cuMemHostAlloc(void **out, size_t nbytes, unsigned flags) {
    return flags == 1 ? make(out, nbytes, HOST, 0) : INVALID;
}
int f_cuMemFreeHost(void *address) { return drop(address, HOST); }
// Pinned memory of others is a block that is not freed.
int f_cuMemHostRegister(void *address, size_t nbytes, unsigned flags) {
    NEEDS_CONTEXT
    if (flags != 1 || !nbytes) return INVALID;
    if (find(address)) return 712;
    for (int i = 0; i < MOST_BLOCKS; i++) {
        if (blocks[i].start) continue;
        blocks[i] = (block){address, nbytes, HOST, NOW};
        return OK;
    }
    return NO_MEMORY;
}
int f_cuMemHostUnregister(void *address) {
    block *found = find(address);
    if (!found || found->start != address) return 713;
    found->start = 0;
    return OK;
}
int f_cuMemGetInfo(size_t *left, size_t *all) {
    NEEDS_CONTEXT
    *all = 1 << 30, *left = *all - used;
    return OK;
}
int f_cuPointerGetAttribute(void *out, int attribute, uint64_t address) {
    block *found = find((void *)address);
    if (!found) return INVALID;
    if (attribute == 8)
        *(char *)out = 0;
    else if (attribute == 2)
        *(unsigned *)out = found->kind;
    else if (attribute == 9)  // memory of 77 bytes is another device's
        *(int *)out = found->nbytes == 77;
    else
        return INVALID;
    return OK;
}
int f_cuStreamCreate(void **out, unsigned flags) {
    NEEDS_CONTEXT
    *out = malloc(8);
    return flags == 1 ? OK : INVALID;
}
int f_cuStreamDestroy(void *stream) { free(stream); return OK; }
int f_cuEventCreate(void **out, unsigned flags) {
    NEEDS_CONTEXT
    *out = malloc(8);
    return flags == 0 || flags == 2 ? OK : INVALID;
}
int f_cuEventDestroy(void *event) { free(event); return OK; }
int f_cuEventRecord(void *event, void *stream) { NEEDS_CONTEXT return event ? OK : INVALID; }
int f_cuEventQuery(void *event) { return event ? OK : INVALID; }
int f_cuEventSynchronize(void *event) { return event ? OK : INVALID; }
int f_cuEventElapsedTime(float *out, void *a, void *b) { *out = 2.5f; return a && b ? OK : INVALID; }
int f_cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return event && !flags ? OK : INVALID;
}
int f_cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t nbytes, void *stream) {
    NEEDS_CONTEXT
    if (!holds(to, nbytes, NOW)) return INVALID;
    memcpy((void *)to, from, nbytes);
    return OK;
}
int f_cuMemcpyDtoHAsync(void *to, uint64_t from, size_t nbytes, void *stream) {
    NEEDS_CONTEXT
    if (!holds(from, nbytes, NOW)) return INVALID;
    memcpy(to, (void *)from, nbytes);
    return OK;
}
int f_cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t nbytes, void *stream) {
    NEEDS_CONTEXT
    if (!holds(from, nbytes, NOW) || !holds(to, nbytes, NOW)) return INVALID;
    memmove((void *)to, (void *)from, nbytes);
    return OK;
}
int f_cuMemcpyPeerAsync(uint64_t to, context *there, uint64_t from, context *here,
                        size_t nbytes, void *stream) {
    NEEDS_CONTEXT
    if (!holds(from, nbytes, here) || !holds(to, nbytes, there)) return INVALID;
    memcpy((void *)to, (void *)from, nbytes);
    return OK;
}
int f_cuMemsetD8Async(uint64_t to, unsigned char value, size_t nbytes, void *stream) {
    NEEDS_CONTEXT
    if (!holds(to, nbytes, NOW)) return INVALID;
    memset((void *)to, value, nbytes);
    return OK;
}
int f_cuModuleLoadData(void **out, const void *image) {
    NEEDS_CONTEXT
    const char *path = getenv("SEALIFT_HOST_KERNELS");
    if (memcmp(image, "gcc", 3)) return 200;
    void *library = path ? dlopen(path, RTLD_NOW) : 0;
    if (library) *(void **)&run_kernel = dlsym(library, "sealift_host_launch");
    *out = malloc(8);
    return run_kernel ? OK : 302;
}
int f_cuModuleUnload(void *module) { free(module); return OK; }
int f_cuModuleGetFunction(void **out, void *module, const char *name) {
    *out = strdup(name);  // kept until the process ends
    return module ? OK : INVALID;
}
int f_cuLaunchKernel(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                     unsigned by, unsigned bz, unsigned shared, void *stream,
                     void **parameters, void **extra) {
    NEEDS_CONTEXT
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || !gx || !bx || extra) return INVALID;
    return run_kernel(name, gx, bx, shared, parameters) ? NOT_FOUND : OK;
}
int f_cuFuncSetAttribute(void *kernel, int attribute, int value) { return OK; }

// How the bindings find all others, and callers find functions through the bindings: by the name without its version.
int cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                        int *status) {
    char name[128];
    Dl_info self;
    snprintf(name, sizeof name, "f_%s", symbol);
    dladdr((void *)cuGetProcAddress_v2, &self);
    void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *out = dlsym(library, name);
    if (status) *status = *out ? 0 : 1;
    return *out ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, out, version, flags, 0);
}
int f_cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags,
                       int *status) {
    return cuGetProcAddress_v2(symbol, out, version, flags, status);
}
