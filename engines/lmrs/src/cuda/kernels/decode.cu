// One token of one sequence in one kernel, which runs on every multiprocessor until the token is known.
//
// A token needs every weight once, so its time is that of reading them. Each block has its own rows of every matrix. Its producer
// warp copies them, in the order of use, into a ring of slots in shared memory. The producer never waits for results, only for free
// slots, so the memory stays busy while the other warps wait for the other blocks.
//
// Phases of a layer, each followed by an arrival of all blocks at one counter:
//
//     qkv        norm, products with the queries', keys' and values' matrices
//     attention  rotation, cache, and the softmax over a part of the positions, for a group of heads
//     output     joins the parts; product, added to the hidden state
//     feed       norm, products with gate and up, activation
//     down       product, added to the hidden state
//
// The output matrix follows after the last layer. The macros in capitals are the sizes of the model and of the launch; the host
// defines them (`engines/lmrs/src/cuda`).
#ifndef EMULATION
#include "device.cuh"
#endif

struct LayerWeights {
    const u16* qkv;               // [(HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN]
    const u16* attention_output;  // [HIDDEN, HEADS * HEAD_DIM]
    const u16* gate;              // [INNER, HIDDEN]
    const u16* up;                // [INNER, HIDDEN]
    const u16* down;              // [HIDDEN, INNER]
    const float* attention_norm;     // [HIDDEN]
    const float* feed_forward_norm;  // [HIDDEN]
};

struct StepResult {
    u32 id;  // NOT_FINITE if a logit was NaN or infinite
    u32 step;
};

struct StepArguments {
    const LayerWeights* layers;  // [LAYERS]
    const u16* embedding;        // [VOCABULARY, HIDDEN]
    const u16* output;           // [VOCABULARY, HIDDEN]
    const float* norm;           // [HIDDEN]
    u16* cache;                  // [LAYERS][keys, values][KV_HEADS][capacity][HEAD_DIM], in f16
    float* hidden;               // [HIDDEN]
    float* qkv;                  // [(HEADS + 2 * KV_HEADS) * HEAD_DIM]
    float* partials;             // [MAX_SPLITS][HEADS][PARTIAL]
    float* inner;                // [INNER]
    float* logits;               // [VOCABULARY]
    u64* best;                   // [BLOCKS]
    u32* arrived;
    StepResult* result;
    u32 id, position, capacity;
    u32 first_arrival;  // the counter `arrived` before this step
    u32 step;
    u32 wants_output;
    float cosines[HEAD_DIM / 2], sines[HEAD_DIM / 2];  // of the angles of `position`
};

// ---- Sizes

constexpr int CONSUMERS = WARPS * 32;
constexpr int THREADS = CONSUMERS + 32;
constexpr int QUERY_ROWS = HEADS * HEAD_DIM;
constexpr int QKV_ROWS = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
constexpr u32 NOT_FINITE = 0xffffffffu;

// The rows of a matrix that one slot holds: as many as fit, at most four.
__host__ __device__ constexpr int slot_rows(int inputs) { return 8 * inputs <= SLOT_BYTES ? 4 : 4 * inputs <= SLOT_BYTES ? 2 : 1; }
static_assert(2 * INNER <= SLOT_BYTES && 2 * QUERY_ROWS <= SLOT_BYTES && 4 * HIDDEN <= SLOT_BYTES,
              "a slot holds a row of each matrix, and a row of gate with one of up");
static_assert(HIDDEN % 8 == 0 && INNER % 8 == 0 && QUERY_ROWS % 8 == 0, "lanes read eight numbers at once");
static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256, "lanes share a head's dimensions");

// A warp has its own slots. If warps took turns at a slot, one could wait for a later use of it than the next one, and a slot tells
// only two uses apart.
static_assert(SLOTS % WARPS == 0 && WARPS >= 2, "each warp has the same number of slots");

