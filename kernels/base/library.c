#include "library.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"

enum { MAX_PATH = 4096 };

static hs_os_lock *lock; /* guards everything below while it is written */
static char **paths;
static int path_count;
static hs_cublaslt cublaslt;
static _Atomic bool cublaslt_ready;

static void renew_lock(void) {
    lock = hs_os_lock_new();
}

/* Runs before main or at dlopen, so that the lock exists before any thread asks for it. */
__attribute__((constructor)) static void library_init(void) {
    renew_lock();
    hs_os_after_fork(renew_lock);
}

static void free_paths(char **list, int count) {
    for (int i = 0; i < count; i++) free(list[i]);
    free(list);
}

hs_status hs_library_paths_set(const char *const *folders, int count) {
    char **copies = calloc((size_t)count + 1, sizeof *copies);
    bool complete = copies != NULL;
    for (int i = 0; complete && i < count; i++) {
        const size_t bytes = strlen(folders[i]) + 1;
        copies[i] = malloc(bytes);
        if (copies[i]) memcpy(copies[i], folders[i], bytes);
        complete = copies[i] != NULL;
    }
    if (!complete) {
        if (copies) free_paths(copies, count);
        return hs_fail(HS_OUT_OF_MEMORY, "library_paths: no memory for %d folders", count);
    }
    hs_os_lock_take(lock);
    free_paths(paths, path_count);
    paths = copies;
    path_count = count;
    hs_os_lock_release(lock);
    return HS_OK;
}

static void *open_library(const char *const *names, int name_count) {
    for (int n = 0; n < name_count; n++) {
        void *library = hs_os_library_loaded(names[n]);
        if (library) return library;
    }
    for (int p = 0; p < path_count; p++) {
        for (int n = 0; n < name_count; n++) {
            char path[MAX_PATH];
            const int length = snprintf(path, sizeof path, "%s/%s", paths[p], names[n]);
            void *library = length < MAX_PATH ? hs_os_library_open(path) : NULL;
            if (library) return library;
        }
    }
    for (int n = 0; n < name_count; n++) {
        void *library = hs_os_library_open(names[n]);
        if (library) return library;
    }
    return NULL;
}

static hs_status fail_absent(const char *op, const char *title, const char *const *names, int name_count) {
    char wanted[96] = "", folders[320] = "";
    size_t used = 0;
    for (int n = 0; n < name_count && used < sizeof wanted; n++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%s", n ? " or " : "", names[n]);
    used = 0;
    for (int p = 0; p < path_count && used < sizeof folders; p++)
        used += (size_t)snprintf(folders + used, sizeof folders - used, "in %s, ", paths[p]);
    return hs_fail(HS_FAILURE,
                   "%s: %s was not found: looked for %s among the loaded libraries, %swhere the system looks", op,
                   title, wanted, folders);
}

/* Fills table, an array of function pointers, in the order of symbols. */
static hs_status fill(const char *op, const char *title, const char *const *names, int name_count,
                      const char *const *symbols, size_t symbol_count, void *table) {
    void *library = open_library(names, name_count);
    if (!library) return fail_absent(op, title, names, name_count);
    for (size_t i = 0; i < symbol_count; i++) {
        void *symbol = hs_os_symbol(library, symbols[i]);
        if (!symbol) return hs_fail(HS_FAILURE, "%s: this %s has no function %s", op, title, symbols[i]);
        memcpy((char *)table + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return HS_OK;
}

const hs_cublaslt *hs_library_cublaslt(const char *op) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    static const char *const symbols[] = HS_CUBLASLT_SYMBOLS;
    _Static_assert(sizeof symbols / sizeof *symbols == sizeof cublaslt / sizeof(void *), "one name for each function");
    if (!atomic_load_explicit(&cublaslt_ready, memory_order_acquire)) {
        hs_os_lock_take(lock);
        if (!cublaslt_ready &&
            fill(op, "cuBLASLt", names, 2, symbols, sizeof symbols / sizeof *symbols, &cublaslt) == HS_OK)
            atomic_store_explicit(&cublaslt_ready, true, memory_order_release);
        hs_os_lock_release(lock);
    }
    return cublaslt_ready ? &cublaslt : NULL;
}
