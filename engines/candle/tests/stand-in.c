/* The functions of CUDA's driver, cuBLAS and cuRAND that candle calls for a llama, without a GPU. Memory is host memory,
 * and copies are executed. Kernels and products are counted and not computed, so every logit is zero. For every other function
 * of these libraries that the program links, tests/cuda.rs adds one that returns an error. Environment variables:
 * STAND_IN_GPUS: the number of GPUs; 1 by default.
 * STAND_IN_CAPABILITY: the compute capability without its point; 90 by default.
 * STAND_IN_FREE: the free bytes that the driver states before the first allocation; 80 GB by default.
 * STAND_IN_AVAILABLE: the bytes that can be allocated; no limit by default.
 * STAND_IN_COUNTS: the file for the counts, written at the end; none by default. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_SUPPORTED = 801 };
enum { MAJOR = 75, MINOR = 76, MEMORY_POOLS = 115 };
enum { RESERVED_HIGH = 6, USED = 7, USED_HIGH = 8 };

static uint64_t used, peak, kernels, products, to_device, to_host, events, pending;
static void *current;
static int the_context, the_pool, a_module, a_function;

static uint64_t number(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}
__attribute__((destructor)) static void write_counts(void) {
    FILE *counts = getenv("STAND_IN_COUNTS") ? fopen(getenv("STAND_IN_COUNTS"), "w") : NULL;
    if (!counts) return;
    fprintf(counts, "%lu %lu %lu %lu %lu %lu", kernels, products, to_device, to_host, events, pending);
    fclose(counts);
}

int cuInit(unsigned flags) { return flags ? 1 : number("STAND_IN_GPUS", 1) ? 0 : NO_DEVICE; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = number("STAND_IN_GPUS", 1), 0; }
int cuDeviceGet(int *device, int number_) {
    return (uint64_t)number_ < number("STAND_IN_GPUS", 1) ? (*device = number_, 0) : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int length, int device) { return strncpy(name, "Stand-In", length), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int capability = number("STAND_IN_CAPABILITY", 90);
    *value = attribute == MAJOR ? capability / 10 : attribute == MINOR ? capability % 10 : attribute == MEMORY_POOLS;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &the_context, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxGetCurrent(void **context) { return *context = current, 0; }
int cuCtxSetCurrent(void *context) { return current = context, 0; }
int cuCtxSynchronize(void) { return pending = 0; }
int cuStreamSynchronize(void *stream) { return pending = 0; }
int cuGetErrorString(int code, const char **text) { return *text = code == OUT_OF_MEMORY ? "out of memory" : "another error", 0; }

int cuMemGetInfo_v2(size_t *free_, size_t *total) {
    uint64_t all = number("STAND_IN_FREE", 80000000000);
    return *total = 85000000000, *free_ = all > used ? all - used : 0, 0;
}
/* The size of an allocation is stored before its address. */
int cuMemAllocAsync(uintptr_t *address, size_t bytes, void *stream) {
    if (used + bytes > number("STAND_IN_AVAILABLE", UINT64_MAX)) return OUT_OF_MEMORY;
    uint64_t *block = calloc(1, bytes + 64);
    *block = bytes;
    used += bytes;
    if (used > peak) peak = used;
    *address = (uintptr_t)block + 64;
    return 0;
}
int cuMemFreeAsync(uintptr_t address, void *stream) {
    used -= *(uint64_t *)(address - 64);
    free((void *)(address - 64));
    return 0;
}
int cuDeviceGetDefaultMemPool(void **pool, int device) { return *pool = &the_pool, 0; }
int cuMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
    *value = attribute == USED ? used : attribute == USED_HIGH || attribute == RESERVED_HIGH ? peak : 0;
    return pool == &the_pool ? 0 : 1;
}
int cuMemPoolSetAttribute(void *pool, int attribute, uint64_t *value) {
    if (pool != &the_pool || *value) return 1;
    return peak = used, 0;
}
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream) {
    return to_device++, pending++, memcpy((void *)to, from, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream) {
    return to_host++, memcpy(to, (void *)from, bytes), 0;
}
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
    return kernels++, pending++, memcpy((void *)to, (void *)from, bytes), 0;
}
int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t bytes, void *stream) {
    return kernels++, pending++, memset((void *)to, value, bytes), 0;
}
int cuEventCreate(void **event, unsigned flags) { return events++, *event = &events, 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuModuleLoadData(void **module, const void *image) { return *module = &a_module, 0; }
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = &a_function, 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **more) { return kernels++, pending++, 0; }

int cublasCreate_v2(void **handle) { return *handle = &products, 0; }
int cublasDestroy_v2(void *handle) { return 0; }
int cublasSetStream_v2(void *handle, void *stream) { return 0; }
int cublasGetVersion_v2(void *handle, int *version) { return *version = 130100, 0; }
int cublasGemmStridedBatchedEx() { return products++, pending++, 0; }
int curandCreateGenerator(void **generator, int kind) { return *generator = &events, 0; }
int curandDestroyGenerator(void *generator) { return 0; }
int curandSetPseudoRandomGeneratorSeed(void *generator, unsigned long long seed) { return 0; }
int curandSetStream(void *generator, void *stream) { return 0; }
