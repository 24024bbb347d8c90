// Stands in for `libcublas.so.13`: the product of bf16 matrices that lmrs needs, with all its transpositions.
#include <cstddef>
#include <cstring>
#include <vector>

typedef unsigned short u16;
typedef unsigned int u32;

const int SUCCESS = 0, NOT_SUPPORTED = 15;
const int F32 = 0, BF16 = 14, SUMS_IN_F32 = 68, DEFAULT_ALGORITHM = -1;

static float number(u16 bits) {
    u32 wide = (u32)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// The rows of a column-major matrix, or its columns if it is transposed, as f32.
static std::vector<float> lines(const void* matrix, bool are_columns, int count, int length, int stride) {
    const u16* bits = (const u16*)matrix;
    std::vector<float> numbers;
    for (int line = 0; line < count; line++)
        for (int at = 0; at < length; at++)
            numbers.push_back(number(are_columns ? bits[at + (size_t)line * stride] : bits[line + (size_t)at * stride]));
    return numbers;
}

extern "C" {

int cublasCreate_v2(void** handle) { *handle = (void*)3; return SUCCESS; }
int cublasDestroy_v2(void*) { return SUCCESS; }
int cublasSetStream_v2(void*, void*) { return SUCCESS; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return SUCCESS; }

int cublasGemmEx(void*, int transposes_a, int transposes_b, int m, int n, int k, const void* alpha, const void* a, int a_type, int a_stride,
                 const void* b, int b_type, int b_stride, const void* beta, void* c, int c_type, int c_stride, int sums, int algorithm) {
    if (a_type != BF16 || b_type != BF16 || c_type != F32 || sums != SUMS_IN_F32 || algorithm != DEFAULT_ALGORITHM) return NOT_SUPPORTED;
    float factor = *(const float*)alpha, old_factor = *(const float*)beta;
    std::vector<float> rows = lines(a, transposes_a, m, k, a_stride), columns = lines(b, !transposes_b, n, k, b_stride);
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            const float *x = &rows[(size_t)row * k], *y = &columns[(size_t)column * k];
            float sum = 0;
            for (int at = 0; at < k; at++) sum += x[at] * y[at];
            float& out = ((float*)c)[row + (size_t)column * c_stride];
            // With a factor of zero, the old number is not read: it may be NaN.
            out = factor * sum + (old_factor == 0 ? 0 : old_factor * out);
        }
    return SUCCESS;
}

}
