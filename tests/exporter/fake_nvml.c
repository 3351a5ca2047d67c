/* A libnvidia-ml.so.1 without a driver: it answers from a file that the test also maps (tests/exporter/fake_nvml.py) and so can change
   what GPUs do, let a call hang, fail or be unsupported, and count calls. Structures are those of NVML; only the fields that the
   exporter reads are filled. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };

/* Calls that a test may count and disturb: fake_nvml.py reads this list. */
#define CALLS(X) \
  X(nvmlDeviceGetHandleByIndex_v2) \
  X(nvmlDeviceGetUtilizationRates) \
  X(nvmlDeviceGetMemoryInfo) \
  X(nvmlDeviceGetMemoryInfo_v2) \
  X(nvmlDeviceGetPowerUsage) \
  X(nvmlDeviceGetEnforcedPowerLimit) \
  X(nvmlDeviceGetTotalEnergyConsumption) \
  X(nvmlDeviceGetTemperature) \
  X(nvmlDeviceGetFanSpeed) \
  X(nvmlDeviceGetEncoderUtilization) \
  X(nvmlDeviceGetDecoderUtilization) \
  X(nvmlDeviceGetClockInfo) \
  X(nvmlDeviceGetCurrentClocksEventReasons) \
  X(nvmlDeviceGetCurrentClocksThrottleReasons) \
  X(nvmlDeviceGetFieldValues) \
  X(nvmlDeviceGetPcieReplayCounter) \
  X(nvmlDeviceGetCurrPcieLinkGeneration) \
  X(nvmlDeviceGetCurrPcieLinkWidth) \
  X(nvmlDeviceGetTotalEccErrors) \
  X(nvmlDeviceGetRemappedRows) \
  X(nvmlDeviceGetSamples) \
  X(nvmlDeviceGetComputeRunningProcesses_v3) \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
  X(nvmlDeviceGetProcessUtilization) \
  X(nvmlGpmSampleGet) \
  X(nvmlGpmMigSampleGet) \
  X(nvmlDeviceGetMigMode)

#define ENUMERATED(name) C_##name,
enum call { CALLS(ENUMERATED) CALL_COUNT };

typedef struct {
  uint32_t gpu_instance, compute_instance, graphics, present;
  uint64_t total, used;
  char uuid[96], name[96];
} Mig;

typedef struct {
  uint32_t pid, sm;
  uint64_t memory;
} Process;

typedef struct {
  char uuid[96], name[96], pci[32];
  uint32_t minor, lost, mig, gpm, utilization, memory_utilization, temperature, power, fan, encoder, decoder, sm_clock, memory_clock;
  uint32_t hanging, hung, process_count, xid, xid_count, sample_count, peak, recovery;
  uint64_t total, used, reserved, energy, limits, sample_time;
  int32_t result[64];
  uint32_t asked[64];
  Process process[8];
  Mig part[8];
} Gpu;

typedef struct {
  int32_t init_result;
  uint32_t gpu_count, hang_init, opened, closed;
  Gpu gpu[16];
} State;

static State *state;

static State *mapped(void) {
  const char *path = getenv("FAKE_NVML_STATE");
  int file = path ? open(path, O_RDWR) : -1;
  if (file < 0) return NULL;
  void *memory = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? NULL : memory;
}

static void hang(volatile uint32_t *still) {
  while (*still) usleep(10000);
}

static Mig *part_of(void *device) {
  size_t within = ((char *)device - (char *)state->gpu) % sizeof(Gpu);
  return within ? (Mig *)device : NULL;
}

static Gpu *gpu_of(void *device) {
  return &state->gpu[((char *)device - (char *)state->gpu) / sizeof(Gpu)];
}

static int enter(void *device, enum call call) {
  Gpu *gpu = gpu_of(device);
  gpu->asked[call]++;
  if (gpu->hanging == (uint32_t)call + 1) gpu->hung++;
  while (gpu->hanging == (uint32_t)call + 1) usleep(10000);
  return gpu->lost ? LOST : gpu->result[call];
}

