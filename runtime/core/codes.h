/* Names of the codes of abi.h's lists: RFI_ISA_AVX2, RFI_ALGO_TWO_SHOT ... and their texts. */
#ifndef RANKFOLD_CODES_H
#define RANKFOLD_CODES_H

#include "abi.h"

#define RF_X(code, text, number) RFI_ALGO_##code = (number),
enum { RF_ALGO_LIST(RF_X) };
#undef RF_X
#define RF_X(code, text, number) RFI_ISA_##code = (number),
enum { RF_ISA_LIST(RF_X) };
#undef RF_X
#define RF_X(code, text, number) RFI_COPY_##code = (number),
enum { RF_COPY_LIST(RF_X) };
#undef RF_X
#define RF_X(code, text, number) RFI_TRANSPORT_##code = (number),
enum { RF_TRANSPORT_LIST(RF_X) };
#undef RF_X
#define RF_X(code, text, number) RFI_WIRE_##code = (number),
enum { RF_WIRE_LIST(RF_X) };
#undef RF_X

/* "avx2"; "?" for a code that the list does not have. */
const char *rfi_algo_text(unsigned code);
const char *rfi_isa_text(unsigned code);
const char *rfi_copy_text(unsigned code);
const char *rfi_transport_text(unsigned code);
const char *rfi_wire_text(unsigned code);

#endif