// Heads that share keys and are computed together, as many as registers allow.
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int HEADS_TOGETHER = HEAD_DIM > 128 ? 1 : GROUP % 4 == 0 ? 4 : GROUP % 3 == 0 ? 3 : GROUP % 2 == 0 ? 2 : 1;
constexpr int HEAD_GROUPS = HEADS / HEADS_TOGETHER;
constexpr int MAX_SPLITS = BLOCKS / HEAD_GROUPS > 1 ? BLOCKS / HEAD_GROUPS : 1;
// The fewest positions for which another block is worth its part of the joining.
constexpr int MIN_SPLIT_POSITIONS = 128;
constexpr int SPLITS_AT_ONCE = 4;
// Sums of a head over some positions: HEAD_DIM sums, the largest score, the sum of the weights, and two numbers of padding.
constexpr int PARTIAL = HEAD_DIM + 4;

__host__ __device__ constexpr int padded(int inputs) { return (inputs + 255) / 256 * 256; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int ACTIVATIONS = larger(larger(padded(HIDDEN), padded(QUERY_ROWS)), larger(padded(INNER), WARPS* HEADS_TOGETHER* PARTIAL));

// Shared memory: the ring, the activations of a phase, and small things. The host repeats this sum (`SHARED_BYTES`).
constexpr int ACTIVATIONS_AT = SLOTS * SLOT_BYTES;
constexpr int ANGLES_AT = ACTIVATIONS_AT + 4 * ACTIVATIONS;
constexpr int BEST_AT = ANGLES_AT + 4 * HEAD_DIM;
constexpr int SUMS_AT = BEST_AT + 8 * WARPS;
constexpr int FILLED_AT = SUMS_AT + 8 * WARPS;
constexpr int FREE_AT = FILLED_AT + 8 * SLOTS;
constexpr int SHARED_BYTES = FREE_AT + 8 * SLOTS;

// The rows of a matrix that belong to a block.
struct RowRange {
    u32 begin, end;
};

DEVICE RowRange rows_of_block(u32 rows) {
    return {(u32)((u64)rows * blockIdx.x / BLOCKS), (u32)((u64)rows * (blockIdx.x + 1) / BLOCKS)};
}

// ---- The producer: one thread, which copies the rows of this block in the order of their use

struct Producer {
    u8* slots;
    u64 *filled, *free;
    u32 count;  // slots filled so far

    DEVICE u8* next_slot(u32 bytes) {
        u32 slot = count % SLOTS;
        if (count >= SLOTS) slot_wait(&free[slot], (count / SLOTS - 1) & 1);
        slot_expect(&filled[slot], bytes);
        return slots + slot * SLOT_BYTES;
    }

    template <int INPUTS>
    DEVICE void matrix(const u16* weights, u32 rows) {
        constexpr u32 step = slot_rows(INPUTS);
        RowRange range = rows_of_block(rows);
        for (u32 row = range.begin; row < range.end; row += step) {
            u32 bytes = min(step, range.end - row) * (2 * INPUTS);
            u8* slot = next_slot(bytes);
            copy_to_shared(slot, weights + (u64)row * INPUTS, bytes, &filled[count % SLOTS]);
            count += 1;
        }
    }

    // Rows of two matrices side by side: the first half of a slot has rows of `gate`, the second half those of `up`.
    DEVICE void gate_and_up(const u16* gate, const u16* up) {
        constexpr u32 step = slot_rows(HIDDEN) / 2;
        RowRange range = rows_of_block(INNER);
        for (u32 row = range.begin; row < range.end; row += step) {
            u32 bytes = min(step, range.end - row) * (2 * HIDDEN);
            u8* slot = next_slot(2 * bytes);
            copy_to_shared(slot, gate + (u64)row * HIDDEN, bytes, &filled[count % SLOTS]);
            copy_to_shared(slot + step * (2 * HIDDEN), up + (u64)row * HIDDEN, bytes, &filled[count % SLOTS]);
            count += 1;
        }
    }
};

DEVICE void produce(const StepArguments& arguments, Producer producer) {
    for (int layer = 0; layer < LAYERS; layer++) {
        const LayerWeights& weights = arguments.layers[layer];
        producer.matrix<HIDDEN>(weights.qkv, QKV_ROWS);
        producer.matrix<QUERY_ROWS>(weights.attention_output, HIDDEN);
        producer.gate_and_up(weights.gate, weights.up);
        producer.matrix<INNER>(weights.down, HIDDEN);
    }
    if (arguments.wants_output) producer.matrix<HIDDEN>(arguments.output, VOCABULARY);
}

// ---- The consumers: all other warps

struct Consumer {
    const u8* slots;
    u64 *filled, *free;
    float* activations;  // permuted: see `activation_at`
    float* sums;         // [WARPS]
    u64* best;           // [WARPS]
    float *cosines, *sines;  // [HEAD_DIM / 2]
    u32* arrived;
    u32 expected;  // the counter `arrived` after the last arrival of all blocks
    u32 count;     // slots used so far by all warps of the block
    u32 thread, warp, lane;
};

// Lanes read eight activations in two vectors of four. In this order the lanes of a warp read different banks: of 256 numbers,
// first the first halves of all lanes, then the second halves. `index` is a multiple of 4.
DEVICE u32 activation_at(u32 index) { return index / 256 * 256 + (index / 4 & 1) * 128 + (index % 256 / 8) * 4; }

// Every lane gets the sum over all lanes.
DEVICE float sum_of_lanes(float value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    return value;
}

// The sums of products of each row in a slot with the activations; each lane has a part of them.
template <int ROWS, int INPUTS>
DEVICE void multiply(const u8* slot, const float* activations, u32 lane, float (&sums)[ROWS]) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) sums[row] = 0.0f;
    const uint4* weights = (const uint4*)slot + lane;
    const float4* inputs = (const float4*)activations + lane;
