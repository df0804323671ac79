/* The peer that Treadle's receiving is measured against: blocks over one TCP socket, in extents of
 * 256 KiB, each with its CRC-32C, received straight into memory of one kind and verified there.
 *
 *   receiver serve HOST KIND       prints {"port": N}; receives from one sender after the other
 *   receiver send HOST PORT MB     reads numbers of blocks from standard input, a line each, sends
 *                                  them, waits until the other side has them, prints
 *                                  {"bytes": …, "seconds": …}
 *
 * The kinds of memory:
 *   warm     one buffer, used again for every block
 *   fresh    a new anonymous mapping for every block, unmapped after it
 *   pooled   two mappings with huge pages, taken in turns
 *
 * On the wire: a block is its size (8 bytes, the machine's order) and its extents, each its CRC
 * (8 bytes) and its bytes. A block of size 0 asks for an answer, one byte.
 *
 * One thread a side: each reads or writes an extent and computes its CRC while it is in the cache. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nmmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { EXTENT = 256 << 10, LANE = 8 << 10, POOL = 2, BATCH = 4 };

static void fail(const char *what)
{
    fprintf(stderr, "receiver: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The crc32 instruction takes three cycles and one may start in each, so three lanes run at once.
 * The state is linear over GF(2): a lane's state is carried past the next lane's bytes by a table of
 * what LANE zero bytes make of every value of each of its four bytes. */
static uint32_t shifted[4][256];

static void fill_shifted(void)
{
    uint32_t bit[32];
    for (int i = 0; i < 32; i++) {
        uint64_t state = 1u << i;
        for (int k = 0; k < LANE / 8; k++)
            state = _mm_crc32_u64(state, 0);
        bit[i] = (uint32_t)state;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++)
            for (int i = 0; i < 8; i++)
                if (value >> i & 1)
                    shifted[byte][value] ^= bit[8 * byte + i];
}

static uint64_t past_a_lane(uint64_t state)
{
    return shifted[0][state & 255] ^ shifted[1][state >> 8 & 255] ^ shifted[2][state >> 16 & 255] ^
           shifted[3][state >> 24 & 255];
}

static uint64_t word(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t crc32c(const unsigned char *at, size_t size)
{
    uint64_t state = 0xffffffff;
    for (; size >= 3 * LANE; at += 3 * LANE, size -= 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            state = _mm_crc32_u64(state, word(at + i));
            second = _mm_crc32_u64(second, word(at + LANE + i));
            third = _mm_crc32_u64(third, word(at + 2 * LANE + i));
        }
        state = past_a_lane(past_a_lane(state) ^ second) ^ third;
    }
    for (; size >= 8; at += 8, size -= 8)
        state = _mm_crc32_u64(state, word(at));
    for (; size; at++, size--)
        state = _mm_crc32_u8((uint32_t)state, *at);
    return ~(uint32_t)state;
}

/* Moves all of `parts` with `move` (readv or writev); 0 at the end of the stream. */
static int all(ssize_t (*move)(int, const struct iovec *, int), int fd, struct iovec *parts, int count)
{
    while (count) {
        ssize_t moved = move(fd, parts, count);
        if (moved == 0)
            return 0;
        if (moved < 0) {
            if (errno == EINTR)
                continue;
            fail("socket");
        }
        for (; count && (size_t)moved >= parts->iov_len; parts++, count--)
            moved -= (ssize_t)parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + moved;
            parts->iov_len -= (size_t)moved;
        }
    }
    return 1;
}

static int read_all(int fd, void *to, size_t size)
{
    struct iovec part = {to, size};
    return all(readv, fd, &part, 1);
}

static unsigned char *map(size_t size, int huge)
{
    unsigned char *at =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fail("mmap");
    if (huge)
        madvise(at, size, MADV_HUGEPAGE);
    return at;
}

static void receive_block(int fd, unsigned char *at, size_t size)
{
    uint64_t expected, next = 0;
    if (!read_all(fd, &expected, sizeof expected))
        fail("the sender is gone");
    while (size) {
        size_t extent = size < EXTENT ? size : EXTENT;
        /* The next extent's CRC comes with this extent's bytes: one call an extent. */
        struct iovec parts[2] = {{at, extent}, {&next, sizeof next}};
        if (!all(readv, fd, parts, size > extent ? 2 : 1))
            fail("the sender is gone");
        if (crc32c(at, extent) != expected) {
            fprintf(stderr, "receiver: an extent has another CRC-32C than it was sent with\n");
            exit(1);
        }
        expected = next;
        at += extent;
        size -= extent;
    }
}

