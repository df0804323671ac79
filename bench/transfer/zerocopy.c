/* Does MSG_ZEROCOPY pay here? Sends 100 MB from one array again and again, with and without it, to
 * a receiver that reads into one array, and asks the kernel whether it copied after all.
 *
 *   zerocopy receive ADDRESS PORT
 *   zerocopy send ADDRESS PORT 0|1     prints MB/s, and the share of completions that say "copied"
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, SIZE = 100 << 20, ROUNDS = 40 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static unsigned char *array(void) {
    unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    madvise(memory, SIZE, MADV_HUGEPAGE);
    memset(memory, 3, SIZE);
    return memory;
}

static unsigned completions, copied;

static void collect(int socket) {
    char control[128];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    while (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        struct sock_extended_err *error = (struct sock_extended_err *)CMSG_DATA(header);
        unsigned count = error->ee_data - error->ee_info + 1;
        completions += count;
        if (error->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) copied += count;
        message.msg_controllen = sizeof control;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "zerocopy receive|send ADDRESS PORT [0|1]\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    int socket_ = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    unsigned char *memory = array();
    if (!strcmp(argv[1], "receive")) {
        setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(socket_, (void *)&address, sizeof address)) fail("bind");
        listen(socket_, 1);
        int peer = accept(socket_, NULL, NULL);
        for (size_t at = 0;;) {
            ssize_t count = recv(peer, memory + at, SIZE - at < BLOCK ? SIZE - at : BLOCK, 0);
            if (count <= 0) return 0;
            at = (at + count) % SIZE;
        }
    }
    int zerocopy = argc > 4 && atoi(argv[4]);
    if (zerocopy && setsockopt(socket_, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one)) fail("SO_ZEROCOPY");
    setsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    if (connect(socket_, (void *)&address, sizeof address)) fail("connect");
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long left = (long)SIZE * ROUNDS, at = 0; left > 0;) {
        size_t length = SIZE - at < BLOCK ? SIZE - at : BLOCK;
        ssize_t count = send(socket_, memory + at, length, zerocopy ? MSG_ZEROCOPY : 0);
        if (count < 0 && errno == ENOBUFS) {
            collect(socket_);
            continue;
        }
        if (count < 0) fail("send");
        at = (at + count) % SIZE;
        left -= count;
        if (zerocopy) collect(socket_);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
    usleep(100000);
    if (zerocopy) collect(socket_);
    printf("%.0f MB/s", (double)SIZE * ROUNDS / seconds / 1e6);
    if (zerocopy) printf(", %u of %u completions copied", copied, completions);
    printf("\n");
    return 0;
}
