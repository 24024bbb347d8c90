// Stands in for `libcuda.so.1`: a GPU with the memory of the host, whose kernels run in the emulation. Work is finished when its
// call returns. EMULATED_MULTIPROCESSORS and EMULATED_SHARED_BYTES are sizes of the GPU.
#include "../scheduler.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <string>

// As `decode_launch.cpp` and `prefill_launch.cpp` define it for each kernel.
typedef void (*Launch)(const u32* grid, u32 threads, u32 shared_bytes, void** parameters);

const int SUCCESS = 0, INVALID_IMAGE = 200, NOT_FOUND = 500;

static int number_of(const char* variable, int otherwise) {
    const char* text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

static double milliseconds() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
}

extern "C" {

int cuGetErrorName(int, const char** text) { *text = "an error of the emulated driver"; return SUCCESS; }
int cuInit(u32) { return SUCCESS; }
int cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int* device, int) { *device = 0; return SUCCESS; }
int cuDeviceGetName(char* name, int, int) { strcpy(name, "emulated GPU"); return SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = number_of("EMULATED_MULTIPROCESSORS", 2); break;
        case 75: *value = 9; break;  // compute capability 9.0
        case 76: *value = 0; break;
        case 95: *value = 1; break;  // cooperative launches
        case 97: *value = number_of("EMULATED_SHARED_BYTES", 33000); break;  // the emulation has few slots
        default: *value = 0;
    }
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int) { *context = (void*)1; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxSetCurrent(void*) { return SUCCESS; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { *free = *total = (size_t)3 << 30; return SUCCESS; }
// All bits are set, so numbers that nothing has written are NaN.
int cuMemAlloc_v2(u64* address, size_t bytes) {
    void* memory = emulation::allocate("device memory", (bytes + 255) / 256 * 256);
    memset(memory, 0xff, bytes);
    *address = (u64)memory;
    return SUCCESS;
}
int cuMemFree_v2(u64) { return SUCCESS; }
int cuMemsetD8Async(u64 address, u8 value, size_t bytes, void*) { memset((void*)address, value, bytes); return SUCCESS; }
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void*) { memcpy((void*)to, from, bytes); return SUCCESS; }
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void*) { memcpy(to, (void*)from, bytes); return SUCCESS; }
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void*) { memmove((void*)to, (void*)from, bytes); return SUCCESS; }
int cuMemHostAlloc(void** memory, size_t bytes, u32) {
    *memory = emulation::allocate("host memory", (bytes + 4095) / 4096 * 4096);
    return SUCCESS;
}
int cuMemFreeHost(void*) { return SUCCESS; }
int cuMemHostGetDevicePointer_v2(u64* address, void* memory, u32) { *address = (u64)memory; return SUCCESS; }
int cuStreamCreate(void** stream, u32) { *stream = (void*)2; return SUCCESS; }
int cuStreamDestroy_v2(void*) { return SUCCESS; }
int cuStreamSynchronize(void*) { return SUCCESS; }
int cuStreamQuery(void*) { return SUCCESS; }
// The image is the path of a library, from `nvrtc.cpp`.
int cuModuleLoadData(void** module, const void* image) {
    *module = dlopen((const char*)image, RTLD_NOW | RTLD_LOCAL);
    if (*module) return SUCCESS;
    fprintf(stderr, "%s\n", dlerror());
    return INVALID_IMAGE;
}
int cuModuleUnload(void*) { return SUCCESS; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = dlsym(module, ("launch_" + std::string(name)).c_str());
    return *function ? SUCCESS : NOT_FOUND;
}
int cuFuncGetAttribute(int* value, int, void*) { *value = 0; return SUCCESS; }
int cuFuncSetAttribute(void*, int, int) { return SUCCESS; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) { *blocks = 1; return SUCCESS; }
int cuLaunchCooperativeKernel(void* function, u32 x, u32 y, u32 z, u32 threads, u32, u32, u32 shared_bytes, void*, void** parameters) {
    u32 grid[3] = {x, y, z};
    ((Launch)function)(grid, threads, shared_bytes, parameters);
    return SUCCESS;
}
int cuLaunchKernel(void* function, u32 x, u32 y, u32 z, u32 threads, u32, u32, u32 shared_bytes, void*, void** parameters, void**) {
    return cuLaunchCooperativeKernel(function, x, y, z, threads, 1, 1, shared_bytes, nullptr, parameters);
}
int cuEventCreate(void** event, u32) { *event = new double(0); return SUCCESS; }
int cuEventDestroy_v2(void* event) { delete (double*)event; return SUCCESS; }
int cuEventRecord(void* event, void*) { *(double*)event = milliseconds(); return SUCCESS; }
int cuEventSynchronize(void*) { return SUCCESS; }
int cuEventElapsedTime(float* ms, void* from, void* to) { *ms = (float)(*(double*)to - *(double*)from); return SUCCESS; }

}
