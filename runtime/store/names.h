/* The lists of abi.h as the database spells them. */
#ifndef RANKFOLD_NAMES_H
#define RANKFOLD_NAMES_H

typedef enum rfi_list {
    RFI_OPS,
    RFI_DTYPES,
    RFI_MODES,
    RFI_OUTCOMES,
    RFI_ALGOS,
    RFI_TRANSPORTS,
    RFI_WIRES,
    RFI_ISAS,
    RFI_COPIES,
    RFI_LISTS
} rfi_list;

/* NULL for an unknown code. */
const char *rfi_name(rfi_list list, unsigned code);
/* -1 for an unknown name (NULL included). */
int rfi_name_code(rfi_list list, const char *name);

#endif
