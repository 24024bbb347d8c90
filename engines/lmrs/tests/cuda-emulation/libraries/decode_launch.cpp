// The launch of `decode_step` in the emulation. KERNELS is the path of `decode.cu`.
#include "../scheduler.h"
#include KERNELS

extern "C" void launch_decode_step(const u32* grid, u32 threads, u32 shared_bytes, void** parameters) {
    static u64 seed = 1;
    if (grid[0] != BLOCKS || threads != THREADS || shared_bytes != SHARED_BYTES)
        emulation::fault("decode_step: %u blocks of %u threads with %u bytes of shared memory", grid[0], threads, shared_bytes);
    auto run = [](const void* arguments) { decode_step(*(const StepArguments*)arguments); };
    emulation::launch({grid[0], threads, shared_bytes, seed++}, run, parameters[0]);
}