#pragma unroll 4
    for (int at = 0; at < INPUTS; at += 256) {
        if (INPUTS % 256 != 0 && at + (int)lane * 8 >= INPUTS) break;
        float4 low = inputs[at / 4], high = inputs[at / 4 + 32];
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            uint4 pairs = weights[(row * INPUTS + at) / 8];
            float sum = sums[row];
            sum = fmaf(bf16_low(pairs.x), low.x, sum);
            sum = fmaf(bf16_high(pairs.x), low.y, sum);
            sum = fmaf(bf16_low(pairs.y), low.z, sum);
            sum = fmaf(bf16_high(pairs.y), low.w, sum);
            sum = fmaf(bf16_low(pairs.z), high.x, sum);
            sum = fmaf(bf16_high(pairs.z), high.y, sum);
            sum = fmaf(bf16_low(pairs.w), high.z, sum);
            sum = fmaf(bf16_high(pairs.w), high.w, sum);
            sums[row] = sum;
        }
    }
}

// Multiplies the rows of this block with the activations. A warp takes a whole slot. `UNITS` is the number of results of a slot,
// and `rows` that of the matrix (or of each of two matrices side by side, where ROWS is 2 * UNITS). `before(row)` is called for each
// result before its product, and `after(row, sums, value)` with its sums and with the value of `before`.
template <int ROWS, int UNITS, int INPUTS, typename Before, typename After>
DEVICE void consume(Consumer& consumer, u32 rows, Before before, After after) {
    RowRange range = rows_of_block(rows);
    u32 slots = (range.end - range.begin + UNITS - 1) / UNITS;
    // The slots of a warp are those whose number has the remainder `warp`.
    u32 first = (consumer.warp + WARPS - consumer.count % WARPS) % WARPS;
    for (u32 index = first; index < slots; index += WARPS) {
        u32 number = consumer.count + index, slot = number % SLOTS;
        u32 row = range.begin + index * UNITS + consumer.lane;
        bool has_result = consumer.lane < UNITS && row < range.end;
        float value = has_result ? before(row) : 0.0f;
        slot_wait(&consumer.filled[slot], number / SLOTS & 1);
        float sums[ROWS];
        multiply<ROWS, INPUTS>(consumer.slots + slot * SLOT_BYTES, consumer.activations, consumer.lane, sums);
        warp_sync();
        if (consumer.lane == 0) slot_arrive(&consumer.free[slot]);
        float first_sum = 0.0f, second_sum = 0.0f;
#pragma unroll
        for (int at = 0; at < ROWS; at++) {
            float sum = sum_of_lanes(sums[at]);
            if (at < UNITS && consumer.lane == at) first_sum = sum;
            if (at >= UNITS && consumer.lane == at - UNITS) second_sum = sum;
        }
        if (has_result) after(row, first_sum, second_sum, value);
    }
    consumer.count += slots;
}

DEVICE float no_value(u32) { return 0.0f; }

