/* A libnvidia-ml.so.1 without a GPU, for tests: one device, whose facts stand in device.txt. A fact `unsupported = NAME` per
   function makes that function answer as GPUs do that cannot say. */

#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static int ready, gpu, slice;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static int answer(const char *function) {
    int code = scripted(function);
    if (code) return code;
    if (!ready) return UNINITIALIZED;
    for (size_t i = 0; each("unsupported", i); i++)
        if (!strcmp(each("unsupported", i), function)) return NOT_SUPPORTED;
    return SUCCESS;
}

#define BEGIN(name)                  \
    do {                             \
        int code = answer(#name);    \
        if (code) return code;       \
    } while (0)

static int said(char *to, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static int told(unsigned *to, const char *name, unsigned otherwise) {
    *to = (unsigned)number(name, otherwise);
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
    case INVALID_ARGUMENT: return "A supplied argument is invalid";
    case NOT_SUPPORTED: return "The requested operation is not available on target device";
    case NOT_FOUND: return "A query to find an object was unsuccessful";
    case INSUFFICIENT_SIZE: return "An input argument is not large enough";
    case 9: return "NVIDIA driver is not loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlInit_v2(void) {
    int code = scripted("nvmlInit");
    ready = !code;
    return code;
}
int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    BEGIN(nvmlSystemGetDriverVersion);
    return said(to, size, fact("driver", "610.43.02"));
}
int nvmlSystemGetNVMLVersion(char *to, unsigned size) {
    BEGIN(nvmlSystemGetNVMLVersion);
    return said(to, size, fact("driver", "610.43.02"));
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    BEGIN(nvmlSystemGetCudaDriverVersion);
    *version = (int)number("cuda_version", 13030);
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN(nvmlDeviceGetCount);
    *count = 1;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    BEGIN(nvmlDeviceGetHandleByIndex);
    *device = &gpu;
    return index ? INVALID_ARGUMENT : SUCCESS;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    BEGIN(nvmlDeviceGetHandleByPciBusId);
    *device = &gpu;
    return strcmp(bus, "0000:17:00.0") ? NOT_FOUND : SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    BEGIN(nvmlDeviceGetHandleByUUID);
    if (!strncmp(uuid, "MIG-", 4)) {
        *device = &slice;
        return fact("mig", "")[0] && !strcmp(uuid, fact("mig_uuid", "MIG-5a1d0000-0000-5000-8000-00000000cafe")) ? SUCCESS : NOT_FOUND;
    }
    *device = &gpu;
    const char *own = fact("uuid", "GPU-5a1d0000-0000-4000-8000-00000000cafe");
    return strncmp(uuid, own, strlen(uuid)) ? NOT_FOUND : SUCCESS;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) {
    BEGIN(nvmlDeviceGetIndex);
    (void)device;
    *index = 0;
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *to, unsigned size) {
    BEGIN(nvmlDeviceGetName);
    char name[200];
    snprintf(name, sizeof name, device == &slice ? "%s MIG %s" : "%s", fact("product", "NVIDIA L40S"), fact("mig", ""));
    return said(to, size, name);
}
int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
    BEGIN(nvmlDeviceGetUUID);
    if (device == &slice) return said(to, size, fact("mig_uuid", "MIG-5a1d0000-0000-5000-8000-00000000cafe"));
    return said(to, size, fact("uuid", "GPU-5a1d0000-0000-4000-8000-00000000cafe"));
}
int nvmlDeviceGetVbiosVersion(void *device, char *to, unsigned size) {
    BEGIN(nvmlDeviceGetVbiosVersion);
    (void)device;
    return said(to, size, fact("vbios", "95.02.66.00.02"));
}

