// The launches of the kernels of `prefill.cu` in the emulation. KERNELS is the path of that file.
#include "../tensor_cores.h"
#include KERNELS

#include <tuple>

template <class... Parameters>
static void launch_with(void (*kernel)(Parameters...), const u32* grid, u32 threads, u32 shared_bytes, void** parameters) {
    if (shared_bytes != 0 || grid[2] != 1) emulation::fault("a kernel of `prefill.cu` has a wrong launch");
    std::tuple<Parameters...> values;
    size_t at = 0;
    std::apply([&](auto&... value) { (memcpy(&value, parameters[at++], sizeof value), ...); }, values);
    launch(grid[0], grid[1], threads, [&] { std::apply(kernel, values); });
}

#define KERNEL(name)                                                                                  \
    extern "C" void launch_##name(const u32* grid, u32 threads, u32 shared_bytes, void** parameters) { \
        launch_with(name, grid, threads, shared_bytes, parameters);                                    \
    }

KERNEL(embed_rows)
KERNEL(compute_angles)
KERNEL(norm_rows)
KERNEL(rotate_and_store)
KERNEL(attend_rows)
KERNEL(activate_rows)
KERNEL(largest_rows)
