// Checks `decode_step` on a GPU against plain kernels, with random weights, and measures it. It needs CUDA's toolkit and no Rust:
//
//     nvcc -O2 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc/cuda/kernels $(cat SIZES) -o decode-step examples/decode-step.cu
//     ./decode-step [STEPS]
//
// SIZES for llama-3.2-1b on a GPU with 132 multiprocessors, in one line:
//     -DHIDDEN=2048 -DINNER=8192 -DLAYERS=16 -DHEADS=32 -DKV_HEADS=8 -DHEAD_DIM=64 -DVOCABULARY=128256 -DEPSILON=1e-05f
//     -DBLOCKS=132 -DSLOT_BYTES=16384 -DSLOTS=12 -DWARPS=6
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "decode.cu"

#define CHECK(call)                                                                            \
    do {                                                                                       \
        cudaError_t error = (call);                                                            \
        if (error != cudaSuccess) {                                                            \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

constexpr u32 CAPACITY = 16384;
constexpr size_t WEIGHT_NUMBERS =
    (size_t)LAYERS * ((size_t)QKV_ROWS * HIDDEN + (size_t)HIDDEN * QUERY_ROWS + 3 * (size_t)INNER * HIDDEN) + (size_t)VOCABULARY * HIDDEN;

// ---- Random numbers

__device__ u64 mixed(u64 number) {
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9ull;
    number = (number ^ number >> 27) * 0x94d049bb133111ebull;
    return number ^ number >> 31;
}

// The sum of two uniform numbers, with this standard deviation.
__global__ void fill_bf16(u16* numbers, size_t count, u64 seed, float deviation) {
    for (size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x; at < count; at += (size_t)gridDim.x * blockDim.x) {
        u64 bits = mixed(at + (seed << 40));
        float sum = (float)(bits & 0xffffff) / 0x1000000 + (float)(bits >> 24 & 0xffffff) / 0x1000000 - 1.0f;
        numbers[at] = (u16)(__float_as_uint(sum * deviation * 2.449f) >> 16);
    }
}

__global__ void fill_norm(float* numbers, u32 count, u64 seed) {
    for (u32 at = threadIdx.x; at < count; at += blockDim.x) numbers[at] = 0.8f + 0.4f * (float)(mixed(at + (seed << 40)) & 0xffff) / 0x10000;
}

// ---- The same step by plain kernels

__global__ void plain_embedding(const u16* embedding, u32 id, float* hidden) {
    for (u32 at = threadIdx.x; at < HIDDEN; at += blockDim.x) hidden[at] = bf16_low(embedding[(size_t)id * HIDDEN + at]);
}

// One block of 256 threads.
__global__ void plain_norm(const float* hidden, const float* weights, float* out) {
    __shared__ double sums[256];
    double sum = 0;
    for (u32 at = threadIdx.x; at < HIDDEN; at += 256) sum += (double)hidden[at] * hidden[at];
    sums[threadIdx.x] = sum;
    __syncthreads();
    double total = 0;
    for (int thread = 0; thread < 256; thread++) total += sums[thread];
    float scale = (float)(1.0 / sqrt(total / HIDDEN + EPSILON));
    for (u32 at = threadIdx.x; at < HIDDEN; at += 256) out[at] = hidden[at] * scale * weights[at];
}

// A warp for each row.
__global__ void plain_product(const u16* weights, const float* inputs, float* out, u32 rows, u32 width, bool adds) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (u32 at = threadIdx.x % 32; at < width; at += 32) sum += bf16_low(weights[(size_t)row * width + at]) * inputs[at];
    sum = sum_of_lanes(sum);
    if (threadIdx.x % 32 == 0) out[row] = adds ? out[row] + sum : sum;
}

// A block for each head, and a thread for each dimension.
__global__ void plain_attention(const StepArguments arguments, int layer, const float* qkv, u16* cache, float* out) {
    __shared__ float query[HEAD_DIM];
    u32 head = blockIdx.x, kv_head = head / GROUP, dim = threadIdx.x, pair = dim % (HEAD_DIM / 2), position = arguments.position;
    float cosine = arguments.cosines[pair], sine = arguments.sines[pair];
    auto rotated = [&](const float* numbers) {
        float first = numbers[pair], second = numbers[pair + HEAD_DIM / 2];
        return dim < HEAD_DIM / 2 ? first * cosine - second * sine : second * cosine + first * sine;
    };
    const float* raw_key = qkv + QUERY_ROWS + kv_head * HEAD_DIM;
    u16* keys = cache + ((size_t)(2 * layer) * KV_HEADS + kv_head) * CAPACITY * HEAD_DIM;
    u16* values = cache + ((size_t)(2 * layer + 1) * KV_HEADS + kv_head) * CAPACITY * HEAD_DIM;
    query[dim] = rotated(qkv + head * HEAD_DIM);
    keys[(size_t)position * HEAD_DIM + dim] = float_to_half(rotated(raw_key));
    values[(size_t)position * HEAD_DIM + dim] = float_to_half(raw_key[KV_HEADS * HEAD_DIM + dim]);
    __syncthreads();
    float largest = -1e30f, weights = 0.0f, sum = 0.0f;
    for (u32 at = 0; at <= position; at++) {
        float score = 0.0f;
        for (u32 other = 0; other < HEAD_DIM; other++) score += query[other] * half_to_float(keys[(size_t)at * HEAD_DIM + other]);
        score /= sqrtf((float)HEAD_DIM);
        float next = fmaxf(largest, score), scale = expf(largest - next), weight = expf(score - next);
        weights = weights * scale + weight;
        sum = sum * scale + weight * half_to_float(values[(size_t)at * HEAD_DIM + dim]);
        largest = next;
    }
    out[head * HEAD_DIM + dim] = sum / weights;
}

__global__ void plain_activation(float* gate, const float* up) {
    u32 at = blockIdx.x * 256 + threadIdx.x;
    if (at < INNER) gate[at] = gate[at] / (1.0f + expf(-gate[at])) * up[at];
}

__global__ void read_all(const uint4* numbers, size_t count, u32* out) {
    u32 sum = 0;
    for (size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x; at < count; at += (size_t)gridDim.x * blockDim.x) {
        uint4 four = numbers[at];
        sum ^= four.x ^ four.y ^ four.z ^ four.w;
    }
    if (sum == 0x12345678) *out = sum;
}

template <typename T>
T* allocate(size_t count) {
    T* memory;
    CHECK(cudaMalloc(&memory, count * sizeof(T)));
    CHECK(cudaMemset(memory, 0, count * sizeof(T)));
    return memory;
}

u64 seed = 1;

u16* random_matrix(size_t rows, size_t inputs, float deviation) {
    u16* weights = allocate<u16>(rows * inputs);
    fill_bf16<<<1024, 256>>>(weights, rows * inputs, seed++, deviation);
    return weights;
}

float* random_norm() {
    float* weights = allocate<float>(HIDDEN);
    fill_norm<<<1, 256>>>(weights, HIDDEN, seed++);
    return weights;
}

struct Steps {
    StepArguments arguments{};
    StepResult* result;
    cudaStream_t stream;

    void launch(u32 id, u32 position) {
        arguments.id = id;
        arguments.position = position;
        arguments.wants_output = 1;
        arguments.step += 1;
        for (int pair = 0; pair < HEAD_DIM / 2; pair++) {
            double angle = (float)position * (1.0f / powf(500000.0f, 2.0f * pair / HEAD_DIM));
            arguments.cosines[pair] = (float)cos(angle);
            arguments.sines[pair] = (float)sin(angle);
        }
        void* parameters[] = {&arguments};
        CHECK(cudaLaunchCooperativeKernel((void*)decode_step, dim3(BLOCKS), dim3(THREADS), parameters, SHARED_BYTES, stream));
        arguments.first_arrival += (5 * LAYERS + 1) * BLOCKS;
    }

    u32 wait() {
        for (u64 turns = 1; __atomic_load_n(&result->step, __ATOMIC_ACQUIRE) != arguments.step; turns++) {
            if (turns % 1000000 != 0) continue;
            cudaError_t state = cudaStreamQuery(stream);
            if (state != cudaErrorNotReady) CHECK(state);
        }
        return result->id;
    }
};

double median(std::vector<double> numbers) {
    std::sort(numbers.begin(), numbers.end());
    return numbers[numbers.size() / 2];
}

int main(int count, char** values) {
    u32 compared = count > 1 ? (u32)atoi(values[1]) : 300;
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("%s, %d multiprocessors; blocks %d, warps %d, slots %d of %d bytes, shared memory %d bytes\n", device.name,
           device.multiProcessorCount, BLOCKS, WARPS, SLOTS, SLOT_BYTES, SHARED_BYTES);
    CHECK(cudaFuncSetAttribute(decode_step, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    std::vector<LayerWeights> layers(LAYERS);
    for (LayerWeights& layer : layers) {
        layer = {random_matrix(QKV_ROWS, HIDDEN, 0.04f), random_matrix(HIDDEN, QUERY_ROWS, 0.02f), random_matrix(INNER, HIDDEN, 0.03f),
                 random_matrix(INNER, HIDDEN, 0.03f), random_matrix(HIDDEN, INNER, 0.02f), random_norm(), random_norm()};
    }
    Steps steps;
    StepArguments& arguments = steps.arguments;
    LayerWeights* device_layers = allocate<LayerWeights>(LAYERS);
    CHECK(cudaMemcpy(device_layers, layers.data(), sizeof(LayerWeights) * LAYERS, cudaMemcpyHostToDevice));
    size_t cache_numbers = (size_t)LAYERS * 2 * KV_HEADS * CAPACITY * HEAD_DIM;
    u16* plain_cache = allocate<u16>(cache_numbers);
    arguments.layers = device_layers;
    arguments.embedding = arguments.output = random_matrix(VOCABULARY, HIDDEN, 0.5f);
    arguments.norm = random_norm();
    arguments.cache = allocate<u16>(cache_numbers);
    arguments.hidden = allocate<float>(HIDDEN);
    arguments.qkv = allocate<float>(QKV_ROWS);
    arguments.partials = allocate<float>((size_t)MAX_SPLITS * HEADS * PARTIAL);
    arguments.inner = allocate<float>(INNER);
    arguments.logits = allocate<float>(VOCABULARY);
    arguments.best = allocate<u64>(BLOCKS);
    arguments.arrived = allocate<u32>(1);
    arguments.capacity = CAPACITY;
    CHECK(cudaHostAlloc((void**)&steps.result, sizeof(StepResult), cudaHostAllocMapped));
    steps.result->step = 0;
    CHECK(cudaHostGetDevicePointer((void**)&arguments.result, steps.result, 0));
    CHECK(cudaStreamCreateWithFlags(&steps.stream, cudaStreamNonBlocking));
    float *hidden = allocate<float>(HIDDEN), *normed = allocate<float>(HIDDEN), *qkv = allocate<float>(QKV_ROWS);
    float *attended = allocate<float>(QUERY_ROWS), *gate = allocate<float>(INNER), *up = allocate<float>(INNER);
    float* logits = allocate<float>(VOCABULARY);
    CHECK(cudaDeviceSynchronize());

    auto plain_step = [&] {
        auto product = [&](const u16* weights, const float* inputs, float* out, u32 rows, u32 width, bool adds) {
            plain_product<<<(rows + 7) / 8, 256>>>(weights, inputs, out, rows, width, adds);
        };
        plain_embedding<<<1, 256>>>(arguments.embedding, arguments.id, hidden);
        for (int layer = 0; layer < LAYERS; layer++) {
            const LayerWeights& weights = layers[layer];
            plain_norm<<<1, 256>>>(hidden, weights.attention_norm, normed);
            product(weights.qkv, normed, qkv, QKV_ROWS, HIDDEN, false);
            plain_attention<<<HEADS, HEAD_DIM>>>(arguments, layer, qkv, plain_cache, attended);
            product(weights.attention_output, attended, hidden, HIDDEN, QUERY_ROWS, true);
            plain_norm<<<1, 256>>>(hidden, weights.feed_forward_norm, normed);
            product(weights.gate, normed, gate, INNER, HIDDEN, false);
            product(weights.up, normed, up, INNER, HIDDEN, false);
            plain_activation<<<(INNER + 255) / 256, 256>>>(gate, up);
            product(weights.down, gate, hidden, HIDDEN, INNER, true);
        }
        plain_norm<<<1, 256>>>(hidden, arguments.norm, normed);
        product(arguments.output, normed, logits, VOCABULARY, HIDDEN, false);
        CHECK(cudaDeviceSynchronize());
    };

    std::vector<float> fast(VOCABULARY), plain(VOCABULARY);
    u32 id = 17;
    bool is_wrong = false;
    for (u32 position = 0; position < compared; position++) {
        steps.launch(id, position);
        u32 next = steps.wait();
        CHECK(cudaStreamSynchronize(steps.stream));
        plain_step();
        CHECK(cudaMemcpy(fast.data(), arguments.logits, sizeof(float) * VOCABULARY, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(plain.data(), logits, sizeof(float) * VOCABULARY, cudaMemcpyDeviceToHost));
        double squares = 0, largest = 0;
        for (u32 at = 0; at < VOCABULARY; at++) {
            squares += pow((double)fast[at] - plain[at], 2);
            largest = std::max(largest, (double)fabsf(plain[at]));
        }
        double rms = sqrt(squares / VOCABULARY);
        // Roundings grow from layer to layer with random weights.
        is_wrong = is_wrong || !(rms < 1e-2 * largest);
        if (position < 4 || position % 50 == 49) {
            u32 likeliest = (u32)(std::max_element(plain.begin(), plain.end()) - plain.begin());
            printf("position %u: id %u, plain %u; largest logit %.2f, difference (rms) %.1e\n", position, next, likeliest, largest, rms);
            fflush(stdout);
        }
        id = next % VOCABULARY;
    }
    printf("%s\n", is_wrong ? "WRONG: the logits differ" : "the logits agree");

    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    auto milliseconds = [&](auto work) {
        CHECK(cudaEventRecord(start, steps.stream));
        work();
        CHECK(cudaEventRecord(end, steps.stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        return (double)ms;
    };
    size_t read_bytes = (size_t)4 << 30;
    uint4* memory = (uint4*)allocate<u8>(read_bytes);
    std::vector<double> reads;
    for (int turn = 0; turn < 10; turn++) {
        reads.push_back(milliseconds([&] { read_all<<<132 * 16, 512, 0, steps.stream>>>(memory, read_bytes / 16, (u32*)normed); }));
    }
    printf("plain reads: %.0f GB/s\n", (double)read_bytes / median(reads) / 1e6);
    for (u32 position : {10u, 200u, 500u, 2000u, 8192u, 16000u}) {
        std::vector<double> on_device, with_host;
        for (int turn = 0; turn < 10; turn++) {
            steps.launch(5, position);
            on_device.push_back(milliseconds([&] {
                for (int step = 0; step < 20; step++) steps.launch(5, position);
            }) / 20);
        }
        for (int turn = 0; turn < 200; turn++) {
            auto begin = std::chrono::steady_clock::now();
            steps.launch(5, position);
            steps.wait();
            with_host.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
        }
        double cache_bytes = 4.0 * LAYERS * KV_HEADS * HEAD_DIM * (position + 1), ms = median(on_device);
        printf("position %u: %.1f us on the device, %.0f GB/s; %.1f us with the host, %.0f tokens/s\n", position, ms * 1e3,
               (2.0 * WEIGHT_NUMBERS + cache_bytes) / ms / 1e6, median(with_host) * 1e3, 1e3 / median(with_host));
        fflush(stdout);
    }
    CHECK(cudaDeviceSynchronize());
    return is_wrong;
}
