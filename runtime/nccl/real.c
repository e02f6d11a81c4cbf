/* The real NCCL behind the shim: where it is, and forwarding to it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "nccl/nccl.h"
#include "nccl/shim.h"

/* ---- what stands in for what is missing ---- */

static ncclResult_t absent(void)
{
    return ncclSystemError;
}

#define PREFIX "rankfold: "
static char why_absent[512]; /* with the prefix */

static const char *absent_text(void)
{
    return why_absent;
}

/* ---- where it is ---- */

static void *library; /* or RTLD_NEXT */
static rfi_nccl real;
static pthread_once_t once = PTHREAD_ONCE_INIT;

extern const char *const rfi_nccl_names[]; /* made from `symbols` */

static int is_this_one(void *handle)
{
    Dl_info mine, theirs;
    void *at = dlsym(handle, "ncclAllReduce");
    return at && dladdr((const void *)rfi_nccl_names, &mine) && dladdr(at, &theirs) &&
           mine.dli_fbase == theirs.dli_fbase;
}

static void *open_other(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return handle && !is_this_one(handle) ? handle : NULL;
}

/* The one that the environment names, or why it cannot be. */
static void *find_named(const char *path)
{
    const char *fault = "is not an absolute path";
    if (*path == '/') {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const char *system = handle ? NULL : dlerror();
        if (handle && dlsym(handle, "ncclAllReduce") && !is_this_one(handle))
            return handle;
        fault = !handle               ? system
                : is_this_one(handle) ? "is this shim, not what it stands in for"
                                      : "has no ncclAllReduce";
    }
    snprintf(why_absent, sizeof why_absent,
             PREFIX "RANKFOLD_NCCL=%.200s: %.200s; expected the real libnccl.so.2", path,
             fault ? fault : "cannot be opened");
    return NULL;
}

/* The one that the environment names; the next one in the search order (LD_PRELOAD before a program
 * that is linked with it); the one that somebody has loaded, which goes by the first name; and
 * where systems keep it. */
static void *find(void)
{
    static const char *const places[] = {
        "libnccl.so.2",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
        "/usr/lib64/libnccl.so.2",
        "/usr/local/lib/libnccl.so.2",
        "/usr/local/cuda/lib64/libnccl.so.2",
    };
    const char *path = rfi_shim_env(RFI_SHIM_RANKFOLD_NCCL);
    if (path)
        return find_named(path);
    if (dlsym(RTLD_NEXT, "ncclAllReduce"))
        return RTLD_NEXT;
    void *handle = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !handle; i++)
        handle = open_other(places[i]);
    if (!handle)
        snprintf(why_absent, sizeof why_absent,
                 PREFIX "the real libnccl.so.2 was not found; RANKFOLD_NCCL=/absolute/path "
                        "names it");
    return handle;
}

static void *symbol(const char *name, ncclResult_t (*fallback)(void))
{
    void *at = library ? dlsym(library, name) : NULL;
    if (!at)
        memcpy(&at, &fallback, sizeof at);
    return at;
}

static const struct entry {
    const char *name;
    size_t offset;
} entries[] = {
#define RF_X(name, parameters) {#name, offsetof(rfi_nccl, name)},
    RFI_NCCL_LIST(RF_X)
#undef RF_X
};

static void open_real(void)
{
    void *at = NULL;
    const char *(*text)(void) = absent_text;
    library = find();
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        at = symbol(entries[i].name, absent);
        memcpy((char *)&real + entries[i].offset, &at, sizeof at);
    }
    /* the two that return texts */
    memcpy(&at, &text, sizeof at);
    void *error_string = library ? dlsym(library, "ncclGetErrorString") : at;
    void *last_error = library ? dlsym(library, "ncclGetLastError") : at;
    memcpy(&real.ncclGetErrorString, error_string ? &error_string : &at, sizeof at);
    memcpy(&real.ncclGetLastError, last_error ? &last_error : &at, sizeof at);
    if (!library)
        rfi_shim_say(0, "%s", why_absent + sizeof PREFIX - 1);
}

const rfi_nccl *rfi_nccl_real(void)
{
    pthread_once(&once, open_real);
    return &real;
}

/* ---- forwarders, made from `symbols` ---- */

extern void *rfi_nccl_table[];
void *rfi_nccl_look_up(unsigned index);

void *rfi_nccl_look_up(unsigned index)
{
    pthread_once(&once, open_real);
    void *at = symbol(rfi_nccl_names[index], absent);
    __atomic_store_n(&rfi_nccl_table[index], at, __ATOMIC_RELEASE);
    return at;
}
