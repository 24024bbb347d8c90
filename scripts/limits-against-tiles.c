// Multiplies AMX tiles in registers in a loop of the compiler's intrinsics, for scripts/limits-against-tiles. It shares no code
// with the probe's assembly, and counts operations in the same way. It prints a line for each unit: its name, and the Gop/s of
// the best of many short passes. Exit status 3: no AMX here.
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 20000, PASSES = 60 };

static uint8_t inputs[1024] __attribute__((aligned(64)));

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void configure(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) shape;
    memset(&shape, 0, sizeof shape);
    shape.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
        shape.row_bytes[tile] = 64;
        shape.rows[tile] = 16;
    }
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, inputs, 64);
    _tile_loadd(5, inputs, 64);
    _tile_loadd(6, inputs, 64);
    _tile_loadd(7, inputs, 64);
}

static void bf16(void) {
    for (int round = 0; round < ROUNDS; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

static void int8(void) {
    for (int round = 0; round < ROUNDS; round++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
}

static void measure(const char *name, void (*loop)(void), double depth) {
    double best = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = now();
        loop();
        double seconds = now() - start;
        if (seconds < best) best = seconds;
    }
    printf("%s %.1f\n", name, 2.0 * 16 * 16 * depth * 4 * ROUNDS / best / 1e9);
}

int main(void) {
    unsigned eax, ebx, ecx, edx = 0;
    int leaf = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
    // CPUID must report tiles, and the kernel must permit them: ARCH_REQ_XCOMP_PERM for XTILEDATA.
    if (!leaf || !(edx >> 24 & 1) || syscall(SYS_arch_prctl, 0x1023, 18) != 0) {
        puts("no AMX here");
        return 3;
    }
    memset(inputs, 0x3f, sizeof inputs);
    configure();
    if (edx >> 22 & 1) measure("amx_bf16", bf16, 32);
    if (edx >> 25 & 1) measure("amx_int8", int8, 64);
    _tile_release();
    return 0;
}
