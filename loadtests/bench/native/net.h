/* Small things that all programs here share: clock, sockets, files. */
#ifndef NET_H
#define NET_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void die(const char *what)
{
    perror(what);
    exit(2);
}

/* Every allocation that fails ends the program: these are tools, and there is nothing to save. */
static inline void *grown(void *old, size_t num_bytes)
{
    void *memory = realloc(old, num_bytes);
    if (!memory)
        die("memory");
    return memory;
}

static inline void set_no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Returns a non-blocking listening socket, and prints {"url": ...} for whoever started us. */
static inline int listen_on_loopback(int port)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = loopback(port);
    socklen_t length = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 4096))
        die("bind");
    getsockname(fd, (void *)&address, &length);
    printf("{\"url\": \"http://127.0.0.1:%d\"}\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

/* Allows as many open files as the system lets us have; returns that number. */
static inline size_t raise_file_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur > 65536 ? 65536 : (size_t)limit.rlim_cur;
}

/* Returns a POST request for loopback with the file's bytes as its body. */
static inline char *request_of(const char *file, const char *path, int port, size_t *num_bytes)
{
    FILE *body = fopen(file, "rb");
    if (!body)
        die(file);
    fseek(body, 0, SEEK_END);
    size_t length = (size_t)ftell(body);
    rewind(body);
    char *request = grown(NULL, length + 1024);
    int head = snprintf(request, 1024,
                        "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: bench/1\r\n"
                        "accept: */*\r\ncontent-type: application/json\r\n"
                        "content-length: %zu\r\n\r\n", path, port, length);
    if (fread(request + head, 1, length, body) != length)
        die(file);
    fclose(body);
    *num_bytes = (size_t)head + length;
    return request;
}

static inline int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* A growing list of durations in seconds. */
struct samples {
    float *values;
    size_t count, room;
};

static inline void add_sample(struct samples *s, double seconds)
{
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 65536;
        s->values = grown(s->values, s->room * sizeof *s->values);
    }
    s->values[s->count++] = (float)seconds;
}

/* Prints `"name":{"p50":..,"p99":..,"max":..}` in seconds; null where there are none. */
static inline void print_samples(const char *name, struct samples *s)
{
    if (!s->count) {
        printf("\"%s\":null", name);
        return;
    }
    qsort(s->values, s->count, sizeof *s->values, by_value);
    printf("\"%s\":{\"p50\":%.6f,\"p99\":%.6f,\"max\":%.6f}", name, s->values[s->count / 2],
           s->values[(size_t)((double)(s->count - 1) * 0.99)], s->values[s->count - 1]);
}

#endif
