// Kernels for many rows at once: prompts, scores and batches. cuBLAS computes the products between them.
//
// The host defines HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY and EPSILON. A row is one id of one sequence. A key or
// value of a cache is f16; the cache's layout is [layer][0 keys | 1 values][kv_head][capacity][HEAD_DIM].

#if HEAD_DIM != 32 && HEAD_DIM != 64 && HEAD_DIM != 128
#error "HEAD_DIM must be 32, 64 or 128"
#endif

#ifndef EMULATION
#include "device.cuh"
#endif

// ---- Tensor cores and copies. The emulation has its own versions.

#ifndef EMULATION

// Two numbers as f16, the first in the low half.
DEVICE u32 two_halves(float low, float high) {
    u32 result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// Two numbers as bf16, the first in the low half.
DEVICE u32 two_bf16(float low, float high) {
    u32 result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// `sums += a * b` for a 16x16 matrix a and a 16x8 matrix b in f16, distributed over the warp as mma.m16n8k16 requires.
DEVICE void mma_f16(float sums[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8x8 matrices of u16 from shared memory. Lane i passes the address of row i % 8 of matrix i / 8, and gets from each
// matrix the elements 2 * (i % 4) and 2 * (i % 4) + 1 of row i / 4.
DEVICE void load_matrices(u32 matrices[4], const u16* row) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
        : "r"(shared_address(row)) : "memory");
}

// Like `load_matrices`, but each lane gets elements of a column: rows 2 * (i % 4) and 2 * (i % 4) + 1 of column i / 4.
DEVICE void load_matrices_transposed(u32 matrices[4], const u16* row) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
        : "r"(shared_address(row)) : "memory");
}

// Starts a copy of 16 bytes to shared memory. If `exists` is false, the 16 bytes become zero.
DEVICE void start_copy(u16* shared, const u16* global, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(exists ? 16 : 0) : "memory");
}

// Ends a group of copies of this thread.
DEVICE void end_copy_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all groups of this thread but the last one have arrived.
DEVICE void wait_for_copies_but_one() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

#endif

DEVICE float float_of_bits(u32 bits) {
    union { u32 bits; float number; } both;
    both.bits = bits;
    return both.number;
}

// ----

// One id of a sequence. `prefill.rs` has the same struct.
struct Row {
    u16* cache;    // of its sequence
    u32 position;  // in its sequence
    u32 capacity;  // of the cache, in positions
    u32 id;
    u32 unused;
};

// A part of a segment, which is a run of rows of one sequence with consecutive positions. A pair is a query of a row: pair p of
// a segment and a KV head is row p / GROUP, and head p % GROUP of the heads that share the KV head. `prefill.rs` has the same
// struct.
struct Tile {
    u16* cache;          // of the sequence
    u32 capacity;        // of the cache, in positions
    u32 first_row;       // of the segment
    u32 rows;            // of the segment
    u32 first_position;  // of the segment
    u32 first_pair;      // of this tile, in the segment
    u32 unused;
};

#define GROUP (HEADS / KV_HEADS)
#define HALF_DIM (HEAD_DIM / 2)
#define QKV_WIDTH ((HEADS + 2 * KV_HEADS) * HEAD_DIM)
#define THREADS 256

// The first key (part 0) or value (part 1) of a KV head in a layer.
DEVICE u16* head_of_cache(u16* cache, u32 capacity, u32 layer, u32 part, u32 kv_head) {
    return cache + ((u64)(layer * 2 + part) * KV_HEADS + kv_head) * capacity * HEAD_DIM;
}

// hidden [rows, HIDDEN] = the embedding of each row's id. Grid: rows.
extern "C" __global__ void __launch_bounds__(THREADS) embed_rows(const u16* embedding, const Row* rows, float* hidden) {
    const uint4* from = (const uint4*)(embedding + (u64)rows[blockIdx.x].id * HIDDEN);
    float4* to = (float4*)(hidden + (u64)blockIdx.x * HIDDEN);
    for (u32 at = threadIdx.x; at < HIDDEN / 8; at += THREADS) {
        uint4 bits = from[at];
        u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
        float numbers[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            numbers[2 * i] = float_of_bits(words[i] << 16);
            numbers[2 * i + 1] = float_of_bits(words[i] & 0xffff0000u);
        }
        to[2 * at] = {numbers[0], numbers[1], numbers[2], numbers[3]};
        to[2 * at + 1] = {numbers[4], numbers[5], numbers[6], numbers[7]};
    }
}

// The cosines and sines [rows, HALF_DIM] of each row's position, computed in f64 as on a CPU. Grid: rows * HALF_DIM / THREADS.
extern "C" __global__ void __launch_bounds__(THREADS)
compute_angles(const Row* rows, u32 count, const float* frequencies, float* cosines, float* sines) {
    u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= count * HALF_DIM) return;
    double angle = (double)((float)rows[at / HALF_DIM].position * frequencies[at % HALF_DIM]);
    cosines[at] = (float)cos(angle);
    sines[at] = (float)sin(angle);
}

