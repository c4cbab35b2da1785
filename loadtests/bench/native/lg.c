/* lg: a closed-loop load generator for HTTP/1.1 on loopback, one thread, for the bench.

   Usage: lg PORT PATH BODY_FILE CONNECTIONS SECONDS EVENTS
   Every connection sends the same POST again as soon as its answer is whole. An answer with fewer
   than EVENTS `data:` lines is counted as short. Prints one line of JSON; times are in seconds.
   Origin: the project's own bench material, written anew to be read. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "net.h"
#include "reader.h"

/* What is still running so long after the end will not come back. */
#define GRACE_S 20.0

struct connection {
    int fd; /* -1 for closed */
    size_t sent;
    struct reader answer;
    int mark; /* characters of `data:` seen in a row */
    long events;
    double started_at, first_at;
};

static struct {
    int epoll, port;
    char *request;
    size_t request_len;
    long expected_events;
    double end_at;
    int active;
    long done, errors, short_answers, events, reads, connects;
    struct samples latency, first_byte;
} lg;

static void watch(struct connection *c, int operation, uint32_t for_what)
{
    struct epoll_event event = {.events = for_what, .data.ptr = c};
    epoll_ctl(lg.epoll, operation, c->fd, &event);
}

static void open_connection(struct connection *c)
{
    struct sockaddr_in address = loopback(lg.port);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address))
        die("connect");
    set_no_delay(c->fd);
    lg.connects++;
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static void close_connection(struct connection *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static void send_rest(struct connection *c)
{
    while (c->sent < lg.request_len) {
        ssize_t n = send(c->fd, lg.request + c->sent, lg.request_len - c->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) { /* a reset shows up as an event of its own */
            if (errno == EAGAIN)
                watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        c->sent += (size_t)n;
    }
}

static void start_request(struct connection *c)
{
    if (now_s() >= lg.end_at) {
        close_connection(c);
        lg.active--;
        return;
    }
    if (c->fd < 0)
        open_connection(c);
    reader_reset(&c->answer);
    c->sent = 0;
    c->mark = 0;
    c->events = 0;
    c->first_at = 0;
    c->started_at = now_s();
    send_rest(c);
}

static void finish(struct connection *c, int whole)
{
    double at = now_s();
    if (whole && c->answer.status / 100 == 2) {
        lg.done++;
        lg.short_answers += c->events < lg.expected_events;
        add_sample(&lg.latency, at - c->started_at);
        add_sample(&lg.first_byte, c->first_at - c->started_at);
    } else {
        lg.errors++;
    }
    if (!whole || !c->answer.keep_alive)
        close_connection(c);
    start_request(c);
}

static void count_events(void *owner, const char *bytes, size_t n)
{
    static const char MARK[] = "data:";
    struct connection *c = owner;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != MARK[c->mark]) {
            c->mark = bytes[i] == 'd';
        } else if (++c->mark == 5) {
            c->mark = 0;
            c->events++;
            lg.events++;
        }
    }
}

static void receive(struct connection *c)
{
    static char bytes[1 << 18];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        finish(c, n == 0 && reader_ends_here(&c->answer));
        return;
    }
    lg.reads++;
    if (!c->first_at)
        c->first_at = now_s();
    int state = reader_feed(&c->answer, bytes, (size_t)n, count_events, c);
    if (state != READER_MORE)
        finish(c, state == READER_WHOLE);
}

static void serve(struct epoll_event *event)
{
    struct connection *c = event->data.ptr;
    if (c->fd >= 0 && event->events & EPOLLOUT) {
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
        send_rest(c);
    }
    if (c->fd >= 0 && event->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(c);
}

static void report(double seconds)
{
    printf("{\"done\":%ld,\"errors\":%ld,\"unfinished\":%d,\"short\":%ld,\"events\":%ld,"
           "\"reads\":%ld,\"connects\":%ld,\"seconds\":%.4f,",
           lg.done, lg.errors, lg.active, lg.short_answers, lg.events, lg.reads, lg.connects,
           seconds);
    print_samples("latency_s", &lg.latency);
    printf(",");
    print_samples("first_byte_s", &lg.first_byte);
    printf("}\n");
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: lg PORT PATH BODY_FILE CONNECTIONS SECONDS EVENTS\n");
        return 2;
    }
    lg.port = atoi(argv[1]);
    lg.request = request_of(argv[3], argv[2], lg.port, &lg.request_len);
    lg.active = atoi(argv[4]);
    lg.expected_events = atol(argv[6]);
    lg.epoll = epoll_create1(0);
    raise_file_limit();
    struct connection *all = calloc((size_t)lg.active, sizeof *all);
    double started_at = now_s();
    lg.end_at = started_at + atof(argv[5]);
    for (int i = 0, n = lg.active; i < n; i++) {
        all[i].fd = -1;
        start_request(&all[i]);
    }
    struct epoll_event events[256];
    while (lg.active > 0 && now_s() < lg.end_at + GRACE_S) {
        int n = epoll_wait(lg.epoll, events, 256, 100);
        for (int i = 0; i < n; i++)
            serve(&events[i]);
    }
    report(now_s() - started_at);
    return 0;
}
