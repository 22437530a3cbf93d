// Notes which way kernels go: the compiler calls these at every basic block and for
// every memory access. Built into the tracing library only, and not instrumented itself.
#include <cstddef>
#include <cstdint>

namespace {

uint64_t trace = 0, steps = 0;

void note(uint64_t where) {
    trace = (trace ^ where) * 0x9e3779b97f4a7c15ull;
    trace ^= trace >> 29;
    steps++;
}

}  // namespace

extern "C" {

// The trace so far, which begins again; how long it was goes to `length`.
uint64_t sealift_host_trace(uint64_t* length) {
    const uint64_t found = trace;
    *length = steps;
    trace = steps = 0;
    return found;
}

void __sanitizer_cov_trace_pc() {
    note(reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void __asan_handle_no_return() {}

#define ACCESS(bytes)                                                      \
    void __asan_load##bytes##_noabort(uintptr_t at) { note(at); }          \
    void __asan_store##bytes##_noabort(uintptr_t at) { note(at + 1); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __asan_loadN_noabort(uintptr_t at, size_t) { note(at); }
void __asan_storeN_noabort(uintptr_t at, size_t) { note(at + 1); }
}
