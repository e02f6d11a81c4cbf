/* Where the decisions lie that came with a program or a library. */
#ifndef RANKFOLD_SHIPPED_H
#define RANKFOLD_SHIPPED_H

#include <limits.h>

/* The shipped.db that belongs to this file (a program or a library, links are followed), as it was
 * installed, as it was built, or copied beside it: *out, for rf_store_open. NULL = none that can be
 * read. */
const char *rfi_shipped_beside(const char *file, char out[PATH_MAX]);

#endif
