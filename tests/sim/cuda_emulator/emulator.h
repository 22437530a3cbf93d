// Runs kernels on a processor: every thread of a block is a fibre, a barrier hands over
// to the next. One block at a time, blocks in the order of a seed, threads too: what
// needs a barrier that is not there gives other bytes for other seeds.
#pragma once

#include <functional>

// Run `body` for every thread of every block.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body);

// What runs now: one number for each grid, one for each stretch of a block between two
// barriers; and whether `at` lies in a thread's own stack.
struct sealift_now {
    unsigned long grid, stretch;
    bool inside;  // of a grid, not of what launches it
};
extern sealift_now now_running;
bool is_on_a_stack(const void* at);

// How often threads of one block stood at different barriers, or some at none.
extern "C" unsigned sealift_host_divergences();

// Order of blocks and threads from now on; 0 is ascending.
extern "C" void sealift_host_order(unsigned seed);
