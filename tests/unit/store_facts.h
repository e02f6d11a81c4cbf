/* Made-up hosts, variants and measurements for tests of the store: short to write, all different.
 */
#ifndef RANKFOLD_TESTS_STORE_FACTS_H
#define RANKFOLD_TESTS_STORE_FACTS_H

#include "store/store.h"

typedef struct facts_place {
    rfi_fingerprint hw, env;
    const char *arch;
    uint8_t admits; /* by whoever tunes or asks there */
} facts_place;

/* Fills in the hash of the text. */
rfi_fingerprint facts_fingerprint(const char *text);
/* Admits nothing unless changed afterwards. Texts are borrowed. */
facts_place facts_at(const char *hw_text, const char *env_text);

/* f32, eager, world 2 unless changed afterwards. */
rfi_key facts_key(const facts_place *place, uint64_t rows, uint64_t hidden);

/* A variant whose hash follows from its name and `build`; it is dependent if its name ends in
 * "_dep", and sums in another order if in "_il". `name` is borrowed. */
rf_variant facts_variant(const char *name, uint32_t hidden, int build);

/* An ok measurement with 1 % noise. */
rfi_measurement facts_measurement(const rfi_key *key, const rf_variant *variant, uint32_t grid,
                                  double median_ns);

rf_result facts_begin(rf_store *store, const facts_place *place, rf_error *err);

/* One whole campaign: begins, records the measurements (keys are set to `key`), finishes the shape,
 * ends. */
rf_result facts_campaign(rf_store *store, const facts_place *place, const rfi_key *key,
                         const rfi_measurement *m, size_t n, rf_error *err);

/* rfi_have_fn that has every variant as recorded. */
int facts_have_all(void *ctx, const unsigned char hash[16], const char *name);

#endif