// out [rows, HIDDEN] bf16 = weights * hidden / rms(hidden). Row i of the result is of row `selected[i]`, or of row i if
// `selected` is null. Grid: rows of the result.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_rows(const float* hidden, const float* weights, const u32* selected, u16* out) {
    __shared__ float sums[THREADS / 32];
    const u32 vectors = HIDDEN / 4;
    const u32 per_thread = (vectors + THREADS - 1) / THREADS;
    const u32 row = selected ? selected[blockIdx.x] : blockIdx.x;
    const float4* from = (const float4*)(hidden + (u64)row * HIDDEN);
    float4 numbers[per_thread];
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < per_thread; i++) {
        u32 at = threadIdx.x + i * THREADS;
        numbers[i] = at < vectors ? from[at] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        float4 x = numbers[i];
        sum += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    block_sync(1, THREADS);
    sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) sum += sums[warp];
    const float scale = 1.0f / sqrtf(sum / (float)HIDDEN + EPSILON);
    uint2* to = (uint2*)(out + (u64)blockIdx.x * HIDDEN);
#pragma unroll
    for (u32 i = 0; i < per_thread; i++) {
        u32 at = threadIdx.x + i * THREADS;
        if (at < vectors) {
            float4 x = numbers[i], weight = ((const float4*)weights)[at];
            to[at] = {two_bf16(x.x * scale * weight.x, x.y * scale * weight.y),
                      two_bf16(x.z * scale * weight.z, x.w * scale * weight.w)};
        }
    }
}

// Rotates queries and keys, and stores keys and values in the caches. Queries [rows, HEADS * HEAD_DIM] f16 are scaled so that
// 2 to the power of a score is the weight before the softmax's division. Grid: rows.
extern "C" __global__ void __launch_bounds__(THREADS)
rotate_and_store(const float* qkv, const Row* rows, const float* cosines, const float* sines, u32 layer, u16* queries) {
    const Row row = rows[blockIdx.x];
    qkv += (u64)blockIdx.x * QKV_WIDTH;
    queries += (u64)blockIdx.x * (HEADS * HEAD_DIM);
    cosines += (u64)blockIdx.x * HALF_DIM;
    sines += (u64)blockIdx.x * HALF_DIM;
    const float scale = 1.44269504f / sqrtf((float)HEAD_DIM);
    // A thread computes two dimensions of the first half of a head, and the two that rotate with them.
    const u32 units = (HEADS + 2 * KV_HEADS) * (HALF_DIM / 2);
    for (u32 unit = threadIdx.x; unit < units; unit += THREADS) {
        u32 head = unit / (HALF_DIM / 2), dim = unit % (HALF_DIM / 2) * 2;
        float2 a = *(const float2*)(qkv + head * HEAD_DIM + dim);
        float2 b = *(const float2*)(qkv + head * HEAD_DIM + HALF_DIM + dim);
        if (head < HEADS + KV_HEADS) {
            float2 cosine = *(const float2*)(cosines + dim), sine = *(const float2*)(sines + dim);
            float2 turned_a = {a.x * cosine.x - b.x * sine.x, a.y * cosine.y - b.y * sine.y};
            b = {b.x * cosine.x + a.x * sine.x, b.y * cosine.y + a.y * sine.y};
            a = turned_a;
        }
        u16* to;
        if (head < HEADS) {
            to = queries + head * HEAD_DIM;
            a = {a.x * scale, a.y * scale};
            b = {b.x * scale, b.y * scale};
        } else {
            u32 part = (head - HEADS) / KV_HEADS, kv_head = (head - HEADS) % KV_HEADS;
            to = head_of_cache(row.cache, row.capacity, layer, part, kv_head) + (u64)row.position * HEAD_DIM;
        }
        *(u32*)(to + dim) = two_halves(a.x, a.y);
        *(u32*)(to + HALF_DIM + dim) = two_halves(b.x, b.y);
    }
}

// ----
// Attention: each block computes the results of one tile of pairs and one KV head. Each of its four warps has 16 pairs. Keys and
// values come through shared memory, TILE_KEYS at a time, in a ring of three stages: while the warps compute with one stage, the
// next two arrive.

#define WARP_PAIRS 16
#define ATTENTION_THREADS 128
// 48 KB of shared memory for dimensions 64 and 128: the most that a kernel may have without a launch attribute.
#define TILE_KEYS (HEAD_DIM == 128 ? 32 : 64)
#define STAGES 3
#define CHUNKS (HEAD_DIM / 8)  // pieces of 16 bytes in a key

