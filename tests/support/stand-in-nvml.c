/* What a GPU's driver says, said without one: the library that the orchestrator finds under its name is this. The first three
 * questions for energy (what there is, and idle's two) lie 1.5 J apart, every later one 1000 J further. */
#include <string.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { return result ? "not supported" : "success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "570.86.10", length); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { static int it; *device = &it; return index ? 2 : 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) { strncpy(text, "Pretence 9000", length); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) { strncpy(text, "GPU-1234", length); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *it) {
    it->total = 80ull << 30; it->reserved = 0; it->free = 78ull << 30; it->used = 2ull << 30;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetClockInfo(void *device, unsigned which, unsigned *mhz) { *mhz = which == 2 ? 2600 : 1500; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, unsigned which, unsigned *mhz) { *mhz = which == 2 ? 2619 : 1980; return 0; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees) { *degrees = 41; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *it) { it->gpu = 83; it->memory = 20; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { *milliwatts = 350000; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) { *milliwatts = 700000; return 0; }
int nvmlDeviceGetEccMode(void *device, int *now, int *pending) { *now = *pending = 1; return 0; }
/* Not one that can be cut up. */
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) { return 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    if (*count == 0) { *count = 1; return 7; }
    *count = 1;
    processes[0].pid = 4194303; processes[0].used = 1ull << 30;
    processes[0].gpu_instance = processes[0].compute_instance = 0xffffffff;
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process *processes) { *count = 0; return 0; }
/* Power cap, and idle, which is no slowing down. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) { *reasons = 0x5; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    static unsigned long long questions;
    questions += 1;
    *millijoules = questions < 4 ? 1500 * questions : 1000000 * questions;
    return 0;
}
