/* os.h - every call to the operating system. A port to another one replaces os.c. */
#ifndef HS_OS_H
#define HS_OS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- shared libraries ---- */
/* The copy that is already in the process, or NULL. */
void *hs_os_library_loaded(const char *name);
void *hs_os_library_open(const char *path);
void *hs_os_symbol(void *library, const char *name);

/* ---- memory ---- */
void *hs_os_aligned_alloc(size_t alignment, size_t bytes); /* NULL when there is none; hs_os_free frees it */
void hs_os_free(void *memory);

/* ---- threads ---- */
int hs_os_core_count(void); /* the cores this process may run on */
/* Runs function(argument) on a new thread that nobody joins. */
bool hs_os_thread_start(void (*function)(void *), void *argument);
/* Calls function in the child after a fork. */
void hs_os_after_fork(void (*function)(void));

typedef struct hs_os_lock hs_os_lock; /* a mutex with two conditions, "work" and "done" */
hs_os_lock *hs_os_lock_new(void);
void hs_os_lock_take(hs_os_lock *lock);
bool hs_os_lock_try(hs_os_lock *lock);
void hs_os_lock_release(hs_os_lock *lock);
void hs_os_wait_work(hs_os_lock *lock);
void hs_os_wake_work(hs_os_lock *lock);
void hs_os_wait_done(hs_os_lock *lock);
void hs_os_wake_done(hs_os_lock *lock);
#endif
