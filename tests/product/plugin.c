/* What a ctypes user or a plugin does: opens librankfold.so (argv[1]) by path, finds the functions
 * and the pack by name, and reduces in a world of one rank, which is a copy. */
#include <rankfold.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 1000 };

#define FIND(name)                                                                                 \
    __typeof__(name) *name##_;                                                                     \
    *(void **)&name##_ = dlsym(library, #name);                                                    \
    if (!name##_) {                                                                                \
        fprintf(stderr, "%s\n", dlerror());                                                        \
        return 1;                                                                                  \
    }

RF_DECLARE_PACK(cpu);

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    float in[COUNT], out[COUNT] = {0};
    rf_error err = {0};
    rf_store *store;
    rf_comm *comm;

    if (!library) {
        fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: plugin LIBRARY");
        return 1;
    }
    FIND(rf_pack_cpu)
    FIND(rf_comm_create_all)
    FIND(rf_all_reduce)
    FIND(rf_store_open)
    FIND(rf_store_close)
    FIND(rf_comm_destroy)
    if (dlsym(library, "rfi_backend_cpu")) {
        fputs("an internal name is visible\n", stderr);
        return 1;
    }

    rf_config config = RF_CONFIG_INIT;
    config.packs = &rf_pack_cpu_;
    config.n_packs = 1;
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)i;
    if (rf_store_open_(NULL, NULL, RF_STORE_READ, &store, &err) ||
        rf_comm_create_all_(&config, 1, &comm, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (rf_all_reduce_(comm, 0, in, out, COUNT, RF_F32, NULL) || memcmp(in, out, sizeof in) != 0) {
        fputs("the copy differs\n", stderr);
        return 1;
    }
    rf_comm_destroy_(comm);
    rf_store_close_(store);
    dlclose(library);
    puts("ok: librankfold.so reduces");
    return 0;
}
