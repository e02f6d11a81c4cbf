/* Reading configs: defaults, ranges, layout. */
#ifndef RANKFOLD_CONFIG_H
#define RANKFOLD_CONFIG_H

#include "core/backend.h"

#define RFI_CHANNELS 16 /* most of a comm */
/* cpu: larger messages go through a slot in several steps. Big enough that a step's handshake
 * vanishes beside its copy, small enough that the slots of all ranks stay in a last-level cache. */
#define RFI_SLOT_MAX (1u << 20)

/* A copy of *in with defaults filled in, ranges checked. Reads no environment. E_ARG. */
rf_result rfi_config_read(const rf_config *in, rf_config *out, rf_error *err);
/* Overrides from the environment, RANKFOLD_DISABLE included. E_ARG, E_BACKEND. */
rf_result rfi_config_environment(rf_config *config, rf_error *err);
/* Why the config does without a transport (code of RF_TRANSPORT_LIST); NULL = it does not. Pure. */
const char *rfi_config_forbids(const rf_config *config, int world, uint8_t transport);
/* Every pack fits this runtime. E_ARG, E_PACK. */
rf_result rfi_config_packs(const rf_config *config, rf_error *err);

#endif
