// The tensor cores and copies of `prefill.cu` on a CPU, and the launch of its kernels. Include it before the kernels.
#pragma once
#include "scheduler.h"

#include <vector>

// Blocks do not communicate, so they run one after the other.
static dim3 block;
#undef blockIdx
#define blockIdx block

// ---- Tensor cores and copies of one block

static u32 exchanged[32][32][8];  // [warp][lane]

// Each lane shows its words to the other lanes of its warp.
static u32 (*exchange(const u32* words, int count))[8] {
    auto* lanes = exchanged[threadIdx.x / 32];
    warp_sync();
    memcpy(lanes[threadIdx.x % 32], words, 4 * count);
    warp_sync();
    return lanes;
}

static float number_at(u32 word, int high) { return half_to_float((u16)(high ? word >> 16 : word)); }

static void mma_f16(float sums[4], const u32 a[4], u32 b0, u32 b1) {
    u32 words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    auto* lanes = exchange(words, 6);
    u32 lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = sums[i];
        for (int k = 0; k < 16; k++) {
            // Matrix a: word 0 has rows 0-7 and k 0-7, word 1 rows 8-15, words 2 and 3 the same for k 8-15. A lane has row
            // lane / 4 and two adjacent k. Matrix b: words 4 and 5 have k 0-7 and 8-15; a lane has column lane / 4.
            u32 word_a = lanes[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            u32 word_b = lanes[column * 4 + k % 8 / 2][4 + k / 8];
            sum += (double)number_at(word_a, k % 2) * number_at(word_b, k % 2);
        }
        sums[i] = (float)sum;
    }
}

static void load(u32 matrices[4], const u16* row, bool is_transposed) {
    u64 address = (u64)row;
    if (address % 16) emulation::fault("load_matrices: address %p is not a multiple of 16", (const void*)row);
    u32 words[2] = {(u32)address, (u32)(address >> 32)};
    auto* lanes = exchange(words, 2);
    u32 lane = threadIdx.x % 32;
    for (int matrix = 0; matrix < 4; matrix++) {
        u16 pair[2];
        for (int i = 0; i < 2; i++) {
            u32 at_row = is_transposed ? lane % 4 * 2 + i : lane / 4;
            u32 column = is_transposed ? lane / 4 : lane % 4 * 2 + i;
            u32* words = lanes[matrix * 8 + at_row];
            pair[i] = ((const u16*)((u64)words[1] << 32 | words[0]))[column];
        }
        matrices[matrix] = (u32)pair[1] << 16 | pair[0];
    }
    // Eight rows of a matrix must be in different banks, or a load takes longer.
    for (int matrix = 0; matrix < 4; matrix++) {
        u32 banks = 0;
        for (int row = 0; row < 8; row++) banks |= 1u << (lanes[matrix * 8 + row][0] / 16 % 8);
        if (banks != 0xff) emulation::fault("load_matrices: rows of matrix %d share banks (%02x)", matrix, banks);
    }
}

static void load_matrices(u32 matrices[4], const u16* row) { load(matrices, row, false); }
static void load_matrices_transposed(u32 matrices[4], const u16* row) { load(matrices, row, true); }

// Copies arrive as late as possible: when their thread waits for them.
struct Copy {
    u16* to;
    const u16* from;
    bool exists;
};
static std::vector<std::vector<Copy>> groups[1024];  // [thread]; the last group is open

static std::vector<std::vector<Copy>>& own_groups() {
    auto& own = groups[threadIdx.x];
    if (own.empty()) own.emplace_back();
    return own;
}
static void start_copy(u16* shared, const u16* global, bool exists) {
    if ((u64)shared % 16 || (u64)global % 16) emulation::fault("start_copy: an address is not a multiple of 16");
    memset(shared, 0xff, 16);
    own_groups().back().push_back({shared, global, exists});
}
static void end_copy_group() { own_groups().emplace_back(); }
static void wait_for_copies_but_one() {
    auto& own = own_groups();
    while (own.size() > 2) {
        for (const Copy& copy : own[0]) {
            if (copy.exists) memcpy(copy.to, copy.from, 16);
            else memset(copy.to, 0, 16);
        }
        own.erase(own.begin());
    }
}

static u32 two_halves(float low, float high) { return (u32)float_to_half(high) << 16 | float_to_half(low); }
static u32 bf16(float number) {
    u32 bits = __float_as_uint(number);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static u32 two_bf16(float low, float high) { return bf16(high) << 16 | bf16(low); }

#ifndef DEVICE
#define DEVICE static inline
#endif

// ---- Launches

template <class Body> static void launch(u32 x, u32 y, u32 threads, Body body) {
    static u64 seed = 1;
    for (block.y = 0; block.y < y; block.y++) {
        for (block.x = 0; block.x < x; block.x++) {
            for (auto& own : groups) own.clear();
            emulation::launch({1, threads, 0, seed++}, [](const void* body) { (*(const Body*)body)(); }, &body);
        }
    }
}
