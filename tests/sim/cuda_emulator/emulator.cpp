#include "emulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "portable.cuh"

sealift_index threadIdx, blockIdx, blockDim, gridDim;
sealift_now now_running;

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned kMostThreads = 1024;

// Contexts only start fibres: switching by them asks the kernel twice each time.
struct Fibre {
    ucontext_t context;
    jmp_buf place;
    bool started, done;
    const void* barrier;
};

std::mutex one_grid;
unsigned seed;
std::vector<Fibre> fibres(kMostThreads);
char* stacks;
ucontext_t scheduler;
jmp_buf scheduler_place;
unsigned current, divergences;
const std::function<void()>* body_of_all;

// Whoever is resumed finds its own numbers.
void resume(unsigned thread) {
    current = thread;
    threadIdx.x = thread;
    Fibre& fibre = fibres[thread];
    if (_setjmp(scheduler_place)) return;
    if (fibre.started) _longjmp(fibre.place, 1);
    fibre.started = true;
    swapcontext(&scheduler, &fibre.context);
}

void run_one() {
    (*body_of_all)();
    fibres[current].done = true;
    fibres[current].barrier = nullptr;
    _longjmp(scheduler_place, 1);
}

void start(unsigned thread) {
    Fibre& fibre = fibres[thread];
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = stacks + kStackBytes * thread;
    fibre.context.uc_stack.ss_size = kStackBytes;
    fibre.context.uc_link = nullptr;
    fibre.started = fibre.done = false;
    fibre.barrier = nullptr;
    makecontext(&fibre.context, run_one, 0);
}

std::vector<unsigned> order(unsigned count, unsigned salt) {
    std::vector<unsigned> numbers(count);
    for (unsigned i = 0; i < count; i++) numbers[i] = i;
    unsigned state = seed * 2654435761u + salt;
    for (unsigned i = count; seed != 0 && i > 1; i--) {
        state = state * 1664525u + 1013904223u;
        std::swap(numbers[i - 1], numbers[(state >> 8) % i]);
    }
    return numbers;
}

void run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) start(i);
    const std::vector<unsigned> turns = order(threads, blockIdx.x);
    for (bool running = true; running;) {
        running = false;
        now_running.stretch++;
        for (unsigned thread : turns) {
            if (fibres[thread].done) continue;
            resume(thread);
            running = running || !fibres[thread].done;
        }
        for (unsigned i = 1; i < threads; i++)
            divergences += fibres[i].barrier != fibres[0].barrier;
    }
}

void reserve_stacks() {
    if (stacks) return;
    void* memory = mmap(nullptr, kStackBytes * kMostThreads, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    stacks = static_cast<char*>(memory);
}

}  // namespace

bool is_on_a_stack(const void* at) {
    const char* place = static_cast<const char*>(at);
    return place >= stacks && place < stacks + kStackBytes * kMostThreads;
}

void __syncthreads() {
    fibres[current].barrier = __builtin_return_address(0);
    if (!_setjmp(fibres[current].place)) _longjmp(scheduler_place, 1);
}

void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body) {
    const std::lock_guard<std::mutex> hold(one_grid);
    if (threads > kMostThreads) abort();
    reserve_stacks();
    body_of_all = &body;
    blockDim.x = threads;
    gridDim.x = blocks;
    now_running.grid++;
    now_running.inside = true;
    for (unsigned block : order(blocks, 77)) {
        blockIdx.x = block;
        run_block(threads);
    }
    now_running.inside = false;
}

extern "C" unsigned sealift_host_divergences() {
    const unsigned found = divergences;
    divergences = 0;
    return found;
}

extern "C" void sealift_host_order(unsigned new_seed) {
    const std::lock_guard<std::mutex> hold(one_grid);
    seed = new_seed;
}