// Ends a phase: after it, the results of this block may be read by the others.
DEVICE void arrive(Consumer& consumer) {
    block_sync(1, CONSUMERS);
    if (consumer.thread == 0) add_release(consumer.arrived, 1);
    consumer.expected += BLOCKS;
}

// Waits until all blocks have ended the phase.
DEVICE void wait_for_blocks(const Consumer& consumer) {
    if (consumer.thread == 0) {
        u32 turns = 0;
        u64 start = 0;
        while ((int)(load_acquire(consumer.arrived) - consumer.expected) < 0) backoff(turns, start);
    }
    block_sync(1, CONSUMERS);
}

// ---- The activations of each phase

DEVICE float4 four_bf16(const u16* numbers) {
    uint2 pairs = *(const uint2*)numbers;
    return make_float4(bf16_low(pairs.x), bf16_high(pairs.x), bf16_low(pairs.y), bf16_high(pairs.y));
}

// The vectors of four numbers that a thread has.
constexpr int HIDDEN_VECTORS = (HIDDEN / 4 + CONSUMERS - 1) / CONSUMERS;

struct NormWeights {
    float4 vectors[HIDDEN_VECTORS];
};

// Loads a norm's weights, which do not depend on other blocks, before the wait for them.
DEVICE NormWeights load_norm(const Consumer& consumer, const float* weights) {
    NormWeights norm;
#pragma unroll
    for (int at = 0; at < HIDDEN_VECTORS; at++) {
        u32 index = 4 * (consumer.thread + at * CONSUMERS);
        norm.vectors[at] = index < HIDDEN ? *(const float4*)(weights + index) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    return norm;
}

// activations[i] = weights[i] * hidden[i] / rms(hidden). `load(index)` gives four numbers of the hidden state.
template <typename LoadFour>
DEVICE void normalise(Consumer& consumer, const NormWeights& norm, LoadFour load) {
    float4 hidden[HIDDEN_VECTORS];
    float squares = 0.0f;
#pragma unroll
    for (int at = 0; at < HIDDEN_VECTORS; at++) {
        u32 index = 4 * (consumer.thread + at * CONSUMERS);
        hidden[at] = index < HIDDEN ? load(index) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 four = hidden[at];
        squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    squares = sum_of_lanes(squares);
    if (consumer.lane == 0) consumer.sums[consumer.warp] = squares;
    block_sync(1, CONSUMERS);
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) total += consumer.sums[warp];
    float scale = reciprocal_root(total / HIDDEN + EPSILON);
#pragma unroll
    for (int at = 0; at < HIDDEN_VECTORS; at++) {
        u32 index = 4 * (consumer.thread + at * CONSUMERS);
        if (index >= HIDDEN) continue;
        float4 four = hidden[at], weights = norm.vectors[at];
        float4 result = make_float4(four.x * scale * weights.x, four.y * scale * weights.y, four.z * scale * weights.z,
                                    four.w * scale * weights.w);
        *(float4*)(consumer.activations + activation_at(index)) = result;
    }
    block_sync(1, CONSUMERS);
}

DEVICE void load_inner(Consumer& consumer, const float* inner) {
#pragma unroll 4
    for (u32 index = 4 * consumer.thread; index < INNER; index += 4 * CONSUMERS) {
        *(float4*)(consumer.activations + activation_at(index)) = load_fresh4(inner + index);
    }
    block_sync(1, CONSUMERS);
}

// ---- Attention

// The division of the positions among blocks: the same in every block.
struct Splits {
    u32 positions, count;
};

DEVICE Splits splits_of(u32 length) {
    u32 positions = max((u32)MIN_SPLIT_POSITIONS, (length + MAX_SPLITS - 1) / MAX_SPLITS);
    return {positions, (length + positions - 1) / positions};
}

// Eight dimensions of a head from `first_dim` on, rotated. `head` are the numbers of the head before the rotation.
DEVICE void rotate_eight(const Consumer& consumer, const float* head, u32 first_dim, float (&numbers)[8]) {
    bool is_first_half = first_dim < HEAD_DIM / 2;
    u32 pair = first_dim % (HEAD_DIM / 2), other_dim = is_first_half ? pair + HEAD_DIM / 2 : pair;
#pragma unroll
    for (int at = 0; at < 8; at += 4) {
        float4 own = load_fresh4(head + first_dim + at), other = load_fresh4(head + other_dim + at);
        float4 cosine = *(const float4*)(consumer.cosines + pair + at), sine = *(const float4*)(consumer.sines + pair + at);
        float sign = is_first_half ? -1.0f : 1.0f;
        numbers[at] = own.x * cosine.x + sign * other.x * sine.x;
        numbers[at + 1] = own.y * cosine.y + sign * other.y * sine.y;
        numbers[at + 2] = own.z * cosine.z + sign * other.z * sine.z;
        numbers[at + 3] = own.w * cosine.w + sign * other.w * sine.w;
    }
}

// Lanes that share a position, each with eight dimensions, and the positions that a warp takes at once.
constexpr int POSITION_LANES = HEAD_DIM / 8;
constexpr int WARP_POSITIONS = 32 / POSITION_LANES;
// Less than every score, and finite, so that no difference is NaN.
constexpr float NO_SCORE = -1e30f;

struct HeadSums {
    float sums[8];
    float largest, weights;
};

DEVICE void unpack(uint4 halves, float (&numbers)[8]) {
    u32 pairs[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (int at = 0; at < 4; at++) {
        numbers[2 * at] = half_to_float((u16)(pairs[at] & 0xffff));
        numbers[2 * at + 1] = half_to_float((u16)(pairs[at] >> 16));
    }
}

// Adds `other`, the sums over other positions.
DEVICE void join(HeadSums& sums, const HeadSums& other) {
    float largest = fmaxf(sums.largest, other.largest);
    float scale = exp2_fast(sums.largest - largest), other_scale = exp2_fast(other.largest - largest);
#pragma unroll
    for (int at = 0; at < 8; at++) sums.sums[at] = sums.sums[at] * scale + other.sums[at] * other_scale;
    sums.weights = sums.weights * scale + other.weights * other_scale;
    sums.largest = largest;
}

// The attention of some heads that share keys over the positions of one split, into `partials`.
DEVICE void attend(Consumer& consumer, const StepArguments& arguments, int layer, u32 head_group, u32 split, Splits splits) {
    u32 head = head_group * HEADS_TOGETHER, kv_head = head / GROUP, length = arguments.position + 1;
    u32 begin = split * splits.positions, end = min(length, begin + splits.positions);
    u64 head_numbers = (u64)arguments.capacity * HEAD_DIM;
    u16* keys = arguments.cache + ((u64)(2 * layer) * KV_HEADS + kv_head) * head_numbers;
    u16* values = arguments.cache + ((u64)(2 * layer + 1) * KV_HEADS + kv_head) * head_numbers;

    // The split with the new position stores its key and value. Blocks with other heads of the same keys store the same bits.
    if (end == length) {
        const float* key = arguments.qkv + QUERY_ROWS + kv_head * HEAD_DIM;
        const float* value = key + KV_HEADS * HEAD_DIM;
        u64 row = (u64)arguments.position * HEAD_DIM;
        if (consumer.thread < POSITION_LANES) {
            float numbers[8];
            rotate_eight(consumer, key, 8 * consumer.thread, numbers);
#pragma unroll
            for (int at = 0; at < 8; at++) keys[row + 8 * consumer.thread + at] = float_to_half(numbers[at]);
        }
        if (consumer.warp == 1) {
            for (u32 dim = consumer.lane; dim < HEAD_DIM; dim += 32) values[row + dim] = float_to_half(load_fresh(value + dim));
        }
        block_sync(1, CONSUMERS);
    }

    u32 first_dim = consumer.lane % POSITION_LANES * 8, lane_position = consumer.lane / POSITION_LANES;
    // exp(x) = exp2(x * log2(e)): the factor is part of the queries.
    const float query_scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
    float queries[HEADS_TOGETHER][8];
    HeadSums heads[HEADS_TOGETHER];
#pragma unroll
    for (int at = 0; at < HEADS_TOGETHER; at++) {
        rotate_eight(consumer, arguments.qkv + (head + at) * HEAD_DIM, first_dim, queries[at]);
#pragma unroll
        for (int dim = 0; dim < 8; dim++) {
            queries[at][dim] *= query_scale;
            heads[at].sums[dim] = 0.0f;
        }
        heads[at].largest = NO_SCORE;
        heads[at].weights = 0.0f;
    }

    constexpr u32 step = WARPS * WARP_POSITIONS;
    u32 position = begin + consumer.warp * WARP_POSITIONS;
    uint4 no_numbers = make_uint4(0, 0, 0, 0);
    auto load = [&](const u16* numbers, u32 at) {
        return at < end ? load_fresh_u16x8(numbers + (u64)at * HEAD_DIM + first_dim) : no_numbers;
    };
    uint4 next_key = load(keys, position + lane_position), next_value = load(values, position + lane_position);
    // The loop has the same number of turns in every lane, because lanes exchange their sums.
    for (; position < end; position += step) {
        bool is_valid = position + lane_position < end;
        float key[8], value[8];
        unpack(next_key, key);
        unpack(next_value, value);
        next_key = load(keys, position + step + lane_position);
        next_value = load(values, position + step + lane_position);
#pragma unroll
        for (int at = 0; at < HEADS_TOGETHER; at++) {
            float score = 0.0f;
#pragma unroll
            for (int dim = 0; dim < 8; dim++) score = fmaf(queries[at][dim], key[dim], score);
#pragma unroll
            for (int mask = POSITION_LANES / 2; mask > 0; mask /= 2) score += shuffle_xor(score, mask);
            HeadSums& sums = heads[at];
            float largest = is_valid ? fmaxf(sums.largest, score) : sums.largest;
            float scale = exp2_fast(sums.largest - largest), weight = is_valid ? exp2_fast(score - largest) : 0.0f;
#pragma unroll
            for (int dim = 0; dim < 8; dim++) sums.sums[dim] = fmaf(weight, value[dim], sums.sums[dim] * scale);
            sums.weights = sums.weights * scale + weight;
            sums.largest = largest;
        }
    }

    // Joins the positions of the lanes of each warp, and then those of the warps.
    float* scratch = consumer.activations;  // [WARPS][HEADS_TOGETHER][PARTIAL]
#pragma unroll
    for (int at = 0; at < HEADS_TOGETHER; at++) {
        HeadSums& sums = heads[at];
#pragma unroll
        for (int mask = POSITION_LANES; mask < 32; mask *= 2) {
            HeadSums other;
#pragma unroll
            for (int dim = 0; dim < 8; dim++) other.sums[dim] = shuffle_xor(sums.sums[dim], mask);
            other.largest = shuffle_xor(sums.largest, mask);
            other.weights = shuffle_xor(sums.weights, mask);
            join(sums, other);
        }
        if (lane_position == 0) {
            float* partial = scratch + (consumer.warp * HEADS_TOGETHER + at) * PARTIAL;
#pragma unroll
            for (int dim = 0; dim < 8; dim++) partial[first_dim + dim] = sums.sums[dim];
            if (first_dim == 0) {
                partial[HEAD_DIM] = sums.largest;
                partial[HEAD_DIM + 1] = sums.weights;
            }
        }
    }
    block_sync(1, CONSUMERS);
    for (u32 index = consumer.thread; index < HEADS_TOGETHER * HEAD_DIM; index += CONSUMERS) {
        u32 at = index / HEAD_DIM, dim = index % HEAD_DIM;
        float largest = NO_SCORE, sum = 0.0f, weights = 0.0f;
        for (int warp = 0; warp < WARPS; warp++) {
            largest = fmaxf(largest, scratch[(warp * HEADS_TOGETHER + at) * PARTIAL + HEAD_DIM]);
        }
        for (int warp = 0; warp < WARPS; warp++) {
            const float* partial = scratch + (warp * HEADS_TOGETHER + at) * PARTIAL;
            float scale = exp2_fast(partial[HEAD_DIM] - largest);
            sum += scale * partial[dim];
            weights += scale * partial[HEAD_DIM + 1];
        }
        float* out = arguments.partials + ((u64)split * HEADS + head + at) * PARTIAL;
        out[dim] = sum;
        if (dim == 0) {
            out[HEAD_DIM] = largest;
            out[HEAD_DIM + 1] = weights;
        }
    }
    block_sync(1, CONSUMERS);
}

// The attention of all heads, from the sums of all splits.
DEVICE void load_attended(Consumer& consumer, const StepArguments& arguments, u32 splits) {
#pragma unroll 1
    for (u32 index = 4 * consumer.thread; index < QUERY_ROWS; index += 4 * CONSUMERS) {
        const float* partials = arguments.partials + index / HEAD_DIM * PARTIAL;
        u32 dim = index % HEAD_DIM;
        float largest = NO_SCORE, weights = 0.0f;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        // Several splits at once, because each load takes long.
        for (u32 first = 0; first < splits; first += SPLITS_AT_ONCE) {
            float4 sums[SPLITS_AT_ONCE];
            float largests[SPLITS_AT_ONCE], parts[SPLITS_AT_ONCE];
            float before = largest;
#pragma unroll
            for (int at = 0; at < SPLITS_AT_ONCE; at++) {
                bool is_valid = first + at < splits;
                const float* partial = partials + (first + at) * (HEADS * PARTIAL);
                largests[at] = is_valid ? load_fresh(partial + HEAD_DIM) : NO_SCORE;
                parts[at] = is_valid ? load_fresh(partial + HEAD_DIM + 1) : 0.0f;
                sums[at] = is_valid ? load_fresh4(partial + dim) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
            for (int at = 0; at < SPLITS_AT_ONCE; at++) largest = fmaxf(largest, largests[at]);
            float scale = exp2_fast(before - largest);
            weights *= scale;
            sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
#pragma unroll
            for (int at = 0; at < SPLITS_AT_ONCE; at++) {
                float part = exp2_fast(largests[at] - largest);
                weights += part * parts[at];
                sum.x += part * sums[at].x;
                sum.y += part * sums[at].y;
                sum.z += part * sums[at].z;
                sum.w += part * sums[at].w;
            }
        }
        float inverse = 1.0f / weights;
        *(float4*)(consumer.activations + activation_at(index)) =
            make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
    }
    block_sync(1, CONSUMERS);
}

// ---- The output

// Orders logits, and among equals the lowest id first. NaN and infinity are larger than every number.
DEVICE u64 order_of(float logit, u32 id) {
    if (!(fabsf(logit) <= 3.402823466e38f)) return ~0ull;
    u32 bits = float_bits(logit + 0.0f);  // -0 becomes 0
    u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (0xffffffffu - id);
}

DEVICE u64 largest_of_lanes(u64 value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value = max(value, shuffle_xor_u64(value, mask));
    return value;
}

// The last block to arrive finds the largest logit among those of all blocks, and publishes its id.
DEVICE void finish(Consumer& consumer, const StepArguments& arguments, u64 best) {
    best = largest_of_lanes(best);
    if (consumer.lane == 0) consumer.best[consumer.warp] = best;
    block_sync(1, CONSUMERS);
    if (consumer.warp != 0) return;
    best = largest_of_lanes(consumer.lane < WARPS ? consumer.best[consumer.lane] : 0);
    u32* shared_order = (u32*)consumer.sums;
    if (consumer.lane == 0) {
        arguments.best[blockIdx.x] = best;
        *shared_order = add_acquire_release(consumer.arrived, 1);
    }
    warp_sync();
    if (*shared_order + 1 != consumer.expected + BLOCKS) return;
    best = 0;
    for (u32 block = consumer.lane; block < BLOCKS; block += 32) best = max(best, load_fresh_u64(arguments.best + block));
    best = largest_of_lanes(best);
    if (consumer.lane == 0) {
        u32 id = best == ~0ull ? NOT_FINITE : 0xffffffffu - (u32)best;
        publish(&arguments.result->id, id, &arguments.result->step, arguments.step);
    }
}

// ---- The step

DEVICE void run_layer(Consumer& consumer, const StepArguments& arguments, int layer) {
    const LayerWeights& weights = arguments.layers[layer];
    const u16* embedded = arguments.embedding + (u64)arguments.id * HIDDEN;
    float* hidden = arguments.hidden;
    auto load_hidden = [&](u32 index) {
        return layer == 0 ? four_bf16(embedded + index) : load_fresh4(hidden + index);
    };

    NormWeights norm = load_norm(consumer, weights.attention_norm);
    if (layer > 0) wait_for_blocks(consumer);
    normalise(consumer, norm, load_hidden);
    constexpr int HIDDEN_ROWS = slot_rows(HIDDEN);
    consume<HIDDEN_ROWS, HIDDEN_ROWS, HIDDEN>(consumer, QKV_ROWS, no_value, [&](u32 row, float sum, float, float) {
        arguments.qkv[row] = sum;
    });
    arrive(consumer);

    Splits splits = splits_of(arguments.position + 1);
    wait_for_blocks(consumer);
    for (u32 part = blockIdx.x; part < HEAD_GROUPS * splits.count; part += BLOCKS) {
        attend(consumer, arguments, layer, part % HEAD_GROUPS, part / HEAD_GROUPS, splits);
    }
    arrive(consumer);

    wait_for_blocks(consumer);
    load_attended(consumer, arguments, splits.count);
    constexpr int ATTENTION_ROWS = slot_rows(QUERY_ROWS);
    auto residual = [&](u32 row) {
        return layer == 0 ? bf16_low(embedded[row]) : load_fresh(hidden + row);
    };
    auto add_to_hidden = [&](u32 row, float sum, float, float before) { hidden[row] = before + sum; };
    consume<ATTENTION_ROWS, ATTENTION_ROWS, QUERY_ROWS>(consumer, HIDDEN, residual, add_to_hidden);
    arrive(consumer);

    norm = load_norm(consumer, weights.feed_forward_norm);
    wait_for_blocks(consumer);
    normalise(consumer, norm, [&](u32 index) { return load_fresh4(hidden + index); });
    consume<HIDDEN_ROWS, HIDDEN_ROWS / 2, HIDDEN>(consumer, INNER, no_value, [&](u32 row, float gate, float up, float) {
        arguments.inner[row] = gate / (1.0f + exp2_fast(-1.4426950408889634f * gate)) * up;
    });
    arrive(consumer);

    wait_for_blocks(consumer);
    load_inner(consumer, arguments.inner);
    constexpr int INNER_ROWS = slot_rows(INNER);
    consume<INNER_ROWS, INNER_ROWS, INNER>(
        consumer, HIDDEN, [&](u32 row) { return load_fresh(hidden + row); }, add_to_hidden);
    arrive(consumer);
}

DEVICE void consume_all(Consumer consumer, const StepArguments& arguments) {
    for (int layer = 0; layer < LAYERS; layer++) run_layer(consumer, arguments, layer);
    u64 best = 0;
    if (arguments.wants_output) {
        NormWeights norm = load_norm(consumer, arguments.norm);
        wait_for_blocks(consumer);
        normalise(consumer, norm, [&](u32 index) { return load_fresh4(arguments.hidden + index); });
        constexpr int ROWS = slot_rows(HIDDEN);
        consume<ROWS, ROWS, HIDDEN>(consumer, VOCABULARY, no_value, [&](u32 row, float logit, float, float) {
            arguments.logits[row] = logit;
            best = max(best, order_of(logit, row));
        });
    }
    finish(consumer, arguments, best);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_step(const __grid_constant__ StepArguments arguments) {
    u8* shared = shared_memory();
    u64 *filled = (u64*)(shared + FILLED_AT), *free = (u64*)(shared + FREE_AT);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; slot++) {
            slot_init(&filled[slot], 1);
            slot_init(&free[slot], 1);
        }
        fence_init();
    }
    float* angles = (float*)(shared + ANGLES_AT);
    if (threadIdx.x < HEAD_DIM / 2) {
        angles[threadIdx.x] = arguments.cosines[threadIdx.x];
        angles[threadIdx.x + HEAD_DIM / 2] = arguments.sines[threadIdx.x];
    }
    block_sync(2, THREADS);
    if (warp == WARPS) {
        if (lane == 0) produce(arguments, Producer{shared, filled, free, 0});
        return;
    }
    Consumer consumer;
    consumer.slots = shared;
    consumer.filled = filled;
    consumer.free = free;
    consumer.activations = (float*)(shared + ACTIVATIONS_AT);
    consumer.best = (u64*)(shared + BEST_AT);
    consumer.sums = (float*)(shared + SUMS_AT);
    consumer.cosines = angles;
    consumer.sines = angles + HEAD_DIM / 2;
    consumer.arrived = arguments.arrived;
    consumer.expected = arguments.first_arrival;
    consumer.count = 0;
    consumer.thread = threadIdx.x;
    consumer.warp = warp;
    consumer.lane = lane;
    consume_all(consumer, arguments);
}