// Where a chunk of a key is in a stage, in u16. The order of chunks differs from key to key, so that the eight rows of a matrix
// are in different banks.
DEVICE u32 place_in_stage(u32 key, u32 chunk) {
    u32 swap = CHUNKS >= 8 ? key % 8 : key / 2 % 4;
    return key * HEAD_DIM + (chunk ^ swap) * 8;
}

// Starts the copy of TILE_KEYS keys or values. Those from `end` on become zero, because their memory may contain NaN.
DEVICE void load_keys(u16* stage, const u16* keys, u32 first, u32 end) {
#pragma unroll
    for (int i = 0; i < TILE_KEYS * CHUNKS / ATTENTION_THREADS; i++) {
        u32 index = threadIdx.x + i * ATTENTION_THREADS;
        u32 key = index / CHUNKS, chunk = index % CHUNKS;
        bool exists = first + key < end;
        start_copy(stage + place_in_stage(key, chunk), keys + (u64)(exists ? first + key : 0) * HEAD_DIM + chunk * 8, exists);
    }
}

// out [rows, HEADS * HEAD_DIM] bf16 = causal attention of the queries over the caches. Grid: KV_HEADS, tiles.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)
attend_rows(const u16* queries, const Tile* tiles, u32 layer, u16* out) {
    alignas(128) __shared__ u16 stages[STAGES][2][TILE_KEYS * HEAD_DIM];
    const Tile tile = tiles[blockIdx.y];
    const u32 kv_head = blockIdx.x;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u16* keys = head_of_cache(tile.cache, tile.capacity, layer, 0, kv_head);
    const u16* values = head_of_cache(tile.cache, tile.capacity, layer, 1, kv_head);

    const u32 pairs = tile.rows * GROUP;
    const u32 tile_end = min(tile.first_pair + WARP_PAIRS * ATTENTION_THREADS / 32, pairs);
    const u32 keys_end = tile.first_position + (tile_end - 1) / GROUP + 1;
    const u32 key_tiles = (keys_end + TILE_KEYS - 1) / TILE_KEYS;

    // The pairs of this warp, and of this lane: rows lane / 4 and lane / 4 + 8 of the warp's matrices.
    const u32 warp_first = tile.first_pair + warp * WARP_PAIRS;
    const bool has_pairs = warp_first < pairs;
    const u32 warp_last = min(warp_first + WARP_PAIRS, pairs) - 1;
    const u32 first_visible_end = tile.first_position + warp_first / GROUP + 1;  // of the warp's first pair: keys that it sees
    const u32 last_visible_end = tile.first_position + warp_last / GROUP + 1;
    u32 visible_end[2];
    u64 offsets[2];  // of the pair's query in `queries` and of its result in `out`
    bool is_pair[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 pair = warp_first + lane / 4 + 8 * half;
        is_pair[half] = pair < pairs;
        if (!is_pair[half]) pair = tile.first_pair;
        visible_end[half] = tile.first_position + pair / GROUP + 1;
        offsets[half] = (u64)(tile.first_row + pair / GROUP) * (HEADS * HEAD_DIM) + (kv_head * GROUP + pair % GROUP) * HEAD_DIM;
    }

    u32 query[HEAD_DIM / 16][4];
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) {
#pragma unroll
        for (int part = 0; part < 4; part++) {
            u32 dim = step * 16 + part / 2 * 8 + lane % 4 * 2;
            query[step][part] = is_pair[part % 2] ? *(const u32*)(queries + offsets[part % 2] + dim) : 0;
        }
    }

    float result[HEAD_DIM / 8][4] = {};
    const float none = float_of_bits(0xff800000u);  // minus infinity
    float largest[2] = {none, none};
    float sums[2] = {0.0f, 0.0f};  // of the weights in this lane's columns

