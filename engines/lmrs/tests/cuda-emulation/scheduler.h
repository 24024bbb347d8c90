// The emulation, as its host side uses it: memory with guard pages, and the launch of a kernel.
#pragma once
#include "emulation.h"

namespace emulation {

struct Launch {
    u32 blocks;
    u32 threads;
    size_t shared_bytes;
    u64 seed; // of the order in which fibers run and copies complete
};

// Runs `body(argument)` once for every thread of the grid, and returns when all have ended. Ends the process on a fault.
void launch(const Launch& settings, void (*body)(const void*), const void* argument);

// Memory that ends at a page without access, aligned to 256 bytes at its start where `bytes` allows it and to 16 always.
void* allocate(const char* name, size_t bytes);

// Fills memory with bytes 0xff: NaN in f32, f16 and bf16. Where accesses are checked, a read before a write is a fault.
void poison(void* memory, size_t bytes);

// The kernel writes this memory, so its accesses are checked. `allows_same_bits`: several threads may write it without an order
// if they write the same.
void shared_between_blocks(void* memory, bool allows_same_bits = false);

[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

// An independent stream of random numbers.
struct Random {
    u64 state;
    explicit Random(u64 seed) : state(seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull) { next(); next(); }
    u64 next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 0x2545f4914f6cdd1dull;
    }
    u32 below(u32 limit) { return (u32)((next() >> 32) * limit >> 32); }
    double uniform() { return (double)(next() >> 11) / 9007199254740992.0; }
};

}
