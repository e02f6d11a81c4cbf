#include <stddef.h>
#include <string.h>

#include "store/names.h"
#include "store/store.h"

#define CODES 16 /* more than any list has */

_Static_assert(RF_VARIANT_REASSOC == 1 && RF_VARIANT_LOSSY == 2 && RF_VARIANT_DEPENDENT == 4,
               "the texts of RFI_ADMITS_LIST");

static const char *const names[RFI_LISTS][CODES] = {
#define RF_X(name, text, number) [number] = (text),
    [RFI_OPS] = {RF_OP_LIST(RF_X)},
    [RFI_DTYPES] = {RF_DTYPE_LIST(RF_X)},
    [RFI_ALGOS] = {RF_ALGO_LIST(RF_X)},
    [RFI_TRANSPORTS] = {RF_TRANSPORT_LIST(RF_X)},
    [RFI_WIRES] = {RF_WIRE_LIST(RF_X)},
    [RFI_ISAS] = {RF_ISA_LIST(RF_X)},
    [RFI_COPIES] = {RF_COPY_LIST(RF_X)},
#undef RF_X
#define RF_X(number, text) [number] = (text),
    [RFI_ADMITS] = {RFI_ADMITS_LIST(RF_X)},
#undef RF_X
    [RFI_MODES] = {[RF_EAGER] = "eager", [RF_GRAPH] = "graph"},
#define RF_X(name, text) [RFI_##name] = (text),
    [RFI_OUTCOMES] = {RFI_OUTCOME_LIST(RF_X)},
#undef RF_X
};

const char *rfi_name(rfi_list list, unsigned code)
{
    return code < CODES ? names[list][code] : NULL;
}

int rfi_name_code(rfi_list list, const char *name)
{
    for (int code = 0; name && code < CODES; code++)
        if (names[list][code] && !strcmp(names[list][code], name))
            return code;
    return -1;
}