#define ENTER(device, name) \
  do { int wrong = enter(device, C_##name); if (wrong) return wrong; } while (0)
#define WHOLE(device) \
  do { if (part_of(device)) return INVALID; } while (0)

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  if (!state) state = mapped();
  if (!state) return NOT_LOADED;
  hang(&state->hang_init);
  state->opened++;
  return state->init_result;
}
int nvmlShutdown(void) { state->closed++; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.95.05"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = state->gpu_count; return state->init_result; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= state->gpu_count) return INVALID;
  ENTER(&state->gpu[index], nvmlDeviceGetHandleByIndex_v2);
  *device = &state->gpu[index];
  return OK;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  Mig *part = part_of(device);
  snprintf(text, length, "%s", part ? part->uuid : gpu_of(device)->uuid);
  return OK;
}
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
  Mig *part = part_of(device);
  snprintf(text, length, "%s", part ? part->name : gpu_of(device)->name);
  return OK;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = gpu_of(device)->minor; return OK; }

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, pci_device, pci_subsystem;
  char bus_id[32];
} PciInfo;
int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *info) {
  memcpy(info->bus_id, gpu_of(device)->pci, sizeof info->bus_id);
  return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
  ENTER(device, nvmlDeviceGetMigMode);
  *current = *pending = gpu_of(device)->mig;
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { (void)device; *count = 8; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
  Mig *found = &gpu_of(device)->part[index];
  if (!found->present) return NOT_FOUND;
  *part = found;
  return OK;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *number) { *number = part_of(device)->gpu_instance; return OK; }
int nvmlDeviceGetComputeInstanceId(void *device, unsigned *number) { *number = part_of(device)->compute_instance; return OK; }

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
  ENTER(device, nvmlDeviceGetUtilizationRates);
  Gpu *gpu = gpu_of(device);
  if (gpu->mig) return NOT_SUPPORTED;
  rates[0] = gpu->utilization;
  rates[1] = gpu->memory_utilization;
  return OK;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long info[3]) {
  ENTER(device, nvmlDeviceGetMemoryInfo);
  Gpu *gpu = gpu_of(device);
  info[0] = gpu->total;
  info[2] = gpu->used + gpu->reserved;
  info[1] = info[0] - info[2];
  return OK;
}

static int number(void *device, enum call call, unsigned value, unsigned *answer) {
  int wrong = enter(device, call);
  if (wrong) return wrong;
  WHOLE(device);
  *answer = value;
  return OK;
}
#define NUMBER(name, field) \
  int name(void *device, unsigned *answer) { return number(device, C_##name, gpu_of(device)->field, answer); }
NUMBER(nvmlDeviceGetPowerUsage, power)
NUMBER(nvmlDeviceGetFanSpeed, fan)
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *answer) { return number(device, C_nvmlDeviceGetEnforcedPowerLimit, 700000, answer); }
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *answer) { return number(device, C_nvmlDeviceGetPcieReplayCounter, 3, answer); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *answer) { return number(device, C_nvmlDeviceGetCurrPcieLinkGeneration, 5, answer); }
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *answer) { return number(device, C_nvmlDeviceGetCurrPcieLinkWidth, 16, answer); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *answer) {
  (void)sensor;
  return number(device, C_nvmlDeviceGetTemperature, gpu_of(device)->temperature, answer);
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *answer) {
  Gpu *gpu = gpu_of(device);
  return number(device, C_nvmlDeviceGetClockInfo, clock == 1 ? gpu->sm_clock : gpu->memory_clock, answer);
}
int nvmlDeviceGetEncoderUtilization(void *device, unsigned *answer, unsigned *period) {
  *period = 1000000;
  return number(device, C_nvmlDeviceGetEncoderUtilization, gpu_of(device)->encoder, answer);
}
int nvmlDeviceGetDecoderUtilization(void *device, unsigned *answer, unsigned *period) {
  *period = 1000000;
  return number(device, C_nvmlDeviceGetDecoderUtilization, gpu_of(device)->decoder, answer);
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *answer) {
  ENTER(device, nvmlDeviceGetTotalEnergyConsumption);
  *answer = gpu_of(device)->energy;
  return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *answer) {
  ENTER(device, nvmlDeviceGetCurrentClocksThrottleReasons);
  *answer = gpu_of(device)->limits;
  return OK;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int scope, unsigned long long *answer) {
  ENTER(device, nvmlDeviceGetTotalEccErrors);
  *answer = 10 * kind + scope + 1;
  return OK;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  ENTER(device, nvmlDeviceGetRemappedRows);
  *corrected = 2, *uncorrected = 1, *pending = 1, *failed = 0;
  return OK;
}

