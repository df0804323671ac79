/* What the kernel alone takes for the messages of sparse tasks: a thread that learns from processes over loopback TCP
 * that their tasks are done, and answers each with one message to the process and one to a client. It does nothing
 * else. Prints its processor time and its wake-ups, each a task.
 *
 * sparse_floor WORKERS TASKS_A_SLOT: workers have two tasks of 100 ms each at a time. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 2, TASK_MS = 100, REPORT = 64, COMMAND = 128, NOTICE = 48 };

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Both ends of a connection over the loopback interface. */
static void connected(int listener, const struct sockaddr_in *address, int *near, int *far)
{
    int one = 1;
    *far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*far < 0 || connect(*far, (const struct sockaddr *)address, sizeof *address) < 0)
        fail("connect");
    *near = accept(listener, NULL, NULL);
    if (*near < 0)
        fail("accept");
    setsockopt(*near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Runs tasks that sleep, and reports each. */
static void worker(int fd)
{
    char message[REPORT] = {0}, command[COMMAND * SLOTS];
    long due[SLOTS];
    int running = 0;
    for (;;) {
        long left = running ? due[0] - now_ms() : -1;
        struct pollfd it = {fd, POLLIN, 0};
        int ready = poll(&it, 1, left > 0 ? (int)left : running ? 0 : -1);
        if (ready > 0) {
            ssize_t got = recv(fd, command, sizeof command, 0);
            if (got <= 0)
                _exit(0);
            /* Messages are never cut: they are small, and each is sent at once. */
            for (ssize_t at = 0; at < got && running < SLOTS; at += COMMAND)
                due[running++] = now_ms() + TASK_MS;
        } else if (running) {
            due[0] = due[--running];
            if (send(fd, message, sizeof message, MSG_NOSIGNAL) < 0)
                _exit(0);
        }
    }
}

static void client(int fd)
{
    char notices[4096];
    while (recv(fd, notices, sizeof notices, 0) > 0)
        ;
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int workers = atoi(argv[1]);
    long tasks = (long)workers * SLOTS * atol(argv[2]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 16) < 0)
        fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    int *near = calloc(workers + 1, sizeof *near);
    int poller = epoll_create1(0);
    for (int i = 0; i <= workers; i++) {
        int far;
        connected(listener, &address, &near[i], &far);
        if (fork() == 0) {
            for (int j = 0; j <= i; j++)
                close(near[j]);
            i < workers ? worker(far) : client(far);
        }
        close(far);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = near[i]};
        if (i < workers)
            epoll_ctl(poller, EPOLL_CTL_ADD, near[i], &event);
    }
    char command[COMMAND] = {0}, notice[NOTICE] = {0}, report[REPORT * SLOTS];
    struct rusage before, after;
    long done = 0, given = 0, woken = 0;
    for (int i = 0; i < workers; i++)
        for (int slot = 0; slot < SLOTS; slot++, given++)
            send(near[i], command, sizeof command, MSG_NOSIGNAL);
    getrusage(RUSAGE_THREAD, &before);
    while (done < tasks) {
        struct epoll_event events[64];
        int ready = epoll_wait(poller, events, 64, -1);
        woken++;
        for (int i = 0; i < ready; i++) {
            ssize_t got = recv(events[i].data.fd, report, sizeof report, 0);
            for (ssize_t at = 0; at < got; at += REPORT, done++) {
                if (given < tasks) {
                    send(events[i].data.fd, command, sizeof command, MSG_NOSIGNAL);
                    given++;
                }
                send(near[workers], notice, sizeof notice, MSG_NOSIGNAL);
            }
        }
    }
    getrusage(RUSAGE_THREAD, &after);
    double us = 1e6 * (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
                       before.ru_stime.tv_sec) +
                (after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
                 before.ru_stime.tv_usec);
    printf("%.1f %.2f\n", us / tasks, (double)woken / tasks);
    for (int i = 0; i <= workers; i++)
        close(near[i]);
    while (wait(NULL) > 0)
        ;
    return 0;
}
