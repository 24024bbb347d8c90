// Uses every part of a toolkit that a build needs: bf16 on the device, a kernel launch, cuBLAS and the driver.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_bf16.h>

__global__ void scale_values(__nv_bfloat16 *values, float factor, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) values[index] = __float2bfloat16(__bfloat162float(values[index]) * factor);
}

int main() {
    cublasHandle_t handle;
    int driver = 0;
    scale_values<<<1, 32>>>(nullptr, 2.0f, 0);
    return cuDriverGetVersion(&driver) != CUDA_SUCCESS || cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS;
}
