#include <stdlib.h>

#include "core/env.h"

static const char *const names[] = {
#define RF_X(name, text) #name,
    RF_ENV_LIST(RF_X)
#undef RF_X
};

const char *rfi_env_text(rfi_env_name name)
{
    return names[name];
}

const char *rfi_env_get(rfi_env_name name)
{
    const char *value = getenv(names[name]);
    return value && *value ? value : NULL;
}

int rfi_parse_u32(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    uint64_t value = 0;
    if (!text || !*text)
        return 0;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9')
            return 0;
        value = value * 10 + (uint64_t)(*c - '0');
        if (value > UINT32_MAX)
            return 0;
    }
    if (value < low || value > high)
        return 0;
    *out = (uint32_t)value;
    return 1;
}
