/* Launches of one channel, in order: events between streams. */
#include "cuda/driver.h"
#include "nccl/shim.h"

#define NO_TIMING 2 /* CU_EVENT_DISABLE_TIMING */

static void enter(const rfi_order *o)
{
    o->driver->cuCtxPushCurrent(o->context);
}

static void leave(const rfi_order *o)
{
    CUcontext ours;
    o->driver->cuCtxPopCurrent(&ours);
}

const char *rfi_order_open(rfi_order *o, int cpu, int device)
{
    static char why[320];
    *o = (rfi_order){.driver = NULL};
    if (cpu)
        return NULL;
    const rfi_driver *v = rfi_driver_open(why, sizeof why);
    CUdevice ordinal;
    CUcontext context;
    if (!v)
        return why;
    if (v->cuDeviceGet(&ordinal, device) || v->cuDevicePrimaryCtxRetain(&context, ordinal))
        return "no context on the communicator's device";
    *o = (rfi_order){.driver = v, .context = context, .device = ordinal};
    int failed = 0;
    enter(o);
    for (int l = 0; l < RFI_LANES; l++) {
        CUevent event = NULL;
        failed |= v->cuEventCreate(&event, NO_TIMING);
        o->lanes[l].event = event;
    }
    leave(o);
    if (!failed)
        return NULL;
    rfi_order_close(o);
    return "no events on the communicator's device";
}

void rfi_order_close(rfi_order *o)
{
    if (!o->driver)
        return;
    enter(o);
    for (int l = 0; l < RFI_LANES; l++)
        if (o->lanes[l].event)
            o->driver->cuEventDestroy(o->lanes[l].event);
    leave(o);
    o->driver->cuDevicePrimaryCtxRelease(o->device);
    *o = (rfi_order){.driver = NULL};
}

rf_mode rfi_order_mode(const rfi_order *o, void *stream, uint64_t *capture)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    unsigned long long id = 0;
    *capture = 0;
    if (!o->driver)
        return RF_EAGER;
    enter(o);
    CUresult r = o->driver->cuStreamIsCapturing(stream, &status);
    if (!r && status != CU_STREAM_CAPTURE_STATUS_NONE)
        o->driver->cuStreamGetCaptureInfo(stream, &status, &id);
    leave(o);
    *capture = id;
    return status != CU_STREAM_CAPTURE_STATUS_NONE ? RF_GRAPH : RF_EAGER;
}

/* The event of another capture, or of none, is not one to wait for inside this capture: what was
 * captured before is ordered by whoever replays it. */
int rfi_order_before(rfi_order *o, rf_mode mode, void *stream, uint64_t capture)
{
    rfi_lane *lane = &o->lanes[mode];
    unsigned long long id = (uintptr_t)stream + 1;
    CUresult r = 0;
    if (!o->driver)
        return 0;
    enter(o);
    if (mode == RF_EAGER)
        o->driver->cuStreamGetId(stream, &id);
    int before = lane->stream && lane->capture == capture;
    if (before && lane->stream != id + 1)
        r = o->driver->cuStreamWaitEvent(stream, lane->event, 0);
    if (!r) {
        lane->stream = id + 1;
        lane->capture = capture;
    }
    leave(o);
    return r;
}

int rfi_order_after(rfi_order *o, rf_mode mode, void *stream)
{
    if (!o->driver)
        return 0;
    enter(o);
    CUresult r = o->driver->cuEventRecord(o->lanes[mode].event, stream);
    leave(o);
    return r;
}
