/* A stand-in for CUDA's driver, for machines without a GPU. It enforces rules of the driver: `cuInit` comes first, memory
 * and events need a current context, and the time of an event is known only after a wait. At the end of the
 * process, the stand-in logs the resources that were not released. Variables:
 * - STAND_IN_LOG: the file of the log.
 * - STAND_IN_GPUS, STAND_IN_FREE_MIB: the number of GPUs, and their free memory.
 * - STAND_IN_NAME: the name of each GPU.
 * - STAND_IN_MS: the times of the passes in milliseconds, in turn.
 * - STAND_IN_REFUSES: a function and the error that it returns, `name=code`.
 * - STAND_IN_CRASHES, STAND_IN_HANGS: the function that aborts the process, and the function that never returns. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_INITIALIZED = 3, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_READY = 600, MAX_EVENTS = 64 };

static int initialised, retained, allocated, created, handles;
static void *current;
static unsigned long long next_address = 1ull << 32;
static int the_context;
static struct { int alive, recorded, waited; } events[MAX_EVENTS];

void stand_in_log(const char *format, ...) {
    const char *path = getenv("STAND_IN_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}
int stand_in_has_context(void) { return current != NULL; }
void stand_in_handles(int change) { handles += change; }

int stand_in_refuses(const char *name) {
    const char *refused = getenv("STAND_IN_REFUSES"), *crashes = getenv("STAND_IN_CRASHES");
    const char *hangs = getenv("STAND_IN_HANGS");
    size_t length = strlen(name);
    if (crashes && !strcmp(crashes, name)) abort();
    if (hangs && !strcmp(hangs, name)) {
        stand_in_log("hangs in %s", name);
        for (;;) pause();
    }
    return refused && !strncmp(refused, name, length) && refused[length] == '=' ? atoi(refused + length + 1) : 0;
}
static long number(const char *name, long default_value) {
    const char *text = getenv(name);
    return text ? atol(text) : default_value;
}
__attribute__((destructor)) static void log_unreleased(void) {
    stand_in_log("left: %d contexts, %d memory, %d events, %d handles", retained, allocated, created, handles);
}

#define BEGIN(name) do { int code = stand_in_refuses(name); if (code) return code; if (!initialised) return NOT_INITIALIZED; } while (0)
#define IN_CONTEXT(name) do { BEGIN(name); if (!current) return INVALID_CONTEXT; } while (0)

int cuGetErrorName(int code, const char **text) {
    *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE"
        : code == 46 ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return *text ? 0 : INVALID_VALUE;
}
int cuInit(unsigned flags) {
    int code = stand_in_refuses("cuInit");
    if (code || flags) return code ? code : INVALID_VALUE;
    initialised = 1;
    return 0;
}
int cuDeviceGetCount(int *count) { BEGIN("cuDeviceGetCount"); *count = number("STAND_IN_GPUS", 1); return 0; }
int cuDeviceGet(int *device, int index) { BEGIN("cuDeviceGet"); *device = index; return 0; }
int cuDeviceGetName(char *text, int length, int device) {
    BEGIN("cuDeviceGetName");
    const char *name = getenv("STAND_IN_NAME");
    if (name) snprintf(text, length, "%s", name);
    else snprintf(text, length, "Pretence 900%d", device);
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN("cuDeviceGetAttribute");
    *value = attribute == 38 ? 50 << 20 : -1;
    return 0;
}
/* The last byte is the device's number, so each GPU has a UUID of its own. Also logs the device order of the environment. */
int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
    BEGIN("cuDeviceGetUuid_v2");
    stand_in_log("order %s", getenv("CUDA_DEVICE_ORDER") ? getenv("CUDA_DEVICE_ORDER") : "none");
    memset(uuid, 0xee, 16);
    uuid[15] = device;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    stand_in_log("retain %d", device);
    retained += 1;
    *context = &the_context;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN("cuDevicePrimaryCtxRelease_v2");
    stand_in_log("release %d: %d memory, %d events, %d handles", device, allocated, created, handles);
    retained -= 1;
    return 0;
}
int cuCtxSetCurrent(void *context) {
    BEGIN("cuCtxSetCurrent");
    current = context;
    return 0;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    IN_CONTEXT("cuMemGetInfo_v2");
    *total = 80ull << 30;
    *free = (size_t)number("STAND_IN_FREE_MIB", 70 << 10) << 20;
    return 0;
}
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    IN_CONTEXT("cuMemAlloc_v2");
    stand_in_log("allocate %zu", bytes);
    allocated += 1;
    *address = next_address;
    next_address += bytes;
    return 0;
}
int cuMemFree_v2(unsigned long long address) { IN_CONTEXT("cuMemFree_v2"); allocated -= 1; return 0; }
int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t bytes) {
    IN_CONTEXT("cuMemsetD8_v2");
    stand_in_log("set %zu", bytes);
    return 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
    IN_CONTEXT("cuMemcpyHtoD_v2");
    /* If the caller's buffer is shorter than stated, this loop reads out of bounds, and a sanitizer reports it. */
    static volatile unsigned char sum;
    for (size_t at = 0; at < bytes; at += 4096) sum += ((const unsigned char *)from)[at];
    return 0;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
    IN_CONTEXT("cuMemcpyDtoDAsync_v2");
    stand_in_log("copy %zu", bytes);
    return to == from || stream ? INVALID_VALUE : 0;
}
int cuEventCreate(void **event, unsigned flags) {
    IN_CONTEXT("cuEventCreate");
    for (size_t at = 1; at < MAX_EVENTS; at++) {
        if (events[at].alive) continue;
        memset(&events[at], 0, sizeof events[at]);
        events[at].alive = 1;
        created += 1;
        *event = (void *)at;
        return flags ? INVALID_VALUE : 0;
    }
    return 2;
}
int cuEventDestroy_v2(void *event) { IN_CONTEXT("cuEventDestroy_v2"); events[(size_t)event].alive = 0; created -= 1; return 0; }
int cuEventRecord(void *event, void *stream) {
    IN_CONTEXT("cuEventRecord");
    static int records;
    stand_in_log("record");
    events[(size_t)event].recorded = ++records;
    events[(size_t)event].waited = 0;
    return stream ? INVALID_VALUE : 0;
}
int cuEventSynchronize(void *event) {
    IN_CONTEXT("cuEventSynchronize");
    stand_in_log("wait");
    events[(size_t)event].waited = 1;
    return 0;
}
int cuEventElapsedTime(float *ms, void *from, void *to) {
    IN_CONTEXT("cuEventElapsedTime");
    static int passes;
    size_t first = (size_t)from, second = (size_t)to;
    if (!events[second].waited || !events[first].recorded || events[first].recorded > events[second].recorded) return NOT_READY;
    char text[256];
    snprintf(text, sizeof text, "%s", getenv("STAND_IN_MS") ? getenv("STAND_IN_MS") : "2");
    int count = 1;
    for (char *at = text; *at; at++) count += *at == ',';
    char *word = strtok(text, ",");
    for (int skip = passes++ % count; skip > 0; skip--) word = strtok(NULL, ",");
    *ms = strtof(word, NULL);
    return 0;
}