/* Clock types: 0 graphics, 1 SM, 2 memory, 3 video. */
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) {
    BEGIN(nvmlDeviceGetClockInfo);
    (void)device;
    return type == 2 ? told(mhz, "memory_clock", 9001) : told(mhz, "sm_clock", 2520);
}
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) {
    BEGIN(nvmlDeviceGetMaxClockInfo);
    (void)device;
    return type == 2 ? told(mhz, "max_memory_clock", 9001) : told(mhz, "max_sm_clock", 2520);
}
int nvmlDeviceGetApplicationsClock(void *device, int type, unsigned *mhz) {
    BEGIN(nvmlDeviceGetApplicationsClock);
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    BEGIN(nvmlDeviceGetTemperature);
    (void)device;
    return sensor ? INVALID_ARGUMENT : told(celsius, "temperature", 41);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    BEGIN(nvmlDeviceGetPowerUsage);
    (void)device;
    return told(milliwatts, "power_milliwatts", 36500);
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts) {
    BEGIN(nvmlDeviceGetPowerManagementLimit);
    (void)device;
    return told(milliwatts, "power_limit_milliwatts", 350000);
}
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    BEGIN(nvmlDeviceGetEnforcedPowerLimit);
    (void)device;
    return told(milliwatts, "power_limit_milliwatts", 350000);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) {
    BEGIN(nvmlDeviceGetPowerManagementDefaultLimit);
    (void)device;
    return told(milliwatts, "default_power_limit_milliwatts", 350000);
}
int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *pending) {
    BEGIN(nvmlDeviceGetEccMode);
    (void)device;
    told(pending, "ecc", 1);
    return told(now, "ecc", 1);
}
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) {
    BEGIN(nvmlDeviceGetPersistenceMode);
    (void)device;
    return told(mode, "persistence", 1);
}
int nvmlDeviceGetPerformanceState(void *device, unsigned *state) {
    BEGIN(nvmlDeviceGetPerformanceState);
    (void)device;
    return told(state, "performance_state", 0);
}
int nvmlDeviceGetComputeMode(void *device, unsigned *mode) {
    BEGIN(nvmlDeviceGetComputeMode);
    (void)device;
    return told(mode, "compute_mode", 0);
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    BEGIN(nvmlDeviceGetCudaComputeCapability);
    (void)device;
    return sscanf(fact("capability", "8.9"), "%d.%d", major, minor) == 2 ? SUCCESS : INVALID_ARGUMENT;
}

static int reasons(const char *function, unsigned long long *mask) {
    static unsigned long asked;
    int code = answer(function);
    if (code) return code;
    pthread_mutex_lock(&counting);
    *mask = 0;
    for (size_t i = 0; each("throttle", i); i++) {
        unsigned long from = 0;
        char text[64] = "0";
        sscanf(each("throttle", i), "%lu %63s", &from, text);
        if (asked >= from) *mask = strtoull(text, NULL, 0);
    }
    asked++;
    pthread_mutex_unlock(&counting);
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *mask) {
    (void)device;
    return reasons("nvmlDeviceGetCurrentClocksThrottleReasons", mask);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask) {
    (void)device;
    return reasons("nvmlDeviceGetCurrentClocksEventReasons", mask);
}

typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    BEGIN(nvmlDeviceGetUtilizationRates);
    if (device == &slice) return NOT_SUPPORTED;
    told(&rates->gpu, "utilization", 0);
    return told(&rates->memory, "memory_utilization", 0);
}

static unsigned long long total(void) { return number("memory_total", 48ULL << 30); }
static unsigned long long taken(void *device) { return number(device == &slice ? "mig_memory_used" : "memory_used", 0); }

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    BEGIN(nvmlDeviceGetMemoryInfo);
    unsigned long long used = taken(device);
    *memory = (Memory){total(), total() - used, used};
    return SUCCESS;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
    BEGIN(nvmlDeviceGetMemoryInfo);
    unsigned long long used = taken(device);
    *memory = (Memory2){memory->version, total(), 0, total() - used, used};
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
static int processes(const char *function, const char *kind, unsigned *count, Process *found) {
    unsigned there = 0, fits = *count;
    int code = answer(function);
    if (code) return code;
    for (; each(kind, there); there++) {
        Process one = {0, ~0ULL, ~0U, ~0U};
        sscanf(each(kind, there), "%u %llu", &one.pid, &one.memory);
        if (there < fits && found) found[there] = one;
    }
    *count = there;
    return there > fits ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    return processes("nvmlDeviceGetComputeRunningProcesses", device == &slice ? "mig_process" : "process", count, found);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    (void)device;
    return processes("nvmlDeviceGetGraphicsRunningProcesses", "graphics_process", count, found);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    (void)device;
    return processes("nvmlDeviceGetMPSComputeRunningProcesses", "mps_process", count, found);
}

/* MIG: `mig = 1g.12gb` makes one instance, with a `mig_uuid`, `mig_memory_used` and `mig_process`es of its own. The CUDA driver gives
   its number, or with `mig_hidden = 1` that of the whole GPU. */
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    BEGIN(nvmlDeviceGetMigMode);
    (void)device;
    *now = *pending = fact("mig", "")[0] != 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    BEGIN(nvmlDeviceGetMaxMigDeviceCount);
    (void)device;
    *count = fact("mig", "")[0] ? 7 : 0;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **found) {
    BEGIN(nvmlDeviceGetMigDeviceHandleByIndex);
    (void)device;
    *found = &slice;
    return index || !fact("mig", "")[0] ? NOT_FOUND : SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is) {
    BEGIN(nvmlDeviceIsMigDeviceHandle);
    *is = device == &slice;
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
    BEGIN(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    *device = &gpu;
    return instance == &slice ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    BEGIN(nvmlDeviceGetGpuInstanceId);
    *id = 1;
    return device == &slice ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
    BEGIN(nvmlDeviceGetComputeInstanceId);
    *id = 0;
    return device == &slice ? SUCCESS : NOT_SUPPORTED;
}
