/* The environment, and what is said about it: the library never prints, the shim may. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "nccl/shim.h"

static const char *const names[] = {
#define RF_X(name, text) #name,
    RFI_SHIM_ENV_LIST(RF_X)
#undef RF_X
};

const char *rfi_shim_env_text(rfi_shim_variable name)
{
    return names[name];
}

const char *rfi_shim_env(rfi_shim_variable name)
{
    const char *value = getenv(names[name]);
    return value && *value ? value : NULL;
}

void rfi_shim_say(int level, const char *format, ...)
{
    static int said;
    const char *log = rfi_shim_env(RFI_SHIM_RANKFOLD_LOG);
    int wanted = log && *log >= '0' && *log <= '9' ? *log - '0' : 0;
    if (level > wanted ||
        (level == 1 && wanted == 1 && __atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)))
        return;
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "rankfold: %s\n", line);
}