typedef union { double real; unsigned small; unsigned long long large; } Value;
typedef struct { uint32_t field, scope; int64_t time, latency; int type, result; Value value; } FieldValue;
int nvmlDeviceGetFieldValues(void *device, int count, FieldValue *values) {
  ENTER(device, nvmlDeviceGetFieldValues);
  /* GPUs before Ampere retire pages, later ones remap rows. */
  int retires = gpu_of(device)->result[C_nvmlDeviceGetRemappedRows] != OK;
  for (int i = 0; i < count; i++) {
    values[i].result = OK;
    values[i].type = 3;
    switch (values[i].field) {
      case 82: values[i].type = 1; values[i].value.small = 61; break;
      case 138: values[i].value.large = values[i].scope == 0xFFFFFFFF ? 2048 : 1; break;
      case 139: values[i].value.large = values[i].scope == 0xFFFFFFFF ? 1024 : 1; break;
      case 230:
        values[i].type = 1;
        values[i].value.small = gpu_of(device)->recovery;
        /* 99: a driver that reports none. */
        if (gpu_of(device)->recovery == 99) values[i].result = NOT_SUPPORTED;
        break;
      case 29: case 30: case 31:
        values[i].value.large = values[i].field == 31 ? 1 : 30 - values[i].field + 4;
        if (retires) break;
        /* fall through */
      default: values[i].result = NOT_SUPPORTED;
    }
  }
  return OK;
}

typedef struct { unsigned long long time; Value value; } Sample;
int nvmlDeviceGetSamples(void *device, int kind, unsigned long long since, int *type, unsigned *count, Sample *samples) {
  (void)kind;
  ENTER(device, nvmlDeviceGetSamples);
  WHOLE(device);
  Gpu *gpu = gpu_of(device);
  *type = 1;
  if (!samples) { *count = 8; return OK; }
  if (gpu->sample_time <= since) return NOT_FOUND;
  *count = gpu->sample_count;
  for (unsigned i = 0; i < *count; i++) {
    samples[i].time = gpu->sample_time - i;
    samples[i].value.small = i ? gpu->utilization : gpu->peak;
  }
  return OK;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } ProcessInfo;
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *processes) {
  ENTER(device, nvmlDeviceGetComputeRunningProcesses_v3);
  Gpu *gpu = gpu_of(device);
  /* As in real drivers, a GPU also lists the processes of its MIG devices. */
  unsigned there = gpu->process_count;
  if (!there) { *count = 0; return OK; }
  if (!processes || *count < there) { *count = there; return SMALL; }
  *count = there;
  for (unsigned i = 0; i < there; i++) {
    processes[i].pid = gpu->process[i].pid;
    processes[i].memory = gpu->process[i].memory;
  }
  return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *processes) {
  ENTER(device, nvmlDeviceGetGraphicsRunningProcesses_v3);
  (void)processes;
  *count = 0;
  return OK;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *processes) {
  (void)device, (void)count, (void)processes;
  return NOT_SUPPORTED;
}
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } ProcessSample;
int nvmlDeviceGetProcessUtilization(void *device, ProcessSample *samples, unsigned *count, unsigned long long since) {
  ENTER(device, nvmlDeviceGetProcessUtilization);
  Gpu *gpu = gpu_of(device);
  if (gpu->sample_time <= since) return NOT_FOUND;
  if (!gpu->process_count) { *count = 0; return OK; }
  /* As in real drivers, there is one more sample from the past, of a process that ended. */
  if (!samples) { *count = gpu->process_count + 1; return SMALL; }
  for (unsigned i = 0; i < gpu->process_count; i++)
    samples[i] = (ProcessSample){gpu->process[i].pid, gpu->sample_time, gpu->process[i].sm, 0, 0, 0};
  samples[gpu->process_count] = (ProcessSample){gpu->process[0].pid, 0, 4000000000u, 0, 0, 0};
  *count = gpu->process_count + 1;
  return OK;
}

