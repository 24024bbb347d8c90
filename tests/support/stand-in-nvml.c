/* A stand-in for NVIDIA's management library (NVML), for machines without a GPU. The first three readings of a GPU's energy (one
 * for the list of counters, two for idle power) are 1.5 J apart. Every later reading is its number times 1000 J. Variables:
 * - STAND_IN_GPUS: the number of GPUs.
 * - STAND_IN_USED: the index of the GPU on which launches compute. While a launch lives, the GPU uses 3 GiB more.
 * - STAND_IN_PROCESSES: with `own`, that GPU names the launch's processes with 2 GiB each; with `none`, no process. Otherwise
 *   every GPU names a process number that does not exist here, as in a container that sees the host's numbers.
 * - STAND_IN_ENERGY=none: there is no counter. STAND_IN_MIG: the first GPU has two MIG devices.
 * - STAND_IN_LOG: a file that gets a line for each reading of energy (`energy`) and for each handle (`device`).
 * - STAND_IN_HANGS_IN_ENERGY, STAND_IN_HANGS_IN_PROBE: the number of the first call that never returns. It prints a line
 *   on stderr. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, MAX_GPUS = 8, MAX_PROCESSES = 16 };

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;

/* A handle points into this array: the GPUs, then the MIG devices of the first GPU. */
static char handles[MAX_GPUS + 2];
static int index_of(void *device) { return (char *)device - handles; }
static int number(const char *name, int default_value) { return getenv(name) ? atoi(getenv(name)) : default_value; }
static int is_set(const char *name, const char *value) { return getenv(name) && !strcmp(getenv(name), value); }
static int is_used(void *device) { return index_of(device) == number("STAND_IN_USED", -1); }

static void log_call(const char *call) {
    FILE *log = getenv("STAND_IN_LOG") ? fopen(getenv("STAND_IN_LOG"), "a") : NULL;
    if (!log) return;
    fprintf(log, "%s\n", call);
    fclose(log);
}

/* Hangs forever in the call whose number the variable gives, and in every later call. */
static void maybe_hang(const char *variable, int *calls) {
    if (++*calls < number(variable, 1 << 30)) return;
    fprintf(stderr, "stand-in: hangs\n");
    for (;;) pause();
}

/* Finds the processes of launches of this test's run, by their environment. */
static unsigned launch_processes(unsigned *pids) {
    unsigned count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *it; all && count < MAX_PROCESSES && (it = readdir(all));) {
        char path[300], text[1 << 16];
        if (!isdigit(it->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%s/environ", it->d_name);
        FILE *file = fopen(path, "r");
        size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file) fclose(file);
        text[length] = 0;
        /* Only processes of this test's run count, because other tests run at the same time. */
        const char *home = getenv("ORCHESTRATE_HOME");
        int of_launch = 0, of_test = 0;
        for (char *entry = text; entry < text + length; entry += strlen(entry) + 1) {
            of_launch |= !strncmp(entry, "ORCHESTRATE_LAUNCH=", 19);
            of_test |= home && !strncmp(entry, "ORCHESTRATE_HOME=", 17) && !strcmp(entry + 17, home);
        }
        if (of_launch && of_test) pids[count++] = atoi(it->d_name);
    }
    if (all) closedir(all);
    return count;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { return result ? "not supported" : "success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    static int calls;
    maybe_hang("STAND_IN_HANGS_IN_PROBE", &calls);
    strncpy(text, "570.86.10", length);
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("STAND_IN_GPUS", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= MAX_GPUS) return INVALID_ARGUMENT;
    log_call("device");
    *device = &handles[index];
    return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    strncpy(text, index_of(device) < MAX_GPUS ? "Pretence 9000" : "Pretence 9000 MIG 1g.10gb", length);
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, index_of(device) < MAX_GPUS ? "GPU-%d234" : "MIG-%d234", index_of(device) % MAX_GPUS + 1);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci *it) {
    memset(it, 0, sizeof *it);
    snprintf(it->bus_id, sizeof it->bus_id, "00000000:%02X:00.0", 0x1b + index_of(device));
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *it) {
    unsigned pids[MAX_PROCESSES];
    unsigned long long more = is_used(device) && launch_processes(pids) ? 3 : 0;
    it->total = 80ull << 30; it->reserved = 0; it->free = (78 - more) << 30; it->used = (2 + more) << 30;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetClockInfo(void *device, unsigned clock, unsigned *mhz) { *mhz = clock == 2 ? 2600 : 1500; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, unsigned clock, unsigned *mhz) { *mhz = clock == 2 ? 2619 : 1980; return 0; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees) { *degrees = 41; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *it) {
    if (getenv("STAND_IN_MIG") && index_of(device) == 0) return NOT_SUPPORTED;
    it->gpu = 83; it->memory = 20;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = index_of(device) ? 70000 : 412000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { *milliwatts = 350000; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) { *milliwatts = 700000; return 0; }
int nvmlDeviceGetEccMode(void *device, int *now, int *pending) { *now = *pending = 1; return 0; }
/* Without STAND_IN_MIG, the GPU does not support MIG. */
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    *now = *pending = getenv("STAND_IN_MIG") && index_of(device) == 0;
    return getenv("STAND_IN_MIG") ? 0 : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { *count = 7; return 0; }
/* The MIG devices have the indices 0 and 2. */
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig_device) {
    if (index != 0 && index != 2) return NOT_FOUND;
    *mig_device = &handles[MAX_GPUS + index / 2];
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    unsigned pids[MAX_PROCESSES] = {4194303}, listed = 1, capacity = *count;
    unsigned long long bytes = 1ull << 30;
    if (is_set("STAND_IN_PROCESSES", "none")) listed = 0;
    if (is_set("STAND_IN_PROCESSES", "own")) { listed = is_used(device) ? launch_processes(pids) : 0; bytes = 2ull << 30; }
    *count = listed;
    if (capacity < listed) return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < listed; at++) {
        processes[at].pid = pids[at];
        processes[at].used = bytes;
        processes[at].gpu_instance = processes[at].compute_instance = 0xffffffff;
    }
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process *processes) { *count = 0; return 0; }
/* The bits for a power cap and for idle. Idle does not count as slowed down. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { *reasons = 0x5; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    static unsigned long long energy_calls[MAX_GPUS];
    static int calls_of_all;
    log_call("energy");
    maybe_hang("STAND_IN_HANGS_IN_ENERGY", &calls_of_all);
    if (is_set("STAND_IN_ENERGY", "none")) return NOT_SUPPORTED;
    unsigned long long calls = ++energy_calls[index_of(device)];
    *millijoules = calls < 4 ? 1500 * calls : 1000000 * calls;
    return 0;
}
