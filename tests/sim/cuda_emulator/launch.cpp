// The kernels by name, with arguments as the driver's launch takes them.
#include <cstring>
#include <utility>

#include "emulator.h"
#include "module.cu"

namespace {

using Launcher = void (*)(unsigned, unsigned, void**);

template <auto kernel>
struct Launch;

template <class... P, void (*kernel)(P...)>
struct Launch<kernel> {
    template <size_t... I>
    static void with(unsigned grid, unsigned block, void** params, std::index_sequence<I...>) {
        run_grid(grid, block, [params] { kernel(*static_cast<P*>(params[I])...); });
    }
    static void run(unsigned grid, unsigned block, void** params) {
        with(grid, block, params, std::index_sequence_for<P...>{});
    }
};

struct Named {
    const char* name;
    Launcher run;
};

#define KERNEL(name) {#name, Launch<name>::run}
const Named kKernels[] = {
    KERNEL(sealift_gcm_key_expand), KERNEL(sealift_gcm_seal),
    KERNEL(sealift_gcm_open),       KERNEL(sealift_gcm_tags),
    KERNEL(sealift_chacha_key_expand), KERNEL(sealift_chacha_prepare),
    KERNEL(sealift_chacha_seal),    KERNEL(sealift_chacha_open),
    KERNEL(sealift_chacha_tags),    KERNEL(sealift_gcm_judge),
    KERNEL(sealift_chacha_judge),
    KERNEL(sealift_place_tags),     KERNEL(sealift_count_nonzero),
    KERNEL(sealift_refuse_batch),   KERNEL(sealift_add_f32),
    KERNEL(sealift_add_f64),        KERNEL(sealift_weigh_f32),
    KERNEL(sealift_weigh_f64),      KERNEL(sealift_find_odd_f32),
    KERNEL(sealift_find_odd_f64),
};

}  // namespace

// 0, or 1 for a kernel that is not there.
extern "C" int sealift_host_launch(const char* kernel, unsigned grid, unsigned block,
                                   unsigned shared_bytes, void** params) {
    (void)shared_bytes;
    for (const Named& each : kKernels) {
        if (strcmp(each.name, kernel) != 0) continue;
        each.run(grid, block, params);
        return 0;
    }
    return 1;
}

// Size of what Python has to know, by name; 0 if there is no such thing.
extern "C" unsigned sealift_host_size(const char* name) {
    const std::pair<const char*, unsigned> sizes[] = {
        {"record", sizeof(sealift_record)},         {"part", sizeof(sealift_part)},
        {"gcm_key", sizeof(sealift_gcm_key)},       {"chacha_key", sizeof(sealift_chacha_key)},
        {"poly_key", sizeof(sealift_poly_key)},     {"gcm_tile", GCM_TILE_BLOCKS * 16},
        {"poly_tile", POLY_TILE_BLOCKS * 16},       {"threads", SEALIFT_THREADS},
        {"most_plaintext", SEALIFT_MAX_PLAINTEXT},  {"most_associated", SEALIFT_MAX_ASSOCIATED},
    };
    for (const auto& each : sizes)
        if (strcmp(each.first, name) == 0) return each.second;
    return 0;
}