#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (stage < key_tiles) {
            load_keys(stages[stage][0], keys, stage * TILE_KEYS, keys_end);
            load_keys(stages[stage][1], values, stage * TILE_KEYS, keys_end);
        }
        end_copy_group();
    }

    for (u32 key_tile = 0; key_tile < key_tiles; key_tile++) {
        wait_for_copies_but_one();
        block_sync(1, ATTENTION_THREADS);
        // This stage was computed with before the barrier.
        u32 next = key_tile + STAGES - 1;
        if (next < key_tiles) {
            load_keys(stages[next % STAGES][0], keys, next * TILE_KEYS, keys_end);
            load_keys(stages[next % STAGES][1], values, next * TILE_KEYS, keys_end);
        }
        end_copy_group();

        const u32 first_key = key_tile * TILE_KEYS;
        if (!has_pairs || first_key >= last_visible_end) continue;
        const u16* stage_keys = stages[key_tile % STAGES][0];
        const u16* stage_values = stages[key_tile % STAGES][1];

        // scores[n] is the part of the scores with keys 8 * n to 8 * n + 7.
        float scores[TILE_KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
#pragma unroll
            for (int n = 0; n < TILE_KEYS / 8; n += 2) {
                u32 key = n * 8 + lane / 16 * 8 + lane % 8, chunk = step * 2 + lane / 8 % 2;
                u32 columns[4];
                load_matrices(columns, stage_keys + place_in_stage(key, chunk));
                mma_f16(scores[n], query[step], columns[0], columns[1]);
                mma_f16(scores[n + 1], query[step], columns[2], columns[3]);
            }
        }

        if (first_key + TILE_KEYS > first_visible_end) {
#pragma unroll
            for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 key = first_key + n * 8 + lane % 4 * 2 + i % 2;
                    if (key >= visible_end[i / 2]) scores[n][i] = none;
                }
            }
        }

        // Every pair sees the first key, so `largest` is a number from the first tile on.
        float before[2] = {largest[0], largest[1]};
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) largest[i / 2] = fmaxf(largest[i / 2], scores[n][i]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            largest[half] = fmaxf(largest[half], shuffle_xor(largest[half], 1));
            largest[half] = fmaxf(largest[half], shuffle_xor(largest[half], 2));
            float scale = exp2_fast(before[half] - largest[half]);
            sums[half] *= scale;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                result[n][2 * half] *= scale;
                result[n][2 * half + 1] *= scale;
            }
        }
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[n][i] = exp2_fast(scores[n][i] - largest[i / 2]);
                sums[i / 2] += scores[n][i];
            }
        }

#pragma unroll
        for (int step = 0; step < TILE_KEYS / 16; step++) {
            const float* low = scores[2 * step];
            const float* high = scores[2 * step + 1];
            u32 weights[4] = {two_halves(low[0], low[1]), two_halves(low[2], low[3]),
                              two_halves(high[0], high[1]), two_halves(high[2], high[3])};
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n += 2) {
                u32 key = step * 16 + lane / 8 % 2 * 8 + lane % 8, chunk = n + lane / 16;
                u32 columns[4];
                load_matrices_transposed(columns, stage_values + place_in_stage(key, chunk));
                mma_f16(result[n], weights, columns[0], columns[1]);
                mma_f16(result[n + 1], weights, columns[2], columns[3]);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sums[half];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        float scale = 1.0f / sum;
        if (!is_pair[half]) continue;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            *(u32*)(out + offsets[half] + n * 8 + lane % 4 * 2) =
                two_bf16(result[n][2 * half] * scale, result[n][2 * half + 1] * scale);
        }
    }
}

// ----

DEVICE float gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

// out [rows, INNER] bf16 = silu(gate) * up, with gate_up [rows, 2 * INNER]: gate, then up. Grid: rows, INNER / 4 / THREADS.
extern "C" __global__ void __launch_bounds__(THREADS) activate_rows(const float* gate_up, u16* out) {
    u32 at = blockIdx.y * THREADS + threadIdx.x;
    if (at >= INNER / 4) return;
    const float4* from = (const float4*)(gate_up + (u64)blockIdx.x * (2 * INNER));
    float4 gate = from[at], up = from[INNER / 4 + at];
    ((uint2*)(out + (u64)blockIdx.x * INNER))[at] = {
        two_bf16(gated(gate.x, up.x), gated(gate.y, up.y)), two_bf16(gated(gate.z, up.z), gated(gate.w, up.w))};
}

// ids [rows] = the id of the largest logit of each row; among equals, the lowest id. 0xffffffff if a logit is NaN or infinite.
// Grid: rows.
extern "C" __global__ void __launch_bounds__(1024) largest_rows(const float* logits, u32* ids) {
    __shared__ u64 bests[32];
    logits += (u64)blockIdx.x * VOCABULARY;
    u64 best = 0;
#pragma unroll 4
    for (u32 id = threadIdx.x; id < VOCABULARY; id += 1024) {
        u32 bits = float_bits(logits[id] + 0.0f);  // -0 becomes 0
        u64 order = bits >> 31 ? ~bits : bits | 0x80000000u;
        u64 candidate = order << 32 | (0xfffffffeu - id);
        if ((bits & 0x7f800000u) == 0x7f800000u) candidate = ~0ull;
        best = candidate > best ? candidate : best;
    }
    for (int mask = 16; mask > 0; mask /= 2) {
        u64 other = shuffle_xor_u64(best, mask);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    block_sync(1, 1024);
    if (threadIdx.x < 32) {
        best = bests[threadIdx.x];
        for (int mask = 16; mask > 0; mask /= 2) {
            u64 other = shuffle_xor_u64(best, mask);
            best = other > best ? other : best;
        }
        if (threadIdx.x == 0) ids[blockIdx.x] = best == ~0ull ? 0xffffffffu : 0xfffffffeu - (u32)best;
    }
}
