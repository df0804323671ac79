/* Preloaded (LD_PRELOAD), this caps what every TCP socket of a program sends: SO_MAX_PACING_RATE is
 * set on a socket before it connects and on every socket that is accepted. The rate is PACE, in bytes
 * of TCP segments a second; without PACE nothing changes.
 *
 * This models a network whose single sockets are slow, as a cloud's per-flow limit is: TCP paces each
 * socket by its own timer (Linux 4.13 and newer; no fq queueing discipline is needed), on loopback
 * and between network namespaces alike. A program that makes its system calls without libc is not
 * reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static unsigned long long rate(void)
{
    const char *text = getenv("PACE");
    return text ? strtoull(text, NULL, 10) : 0;
}

static void pace(int fd)
{
    int saved = errno, protocol = 0;
    socklen_t size = sizeof protocol;
    unsigned long long bytes = rate();
    if (bytes && getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
        protocol == IPPROTO_TCP &&
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes, sizeof bytes) != 0) {
        fprintf(stderr, "pace: SO_MAX_PACING_RATE: %s\n", strerror(errno));
        abort();
    }
    errno = saved;
}

int connect(int fd, const struct sockaddr *address, socklen_t size)
{
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (!next)
        next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    pace(fd);
    return next(fd, address, size);
}

int accept(int fd, struct sockaddr *address, socklen_t *size)
{
    static int (*next)(int, struct sockaddr *, socklen_t *);
    if (!next)
        next = (int (*)(int, struct sockaddr *, socklen_t *))dlsym(RTLD_NEXT, "accept");
    int accepted = next(fd, address, size);
    if (accepted >= 0)
        pace(accepted);
    return accepted;
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    static int (*next)(int, struct sockaddr *, socklen_t *, int);
    if (!next)
        next = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    int accepted = next(fd, address, size, flags);
    if (accepted >= 0)
        pace(accepted);
    return accepted;
}
