// Hardware access in small functions, for kernels that NVRTC compiles without any header. The emulation in
// `tests/cuda-emulation` replaces this file, so kernels use these functions instead of PTX.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

// The dynamic shared memory of the block.
DEVICE u8* shared_memory() {
    extern __shared__ __align__(128) u8 memory[];
    return memory;
}

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// ---- Threads of a warp and of a block

DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE u64 shuffle_xor_u64(u64 value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE void warp_sync() { __syncwarp(); }

// Waits until `threads` threads of the block have reached the named barrier. It orders their memory accesses.
DEVICE void block_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Waiting

// A wait that lasts this long is a fault. The kernel then stops with an error, because a kernel that hangs blocks the device.
#define LONGEST_WAIT_NS 4000000000ull

DEVICE u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

// Called in each turn of a waiting loop; `turns` counts them.
DEVICE void backoff(u32& turns, u64& start) {
    turns += 1;
    if ((turns & 0xffff) == 1) {
        u64 now = nanoseconds();
        if (turns == 1) {
            start = now;
        } else if (now - start > LONGEST_WAIT_NS) {
            asm volatile("trap;");
        }
    }
}

// ---- Slots of shared memory that bulk copies fill. Each has an mbarrier, an object of 8 bytes.

DEVICE void slot_init(u64* slot, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(slot)), "r"(arrivals) : "memory");
}

// Makes initialised slots visible to the copy engine.
DEVICE void fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives, and announces bytes that copies will complete.
DEVICE void slot_expect(u64* slot, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(slot)), "r"(bytes) : "memory");
}

DEVICE void slot_arrive(u64* slot) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(slot)) : "memory");
}

// Waits until the slot's phase with this parity is complete.
DEVICE void slot_wait(u64* slot, u32 parity) {
    u32 address = shared_address(slot), is_complete = 0, turns = 0;
    u64 start = 0;
    while (true) {
        asm volatile(
            "{\n"
            ".reg .pred complete;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete;\n"
            "}\n"
            : "=r"(is_complete)
            : "r"(address), "r"(parity)
            : "memory");
        if (is_complete) return;
        backoff(turns, start);
    }
}

// Starts a copy of a multiple of 16 bytes to shared memory. Its end completes the bytes on the slot. The data is read once, so it
// is the first to leave the cache.
DEVICE void copy_to_shared(void* shared, const void* global, u32 bytes, u64* slot) {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(slot)), "l"(policy)
        : "memory");
}

// ---- Memory that all blocks share

DEVICE u32 load_acquire(const u32* address) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

DEVICE void add_release(u32* address, u32 value) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Returns the old value.
DEVICE u32 add_acquire_release(u32* address, u32 value) {
    u32 old;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
    return old;
}

// Loads of data that other blocks have written in this kernel: past the first-level cache, which is not coherent.
DEVICE float load_fresh(const float* address) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
    return value;
}

DEVICE float4 load_fresh4(const float* address) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(address)
                 : "memory");
    return value;
}

// Eight numbers of 16 bits.
DEVICE uint4 load_fresh_u16x8(const u16* address) {
    uint4 value;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address)
                 : "memory");
    return value;
}

DEVICE u64 load_fresh_u64(const u64* address) {
    u64 value;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

// Writes to memory of the host: first the data, and then the number for which the host waits.
DEVICE void publish(u32* data, u32 value, u32* number, u32 step) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(data), "r"(value) : "memory");
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(number), "r"(step) : "memory");
}

// ---- Numbers

DEVICE float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

DEVICE float half_to_float(u16 number) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(number));
    return value;
}

// Rounds to the nearest number, and ties to even.
DEVICE u16 float_to_half(float value) {
    u16 number;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(number) : "f"(value));
    return number;
}

DEVICE float exp2_fast(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}
DEVICE float reciprocal_root(float value) { return 1.0f / sqrtf(value); }
DEVICE u32 float_bits(float value) { return __float_as_uint(value); }
