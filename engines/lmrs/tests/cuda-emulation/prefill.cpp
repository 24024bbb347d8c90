// Runs the kernels of `prefill.cu` on a CPU and compares each with a reference in f64. Compile it with the sizes of a model:
// g++ -std=c++20 -O1 -DHIDDEN=... prefill.cpp emulation.cpp
#include "tensor_cores.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../src/cuda/kernels/prefill.cu"

using emulation::allocate;
using emulation::fault;
using emulation::poison;

static emulation::Random generator(1);
static float random_number() { return (float)(generator.uniform() * 2.0 - 1.0); }
// A number with the distribution of many uniform ones: more large scores, so a softmax with more contrast.
static float wide_number() { return 3.0f * (random_number() + random_number() + random_number()); }
template <class T> static T* array(const char* name, size_t count) {
    T* memory = (T*)allocate(name, count * sizeof(T));
    poison(memory, count * sizeof(T));
    return memory;
}
static double bf16_value(u16 bits) { return __uint_as_float((u32)bits << 16); }

static double worst;
static void expect(double found, double expected, double relative, double absolute, const char* name, size_t at) {
    double error = fabs(found - expected), limit = relative * fabs(expected) + absolute;
    if (!(error <= limit)) fault("%s[%zu] is %.9g instead of %.9g", name, at, found, expected);
    worst = error / limit > worst ? error / limit : worst;
}
static void report(const char* name) {
    printf("%s: largest error is %.2f of the limit\n", name, worst);
    worst = 0;
}

// ---- Tests

struct Sequence {
    u32 rows, start, capacity;
};

