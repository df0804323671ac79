/* Preloaded by test_threads_missing.py: as where the system has no thread for who asks for one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* How many threads can still be had. */
static atomic_long left = LONG_MAX;

/* From now on only so many. */
void threads_left(long count) { atomic_store(&left, count); }

/* Processes that are started later have so many. */
__attribute__((constructor)) static void read_count(void) {
    const char *count = getenv("THREADS_LEFT");
    if (count) atomic_store(&left, atol(count));
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                   void *argument) {
    static _Atomic(create_function *) next;
    create_function *create = atomic_load(&next);
    if (!create) {
        create = (create_function *)dlsym(RTLD_NEXT, "pthread_create");
        atomic_store(&next, create);
    }
    if (atomic_fetch_sub(&left, 1) <= 0) {
        atomic_store(&left, 0);
        return EAGAIN;
    }
    return create(thread, attributes, body, argument);
}
