// The CPU emulation, as a kernel uses it. This file stands in for `device.cuh`: the same functions with the same meaning,
// so that g++ compiles the kernels unchanged. `emulation.cpp` implements them; every CUDA thread is a fiber of one CPU thread.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

struct alignas(8) uint2 { u32 x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct dim3 { u32 x, y, z; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define EMULATION 1
#define DEVICE inline
#define __device__
#define __host__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
// Variables in shared memory are swapped when a fiber of another block runs.
#define __shared__ static __attribute__((section("shared_variables")))

namespace emulation {
// The index that the kernel reads: of the fiber that runs now.
extern dim3 thread_index, block_index, block_size, grid_size;
}
#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

// `line` is the caller's line in the kernel's source, for reports.
#define CALLER int line = __builtin_LINE()

u8* shared_memory();
float shuffle_xor(float value, int mask, CALLER);
u64 shuffle_xor_u64(u64 value, int mask, CALLER);
void warp_sync(CALLER);
void block_sync(int barrier, int threads, CALLER);

void slot_init(u64* slot, u32 arrivals, CALLER);
void fence_init(CALLER);
void slot_expect(u64* slot, u32 bytes, CALLER);
void slot_arrive(u64* slot, CALLER);
void slot_wait(u64* slot, u32 parity, CALLER);
void copy_to_shared(void* shared, const void* global, u32 bytes, u64* slot, CALLER);

u64 nanoseconds();
void backoff(u32& turns, u64& start, CALLER);
u32 load_acquire(const u32* address, CALLER);
void add_release(u32* address, u32 value, CALLER);
u32 add_acquire_release(u32* address, u32 value, CALLER);
float load_fresh(const float* address, CALLER);
float4 load_fresh4(const float* address, CALLER);
uint4 load_fresh_u16x8(const u16* address, CALLER);
u64 load_fresh_u64(const u64* address, CALLER);
void publish(u32* data, u32 value, u32* number, u32 step, CALLER);

float half_to_float(u16 half);
u16 float_to_half(float value);

inline float __uint_as_float(u32 bits) { float value; memcpy(&value, &bits, 4); return value; }
inline u32 __float_as_uint(float value) { u32 bits; memcpy(&bits, &value, 4); return bits; }
inline int __float_as_int(float value) { return (int)__float_as_uint(value); }
inline float __int_as_float(int bits) { return __uint_as_float((u32)bits); }
inline float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
inline float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
inline u32 float_bits(float value) { return __float_as_uint(value); }
inline float exp2_fast(float value) { return exp2f(value); }
inline float reciprocal_root(float value) { return 1.0f / sqrtf(value); }
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __expf(float value) { return expf(value); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline u32 min(int a, u32 b) { return min((u32)a, b); }
inline u32 min(u32 a, int b) { return min(a, (u32)b); }
inline u32 max(int a, u32 b) { return max((u32)a, b); }
inline u32 max(u32 a, int b) { return max(a, (u32)b); }
inline u64 min(u64 a, u64 b) { return a < b ? a : b; }
inline u64 max(u64 a, u64 b) { return a > b ? a : b; }
