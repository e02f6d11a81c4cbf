/* The lists of abi.h as the database spells them. */
#ifndef RANKFOLD_NAMES_H
#define RANKFOLD_NAMES_H

/* Sets of opt-in tactics, as RF_VARIANT_ flags: X(number, text) */
#define RFI_ADMITS_LIST(X)                                                                         \
    X(0, "")                                                                                       \
    X(1, "reassoc")                                                                                \
    X(2, "lossy")                                                                                  \
    X(3, "reassoc,lossy")                                                                          \
    X(4, "dependent")                                                                              \
    X(5, "reassoc,dependent")                                                                      \
    X(6, "lossy,dependent")                                                                        \
    X(7, "reassoc,lossy,dependent")

typedef enum rfi_list {
    RFI_OPS,
    RFI_DTYPES,
    RFI_MODES,
    RFI_ADMITS,
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
