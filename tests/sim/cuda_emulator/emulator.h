// Runs kernels on a processor: every thread of a block is a fibre, a barrier hands over
// to the next. One block at a time, blocks in the order of a seed, threads too: what
// needs a barrier that is not there gives other bytes for other seeds.
#pragma once

#include <functional>

// Run `body` for every thread of every block.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body);

// Order of blocks and threads from now on; 0 is ascending.
extern "C" void sealift_host_order(unsigned seed);
