/* threads.h - one loop over several cores.
 *
 * The pool starts with the first large loop and sleeps between loops. A loop that finds the pool busy, or that is
 * called from inside another loop, runs on its own thread. After a fork the child starts a pool of its own. */
#ifndef HS_THREADS_H
#define HS_THREADS_H
#include <stdint.h>

/* Calls body(argument, begin, end) on disjoint ranges that cover [0, count), none shorter than grain but the last.
 * The split depends on count, grain and the thread count alone. */
void hs_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end),
                     void *argument);

/* How many ranges hs_parallel_for makes, for loops that keep one partial sum per range; range i begins at
 * i * hs_parallel_step(count, grain). */
int64_t hs_parallel_ranges(int64_t count, int64_t grain);
int64_t hs_parallel_step(int64_t count, int64_t grain);

/* Threads in use: HALFSTEP_NUM_THREADS, else OMP_NUM_THREADS, else the cores of this process. */
int hs_thread_count(void);
void hs_thread_count_set(int count);
#endif
