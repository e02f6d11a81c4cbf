/* A tuning session: rank 0 leads, all ranks obey. An order is broadcast, carried out by every rank
 * and answered; all ranks see all answers, so all come to the same verdict. */
#ifndef RANKFOLD_SESSION_H
#define RANKFOLD_SESSION_H

#include "tune/worker.h"

typedef enum rfi_order_kind {
    RFI_ORDER_SHAPE,   /* shape */
    RFI_ORDER_CHECK,   /* hash, grid, seed */
    RFI_ORDER_SETTLE,  /* seed */
    RFI_ORDER_MEASURE, /* hash, grid, calls */
    RFI_ORDER_PREPARE, /* all shapes, from the store */
    RFI_ORDER_SET,     /* shape, hash, grid, median_ns, baseline_ns: a plan without the store */
    RFI_ORDER_END      /* everybody leaves with `verdict`, `text` and `summary` */
} rfi_order_kind;

typedef struct rfi_order {
    rfi_order_kind kind;
    uint32_t shape, grid, calls;
    unsigned char hash[16]; /* all zero: the baseline */
    uint64_t seed;
    double median_ns, baseline_ns;
    double done, eta_seconds;
    rf_result verdict;
    char text[RF_ERROR_TEXT];
    rf_tune_summary summary;
} rfi_order;

/* What came of an order, over all ranks. code: OK, or why the candidate failed. */
typedef struct rfi_answer {
    rf_result code;
    int wrong; /* on some rank */
    double ns; /* max over ranks */
} rfi_answer;

typedef struct rfi_session {
    rf_comm *comm;
    int channel;
    const rf_shape *shapes;
    size_t n;
    rf_tune_options options; /* defaults filled in */
    rfi_worker worker;
    rf_tune_summary summary;
    double start; /* rfi_seconds() when it began */
    int over;     /* an order failed: all ranks have left or will leave by themselves */
} rfi_session;

double rfi_seconds(void); /* monotonic */

/* Rank 0: has all ranks carry out an order. Fails only when the session cannot go on (a rank is
 * gone, aborted, out of memory); then every rank knows and leaves. A candidate that failed is an
 * answer, and has been reset. */
rf_result rfi_session_order(rfi_session *s, const rfi_order *order, rfi_answer *out, rf_error *err);

/* The other ranks: carries out orders until the end. */
rf_result rfi_session_follow(rfi_session *s, rf_error *err);

/* Rank 0: plans, measures, records, and ends the session on all ranks. */
rf_result rfi_session_lead(rfi_session *s, rf_error *err);

#endif
