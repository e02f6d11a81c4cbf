/* Names and sizes of the element types. */
#include "rankfold.h"
#include "abi.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [RF_F32] = {"f32", 4},
    [RF_BF16] = {"bf16", 2},
    [RF_F16] = {"f16", 2},
};

#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

/* The public codes are those of templates/abi.h. */
#define RF_X(code, text, number)                                                                   \
    _Static_assert(RF_##code == (number), "rf_dtype and RF_DTYPE_LIST differ: " text);
RF_DTYPE_LIST(RF_X)
#undef RF_X

size_t rf_dtype_size(rf_dtype dtype)
{
    return (unsigned)dtype < N_DTYPES ? dtypes[dtype].size : 0;
}

const char *rf_dtype_name(rf_dtype dtype)
{
    return (unsigned)dtype < N_DTYPES ? dtypes[dtype].name : NULL;
}

int rf_dtype_parse(const char *name)
{
    for (size_t i = 0; name && i < N_DTYPES; i++) {
        if (!strcmp(name, dtypes[i].name)) {
            return (int)i;
        }
    }
    return -1;
}
