#define _GNU_SOURCE
#include "store/shipped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the file's folder, the nearest first. */
static const char *const places[] = {
    "shipped.db",                      /* copied together */
    "../share/rankfold/shipped.db",    /* of bin and lib */
    "../../share/rankfold/shipped.db", /* of lib/rankfold */
    "../shipped.db",                   /* of generated/bin and generated/SKU */
    "../../shipped.db",                /* of generated/SKU/nccl */
};

const char *rfi_shipped_beside(const char *file, char out[PATH_MAX])
{
    char real[PATH_MAX];
    const char *slash = realpath(file, real) ? strrchr(real, '/') : NULL;
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        int n = snprintf(out, PATH_MAX, "%.*s/%s", (int)(slash - real), real, places[i]);
        if (n < PATH_MAX && access(out, R_OK) == 0)
            return out;
    }
    return NULL;
}
