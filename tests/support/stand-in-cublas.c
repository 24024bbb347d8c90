/* A stand-in for cuBLAS, used together with the stand-in for the driver. To refuse products, STAND_IN_REFUSES names the types of
 * the matrices and of the sum, and the error: `cublasGemmEx:14:68=15`. STAND_IN_CUBLAS is the version of this library. If this
 * library is at the path STAND_IN_REFUSES_FROM, it creates no handle. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *driver_function(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name); }
static int refuses(const char *name) { return ((int (*)(const char *))driver_function("stand_in_refuses"))(name); }
static int has_context(void) { return ((int (*)(void))driver_function("stand_in_has_context"))(); }
static void change_handles(int change) { ((void (*)(int))driver_function("stand_in_handles"))(change); }

int cublasCreate_v2(void **handle) {
    static int it;
    int status = refuses("cublasCreate_v2");
    if (status) return status;
    Dl_info library;
    const char *refusing = getenv("STAND_IN_REFUSES_FROM");
    if (!has_context() || (refusing && dladdr(&it, &library) && !strcmp(library.dli_fname, refusing))) return 1;
    change_handles(1);
    *handle = &it;
    return 0;
}
int cublasDestroy_v2(void *handle) { change_handles(-1); return has_context() ? 0 : 1; }
int cublasGetVersion_v2(void *handle, int *version) {
    *version = getenv("STAND_IN_CUBLAS") ? atoi(getenv("STAND_IN_CUBLAS")) : 120804;
    return 0;
}
int cublasGemmEx(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda,
                 const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm) {
    char name[64];
    snprintf(name, sizeof name, "cublasGemmEx:%d:%d", type_a, compute);
    int status = refuses(name);
    if (status) return status;
    int square = m == n && n == k && lda == k && ldb == k && ldc == m;
    int same_types = type_a == type_b && type_b == type_c;
    int factors = *(const float *)alpha == 1.0f && *(const float *)beta == 0.0f;
    int distinct = a != b && b != c && a != c && a && b && c;
    if (!has_context() || !square || !same_types || !factors || !distinct || algorithm != -1) return 7;
    ((void (*)(const char *, ...))driver_function("stand_in_log"))("product %d of %d by %d", n, type_a, compute);
    return 0;
}
