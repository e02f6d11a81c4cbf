/* A temporary folder for tests that need files. */
#ifndef RANKFOLD_TESTS_STORE_FOLDER_H
#define RANKFOLD_TESTS_STORE_FOLDER_H

#include <stddef.h>

#define FOLDER_PATH 400

/* Makes a folder in /dev/shm, else below $TMPDIR; 0 = failed. */
int folder_make(char out[FOLDER_PATH]);
/* Removes it with everything in it (not following links). */
void folder_remove(const char *folder);
/* folder/name, in static storage: the last eight stay valid. */
const char *folder_file(const char *folder, const char *name);
/* Whole files; read: malloc'd with a terminator, NULL = it cannot be read. */
char *file_read(const char *path, size_t *bytes);
int file_write(const char *path, const void *bytes, size_t n);

#endif
