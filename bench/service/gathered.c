/* The least that a shuffle of many pieces does, in two copies: two clients sort the rows of maps by partition,
 * with a digest for each piece, and send each map as one batch to two servers. These keep the batches, and count
 * what each partition has. Then the clients read the partitions: a server looks up the piece of each batch, copies
 * it behind the others, and the client digests its rows again.
 *
 *   gathered BYTES MAPS PARTITIONS     prints the seconds of writing and of reading
 */
#define _GNU_SOURCE
#include <nmmintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS 2
#define SERVERS 2

/* A piece in the table of a batch: where it ends, and what its rows add up to. */
struct entry {
    uint32_t partition, end, digest;
};

/* What a reader learns of a piece. */
struct piece {
    uint32_t map, rows, digest;
};

static size_t maps, partitions, rows_of_map, length;
static int near_end[CLIENTS][SERVERS], far_end[CLIENTS][SERVERS];
static char **batches; /* of a server, by map */
static uint64_t *counts;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void whole(int descriptor, void *bytes, size_t count, int is_write)
{
    for (char *at = bytes; count > 0;) {
        ssize_t moved = is_write ? write(descriptor, at, count) : read(descriptor, at, count);
        if (moved <= 0)
            exit(1);
        at += moved;
        count -= moved;
    }
}