int nvmlEventSetCreate(void **set) { static int one; *set = &one; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { (void)device, (void)types, (void)set; return OK; }
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
int nvmlEventSetWait_v2(void *set, EventData *event, unsigned milliseconds) {
  (void)set, (void)milliseconds;
  for (unsigned i = 0; i < state->gpu_count; i++)
    if (state->gpu[i].xid_count) {
      state->gpu[i].xid_count--;
      *event = (EventData){&state->gpu[i], 8, state->gpu[i].xid, 0, 0};
      return OK;
    }
  return TIMEOUT;
}

#ifndef BEFORE_HOPPER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *info) {
  ENTER(device, nvmlDeviceGetMemoryInfo_v2);
  Gpu *gpu = gpu_of(device);
  Mig *part = part_of(device);
  info->total = part ? part->total : gpu->total;
  info->used = part ? part->used : gpu->used;
  info->reserved = part ? 0 : gpu->reserved;
  info->free = info->total - info->used - info->reserved;
  return info->version == 0x02000028 ? OK : INVALID;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *answer) {
  ENTER(device, nvmlDeviceGetCurrentClocksEventReasons);
  WHOLE(device);
  *answer = gpu_of(device)->limits;
  return OK;
}

typedef struct { unsigned version, supported; } GpmSupport;
int nvmlGpmQueryDeviceSupport(void *device, GpmSupport *support) { support->supported = gpu_of(device)->gpm; return OK; }
typedef struct { unsigned graphics; } GpmSample;
int nvmlGpmSampleAlloc(GpmSample **sample) { *sample = calloc(1, sizeof **sample); return OK; }
int nvmlGpmSampleFree(GpmSample *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *device, GpmSample *sample) {
  ENTER(device, nvmlGpmSampleGet);
  sample->graphics = gpu_of(device)->utilization;
  return OK;
}
int nvmlGpmMigSampleGet(void *device, unsigned gpu_instance, GpmSample *sample) {
  ENTER(device, nvmlGpmMigSampleGet);
  for (int i = 0; i < 8; i++)
    if (gpu_of(device)->part[i].present && gpu_of(device)->part[i].gpu_instance == gpu_instance)
      sample->graphics = gpu_of(device)->part[i].graphics;
  return OK;
}
typedef struct { unsigned id; int result; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *from, *to; GpmMetric metric[]; } GpmMetrics;
int nvmlGpmMetricsGet(GpmMetrics *question) {
  for (unsigned i = 0; i < question->count; i++) {
    GpmMetric *metric = &question->metric[i];
    metric->result = OK;
    switch (metric->id) {
      case 1: metric->value = question->to->graphics; break;
      case 2: metric->value = question->to->graphics / 2.0; break;
      case 10: metric->value = 12.5; break;
      case 20: metric->value = 2; break;
      case 5: metric->value = 0.0 / 0.0; break;
      default: metric->result = NOT_SUPPORTED;
    }
  }
  return OK;
}
#endif
