/* library.h - vendor libraries as tables of function pointers, filled on first use.
 *
 * Looked for in this order: the copy that is already in the process (so that we share torch's), the folders given by
 * hs_library_paths_set, where the system looks. In each place the newest version comes first. A library that is absent
 * is looked for again at the next call. */
#ifndef HS_LIBRARY_H
#define HS_LIBRARY_H
#include "cublaslt.h"
#include "status.h"

/* Replaces the folders; the strings are copied. */
hs_status hs_library_paths_set(const char *const *folders, int count);

/* NULL when cuBLASLt cannot be had; hs_error then says what was looked for and where. op begins that sentence. */
const hs_cublaslt *hs_library_cublaslt(const char *op);
#endif
