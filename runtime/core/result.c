/* Texts of results and rungs, version, and the symbol that packs of this ABI link against. */
#include "abi.h"
#include "rankfold.h"

/* Packs hold its address: one built for another RF_ABI fails at link, naming rfi_abi_<N>. */
extern const int rfi_abi_4;
const int rfi_abi_4 = RF_ABI;

_Static_assert(RF_ABI == 4, "rename rfi_abi_4 together with RF_ABI");

#define TEXT_(x)     #x
#define TEXT(x)      TEXT_(x)
#define VERSION_TEXT TEXT(RF_VERSION_MAJOR) "." TEXT(RF_VERSION_MINOR) "." TEXT(RF_VERSION_PATCH)

uint32_t rf_version_number(void)
{
    return RF_VERSION_NUMBER;
}

const char *rf_version_string(void)
{
    return VERSION_TEXT;
}

const char *rf_strerror(rf_result result)
{
    switch (result) {
#define RF_X(name, number, text)                                                                   \
    case RF_##name:                                                                                \
        return text;
        RF_RESULT_LIST(RF_X)
#undef RF_X
    }
    return "unknown result";
}

const char *rf_rung_text(rf_rung rung)
{
    switch (rung) {
#define RF_X(name, number, text)                                                                   \
    case RF_RUNG_##name:                                                                           \
        return text;
        RF_RUNG_LIST(RF_X)
#undef RF_X
    }
    return "unknown rung";
}
