/* A libcuda.so.1 without a GPU, for tests: what is enqueued is done at once on the host, in the order in which it is issued, and
   moves the clock of its stream. Events read that clock, so nothing ever waits. Device memory is host memory.

   Beyond the driver's own functions there are three for the stand-in of TensorRT: stand_in_enqueue, stand_in_owns and
   stand_in_capturing. */

#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, ILLEGAL_STATE = 401
};

static const struct { int code; const char *name, *text; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {35, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
};

typedef struct { double at; int recorded, timed; struct Capture *in; } Event;

/* Seconds of device time, or minus a CUDA error. `replayed`: by a graph. */
typedef double (*Work)(void *token, int replayed);

typedef struct {
    enum { WORK, COPY, FILL, RECORD, WAIT, CALL } kind;
    Work work;
    void *token, *to;
    const void *from;
    size_t size;
    int value;
    Event *event;
    void (*call)(void *);
} Op;

typedef struct Capture { Op *ops; size_t count; int broken, mode; } Graph;

enum { STREAM = 0x57A1D1 };
typedef struct { int magic; double now; Graph *capture; int origin; } Stream;

typedef struct Block { char *start; size_t size; struct Block *next; } Block;

static pthread_mutex_t whole;
static int ready, sticky, captures;
static Stream legacy = {STREAM, 0, NULL, 0};
static Block *blocks;
static size_t used;
static _Thread_local void *current;
static int context;

__attribute__((constructor)) static void prepare(void) {
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&whole, &recursive);
}

static void leave(const int *held) {
    (void)held;
    pthread_mutex_unlock(&whole);
}

