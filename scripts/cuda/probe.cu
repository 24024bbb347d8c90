// Uses every part of a toolkit that a build needs: bf16 on the device, a launch, cuBLAS and the driver.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_bf16.h>

__global__ void scaled(__nv_bfloat16 *values, float by, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] = __float2bfloat16(__bfloat162float(values[at]) * by);
}

int main() {
    cublasHandle_t handle;
    int driver = 0;
    scaled<<<1, 32>>>(nullptr, 2.0f, 0);
    return cuDriverGetVersion(&driver) != CUDA_SUCCESS || cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS;
}
