#include "core/codes.h"

#define RF_X(code, text, number)                                                                   \
    case (number):                                                                                 \
        return text;
#define DEFINE(name, LIST)                                                                         \
    const char *rfi_##name##_text(unsigned code)                                                   \
    {                                                                                              \
        switch (code) {                                                                            \
            LIST(RF_X)                                                                             \
        }                                                                                          \
        return "?";                                                                                \
    }

DEFINE(algo, RF_ALGO_LIST)
DEFINE(isa, RF_ISA_LIST)
DEFINE(copy, RF_COPY_LIST)
DEFINE(transport, RF_TRANSPORT_LIST)
DEFINE(wire, RF_WIRE_LIST)