/* Begins every function: one thread at a time, the scripted error, and what cuInit and an earlier fault make of it. */
#define BEGIN(name)                                                                    \
    pthread_mutex_lock(&whole);                                                        \
    __attribute__((cleanup(leave))) int held = 0;                                      \
    (void)held;                                                                        \
    do {                                                                               \
        int code = scripted(#name);                                                    \
        if (!ready && strcmp(#name, "cuInit")) return NOT_INITIALIZED;                 \
        if (sticky) return sticky;                                                     \
        if (code == ILLEGAL_ADDRESS || code == LAUNCH_FAILED) sticky = code;           \
        if (code) return code;                                                         \
    } while (0)

/* While a stream captures for all threads (mode 0), nothing may allocate or wait. */
#define NOT_WHILE_CAPTURING() if (captures) return CAPTURE_UNSUPPORTED

static Stream *stream_of(void *handle) {
    if (handle == NULL || handle == (void *)1 || handle == (void *)2) return &legacy;
    Stream *stream = handle;
    return stream->magic == STREAM ? stream : NULL;
}

static size_t total(void) { return (size_t)number("memory_total", 48ULL << 30); }

/* The driver keeps what others use, and what is said to be taken. */
static size_t room(void) {
    size_t taken = (size_t)number("memory_used", 0) + used;
    return taken > total() ? 0 : total() - taken;
}

static int owns(CUdeviceptr at, size_t size) {
    for (Block *block = blocks; block; block = block->next)
        if ((char *)at >= block->start && (char *)at + size <= block->start + block->size) return 1;
    return 0;
}

static void perform(Stream *stream, const Op *op, int replayed) {
    switch (op->kind) {
    case WORK: {
        double seconds = op->work(op->token, replayed);
        if (seconds < 0) sticky = (int)-seconds; /* found out by the next call, as kernels run behind the host's back */
        else stream->now += seconds;
        break;
    }
    case COPY:
        memmove(op->to, op->from, op->size);
        stream->now += 3e-6 + (double)op->size / 25e9;
        break;
    case FILL:
        memset(op->to, op->value, op->size);
        stream->now += 2e-6;
        break;
    case RECORD:
        op->event->at = stream->now;
        op->event->recorded = 1;
        break;
    case WAIT:
        if (op->event->recorded && op->event->at > stream->now) stream->now = op->event->at;
        break;
    case CALL:
        op->call(op->token);
        break;
    }
}

static CUresult issue(void *handle, Op op) {
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (!stream->capture) {
        perform(stream, &op, 0);
        return SUCCESS;
    }
    Graph *graph = stream->capture;
    graph->ops = realloc(graph->ops, (graph->count + 1) * sizeof op);
    graph->ops[graph->count++] = op;
    return SUCCESS;
}

static CUresult settled(void *handle) {
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) {
        stream->capture->broken = 1;
        return CAPTURE_UNSUPPORTED;
    }
    return SUCCESS;
}

/* For the stand-in of TensorRT: work on a stream, done when it is issued or whenever the graph that captures it is launched. */
CUresult stand_in_enqueue(void *stream, Work work, void *token) {
    BEGIN(stand_in_enqueue);
    return issue(stream, (Op){.kind = WORK, .work = work, .token = token});
}

int stand_in_owns(CUdeviceptr at, size_t size) {
    pthread_mutex_lock(&whole);
    int found = owns(at, size);
    pthread_mutex_unlock(&whole);
    return found;
}

int stand_in_capturing(void *handle) {
    Stream *stream = stream_of(handle);
    return stream && stream->capture != NULL;
}

CUresult cuGetErrorString(int code, const char **text) {
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *text = errors[i].text;
    return *text ? SUCCESS : INVALID_VALUE;
}

CUresult cuGetErrorName(int code, const char **text) {
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *text = errors[i].name;
    return *text ? SUCCESS : INVALID_VALUE;
}

CUresult cuInit(unsigned flags) {
    BEGIN(cuInit);
    if (flags) return INVALID_VALUE;
    if (!strcmp(fact("product", ""), "none")) return NO_DEVICE;
    ready = 1;
    return SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = (int)number("cuda_version", 13030);
    return SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    BEGIN(cuDeviceGetCount);
    *count = 1;
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    BEGIN(cuDeviceGet);
    if (ordinal) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    BEGIN(cuDeviceGetName);
    (void)device;
    snprintf(name, (size_t)size, "%s", fact("product", "NVIDIA L40S"));
    return SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *name, int size, CUdevice device) {
    BEGIN(cuDeviceGetPCIBusId);
    (void)device;
    snprintf(name, (size_t)size, "0000:17:00.0");
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    BEGIN(cuDeviceGetUuid);
    (void)device;
    const char *text = fact("uuid", "GPU-5a1d0000-0000-4000-8000-00000000cafe");
    if (fact("mig", "")[0] && !number("mig_hidden", 0)) text = fact("mig_uuid", "MIG-5a1d0000-0000-5000-8000-00000000cafe");
    int digits = 0;
    for (text += 4; *text && digits < 32; text++) {
        int value = *text >= 'a' ? *text - 'a' + 10 : *text - '0';
        if (*text == '-') continue;
        uuid[digits / 2] = (unsigned char)(digits % 2 ? uuid[digits / 2] << 4 | value : value);
        digits++;
    }
    return SUCCESS;
}

CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    BEGIN(cuDeviceTotalMem);
    (void)device;
    *bytes = total();
    return SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    BEGIN(cuDeviceGetAttribute);
    (void)device;
    int major = 8, minor = 9;
    sscanf(fact("capability", "8.9"), "%d.%d", &major, &minor);
    switch (attribute) {
    case 75: *value = major; break;
    case 76: *value = minor; break;
    case 16: *value = (int)number("multiprocessors", 142); break;
    case 38: *value = (int)number("l2_bytes", 96 << 20); break;
    case 41: *value = 1; break; /* unified addressing */
    default: *value = 0;
    }
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(void **made, CUdevice device) {
    BEGIN(cuDevicePrimaryCtxRetain);
    (void)device;
    *made = &context;
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    BEGIN(cuDevicePrimaryCtxRelease);
    (void)device;
    return SUCCESS;
}

CUresult cuCtxSetCurrent(void *wanted) {
    BEGIN(cuCtxSetCurrent);
    current = wanted;
    return SUCCESS;
}

CUresult cuCtxGetCurrent(void **found) {
    BEGIN(cuCtxGetCurrent);
    *found = current;
    return SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    BEGIN(cuCtxGetDevice);
    *device = 0;
    return current ? SUCCESS : INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent_v2(void *wanted) {
    BEGIN(cuCtxPushCurrent);
    current = wanted;
    return SUCCESS;
}

CUresult cuCtxPopCurrent_v2(void **popped) {
    BEGIN(cuCtxPopCurrent);
    if (popped) *popped = current;
    current = NULL;
    return SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    BEGIN(cuCtxSynchronize);
    NOT_WHILE_CAPTURING();
    return SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN(cuCtxGetStreamPriorityRange);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

static CUresult allocate(CUdeviceptr *at, size_t size) {
    if (!size) return INVALID_VALUE;
    if (!current) return INVALID_CONTEXT;
    NOT_WHILE_CAPTURING();
    if (size > room()) return OUT_OF_MEMORY;
    void *start = NULL;
    Block *block = malloc(sizeof *block);
    if (!block || posix_memalign(&start, 512, size)) {
        free(block);
        return OUT_OF_MEMORY;
    }
    memset(start, 0xA5, size); /* nobody may count on zeros */
    *block = (Block){start, size, blocks};
    blocks = block;
    used += size;
    *at = (CUdeviceptr)start;
    return SUCCESS;
}

static CUresult release(CUdeviceptr at) {
    NOT_WHILE_CAPTURING();
    if (!at) return SUCCESS;
    for (Block **link = &blocks; *link; link = &(*link)->next)
        if ((CUdeviceptr)(*link)->start == at) {
            Block *block = *link;
            *link = block->next;
            used -= block->size;
            free(block->start);
            free(block);
            return SUCCESS;
        }
    return INVALID_VALUE;
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    BEGIN(cuMemAlloc);
    return allocate(at, size);
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    BEGIN(cuMemFree);
    return release(at);
}

CUresult cuMemAllocAsync(CUdeviceptr *at, size_t size, void *stream) {
    BEGIN(cuMemAllocAsync);
    (void)stream;
    return allocate(at, size);
}

CUresult cuMemFreeAsync(CUdeviceptr at, void *stream) {
    BEGIN(cuMemFreeAsync);
    (void)stream;
    return release(at);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    BEGIN(cuMemGetInfo);
    *free_bytes = room();
    *total_bytes = total();
    return SUCCESS;
}

CUresult cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    BEGIN(cuMemHostAlloc);
    (void)flags;
    if (!size) return INVALID_VALUE;
    NOT_WHILE_CAPTURING();
    return posix_memalign(at, 4096, size) ? OUT_OF_MEMORY : SUCCESS;
}

CUresult cuMemAllocHost_v2(void **at, size_t size) { return cuMemHostAlloc(at, size, 0); }

CUresult cuMemFreeHost(void *at) {
    BEGIN(cuMemFreeHost);
    NOT_WHILE_CAPTURING();
    free(at);
    return SUCCESS;
}

static CUresult copy(void *to, const void *from, size_t size, CUdeviceptr device, void *stream) {
    if (!owns(device, size)) return INVALID_VALUE;
    return issue(stream, (Op){.kind = COPY, .to = to, .from = from, .size = size});
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
    BEGIN(cuMemcpyHtoDAsync);
    return copy((void *)to, from, size, to, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
    BEGIN(cuMemcpyDtoHAsync);
    return copy(to, (const void *)from, size, from, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    BEGIN(cuMemcpyDtoDAsync);
    if (!owns(from, size)) return INVALID_VALUE;
    return copy((void *)to, (const void *)from, size, to, stream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    BEGIN(cuMemcpyHtoD);
    NOT_WHILE_CAPTURING();
    return copy((void *)to, from, size, to, NULL);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    BEGIN(cuMemcpyDtoH);
    NOT_WHILE_CAPTURING();
    return copy(to, (const void *)from, size, from, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, void *stream) {
    BEGIN(cuMemsetD8Async);
    if (!owns(to, size)) return INVALID_VALUE;
    return issue(stream, (Op){.kind = FILL, .to = (void *)to, .value = value, .size = size});
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t size) {
    BEGIN(cuMemsetD8);
    NOT_WHILE_CAPTURING();
    if (!owns(to, size)) return INVALID_VALUE;
    return issue(NULL, (Op){.kind = FILL, .to = (void *)to, .value = value, .size = size});
}

CUresult cuStreamCreateWithPriority(void **made, unsigned flags, int priority) {
    BEGIN(cuStreamCreate);
    (void)priority;
    if (flags > 1) return INVALID_VALUE;
    if (!current) return INVALID_CONTEXT;
    Stream *stream = calloc(1, sizeof *stream);
    stream->magic = STREAM;
    *made = stream;
    return SUCCESS;
}

CUresult cuStreamCreate(void **made, unsigned flags) { return cuStreamCreateWithPriority(made, flags, 0); }

CUresult cuStreamDestroy_v2(void *handle) {
    BEGIN(cuStreamDestroy);
    Stream *stream = stream_of(handle);
    if (!stream || stream == &legacy) return INVALID_HANDLE;
    stream->magic = 0;
    free(stream);
    return SUCCESS;
}

CUresult cuStreamSynchronize(void *stream) {
    BEGIN(cuStreamSynchronize);
    return settled(stream);
}

CUresult cuStreamQuery(void *stream) {
    BEGIN(cuStreamQuery);
    return settled(stream);
}

CUresult cuStreamWaitEvent(void *handle, void *event, unsigned flags) {
    BEGIN(cuStreamWaitEvent);
    (void)flags;
    Stream *stream = stream_of(handle);
    if (!stream || !event) return INVALID_HANDLE;
    Event *awaited = event;
    if (awaited->in && !stream->capture) stream->capture = awaited->in; /* the capture spreads, as the driver has it */
    return issue(handle, (Op){.kind = WAIT, .event = awaited});
}

CUresult cuLaunchHostFunc(void *stream, void (*call)(void *), void *token) {
    BEGIN(cuLaunchHostFunc);
    return issue(stream, (Op){.kind = CALL, .call = call, .token = token});
}

CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
    BEGIN(cuStreamBeginCapture);
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream == &legacy) return CAPTURE_UNSUPPORTED;
    if (stream->capture) return ILLEGAL_STATE;
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->mode = mode;
    stream->origin = 1;
    captures += mode == 0;
    return SUCCESS;
}

CUresult cuStreamIsCapturing(void *handle, int *status) {
    BEGIN(cuStreamIsCapturing);
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    *status = !stream->capture ? 0 : stream->capture->broken ? 2 : 1;
    return SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    BEGIN(cuThreadExchangeStreamCaptureMode);
    *mode = 0;
    return SUCCESS;
}

CUresult cuStreamEndCapture(void *handle, void **graph) {
    BEGIN(cuStreamEndCapture);
    Stream *stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (!stream->capture || !stream->origin) return ILLEGAL_STATE;
    Graph *captured = stream->capture;
    stream->capture = NULL;
    stream->origin = 0;
    captures -= captured->mode == 0;
    *graph = captured->broken ? NULL : captured;
    return captured->broken ? CAPTURE_INVALIDATED : SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    BEGIN(cuGraphInstantiate);
    (void)flags;
    if (!graph) return INVALID_VALUE;
    Graph *from = graph, *copied = calloc(1, sizeof *copied);
    *copied = *from;
    copied->ops = malloc(from->count * sizeof *from->ops + 1);
    if (from->count) memcpy(copied->ops, from->ops, from->count * sizeof *from->ops);
    *made = copied;
    return SUCCESS;
}

CUresult cuGraphInstantiate_v2(void **made, void *graph, void **node, char *log, size_t size) {
    (void)node, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(made, graph, 0);
}

CUresult cuGraphUpload(void *graph, void *stream) {
    BEGIN(cuGraphUpload);
    return graph && stream_of(stream) ? SUCCESS : INVALID_HANDLE;
}

CUresult cuGraphLaunch(void *launched, void *handle) {
    BEGIN(cuGraphLaunch);
    Stream *stream = stream_of(handle);
    Graph *graph = launched;
    if (!graph || !stream) return INVALID_HANDLE;
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    for (size_t i = 0; i < graph->count && !sticky; i++) perform(stream, &graph->ops[i], 1);
    return SUCCESS;
}

CUresult cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    BEGIN(cuGraphGetNodes);
    (void)nodes;
    *count = ((Graph *)graph)->count;
    return SUCCESS;
}

static CUresult discard(void *graph) {
    if (!graph) return INVALID_VALUE;
    free(((Graph *)graph)->ops);
    free(graph);
    return SUCCESS;
}

CUresult cuGraphDestroy(void *graph) {
    BEGIN(cuGraphDestroy);
    return discard(graph);
}

CUresult cuGraphExecDestroy(void *graph) {
    BEGIN(cuGraphExecDestroy);
    return discard(graph);
}

CUresult cuEventCreate(void **made, unsigned flags) {
    BEGIN(cuEventCreate);
    if (!current) return INVALID_CONTEXT;
    Event *event = calloc(1, sizeof *event);
    event->timed = !(flags & 2);
    *made = event;
    return SUCCESS;
}

CUresult cuEventDestroy_v2(void *event) {
    BEGIN(cuEventDestroy);
    free(event);
    return event ? SUCCESS : INVALID_HANDLE;
}

CUresult cuEventRecord(void *event, void *handle) {
    BEGIN(cuEventRecord);
    Stream *stream = stream_of(handle);
    if (!stream || !event) return INVALID_HANDLE;
    ((Event *)event)->in = stream->capture;
    return issue(handle, (Op){.kind = RECORD, .event = event});
}

CUresult cuEventRecordWithFlags(void *event, void *handle, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, handle);
}

CUresult cuEventSynchronize(void *event) {
    BEGIN(cuEventSynchronize);
    return event ? SUCCESS : INVALID_HANDLE;
}

CUresult cuEventQuery(void *event) {
    BEGIN(cuEventQuery);
    return event ? SUCCESS : INVALID_HANDLE;
}

CUresult cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    BEGIN(cuEventElapsedTime);
    Event *start = from, *end = to;
    if (!start || !end || !start->recorded || !end->recorded || !start->timed || !end->timed) return INVALID_HANDLE;
    *milliseconds = (float)((end->at - start->at) * 1e3);
    return SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { return cuEventElapsedTime(milliseconds, from, to); }
