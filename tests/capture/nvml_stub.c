/* A small libnvidia-ml.so.1 for tests: the real nvidia-ml-py calls it, so its ctypes code runs for real.
 *
 * Faults come from the file named by NVML_STUB, read at every call: lines `key value`.
 *   gpus N | lost I | hang 1 | xid I CODE (once) | unsupported 1 (utilisation) | unknown 1 | step N (of the energy counter)
 *   utilization N (of GPU 0, in percent; 50) |
 *   start N (first value of the PCIe counter, 32 bits) | init CODE | gpm 0 | mig 1
 * -DNO_CLOCKS leaves nvmlDeviceGetClockInfo out: a driver that lacks a symbol.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define UNKNOWN 999

typedef struct { unsigned index; } device;
typedef device *handle;
static device devices[16], slices[16];

static long setting2(const char *key, long fallback, long *second) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[64];
    long a, b, found = fallback;
    char line[128];
    if (!file) return fallback;
    while (fgets(line, sizeof line, file)) {
        b = 0;
        if (sscanf(line, "%63s %ld %ld", name, &a, &b) >= 2 && !strcmp(name, key)) {
            found = a;
            if (second) *second = b;
        }
    }
    fclose(file);
    return found;
}
static long setting(const char *key, long fallback) { return setting2(key, fallback, NULL); }

static int check(handle h) {
    if (setting("hang", 0)) for (;;) sleep(3600);
    if (setting("unknown", 0)) return UNKNOWN;
    return setting("lost", -1) == (long)h->index ? GPU_IS_LOST : OK;
}
#define CHECK(h) do { int code = check(h); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)setting("init", OK); }
int nvmlInit_v2(void) { return (int)setting("init", OK); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : code == UNKNOWN ? "Unknown Error" : "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)setting("gpus", 2); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *h) { devices[i].index = i; *h = &devices[i]; return OK; }
static int is_slice(handle h) { return h >= slices && h < slices + 16; }
int nvmlDeviceGetUUID(handle h, char *uuid, unsigned n) { snprintf(uuid, n, is_slice(h) ? "MIG-%u" : "GPU-%u", h->index); return OK; }
int nvmlDeviceGetName(handle h, char *name, unsigned n) { (void)h; snprintf(name, n, "NVIDIA H100 80GB HBM3"); return OK; }

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo(handle h, memory *m) { (void)h; m->total = 80ull << 30; m->used = 1ull << 30; m->free = m->total - m->used; return OK; }
int nvmlDeviceGetMemoryInfo_v2(handle h, memory_v2 *m) { CHECK(h); m->total = 80ull << 30; m->reserved = 0; m->used = (h->index + 1ull) << 30; m->free = m->total - m->used; return OK; }

typedef struct { unsigned gpu, memory; } utilization;
int nvmlDeviceGetUtilizationRates(handle h, utilization *u) { CHECK(h); if (setting("unsupported", 0)) return NOT_SUPPORTED; u->gpu = (unsigned)setting("utilization", 50) + h->index; u->memory = 10; return OK; }
#ifndef NO_CLOCKS
int nvmlDeviceGetClockInfo(handle h, unsigned kind, unsigned *mhz) { CHECK(h); *mhz = kind == 1 ? 1980 : 2619; return OK; }
#endif
int nvmlDeviceGetCurrentClocksEventReasons(handle h, unsigned long long *bits) { CHECK(h); *bits = 4; return OK; }
typedef struct { unsigned version, sensor; int celsius; } temperature;
int nvmlDeviceGetTemperatureV(handle h, temperature *t) { CHECK(h); t->celsius = 60 + (int)h->index; return OK; }

typedef struct { uint32_t id, scope; int64_t timestamp, latency; int type, code; union { double d; uint32_t u; uint64_t ull; } value; } field;
static uint64_t energy[16];
static uint32_t pcie[16];
static int started;
int nvmlDeviceGetFieldValues(handle h, int count, field *fields) {
    CHECK(h);
    if (!started) { for (int i = 0; i < 16; i++) pcie[i] = (uint32_t)setting("start", 0); started = 1; }
    for (int i = 0; i < count; i++) {
        field *f = &fields[i];
        f->code = OK; f->type = 3; f->latency = 7;
        switch (f->id) {
        case 186: f->type = 1; f->value.u = 700000; break;
        case 83: f->value.ull = energy[h->index] += (uint64_t)setting("step", 1000); break;
        case 82: f->type = 1; f->value.u = 70; break;
        case 74: f->value.ull = 2000000000ull; break;
        case 197: f->type = 1; f->value.u = pcie[h->index] += 1000; break;
        case 138: f->value.ull = f->scope == 0xFFFFFFFFu ? 4 : 1; break;
        case 4: case 142: case 143: case 144: case 145: f->type = 1; f->value.u = h->index; break;
        default: f->code = NOT_SUPPORTED;
        }
    }
    return OK;
}

typedef struct { unsigned version, supported; } gpm_support;
typedef struct { unsigned id; int code; double value; char *a, *b, *c; } gpm_metric;
typedef struct { unsigned version, count; void *before, *now; gpm_metric metrics[]; } gpm_request;
int nvmlGpmQueryDeviceSupport(handle h, gpm_support *s) { CHECK(h); s->supported = (unsigned)setting("gpm", 1); return OK; }
int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, 16); return OK; }
int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(handle h, void *sample) { CHECK(h); *(int *)sample += 1; return OK; }
int nvmlGpmMigSampleGet(handle h, unsigned instance, void *sample) { CHECK(h); (void)instance; *(int *)sample += 1; return OK; }
int nvmlGpmMetricsGet(gpm_request *r) {
    for (unsigned i = 0; i < r->count; i++) {
        r->metrics[i].code = OK;
        r->metrics[i].value = r->metrics[i].id == 2 ? 80.0 : r->metrics[i].id == 5 ? 45.0 : 30.0;
    }
    return OK;
}

typedef struct { handle device; unsigned long long type, data; unsigned gi, ci; } event;
static int told;
int nvmlEventSetCreate(void **set) { *set = &told; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(handle h, unsigned long long *types) { (void)h; *types = 8; return OK; }
int nvmlDeviceRegisterEvents(handle h, unsigned long long types, void *set) { (void)h; (void)types; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, event *e, unsigned ms) {
    long code = 0, index = setting2("xid", -1, &code);
    (void)set;
    if (index >= 0 && !told) {
        told = 1;
        devices[index].index = (unsigned)index;
        e->device = &devices[index]; e->type = 8; e->data = (unsigned long long)code;
        return OK;
    }
    usleep(ms * 100);
    return TIMEOUT;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *count, process *list) {
    CHECK(h);
    if (!list || *count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1; list[0].pid = 42; list[0].used = 1 << 20;
    return OK;
}
int nvmlDeviceGetMigMode(handle h, unsigned *now, unsigned *next) { *now = *next = h->index == 0 ? (unsigned)setting("mig", 0) : 0; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(handle h, unsigned *count) { (void)h; *count = 2; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(handle h, unsigned i, handle *part) { (void)h; slices[i].index = i + 8; *part = &slices[i]; return OK; }
int nvmlDeviceGetGpuInstanceId(handle h, unsigned *id) { *id = h->index; return OK; }
