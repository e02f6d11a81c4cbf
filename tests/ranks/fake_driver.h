/* A CUDA driver on host memory, for programs that are linked with --wrap=dlopen and --wrap=dlsym:
 * devices 0 to 7 that have memory, which processes share as they do real devices', but run none
 * but the probe's kernels. Any of its calls can be made to fail; what gives back never does. */
#ifndef RANKFOLD_TESTS_FAKE_DRIVER_H
#define RANKFOLD_TESTS_FAKE_DRIVER_H

/* From now on the n-th call fails; 0 = none does. Local to the process. */
void fake_driver_fail(int n);
/* The call that failed since then; NULL: fewer were made. */
const char *fake_driver_failed(void);
/* What was made and not given back: contexts, streams, memory, mappings, images. */
int fake_driver_live(void);
int fake_driver_mapped(void); /* of these, mappings of device memory */

#endif