static void receive(int fd, const char *kind)
{
    unsigned char *buffers[POOL] = {0};
    size_t sizes[POOL] = {0};
    int fresh = !strcmp(kind, "fresh"), pooled = !strcmp(kind, "pooled");
    uint64_t size;
    for (unsigned block = 0; read_all(fd, &size, sizeof size);) {
        if (size == 0) {
            if (write(fd, "k", 1) != 1)
                fail("answer");
            continue;
        }
        unsigned slot = pooled ? block++ % POOL : 0;
        if (sizes[slot] != size) {
            if (sizes[slot])
                munmap(buffers[slot], sizes[slot]);
            buffers[slot] = map(size, !fresh);
            sizes[slot] = size;
        }
        receive_block(fd, buffers[slot], size);
        if (fresh) {
            munmap(buffers[slot], size);
            sizes[slot] = 0;
        }
    }
    for (int slot = 0; slot < POOL; slot++)
        if (sizes[slot])
            munmap(buffers[slot], sizes[slot]);
}

static struct sockaddr_in address_of(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fprintf(stderr, "receiver: %s is no IPv4 address\n", host);
        exit(1);
    }
    return address;
}

/* CONGESTION in the environment names a congestion control other than the machine's default: BBR, the
 * default of some, paces by its own estimate and halves what one loopback socket carries. */
static void choose_congestion(int fd)
{
    const char *name = getenv("CONGESTION");
    if (name && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) != 0)
        fail(name);
}

static void serve(const char *host, const char *kind)
{
    struct sockaddr_in address = address_of(host, 0);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 ||
        listen(listener, 8) != 0 || getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        fail("listen");
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            fail("accept");
        receive(fd, kind);
        close(fd);
    }
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

/* BATCH extents a call: what the kernel is handed at once decides how well it fills its segments. */
static void send_block(int fd, unsigned char *at, size_t size)
{
    uint64_t header = size, crcs[BATCH];
    struct iovec parts[1 + 2 * BATCH];
    int count = 0;
    parts[count++] = (struct iovec){&header, sizeof header};
    while (size) {
        for (int i = 0; i < BATCH && size; i++) {
            size_t extent = size < EXTENT ? size : EXTENT;
            crcs[i] = crc32c(at, extent);
            parts[count++] = (struct iovec){&crcs[i], sizeof crcs[i]};
            parts[count++] = (struct iovec){at, extent};
            at += extent;
            size -= extent;
        }
        all(writev, fd, parts, count);
        count = 0;
    }
}

static void send_blocks(const char *host, int port, size_t size)
{
    struct sockaddr_in address = address_of(host, port);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        fail("connect");
    choose_congestion(fd);
    unsigned char *block = map(size, 1);
    for (size_t i = 0; i < size; i++)
        block[i] = (unsigned char)(i * 2654435761u >> 13);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long blocks = strtoul(line, NULL, 10);
        uint64_t end = 0;
        char answer;
        double start = now();
        for (unsigned long i = 0; i < blocks; i++)
            send_block(fd, block, size);
        if (write(fd, &end, sizeof end) != sizeof end || !read_all(fd, &answer, 1))
            fail("the receiver is gone");
        printf("{\"bytes\": %zu, \"seconds\": %.9f}\n", blocks * size, now() - start);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    fill_shifted();
    if (crc32c((const unsigned char *)"123456789", 9) != 0xe3069283) {
        fprintf(stderr, "receiver: its CRC-32C is wrong\n");
        return 1;
    }
    if (argc == 4 && !strcmp(argv[1], "serve"))
        serve(argv[2], argv[3]);
    else if (argc == 5 && !strcmp(argv[1], "send"))
        send_blocks(argv[2], atoi(argv[3]), strtoul(argv[4], NULL, 10) * 1000000);
    else
        fprintf(stderr, "usage: receiver serve HOST warm|fresh|pooled\n"
                        "       receiver send HOST PORT MB\n");
    return 0;
}
