// What no kernel may do: positive controls of the tracing library.
#include "portable.cuh"

namespace {
volatile u32 table[256];
}

// Looks something up where a secret says.
extern "C" u32 leak_by_address(const u8* secret) { return table[*secret]; }

// Goes where a secret says.
extern "C" u32 leak_by_branch(const u8* secret) {
    if (*secret & 1) return table[0] + 1;
    return table[0];
}

// Uses a secret, and keeps it to itself.
extern "C" u32 keep_secret(const u8* secret) { return table[0] ^ *secret; }