static void test_attention(const std::vector<Sequence>& sequences) {
    const u32 layers = 2, layer = 1;
    u32 count = 0;
    for (auto& sequence : sequences) count += sequence.rows;
    Row* rows = array<Row>("rows", count);
    std::vector<Tile> tile_list;
    u32 first = 0;
    for (auto& sequence : sequences) {
        size_t numbers = (size_t)layers * 2 * KV_HEADS * sequence.capacity * HEAD_DIM;
        u16* cache = array<u16>("cache", numbers);
        for (u32 part = 0; part < 2 * KV_HEADS; part++) {
            u16* head = cache + ((size_t)layer * 2 * KV_HEADS + part) * sequence.capacity * HEAD_DIM;
            for (u32 i = 0; i < sequence.start * HEAD_DIM; i++) head[i] = float_to_half(wide_number());
        }
        for (u32 row = 0; row < sequence.rows; row++) rows[first + row] = {cache, sequence.start + row, sequence.capacity, 0, 0};
        for (u32 pair = 0; pair < sequence.rows * GROUP; pair += 64)
            tile_list.push_back({cache, sequence.capacity, first, sequence.rows, sequence.start, pair, 0});
        first += sequence.rows;
    }
    Tile* tiles = array<Tile>("tiles", tile_list.size());
    memcpy(tiles, tile_list.data(), tile_list.size() * sizeof(Tile));

    float* frequencies = array<float>("frequencies", HALF_DIM);
    for (u32 i = 0; i < HALF_DIM; i++) frequencies[i] = 1.0f / powf(10000.0f, (float)(2 * i) / HEAD_DIM);
    float *cosines = array<float>("cosines", count * HALF_DIM), *sines = array<float>("sines", count * HALF_DIM);
    launch((count * HALF_DIM + THREADS - 1) / THREADS, 1, THREADS, [=] { compute_angles(rows, count, frequencies, cosines, sines); });
    for (u32 i = 0; i < count * HALF_DIM; i++) {
        double angle = rows[i / HALF_DIM].position * frequencies[i % HALF_DIM];
        expect(cosines[i], cos(angle), 1e-6, 1e-7, "cosines", i);
        expect(sines[i], sin(angle), 1e-6, 1e-7, "sines", i);
    }

    float* qkv = array<float>("qkv", (size_t)count * QKV_WIDTH);
    // Every other head has queries of small numbers, so that its results depend on all keys.
    for (size_t i = 0; i < (size_t)count * QKV_WIDTH; i++) {
        u32 head = i % QKV_WIDTH / HEAD_DIM;
        qkv[i] = head < HEADS && head % 2 == 0 ? random_number() / 2 : wide_number();
    }
    u16* queries = array<u16>("queries", (size_t)count * HEADS * HEAD_DIM);
    launch(count, 1, THREADS, [=] { rotate_and_store(qkv, rows, cosines, sines, layer, queries); });
    auto cached = [&](const Row& row, u32 part, u32 head, u32 position, u32 dim) {
        size_t at = (((size_t)layer * 2 + part) * KV_HEADS + head) * row.capacity + position;
        return (double)half_to_float(row.cache[at * HEAD_DIM + dim]);
    };
    for (u32 row = 0; row < count; row++) {
        for (u32 head = 0; head < HEADS + 2 * KV_HEADS; head++) {
            for (u32 dim = 0; dim < HEAD_DIM; dim++) {
                const float* x = qkv + (size_t)row * QKV_WIDTH + head * HEAD_DIM;
                u32 pair = row * HALF_DIM + dim % HALF_DIM;
                double other = dim < HALF_DIM ? -x[dim + HALF_DIM] : x[dim - HALF_DIM];
                double turned = (double)x[dim] * cosines[pair] + other * sines[pair];
                double found, expected = turned;
                if (head < HEADS) {
                    found = half_to_float(queries[((size_t)row * HEADS + head) * HEAD_DIM + dim]);
                    expected *= 1.4426950408889634 / sqrt((double)HEAD_DIM);
                } else {
                    u32 part = head >= HEADS + KV_HEADS;
                    if (part) expected = x[dim];
                    found = cached(rows[row], part, head - HEADS - part * KV_HEADS, rows[row].position, dim);
                }
                expect(found, expected, 1.0 / 2047, 1e-6, "rotated", ((size_t)row * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + dim);
            }
        }
    }

    u16* out = array<u16>("out", (size_t)count * HEADS * HEAD_DIM);
    launch(KV_HEADS, (u32)tile_list.size(), ATTENTION_THREADS, [=] { attend_rows(queries, tiles, layer, out); });
    for (u32 row = 0; row < count; row++) {
        for (u32 head = 0; head < HEADS; head++) {
            u32 keys = rows[row].position + 1, kv_head = head / GROUP;
            std::vector<double> weights(keys);
            double largest = -INFINITY, sum = 0;
            for (u32 key = 0; key < keys; key++) {
                double score = 0;
                for (u32 dim = 0; dim < HEAD_DIM; dim++)
                    score += half_to_float(queries[((size_t)row * HEADS + head) * HEAD_DIM + dim]) * cached(rows[row], 0, kv_head, key, dim);
                weights[key] = score;
                largest = score > largest ? score : largest;
            }
            for (double& weight : weights) sum += weight = exp2(weight - largest);
            for (u32 dim = 0; dim < HEAD_DIM; dim++) {
                double expected = 0, size = 0, values = 0;
                for (u32 key = 0; key < keys; key++) {
                    double value = cached(rows[row], 1, kv_head, key, dim);
                    expected += weights[key] / sum * value;
                    size += weights[key] / sum * fabs(value);
                    values += fabs(value);
                }
                size_t at = ((size_t)row * HEADS + head) * HEAD_DIM + dim;
                // Weights are f16, whose smallest number is 6e-8.
                expect(bf16_value(out[at]), expected, 1.0 / 255, size / 1000 + 3e-8 * values, "attended", at);
            }
        }
    }
}

static void test_rows() {
    const u32 count = 5;
    u16* embedding = array<u16>("embedding", (size_t)VOCABULARY * HIDDEN);
    for (size_t i = 0; i < (size_t)VOCABULARY * HIDDEN; i++) embedding[i] = (u16)bf16(random_number());
    Row* rows = array<Row>("rows", count);
    for (u32 row = 0; row < count; row++) rows[row] = {nullptr, row, 8, row == 0 ? VOCABULARY - 1 : row * 3, 0};
    float* hidden = array<float>("hidden", count * HIDDEN);
    launch(count, 1, THREADS, [=] { embed_rows(embedding, rows, hidden); });
    for (u32 i = 0; i < count * HIDDEN; i++)
        expect(hidden[i], bf16_value(embedding[(size_t)rows[i / HIDDEN].id * HIDDEN + i % HIDDEN]), 0, 1e-30, "hidden", i);

    float* weights = array<float>("weights", HIDDEN);
    for (u32 i = 0; i < HIDDEN; i++) weights[i] = random_number() + 1.5f;
    u32* selected = array<u32>("selected", 2);
    selected[0] = 4, selected[1] = 1;
    for (bool selects : {false, true}) {
        u32 results = selects ? 2 : count;
        u16* normed = array<u16>("normed", results * HIDDEN);
        launch(results, 1, THREADS, [=] { norm_rows(hidden, weights, selects ? selected : nullptr, normed); });
        for (u32 row = 0; row < results; row++) {
            const float* x = hidden + (size_t)(selects ? selected[row] : row) * HIDDEN;
            double sum = 0;
            for (u32 i = 0; i < HIDDEN; i++) sum += (double)x[i] * x[i];
            for (u32 i = 0; i < HIDDEN; i++)
                expect(bf16_value(normed[row * HIDDEN + i]), x[i] * weights[i] / sqrt(sum / HIDDEN + EPSILON), 1.0 / 255, 1e-9, "normed", row * HIDDEN + i);
        }
    }

    float* gate_up = array<float>("gate_up", count * 2 * INNER);
    for (u32 i = 0; i < count * 2 * INNER; i++) gate_up[i] = 4.0f * wide_number();
    gate_up[0] = -200.0f, gate_up[1] = 200.0f, gate_up[2] = -90.0f;
    u16* inner = array<u16>("inner", count * INNER);
    launch(count, (INNER / 4 + THREADS - 1) / THREADS, THREADS, [=] { activate_rows(gate_up, inner); });
    for (u32 i = 0; i < count * INNER; i++) {
        double gate = gate_up[i / INNER * 2 * INNER + i % INNER], up = gate_up[i / INNER * 2 * INNER + INNER + i % INNER];
        expect(bf16_value(inner[i]), gate / (1 + exp(-gate)) * up, 1.0 / 255, 1e-30, "inner", i);
    }

    const u32 logit_rows = 7;
    float* logits = array<float>("logits", (size_t)logit_rows * VOCABULARY);
    for (size_t i = 0; i < (size_t)logit_rows * VOCABULARY; i++) logits[i] = random_number() - 2.0f;
    auto at = [&](u32 row, u32 id) -> float& { return logits[(size_t)row * VOCABULARY + id]; };
    at(0, 17) = 5, at(0, VOCABULARY - 2) = 5;
    at(1, VOCABULARY - 1) = 1;
    at(2, 0) = -0.5f;
    at(3, 30) = -0.0f, at(3, 40) = 0.0f;
    at(4, 12) = NAN;
    at(5, VOCABULARY - 1) = -INFINITY;
    at(6, 3) = INFINITY;
    u32 expected[logit_rows] = {17, VOCABULARY - 1, 0, 30, ~0u, ~0u, ~0u};
    u32* ids = array<u32>("ids", logit_rows);
    launch(logit_rows, 1, 1024, [=] { largest_rows(logits, ids); });
    for (u32 row = 0; row < logit_rows; row++)
        if (ids[row] != expected[row]) fault("the id of row %u is %u instead of %u", row, ids[row], expected[row]);
}

int main() {
    test_rows();
    report("rows");
    for (u32 start : {0u, 37u})
        for (u32 rows : {1u, 9u, 63u, 64u, 65u, 200u}) test_attention({{rows, start, start + rows}});
    report("attention of one sequence");
    test_attention({{3, 0, 8}, {1, 150, 151}, {70, 5, 100}, {1, 0, 1}, {20, 64, 90}, {17, 128, 145}, {9, 62, 80}});
    report("attention of seven sequences");
    return 0;
}
