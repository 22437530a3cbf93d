// Finds data races of kernels: two threads of a block that touch the same byte between
// the same two barriers, or two blocks of a grid that touch the same byte at all, one of
// them writing. The order in which the emulator happens to run them does not matter.
// The compiler calls these for every access, as in tracing/trace.cpp.
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "emulator.h"
#include "portable.cuh"

// Hidden: this library's own, not the program's.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

namespace {

// Who read or wrote a byte in the time `when`: two readers are enough to know that one of
// them is not the next writer.
struct Uses {
    unsigned long written, read;
    unsigned writer, reader, other_reader;

    bool race(unsigned long when, unsigned who, bool writes) {
        bool found = written == when && writer != who;
        if (writes) {
            found = found || (read == when && (reader != who || other_reader != who));
            written = when, writer = who;
        } else if (read != when) {
            read = when, reader = other_reader = who;
        } else if (reader != who) {
            other_reader = who;
        }
        return found;
    }
};

struct Byte {
    Uses by_threads, by_blocks;
};

constexpr uintptr_t kRun = 16;
std::unordered_map<uintptr_t, std::array<Byte, kRun>> seen;
unsigned races;

void note(uintptr_t at, size_t nbytes, bool writes) {
    if (!now_running.inside || is_on_a_stack(reinterpret_cast<void*>(at))) return;
    // Shared memory is a static here, and all blocks have the same.
    const bool shared = at >= reinterpret_cast<uintptr_t>(__bss_start) &&
                        at < reinterpret_cast<uintptr_t>(_end);
    for (size_t i = 0; i < nbytes; i++) {
        Byte& byte = seen[(at + i) / kRun][(at + i) % kRun];
        races += byte.by_threads.race(now_running.stretch, threadIdx.x, writes);
        if (!shared) races += byte.by_blocks.race(now_running.grid, blockIdx.x, writes);
    }
}

}  // namespace

extern "C" {

// Races since it was asked last.
unsigned sealift_host_races() {
    const unsigned found = races;
    races = 0;
    seen.clear();
    return found;
}

void __sanitizer_cov_trace_pc() {}
void __asan_handle_no_return() {}

#define ACCESS(bytes)                                                               \
    void __asan_load##bytes##_noabort(uintptr_t at) { note(at, bytes, false); }     \
    void __asan_store##bytes##_noabort(uintptr_t at) { note(at, bytes, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __asan_loadN_noabort(uintptr_t at, size_t nbytes) { note(at, nbytes, false); }
void __asan_storeN_noabort(uintptr_t at, size_t nbytes) { note(at, nbytes, true); }
}
