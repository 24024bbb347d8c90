// Runs `decode_step` for some tokens of a model with random weights, and compares logits, ids and the cache with an independent
// computation in double precision. The sizes are macros; `run` compiles and runs several combinations.
//
//     emulate [--seed N] [--position N] [--steps N] [--output-every N] [--arrived N] [--equal-rows 1] [--nan-row N]
//
// `--arrived` is the counter before the first step, `--equal-rows 1` makes pairs of equal logits, and `--nan-row` names a row of the
// output matrix that gets a NaN.
#include "scheduler.h"
#include DECODE

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using emulation::Random;

// ---- The model

struct Matrix {
    int rows, columns;
    u16* bits;
    double at(int row, int column) const {
        u32 wide = (u32)bits[(size_t)row * columns + column] << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
};

struct Layer {
    Matrix qkv, attention_output, gate, up, down;
    float *attention_norm, *feed_forward_norm;
};

struct Model {
    Matrix embedding, output;
    float* norm;
    std::vector<Layer> layers;
};

static double gaussian(Random& random) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += random.uniform();
    return sum - 6;
}

static u16 bf16(double value) {
    float narrow = (float)value;
    u32 bits;
    memcpy(&bits, &narrow, 4);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static Matrix random_matrix(Random& random, const char* name, int rows, int columns, double scale) {
    Matrix matrix{rows, columns, static_cast<u16*>(emulation::allocate(name, 2 * (size_t)rows * columns))};
    for (size_t i = 0; i < (size_t)rows * columns; i++) matrix.bits[i] = bf16(scale * gaussian(random));
    return matrix;
}

static float* random_norm(Random& random, const char* name) {
    float* norm = static_cast<float*>(emulation::allocate(name, 4 * HIDDEN));
    for (int i = 0; i < HIDDEN; i++) norm[i] = (float)(1 + 0.2 * gaussian(random));
    return norm;
}

static Model random_model(Random& random) {
    const int queries = HEADS * HEAD_DIM;
    const double from_hidden = 1 / sqrt((double)HIDDEN);
    Model model;
    model.embedding = random_matrix(random, "embedding", VOCABULARY, HIDDEN, 1);
    model.output = random_matrix(random, "output", VOCABULARY, HIDDEN, from_hidden);
    model.norm = random_norm(random, "norm");
    for (int i = 0; i < LAYERS; i++) {
        Layer layer;
        // Larger queries and keys give attention with clear maxima.
        layer.qkv = random_matrix(random, "qkv weights", queries + 2 * KV_HEADS * HEAD_DIM, HIDDEN, 1.5 * from_hidden);
        layer.attention_output = random_matrix(random, "attention output weights", HIDDEN, queries, 1 / sqrt((double)queries));
        layer.gate = random_matrix(random, "gate weights", INNER, HIDDEN, from_hidden);
        layer.up = random_matrix(random, "up weights", INNER, HIDDEN, from_hidden);
        layer.down = random_matrix(random, "down weights", HIDDEN, INNER, 1.5 / sqrt((double)INNER));
        layer.attention_norm = random_norm(random, "attention norm");
        layer.feed_forward_norm = random_norm(random, "feed-forward norm");
        model.layers.push_back(layer);
    }
    return model;
}

// ---- The reference, which shares no code with the kernel

typedef std::vector<double> Vector;

static double value_of_half(u16 bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

static u16 half_of_value(double value) {
    u16 sign = std::signbit(value) ? 0x8000 : 0;
    value = fabs(value);
    if (value < ldexp(1, -14)) return sign | (u16)nearbyint(ldexp(value, 24));
    int exponent;
    frexp(value, &exponent); // value is in [2^(exponent-1), 2^exponent)
    u32 fraction = (u32)nearbyint(ldexp(value, 11 - exponent)); // 1024 to 2048
    u32 bits = ((u32)(exponent + 14) << 10) + (fraction - 1024);
    return sign | (u16)(bits < 0x7c00 ? bits : 0x7c00);
}

static Vector product(const Matrix& matrix, const Vector& input) {
    Vector result(matrix.rows);
    for (int row = 0; row < matrix.rows; row++) {
        double sum = 0;
        for (int column = 0; column < matrix.columns; column++) sum += matrix.at(row, column) * input[column];
        result[row] = sum;
    }
    return result;
}

static Vector normalised(const Vector& input, const float* weights) {
    double squares = 0;
    for (double value : input) squares += value * value;
    double scale = 1 / sqrt(squares / input.size() + (double)EPSILON);
    Vector result(input.size());
    for (size_t i = 0; i < input.size(); i++) result[i] = input[i] * scale * weights[i];
    return result;
}

static void rotate(double* head, const std::vector<float>& cosines, const std::vector<float>& sines) {
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        double low = head[i], high = head[i + HEAD_DIM / 2];
        head[i] = low * cosines[i] - high * sines[i];
        head[i + HEAD_DIM / 2] = high * cosines[i] + low * sines[i];
    }
}

static size_t cache_index(int layer, int kind, int head, int position, int dim, u32 capacity) {
    return ((((size_t)layer * 2 + kind) * KV_HEADS + head) * capacity + position) * HEAD_DIM + dim;
}

// The number that the cache should hold for `exact`. Both `found`, which the kernel stored, and the next number in f16 can be right
// where `exact` is nearly between them, because the kernel's sums have errors of f32. Then `found` is taken, so that later sums agree.
static u16 cached(double exact, u16 found, double& largest_error) {
    u16 rounded = half_of_value(exact);
    int exponent;
    frexp(exact, &exponent);
    double half_step = fmax(ldexp(1, exponent - 12), ldexp(1, -25)), error = fabs(value_of_half(found) - exact) - half_step;
    if (!(error <= 2e-5)) return rounded;
    largest_error = fmax(largest_error, error);
    return found;
}

// `found` is the kernel's cache after the step.
static Vector reference_step(const Model& model, std::vector<u16>& cache, const u16* found, u32 capacity, u32 id, u32 position,
                             const std::vector<float>& cosines, const std::vector<float>& sines, double& cache_error) {
    Vector hidden(HIDDEN);
    for (int i = 0; i < HIDDEN; i++) hidden[i] = model.embedding.at(id, i);
    for (int number = 0; number < LAYERS; number++) {
        const Layer& layer = model.layers[number];
        Vector qkv = product(layer.qkv, normalised(hidden, layer.attention_norm));
        for (int head = 0; head < HEADS + KV_HEADS; head++) rotate(&qkv[head * HEAD_DIM], cosines, sines);
        for (int kind = 0; kind < 2; kind++)
            for (int head = 0; head < KV_HEADS; head++)
                for (int dim = 0; dim < HEAD_DIM; dim++) {
                    size_t index = cache_index(number, kind, head, position, dim, capacity);
                    cache[index] = cached(qkv[(HEADS + kind * KV_HEADS + head) * HEAD_DIM + dim], found[index], cache_error);
                }
        Vector attended(HEADS * HEAD_DIM);
        for (int head = 0; head < HEADS; head++) {
            int shared = head / (HEADS / KV_HEADS);
            Vector scores(position + 1);
            double largest = -INFINITY, total = 0;
            for (u32 at = 0; at <= position; at++) {
                double score = 0;
                for (int dim = 0; dim < HEAD_DIM; dim++)
                    score += qkv[head * HEAD_DIM + dim] * value_of_half(cache[cache_index(number, 0, shared, at, dim, capacity)]);
                scores[at] = score / sqrt((double)HEAD_DIM);
                largest = fmax(largest, scores[at]);
            }
            for (double& score : scores) total += score = exp(score - largest);
            for (u32 at = 0; at <= position; at++)
                for (int dim = 0; dim < HEAD_DIM; dim++)
                    attended[head * HEAD_DIM + dim] += scores[at] / total * value_of_half(cache[cache_index(number, 1, shared, at, dim, capacity)]);
        }
        Vector added = product(layer.attention_output, attended);
        for (int i = 0; i < HIDDEN; i++) hidden[i] += added[i];
        Vector input = normalised(hidden, layer.feed_forward_norm);
        Vector gate = product(layer.gate, input), up = product(layer.up, input);
        for (int i = 0; i < INNER; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        added = product(layer.down, gate);
        for (int i = 0; i < HIDDEN; i++) hidden[i] += added[i];
    }
    return product(model.output, normalised(hidden, model.norm));
}

// ---- The steps

static void run_thread(const void* arguments) { decode_step(*static_cast<const StepArguments*>(arguments)); }

template <typename T> static T* allocate(const char* name, size_t count) { return static_cast<T*>(emulation::allocate(name, count * sizeof(T))); }

int main(int count, char** words) {
    u64 seed = 1;
    u32 position = 0, steps = 4, output_every = 1, first_arrived = 0;
    bool has_equal_rows = false;
    int nan_row = -1;
    for (int i = 1; i + 1 < count; i += 2) {
        std::string word = words[i];
        u64 value = strtoull(words[i + 1], nullptr, 0);
        if (word == "--seed") seed = value;
        else if (word == "--position") position = (u32)value;
        else if (word == "--steps") steps = (u32)value;
        else if (word == "--output-every") output_every = (u32)value;
        else if (word == "--arrived") first_arrived = (u32)value;
        else if (word == "--equal-rows") has_equal_rows = value != 0;
        else if (word == "--nan-row") nan_row = (int)value;
        else {
            fprintf(stderr, "error: there is no option %s\n", words[i]);
            return 2;
        }
    }
    Random random(seed);
    Model model = random_model(random);
    if (has_equal_rows)
        for (int row = 0; row + VOCABULARY / 2 < VOCABULARY; row++)
            memcpy(model.output.bits + (size_t)(row + VOCABULARY / 2) * HIDDEN, model.output.bits + (size_t)row * HIDDEN, 2 * HIDDEN);
    if (nan_row >= 0) model.output.bits[(size_t)nan_row * HIDDEN + HIDDEN / 3] = 0x7fc0;
    const u32 capacity = position + steps + 3;
    const size_t cache_numbers = (size_t)LAYERS * 2 * KV_HEADS * capacity * HEAD_DIM;

    LayerWeights* layers = allocate<LayerWeights>("layers", LAYERS);
    for (int i = 0; i < LAYERS; i++) {
        const Layer& layer = model.layers[i];
        layers[i] = LayerWeights();
        layers[i].qkv = layer.qkv.bits;
        layers[i].attention_output = layer.attention_output.bits;
        layers[i].gate = layer.gate.bits;
        layers[i].up = layer.up.bits;
        layers[i].down = layer.down.bits;
        layers[i].attention_norm = layer.attention_norm;
        layers[i].feed_forward_norm = layer.feed_forward_norm;
    }
    const size_t qkv_numbers = (HEADS + 2 * KV_HEADS) * HEAD_DIM, partial_numbers = (size_t)MAX_SPLITS * HEADS * PARTIAL;
    StepArguments arguments = StepArguments();
    arguments.layers = layers;
    arguments.embedding = model.embedding.bits;
    arguments.output = model.output.bits;
    arguments.norm = model.norm;
    arguments.cache = allocate<u16>("cache", cache_numbers);
    arguments.hidden = allocate<float>("hidden", HIDDEN);
    arguments.qkv = allocate<float>("qkv", qkv_numbers);
    arguments.partials = allocate<float>("partials", partial_numbers);
    arguments.inner = allocate<float>("inner", INNER);
    arguments.logits = allocate<float>("logits", VOCABULARY);
    arguments.best = allocate<u64>("best", BLOCKS);
    arguments.arrived = allocate<u32>("arrived", 1);
    arguments.result = allocate<StepResult>("result", 1);
    arguments.capacity = capacity;
    *arguments.arrived = first_arrived;
    for (void* memory : {(void*)arguments.hidden, (void*)arguments.qkv, (void*)arguments.partials, (void*)arguments.inner, (void*)arguments.logits,
                         (void*)arguments.best, (void*)arguments.result})
        emulation::shared_between_blocks(memory);
    emulation::shared_between_blocks(arguments.cache, true);

    std::vector<u16> reference_cache(cache_numbers, 0xffff);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int kind = 0; kind < 2; kind++)
            for (int head = 0; head < KV_HEADS; head++)
                for (u32 at = 0; at < position; at++)
                    for (int dim = 0; dim < HEAD_DIM; dim++)
                        reference_cache[cache_index(layer, kind, head, at, dim, capacity)] = half_of_value(1.5 * gaussian(random));
    memcpy(arguments.cache, reference_cache.data(), 2 * cache_numbers);
    for (size_t first = 0; first < cache_numbers; first += (size_t)capacity * HEAD_DIM)
        emulation::poison(arguments.cache + first + (size_t)position * HEAD_DIM, 2 * (size_t)(capacity - position) * HEAD_DIM);

    const u32 arrivals_per_step = 5 * LAYERS + 1;
    u32 id = random.below(VOCABULARY), first_arrival = first_arrived;
    for (u32 step = 1; step <= steps; step++, position++) {
        std::vector<float> cosines(HEAD_DIM / 2), sines(HEAD_DIM / 2);
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            double angle = position * pow(10000.0, -2.0 * i / HEAD_DIM);
            arguments.cosines[i] = cosines[i] = (float)cos(angle);
            arguments.sines[i] = sines[i] = (float)sin(angle);
        }
        bool wants_output = output_every && (step % output_every == 0 || step == steps);
        arguments.id = id;
        arguments.position = position;
        arguments.first_arrival = first_arrival;
        arguments.step = step;
        arguments.wants_output = wants_output;
        emulation::poison(arguments.hidden, 4 * HIDDEN);
        emulation::poison(arguments.qkv, 4 * qkv_numbers);
        emulation::poison(arguments.partials, 4 * partial_numbers);
        emulation::poison(arguments.inner, 4 * INNER);
        emulation::poison(arguments.logits, 4 * VOCABULARY);
        emulation::poison(arguments.best, 8 * BLOCKS);
        emulation::Launch launch = {BLOCKS, THREADS, SHARED_BYTES, random.next() >> 32};
        emulation::launch(launch, run_thread, &arguments);

        double cache_error = 0;
        Vector logits = reference_step(model, reference_cache, arguments.cache, capacity, id, position, cosines, sines, cache_error);
        first_arrival += arrivals_per_step * BLOCKS;
        if (*arguments.arrived != first_arrival)
            emulation::fault("step %u: %u arrivals were expected, and there were %u", step, arrivals_per_step * BLOCKS,
                             *arguments.arrived - (first_arrival - arrivals_per_step * BLOCKS));
        for (int layer = 0; layer < LAYERS; layer++)
            for (int kind = 0; kind < 2; kind++)
                for (int head = 0; head < KV_HEADS; head++)
                    for (u32 at = 0; at < capacity; at++)
                        for (int dim = 0; dim < HEAD_DIM; dim++) {
                            size_t index = cache_index(layer, kind, head, at, dim, capacity);
                            u16 found = arguments.cache[index], expected = reference_cache[index];
                            if (found != expected)
                                emulation::fault("step %u: layer %d, %s of head %d at position %u, dimension %d: %g, and the reference has %g", step, layer,
                                                 kind ? "value" : "key", head, at, dim, value_of_half(found), value_of_half(expected));
                        }
        if (arguments.result->step != step) emulation::fault("step %u: the result has step %u", step, arguments.result->step);
        if (!wants_output) {
            printf("step %u: position %u, no output\n", step, position);
            id = random.below(VOCABULARY);
            continue;
        }
        if (nan_row >= 0) {
            if (arguments.result->id != NOT_FINITE) emulation::fault("step %u: a logit is NaN, and the result has id %u", step, arguments.result->id);
            printf("step %u: position %u, a logit is NaN\n", step, position);
            id = random.below(VOCABULARY);
            continue;
        }
        double largest = 0, scale = 0;
        u32 best = 0, reference_best = 0;
        int worst = 0;
        for (int i = 0; i < VOCABULARY; i++) {
            scale = fmax(scale, fabs(logits[i]));
            double difference = fabs(arguments.logits[i] - logits[i]);
            if (!(difference <= largest)) {
                largest = difference;
                worst = i;
                if (!(difference < 1e30)) break;
            }
            if (arguments.logits[i] > arguments.logits[best]) best = i;
            if (logits[i] > logits[reference_best]) reference_best = i;
        }
        if (!(largest <= 2e-5 * scale))
            emulation::fault("step %u: logit %d is %g, and the reference has %g (the largest logit: %g)", step, worst, arguments.logits[worst], logits[worst], scale);
        if (arguments.result->id != best) emulation::fault("step %u: the result has id %u, but the largest logit is that of %u", step, arguments.result->id, best);
        printf("step %u: position %u, id %u = %u, largest difference of logits %.1e of %.1f, of the cache %.1e\n", step, position, best, reference_best, largest,
               scale, cache_error);
        if (best != reference_best && logits[reference_best] - logits[best] > 2 * largest) emulation::fault("step %u: the ids differ", step);
        id = best;
    }
    return 0;
}
