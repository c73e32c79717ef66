#include "threads.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "os.h"

enum { MAX_THREADS = 64 };

typedef struct {
    void (*body)(void *, int64_t, int64_t);
    void *argument;
    int64_t count, step, ranges;
    _Atomic int64_t next; /* the first range that nobody has taken */
} loop;

static struct {
    hs_os_lock *turn; /* held by the thread whose loop runs */
    hs_os_lock *lock; /* guards the fields below */
    loop *current;
    uint64_t generation;
    int workers, active;
} pool;

static _Atomic int thread_count;
static _Thread_local bool inside;

static int count_from_environment(void) {
    const char *names[] = {"HALFSTEP_NUM_THREADS", "OMP_NUM_THREADS"};
    for (int i = 0; i < 2; i++) {
        const char *text = getenv(names[i]);
        const int n = text ? atoi(text) : 0;
        if (n > 0) return n;
    }
    return hs_os_core_count();
}

int hs_thread_count(void) {
    int n = atomic_load(&thread_count);
    if (n > 0) return n;
    n = count_from_environment();
    hs_thread_count_set(n);
    return atomic_load(&thread_count);
}

void hs_thread_count_set(int count) {
    atomic_store(&thread_count, count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count);
}

int64_t hs_parallel_step(int64_t count, int64_t grain) {
    if (grain < 1) grain = 1;
    const int64_t threads = hs_thread_count(), share = (count + threads - 1) / threads;
    return share > grain ? share : grain;
}

int64_t hs_parallel_ranges(int64_t count, int64_t grain) {
    const int64_t step = hs_parallel_step(count, grain);
    return (count + step - 1) / step;
}

static void take_ranges(loop *l) {
    for (;;) {
        const int64_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->ranges) return;
        const int64_t begin = i * l->step, end = begin + l->step;
        l->body(l->argument, begin, end < l->count ? end : l->count);
    }
}

static void work(void *unused) {
    (void)unused;
    inside = true;
    uint64_t seen = 0;
    hs_os_lock_take(pool.lock);
    for (;;) {
        while (!pool.current || pool.generation == seen) hs_os_wait_work(pool.lock);
        seen = pool.generation;
        loop *l = pool.current;
        pool.active++;
        hs_os_lock_release(pool.lock);
        take_ranges(l);
        hs_os_lock_take(pool.lock);
        if (--pool.active == 0) hs_os_wake_done(pool.lock);
    }
}

static void forget_pool(void) {
    pool.turn = hs_os_lock_new();
    pool.lock = hs_os_lock_new();
    pool.current = NULL;
    pool.generation = 0;
    pool.workers = pool.active = 0;
    inside = false;
}

/* Runs before main or at dlopen, so that the locks exist before any thread asks for them. */
__attribute__((constructor)) static void pool_init(void) {
    forget_pool();
    hs_os_after_fork(forget_pool);
}

static void run_with_pool(loop *l) {
    hs_os_lock_take(pool.lock);
    while (pool.workers < hs_thread_count() - 1 && hs_os_thread_start(work, NULL)) pool.workers++;
    pool.current = l;
    pool.generation++;
    hs_os_wake_work(pool.lock);
    hs_os_lock_release(pool.lock);
    inside = true;
    take_ranges(l);
    inside = false;
    hs_os_lock_take(pool.lock);
    pool.current = NULL;
    while (pool.active) hs_os_wait_done(pool.lock);
    hs_os_lock_release(pool.lock);
}

void hs_parallel_for(int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *argument) {
    if (count <= 0) return;
    loop l = {.body = body, .argument = argument, .count = count};
    l.step = hs_parallel_step(count, grain);
    l.ranges = (count + l.step - 1) / l.step;
    if (l.ranges == 1 || inside || !pool.turn || !hs_os_lock_try(pool.turn)) {
        take_ranges(&l);
        return;
    }
    run_with_pool(&l);
    hs_os_lock_release(pool.turn);
}
