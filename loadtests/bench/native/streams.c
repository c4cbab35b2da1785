/* streams: opens many streams once, reads each to its end and checks it, for the soak.

   Usage: streams PORT PATH BODY_FILE STREAMS EVENTS INTERVAL_S RAMP_S LIMIT_S
   The connections are opened evenly over RAMP_S. A stream is complete when it was answered with
   200, brought events 0 to EVENTS - 1 in order (as mock numbers them), and [DONE]. Lateness is how
   much later an event came than INTERVAL_S times its number after the stream's first event.
   Nothing is tried again. What is not over after LIMIT_S is unfinished. Prints one line of JSON. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "net.h"
#include "reader.h"

/* Of a line enough to hold the number: mock's stands about 130 characters in. */
#define LINE_ROOM 512

struct stream {
    int fd; /* -1 before it is opened and after it is over */
    size_t sent;
    struct reader answer;
    char line[LINE_ROOM];
    size_t line_len;
    long next_event;
    int in_order, done; /* done: [DONE] came */
    double opened_at, first_event_at;
};

static struct {
    int epoll, port;
    char *request;
    size_t request_len;
    long num_events, events;
    double interval_s;
    int unfinished, complete, cut, out_of_order, refused_503, other_status, closed;
    struct samples lateness, first_event;
} soak;

static void watch(struct stream *s, int operation, uint32_t for_what)
{
    struct epoll_event event = {.events = for_what, .data.ptr = s};
    epoll_ctl(soak.epoll, operation, s->fd, &event);
}

static void take_line(struct stream *s)
{
    s->line[s->line_len] = 0;
    s->line_len = 0;
    char *content = strstr(s->line, "\"content\":\" ");
    if (!strcmp(s->line, "data: [DONE]"))
        s->done = 1;
    if (!content)
        return;
    s->in_order &= atol(content + 12) == s->next_event;
    double at = now_s();
    if (s->next_event == 0) {
        s->first_event_at = at;
        add_sample(&soak.first_event, at - s->opened_at);
    }
    add_sample(&soak.lateness,
               at - s->first_event_at - soak.interval_s * (double)s->next_event);
    s->next_event++;
    soak.events++;
}

static void take_body(void *owner, const char *bytes, size_t n)
{
    struct stream *s = owner;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n')
            take_line(s);
        else if (s->line_len < LINE_ROOM - 1)
            s->line[s->line_len++] = bytes[i];
    }
}

static void finish(struct stream *s, int whole)
{
    int status = s->answer.status;
    if (status == 0)
        soak.closed++;
    else if (status == 503)
        soak.refused_503++;
    else if (status != 200)
        soak.other_status++;
    else if (!s->in_order)
        soak.out_of_order++;
    else if (whole && s->done && s->next_event == soak.num_events)
        soak.complete++;
    else
        soak.cut++;
    close(s->fd);
    s->fd = -1;
    soak.unfinished--;
}

static void open_stream(struct stream *s)
{
    struct sockaddr_in address = loopback(soak.port);
    s->opened_at = now_s();
    s->in_order = 1;
    reader_reset(&s->answer);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        die("socket");
    if (connect(s->fd, (void *)&address, sizeof address) && errno != EINPROGRESS) {
        finish(s, 0);
        return;
    }
    set_no_delay(s->fd);
    watch(s, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void send_request(struct stream *s)
{
    ssize_t n = send(s->fd, soak.request + s->sent, soak.request_len - s->sent, MSG_NOSIGNAL);
    if (n > 0)
        s->sent += (size_t)n;
    /* A gateway that refused has closed its side; what it said is still there to be read. */
    if (s->sent == soak.request_len || (n < 0 && errno != EAGAIN))
        watch(s, EPOLL_CTL_MOD, EPOLLIN);
}

static void receive(struct stream *s)
{
    static char bytes[1 << 16];
    ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        finish(s, n == 0 && reader_ends_here(&s->answer));
        return;
    }
    int state = reader_feed(&s->answer, bytes, (size_t)n, take_body, s);
    if (state != READER_MORE)
        finish(s, state == READER_WHOLE);
}

static void serve(const struct epoll_event *event)
{
    struct stream *s = event->data.ptr;
    if (s->fd >= 0 && event->events & EPOLLOUT)
        send_request(s);
    if (s->fd >= 0 && event->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(s);
}

static void report(int num_streams, double seconds)
{
    printf("{\"streams\":%d,\"complete\":%d,\"cut\":%d,\"out_of_order\":%d,\"refused_503\":%d,"
           "\"other_status\":%d,\"closed\":%d,\"unfinished\":%d,\"events\":%ld,\"seconds\":%.4f,",
           num_streams, soak.complete, soak.cut, soak.out_of_order, soak.refused_503,
           soak.other_status, soak.closed, soak.unfinished, soak.events, seconds);
    print_samples("lateness_s", &soak.lateness);
    printf(",");
    print_samples("first_event_s", &soak.first_event);
    printf("}\n");
}

int main(int argc, char **argv)
{
    if (argc != 9) {
        fprintf(stderr, "usage: streams PORT PATH BODY_FILE STREAMS EVENTS INTERVAL_S RAMP_S"
                        " LIMIT_S\n");
        return 2;
    }
    soak.port = atoi(argv[1]);
    soak.request = request_of(argv[3], argv[2], soak.port, &soak.request_len);
    int num_streams = atoi(argv[4]), opened = 0;
    soak.num_events = atol(argv[5]);
    soak.interval_s = atof(argv[6]);
    double ramp_s = atof(argv[7]), limit_s = atof(argv[8]), started_at = now_s(), spent = 0;
    soak.epoll = epoll_create1(0);
    soak.unfinished = num_streams;
    raise_file_limit();
    struct stream *all = calloc((size_t)num_streams, sizeof *all);
    struct epoll_event events[256];
    for (; soak.unfinished > 0 && spent < limit_s; spent = now_s() - started_at) {
        while (opened < num_streams && spent >= ramp_s * opened / num_streams)
            open_stream(&all[opened++]);
        int n = epoll_wait(soak.epoll, events, 256, opened < num_streams ? 1 : 100);
        for (int i = 0; i < n; i++)
            serve(&events[i]);
    }
    report(num_streams, spent);
    return 0;
}
