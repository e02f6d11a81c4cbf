#define _GNU_SOURCE
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store_folder.h"

int folder_make(char out[FOLDER_PATH])
{
    /* In memory if possible: what these tests are about is not how slowly a disk syncs. */
    const char *const bases[] = {"/dev/shm", getenv("TMPDIR"), "/tmp"};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        snprintf(out, FOLDER_PATH, "%s/rankfold.XXXXXX", bases[i] ? bases[i] : ".");
        if (mkdtemp(out))
            return 1;
    }
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static int unlock_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)where;
    return type == FTW_D ? chmod(path, 0700) : 0;
}

void folder_remove(const char *folder)
{
    nftw(folder, unlock_one, 16, FTW_PHYS);
    nftw(folder, remove_one, 16, FTW_PHYS | FTW_DEPTH);
}

const char *folder_file(const char *folder, const char *name)
{
    static char paths[8][FOLDER_PATH + 64];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

char *file_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = NULL;
    size_t used = 0, got = 0;
    do {
        char *larger = realloc(text, used + 65537);
        if (!larger)
            break;
        text = larger;
        used += got = fread(text + used, 1, 65536, file);
    } while (got);
    fclose(file);
    if (text)
        text[used] = '\0';
    if (bytes)
        *bytes = used;
    return text;
}

int file_write(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return 0;
    int good = fwrite(bytes, 1, n, file) == n;
    return fclose(file) == 0 && good;
}
