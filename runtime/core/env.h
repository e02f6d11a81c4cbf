/* Environment variables that the library reads: RF_ENV_LIST is the table. */
#ifndef RANKFOLD_ENV_H
#define RANKFOLD_ENV_H

#include "rankfold.h"

typedef enum rfi_env_name {
#define RF_X(name, text) RFI_##name,
    RF_ENV_LIST(RF_X)
#undef RF_X
} rfi_env_name;

/* Its value; NULL when unset or empty. */
const char *rfi_env_get(rfi_env_name name);
/* Its name, for messages. */
const char *rfi_env_text(rfi_env_name name);
/* A whole decimal number in [low, high] and nothing else: 1 = *out is set. Pure. */
int rfi_parse_u32(const char *text, uint32_t low, uint32_t high, uint32_t *out);

#endif
