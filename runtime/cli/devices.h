/* What this machine has to run kernels on, for doctor. Besides database.h and db.c, the one place
 * where the command line knows the library's inside. */
#ifndef RANKFOLD_CLI_DEVICES_H
#define RANKFOLD_CLI_DEVICES_H

#include <stddef.h>

/* The best instruction set that cpu kernels may use here: "avx512". By the runtime's own evidence.
 */
const char *rf_cli_cpu_isa(char *out, size_t size);
/* "2 x NVIDIA H200 (sm90), driver for CUDA 13.0", or why there is none. 1 = there is one. Starts
 * the CUDA driver: not before a fork. */
int rf_cli_gpus(char *out, size_t size);

#endif
