/* status.h - how a call ends: a code, and a sentence that the calling thread can read. */
#ifndef HS_STATUS_H
#define HS_STATUS_H

typedef enum {
    HS_OK,
    HS_BAD_VALUE,     /* the caller's mistake: ValueError */
    HS_BAD_TYPE,      /* the caller's mistake: TypeError */
    HS_FAILURE,       /* the machine's trouble: RuntimeError */
    HS_OUT_OF_MEMORY, /* MemoryError, or torch.OutOfMemoryError on a GPU */
} hs_status;

#ifdef __cplusplus
extern "C" {
#endif
/* Stores the sentence for this thread and returns code. The form is "op: argument and both values". */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
hs_status hs_fail(hs_status code, const char *format, ...);

/* The sentence of this thread's last failure. */
const char *hs_error(void);
#ifdef __cplusplus
}
#endif
#endif