static uint32_t digest(uint64_t row, uint32_t map)
{
    return _mm_crc32_u64(map, row);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A server's thread for one client: its batches, then its reads. */
static void *serve(void *argument)
{
    int descriptor = *(int *)argument;
    for (size_t at = 0; at < maps / CLIENTS; at++) {
        uint32_t map;
        whole(descriptor, &map, sizeof map, 0);
        char *batch = malloc(length);
        whole(descriptor, batch, length, 0);
        struct entry *table = (struct entry *)batch;
        pthread_mutex_lock(&counting);
        for (size_t piece = 0, before = 0; piece < partitions; before = table[piece++].end) {
            counts[2 * table[piece].partition] += table[piece].end - before;
            counts[2 * table[piece].partition + 1] += table[piece].digest;
        }
        batches[map] = batch;
        pthread_mutex_unlock(&counting);
        whole(descriptor, &map, sizeof map, 1);
    }
    struct piece *pieces = malloc(maps * sizeof *pieces);
    uint64_t *rows = malloc(maps * (rows_of_map / partitions + 1) * 8);
    uint32_t partition;
    while (read(descriptor, &partition, sizeof partition) == sizeof partition) {
        uint64_t total = 0;
        for (uint32_t map = 0; map < maps; map++) {
            struct entry *table = (struct entry *)batches[map];
            uint64_t *all = (uint64_t *)(batches[map] + partitions * sizeof *table);
            size_t begin = partition ? table[partition - 1].end : 0, end = table[partition].end;
            pieces[map] = (struct piece){map, end - begin, table[partition].digest};
            memcpy(rows + total, all + begin, (end - begin) * 8);
            total += end - begin;
        }
        if (total != counts[2 * partition])
            exit(1);
        whole(descriptor, pieces, maps * sizeof *pieces, 1);
        whole(descriptor, rows, total * 8, 1);
    }
    return NULL;
}

static void run_server(int server)
{
    pthread_t threads[CLIENTS];
    for (int client = 0; client < CLIENTS; client++) {
        for (int other = 0; other < SERVERS; other++) {
            close(near_end[client][other]);
            if (other != server)
                close(far_end[client][other]);
        }
        pthread_create(&threads[client], NULL, serve, &far_end[client][server]);
    }
    for (int client = 0; client < CLIENTS; client++)
        pthread_join(threads[client], NULL);
    _exit(0);
}

static void run_client(int client, double *wrote, double *read_)
{
    uint64_t *rows = malloc(rows_of_map * 8);
    uint32_t *of_row = malloc(rows_of_map * 4), *next = malloc(partitions * 4);
    char *batch = malloc(length);
    struct entry *table = (struct entry *)batch;
    uint64_t *sorted = (uint64_t *)(batch + partitions * sizeof *table);
    for (size_t row = 0; row < rows_of_map; row++) {
        rows[row] = row * 0x9e3779b97f4a7c15;
        of_row[row] = (row * 7919) % partitions;
    }
    double start = now();
    for (uint32_t map = client; map < maps; map += CLIENTS) {
        memset(next, 0, partitions * 4);
        for (size_t row = 0; row < rows_of_map; row++)
            next[of_row[row]]++;
        for (uint32_t partition = 0, end = 0; partition < partitions; partition++) {
            uint32_t count = next[partition];
            next[partition] = end;
            end += count;
            table[partition] = (struct entry){partition, end, 0};
        }
        for (size_t row = 0; row < rows_of_map; row++) {
            sorted[next[of_row[row]]++] = rows[row];
            table[of_row[row]].digest += digest(rows[row], map);
        }
        for (int server = 0; server < SERVERS; server++) {
            whole(near_end[client][server], &map, sizeof map, 1);
            whole(near_end[client][server], batch, length, 1);
        }
        uint32_t answer;
        for (int server = 0; server < SERVERS; server++)
            whole(near_end[client][server], &answer, sizeof answer, 0);
    }
    *wrote = now() - start;
    /* All clients have written before anybody reads. */
    static const struct timespec moment = {0, 100000};
    for (volatile double *all = wrote - client; all[0] == 0 || all[1] == 0;)
        nanosleep(&moment, NULL);
    struct piece *pieces = malloc(maps * sizeof *pieces);
    uint64_t *came = malloc(maps * (rows_of_map / partitions + 1) * 8);
    start = now();
    for (uint32_t partition = client; partition < partitions; partition += CLIENTS) {
        int descriptor = near_end[client][partition / CLIENTS % SERVERS];
        whole(descriptor, &partition, sizeof partition, 1);
        whole(descriptor, pieces, maps * sizeof *pieces, 0);
        size_t total = 0;
        for (size_t map = 0; map < maps; map++)
            total += pieces[map].rows;
        whole(descriptor, came, total * 8, 0);
        uint64_t *row = came;
        for (size_t map = 0; map < maps; map++) {
            uint32_t sum = 0;
            for (uint32_t count = 0; count < pieces[map].rows; count++)
                sum += digest(*row++, pieces[map].map);
            if (sum != pieces[map].digest)
                exit(1);
        }
    }
    *read_ = now() - start;
    _exit(0);
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    maps = strtoull(arguments[2], NULL, 10);
    partitions = strtoull(arguments[3], NULL, 10);
    rows_of_map = strtoull(arguments[1], NULL, 10) / maps / 8;
    length = partitions * sizeof(struct entry) + rows_of_map * 8;
    batches = calloc(maps, sizeof *batches);
    counts = calloc(2 * partitions, sizeof *counts);
    double *times = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int client = 0; client < CLIENTS; client++)
        for (int server = 0; server < SERVERS; server++) {
            int ends[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
                return 1;
            near_end[client][server] = ends[0];
            far_end[client][server] = ends[1];
        }
    for (int server = 0; server < SERVERS; server++)
        if (fork() == 0)
            run_server(server);
    for (int client = 0; client < CLIENTS; client++)
        if (fork() == 0)
            run_client(client, times + client, times + CLIENTS + client);
    for (int client = 0; client < CLIENTS; client++)
        for (int server = 0; server < SERVERS; server++) {
            close(near_end[client][server]);
            close(far_end[client][server]);
        }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    if (failed)
        return 1;
    double wrote = times[0] > times[1] ? times[0] : times[1];
    double read_ = times[2] > times[3] ? times[2] : times[3];
    printf("%.6f %.6f\n", wrote, read_);
    return 0;
}
