/* Two islands of as many ranks each, near each other on an island: the grouping of two-level
 * tactics. From what the backend knows of the links, or from a topology file; the same on all
 * ranks. */
#ifndef RANKFOLD_ISLANDS_H
#define RANKFOLD_ISLANDS_H

#include "abi.h"
#include "rankfold.h"

/* What a topology file says: rank r is on island[r]. */
typedef struct rfi_topology {
    int ranks; /* 0 = there is no file */
    uint8_t island[RF_MAX_WORLD];
} rfi_topology;

/* One line for each rank, in any order: its number, blanks, the number of its island (0 to 255);
 * blank lines, and comments from # on. `name` is the file's, for errors; *out is written on success
 * only. E_ARG with line, found and expected. Pure. */
rf_result rfi_topology_parse(const char *name, const char *text, size_t bytes, rfi_topology *out,
                             rf_error *err);
/* Of the file that RANKFOLD_TOPOLOGY names. E_ARG: it cannot be read, is no plain file, is larger
 * than RFI_TOPOLOGY_BYTES, or cannot be parsed. */
#define RFI_TOPOLOGY_BYTES 4096
rf_result rfi_topology_read(rfi_topology *out, rf_error *err);

/* The islands as the file, or how far ranks are from each other, gives them; ranks stand in their
 * order, rank 0's island first. distance[a][b]: less is nearer, 0 = unknown. Pure. */
void rfi_islands_from_file(const rfi_topology *topology, int world, rf_islands_info *out);
void rfi_islands_from_links(uint8_t distance[RF_MAX_WORLD][RF_MAX_WORLD], int world,
                            rf_islands_info *out);

/* "0,1|2,3"; empty where there are none. */
#define RFI_ISLANDS_TEXT 32
void rfi_islands_text(const rf_islands_info *islands, int world, char text[RFI_ISLANDS_TEXT]);

#endif
