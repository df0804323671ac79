/* Preloaded by test_transfer_copies.py: counts the bytes that large copies in user space move. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

/* Headers and the like are smaller. */
#define LARGE 4096

typedef void *copy_function(void *, const void *, size_t);

static _Atomic(copy_function *) next_memcpy, next_memmove;
static atomic_ullong copied;

__attribute__((constructor)) static void find(void) {
    next_memcpy = (copy_function *)dlsym(RTLD_NEXT, "memcpy");
    next_memmove = (copy_function *)dlsym(RTLD_NEXT, "memmove");
}

/* The bytes that were copied since the last call. */
unsigned long long take_copied(void) { return atomic_exchange(&copied, 0); }

/* For calls before the constructor ran. */
static void *by_hand(void *to, const void *from, size_t length) {
    volatile char *t = to;
    const volatile char *f = from;
    if (t < f)
        for (size_t i = 0; i < length; i++) t[i] = f[i];
    else
        for (size_t i = length; i > 0; i--) t[i - 1] = f[i - 1];
    return to;
}

static void *copy(copy_function *function, void *to, const void *from, size_t length) {
    if (length >= LARGE) atomic_fetch_add(&copied, length);
    return function ? function(to, from, length) : by_hand(to, from, length);
}

void *memcpy(void *restrict to, const void *restrict from, size_t length) {
    return copy(next_memcpy, to, from, length);
}

void *memmove(void *to, const void *from, size_t length) {
    return copy(next_memmove, to, from, length);
}
