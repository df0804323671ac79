/* The least that a push of rows in two copies does: each row is gathered into a batch and digested, the batch
 * goes through a socket to each of two processes, which check it, and keep it or write it to a file.
 *
 *   copies BYTES [FILE FILE]     prints the seconds that BYTES of rows took
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <nmmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH (4 << 20)

static uint64_t checksum(const uint64_t *words, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes / 8; at++)
        sum = _mm_crc32_u64(sum, words[at]);
    return sum;
}

static void whole(int descriptor, char *bytes, size_t length, int is_write)
{
    while (length > 0) {
        ssize_t count = is_write ? write(descriptor, bytes, length) : read(descriptor, bytes, length);
        if (count <= 0)
            exit(1);
        bytes += count;
        length -= count;
    }
}

static void serve(int descriptor, size_t batches, const char *path)
{
    int file = path ? open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600) : -1;
    uint64_t sum = 0;
    for (size_t at = 0; at < batches; at++) {
        /* What is kept in memory needs memory of its own. */
        char *batch = malloc(BATCH);
        whole(descriptor, batch, BATCH, 0);
        sum ^= checksum((uint64_t *)batch, BATCH);
        if (path) {
            whole(file, batch, BATCH, 1);
            free(batch);
        }
    }
    whole(descriptor, (char *)&sum, sizeof sum, 1);
    _exit(0);
}

int main(int count, char **arguments)
{
    size_t batches = strtoull(arguments[1], NULL, 10) / BATCH;
    int sockets[2][2];
    for (int copy = 0; copy < 2; copy++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[copy]) != 0)
            return 1;
        if (fork() == 0)
            serve(sockets[copy][1], batches, count > 3 ? arguments[2 + copy] : NULL);
    }
    uint64_t *rows = malloc(BATCH), *batch = malloc(BATCH), sum = 0, came;
    for (size_t at = 0; at < BATCH / 8; at++)
        rows[at] = at * 0x9e3779b97f4a7c15;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (size_t at = 0; at < batches; at++) {
        /* By partition: a hundred of them, row by row. */
        size_t places[100];
        for (size_t partition = 0; partition < 100; partition++)
            places[partition] = partition * (BATCH / 8 / 100 + 1);
        for (size_t row = 0; row < BATCH / 8; row++) {
            size_t place = places[row % 100]++;
            batch[place < BATCH / 8 ? place : row] = rows[row];
        }
        sum ^= checksum(batch, BATCH);
        whole(sockets[0][0], (char *)batch, BATCH, 1);
        whole(sockets[1][0], (char *)batch, BATCH, 1);
    }
    for (int copy = 0; copy < 2; copy++) {
        whole(sockets[copy][0], (char *)&came, sizeof came, 0);
        if (came != sum)
            return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) / 1e9);
    while (wait(NULL) > 0)
        continue;
    return 0;
}
