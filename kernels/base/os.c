#define _GNU_SOURCE
#include "os.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

void *hs_os_library_loaded(const char *name) {
    return dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
}
void *hs_os_library_open(const char *path) {
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL);
}
void *hs_os_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

void *hs_os_aligned_alloc(size_t alignment, size_t bytes) {
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void hs_os_free(void *memory) {
    free(memory);
}

int hs_os_core_count(void) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

typedef struct {
    void (*function)(void *);
    void *argument;
} start;

static void *run(void *opaque) {
    const start s = *(start *)opaque;
    free(opaque);
    s.function(s.argument);
    return NULL;
}

bool hs_os_thread_start(void (*function)(void *), void *argument) {
    start *s = malloc(sizeof *s);
    if (!s) return false;
    *s = (start){function, argument};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, s) != 0) {
        free(s);
        return false;
    }
    pthread_detach(thread);
    return true;
}

void hs_os_after_fork(void (*function)(void)) {
    pthread_atfork(NULL, NULL, function);
}

struct hs_os_lock {
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
};

hs_os_lock *hs_os_lock_new(void) {
    hs_os_lock *lock = malloc(sizeof *lock);
    if (!lock) return NULL;
    pthread_mutex_init(&lock->mutex, NULL);
    pthread_cond_init(&lock->work, NULL);
    pthread_cond_init(&lock->done, NULL);
    return lock;
}
void hs_os_lock_take(hs_os_lock *lock) {
    pthread_mutex_lock(&lock->mutex);
}
bool hs_os_lock_try(hs_os_lock *lock) {
    return pthread_mutex_trylock(&lock->mutex) == 0;
}
void hs_os_lock_release(hs_os_lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
}
void hs_os_wait_work(hs_os_lock *lock) {
    pthread_cond_wait(&lock->work, &lock->mutex);
}
void hs_os_wake_work(hs_os_lock *lock) {
    pthread_cond_broadcast(&lock->work);
}
void hs_os_wait_done(hs_os_lock *lock) {
    pthread_cond_wait(&lock->done, &lock->mutex);
}
void hs_os_wake_done(hs_os_lock *lock) {
    pthread_cond_broadcast(&lock->done);
}
