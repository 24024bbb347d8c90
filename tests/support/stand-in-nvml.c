/* A stand-in for NVIDIA's management library (NVML), on a machine without a GPU. The first three readings of a GPU's energy (one
 * for the list of counters, two for idle power) are 1.5 J apart, and every later one is 1000 J higher. Variables:
 * - STAND_IN_GPUS: the number of GPUs.
 * - STAND_IN_USED: the index of the GPU on which launches compute. While a launch lives, the GPU uses 3 GiB more.
 * - STAND_IN_PROCESSES: with `own`, that GPU names the launch's processes with 2 GiB each; with `none`, no process. Otherwise
 *   every GPU names a process of another machine, as with a host's process numbers.
 * - STAND_IN_ENERGY=none: there is no counter. STAND_IN_MIG: the first GPU is divided into two parts.
 * - STAND_IN_LOG: a file that gets a line for each call about a GPU: `energy`, or `device` for a handle.
 * - STAND_IN_HANGS_IN_ENERGY, STAND_IN_HANGS_IN_PROBE: the number of the call that never returns. It prints a line on stderr. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPUS = 8, MARKED = 16 };

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;

/* A handle points to its place: GPUs, and then the first one's parts. */
static char handles[GPUS + 2];
static int of(void *device) { return (char *)device - handles; }
static int number(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }
static int is_set(const char *name, const char *value) { return getenv(name) && !strcmp(getenv(name), value); }
static int is_used(void *device) { return of(device) == number("STAND_IN_USED", -1); }

static void note(const char *question) {
    FILE *log = getenv("STAND_IN_LOG") ? fopen(getenv("STAND_IN_LOG"), "a") : NULL;
    if (!log) return;
    fprintf(log, "%s\n", question);
    fclose(log);
}

/* Never comes back from the question that the variable counts to, nor from any later one. */
static void hang(const char *variable, int *calls) {
    if (++*calls < number(variable, 1 << 30)) return;
    fprintf(stderr, "stand-in: hangs\n");
    for (;;) pause();
}

/* Processes that carry a launch's mark. */
static unsigned marked(unsigned *pids) {
    unsigned count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *it; all && count < MARKED && (it = readdir(all));) {
        char path[300], text[1 << 16];
        if (!isdigit(it->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%s/environ", it->d_name);
        FILE *file = fopen(path, "r");
        size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file) fclose(file);
        text[length] = 0;
        /* Of this test's run alone: others run beside it. */
        const char *own = getenv("ORCHESTRATE_HOME");
        int launch = 0, here = 0;
        for (char *entry = text; entry < text + length; entry += strlen(entry) + 1) {
            launch |= !strncmp(entry, "ORCHESTRATE_LAUNCH=", 19);
            here |= own && !strncmp(entry, "ORCHESTRATE_HOME=", 17) && !strcmp(entry + 17, own);
        }
        if (launch && here) pids[count++] = atoi(it->d_name);
    }
    if (all) closedir(all);
    return count;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { return result ? "not supported" : "success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    static int calls;
    hang("STAND_IN_HANGS_IN_PROBE", &calls);
    strncpy(text, "570.86.10", length);
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("STAND_IN_GPUS", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    note("device");
    *device = &handles[index];
    return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    strncpy(text, of(device) < GPUS ? "Pretence 9000" : "Pretence 9000 MIG 1g.10gb", length);
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, of(device) < GPUS ? "GPU-%d234" : "MIG-%d234", of(device) % GPUS + 1);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci *it) {
    memset(it, 0, sizeof *it);
    snprintf(it->bus_id, sizeof it->bus_id, "00000000:%02X:00.0", 0x1b + of(device));
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *it) {
    unsigned pids[MARKED];
    unsigned long long more = is_used(device) && marked(pids) ? 3 : 0;
    it->total = 80ull << 30; it->reserved = 0; it->free = (78 - more) << 30; it->used = (2 + more) << 30;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetClockInfo(void *device, unsigned which, unsigned *mhz) { *mhz = which == 2 ? 2600 : 1500; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, unsigned which, unsigned *mhz) { *mhz = which == 2 ? 2619 : 1980; return 0; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees) { *degrees = 41; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *it) {
    if (getenv("STAND_IN_MIG") && of(device) == 0) return NOT_SUPPORTED;
    it->gpu = 83; it->memory = 20;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = of(device) ? 70000 : 412000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { *milliwatts = 350000; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) { *milliwatts = 700000; return 0; }
int nvmlDeviceGetEccMode(void *device, int *now, int *pending) { *now = *pending = 1; return 0; }
/* Else it is not one that can be cut up. */
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    *now = *pending = getenv("STAND_IN_MIG") && of(device) == 0;
    return getenv("STAND_IN_MIG") ? 0 : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { *count = 7; return 0; }
/* One place is empty. */
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
    if (index != 0 && index != 2) return NOT_FOUND;
    *part = &handles[GPUS + index / 2];
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    unsigned pids[MARKED] = {4194303}, found = 1, room = *count;
    unsigned long long each = 1ull << 30;
    if (is_set("STAND_IN_PROCESSES", "none")) found = 0;
    if (is_set("STAND_IN_PROCESSES", "own")) { found = is_used(device) ? marked(pids) : 0; each = 2ull << 30; }
    *count = found;
    if (room < found) return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < found; at++) {
        processes[at].pid = pids[at];
        processes[at].used = each;
        processes[at].gpu_instance = processes[at].compute_instance = 0xffffffff;
    }
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process *processes) { *count = 0; return 0; }
/* Power cap, and idle, which is no slowing down. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { *reasons = 0x5; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    static unsigned long long energy_calls[GPUS];
    static int all;
    note("energy");
    hang("STAND_IN_HANGS_IN_ENERGY", &all);
    if (is_set("STAND_IN_ENERGY", "none")) return NOT_SUPPORTED;
    unsigned long long calls = ++energy_calls[of(device)];
    *millijoules = calls < 4 ? 1500 * calls : 1000000 * calls;
    return 0;
}
