/* mock: a stand-in for a vLLM replica that costs almost nothing. One thread, HTTP/1.1 keep-alive.

   Usage: mock [PORT [MODEL]]      (port 0, the default: the system chooses)
   Prints {"url": ...} when it serves. Listens on loopback.
   POST, any path:  with "stream":true server-sent events, each one chunk and one write;
                    "max_tokens":N of them (16 by default), "seed":U microseconds apart (0: at
                    once), then usage and [DONE]. The content of event i is " %06d" of i.
                    Otherwise one fixed JSON answer of about 480 bytes.
   GET /v1/models, /health and what routers ask at their start.
   GET /_count      requests and streams so far: shows whether a gateway sends some twice.
   Origin: the project's own bench material, written anew to be read. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "net.h"

/* Streams are looked at this often; vLLM's own steps are 5 to 50 ms apart. */
#define TICK_MS 1
#define READ_ROOM 65536

#define SERVER "date: Sat, 29 Nov 2025 16:00:00 GMT\r\nserver: uvicorn\r\n"
#define CHUNK "\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\"," \
              "\"object\":\"chat.completion.chunk\",\"created\":1764430000,\"model\":\"%s\","

struct connection {
    int fd;
    char *in, *out; /* bytes received and not yet served; bytes that the peer did not take yet */
    size_t in_len, in_room, out_len, out_sent, out_room;
    int waits_for_room;
    int streaming, index; /* index: place in `streams` */
    long sent_events, num_events;
    uint64_t interval_us, next_us;
};

static struct {
    int epoll, listener;
    const char *model;
    struct connection **by_fd;
    size_t max_fd;
    struct connection **streams; /* those with events to come at a time of their own */
    int num_streams;
    unsigned long requests, num_stream_requests;
    char event[1024]; /* one chunk; its number is written over for each use */
    size_t event_len, number_at;
} mock;

static void watch(struct connection *c, int operation, uint32_t for_what)
{
    struct epoll_event event = {.events = for_what, .data.fd = c->fd};
    epoll_ctl(mock.epoll, operation, c->fd, &event);
}

static void leave_streams(struct connection *c)
{
    if (c->index < 0)
        return;
    mock.streams[c->index] = mock.streams[--mock.num_streams];
    mock.streams[c->index]->index = c->index; /* itself, where it was the last */
    c->index = -1;
}

static void drop(struct connection *c)
{
    leave_streams(c);
    mock.by_fd[c->fd] = NULL;
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

/* Sends what waits; returns -1 where the peer is gone. */
static int flush(struct connection *c)
{
    while (c->out_sent < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return -1;
        if (n < 0) {
            if (!c->waits_for_room)
                watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            c->waits_for_room = 1;
            return 0;
        }
        c->out_sent += (size_t)n;
    }
    c->out_len = c->out_sent = 0;
    if (c->waits_for_room)
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
    c->waits_for_room = 0;
    return 0;
}

static int write_bytes(struct connection *c, const char *bytes, size_t n)
{
    if (c->out_len == 0) {
        ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return -1;
        if (sent > 0) {
            bytes += sent;
            n -= (size_t)sent;
        }
        if (n == 0)
            return 0;
    }
    if (c->out_len + n > c->out_room) {
        c->out_room = (c->out_len + n) * 2;
        c->out = grown(c->out, c->out_room);
    }
    memcpy(c->out + c->out_len, bytes, n);
    c->out_len += n;
    return flush(c);
}

static int answer(struct connection *c, const char *kind, const char *body)
{
    char bytes[4096];
    int n = snprintf(bytes, sizeof bytes,
                     "HTTP/1.1 200 OK\r\n" SERVER "content-length: %zu\r\ncontent-type: %s\r\n\r\n%s",
                     strlen(body), kind, body);
    return write_bytes(c, bytes, (size_t)n);
}

static int answer_whole(struct connection *c)
{
    char body[1024];
    snprintf(body, sizeof body,
             "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\","
             "\"created\":1764430000,\"model\":\"%s\",\"choices\":[{\"index\":0,\"message\":{"
             "\"role\":\"assistant\",\"reasoning_content\":null,\"content\":\"Hello! How can I help "
             "you today? This is a reply of a mock engine.\",\"tool_calls\":[]},\"logprobs\":null,"
             "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":16,"
             "\"total_tokens\":32,\"completion_tokens\":16,\"prompt_tokens_details\":null},"
             "\"prompt_logprobs\":null}", mock.model);
    return answer(c, "application/json", body);
}

static void make_event(void)
{
    char data[900];
    int n = snprintf(data, sizeof data,
                     "data: {" CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" 000000\"},"
                     "\"logprobs\":null,\"finish_reason\":null}]}\n\n", mock.model);
    mock.event_len = (size_t)sprintf(mock.event, "%x\r\n%s\r\n", (unsigned)n, data);
    mock.number_at = (size_t)(strstr(mock.event, " 000000") + 1 - mock.event);
}

static int send_event(struct connection *c)
{
    char number[16];
    snprintf(number, sizeof number, "%06ld", c->sent_events % 1000000);
    memcpy(mock.event + mock.number_at, number, 6);
    c->sent_events++;
    return write_bytes(c, mock.event, mock.event_len);
}

static int send_end(struct connection *c)
{
    char data[600], bytes[700];
    int n = snprintf(data, sizeof data,
                     "data: {" CHUNK "\"choices\":[],\"usage\":{\"prompt_tokens\":16,"
                     "\"total_tokens\":%ld,\"completion_tokens\":%ld}}\n\ndata: [DONE]\n\n",
                     mock.model, 16 + c->num_events, c->num_events);
    n = snprintf(bytes, sizeof bytes, "%x\r\n%s\r\n0\r\n\r\n", (unsigned)n, data);
    c->streaming = 0;
    leave_streams(c);
    return write_bytes(c, bytes, (size_t)n);
}

static int send_next(struct connection *c)
{
    return c->sent_events < c->num_events ? send_event(c) : send_end(c);
}

/* The number behind a key of the body; good enough for bodies that we wrote ourselves. */
static long number_of(const char *body, size_t n, const char *key, long otherwise)
{
    const char *end = body + n, *at = memmem(body, n, key, strlen(key));
    if (!at)
        return otherwise;
    for (at += strlen(key); at < end && (*at == ' ' || *at == ':'); at++)
        ;
    return at < end && *at >= '0' && *at <= '9' ? strtol(at, NULL, 10) : otherwise;
}

static int start_stream(struct connection *c, const char *body, size_t n)
{
    static const char HEAD[] = "HTTP/1.1 200 OK\r\n" SERVER
                               "content-type: text/event-stream; charset=utf-8\r\n"
                               "x-request-id: abc\r\ntransfer-encoding: chunked\r\n\r\n";
    mock.num_stream_requests++;
    c->streaming = 1;
    c->sent_events = 0;
    /* Some routers write bodies anew and rename the field on the way. */
    c->num_events = number_of(body, n, "\"max_completion_tokens\"", 16);
    c->num_events = number_of(body, n, "\"max_tokens\"", c->num_events);
    c->interval_us = (uint64_t)number_of(body, n, "\"seed\"", 0);
    if (write_bytes(c, HEAD, sizeof HEAD - 1))
        return -1;
    if (c->interval_us) {
        c->next_us = (uint64_t)(now_s() * 1e6) + c->interval_us;
        c->index = mock.num_streams;
        mock.streams[mock.num_streams++] = c;
        return 0;
    }
    while (c->streaming)
        if (send_next(c))
            return -1;
    return 0;
}

static int serve_post(struct connection *c, const char *body, size_t n)
{
    mock.requests++;
    if (memmem(body, n, "\"stream\":true", 13) || memmem(body, n, "\"stream\": true", 14))
        return start_stream(c, body, n);
    return answer_whole(c);
}

static int serve_get(struct connection *c, const char *path)
{
    char body[1024];
    const char *m = mock.model;
    if (!strncmp(path, "/health", 7))
        return answer(c, "text/plain", "");
    if (!strncmp(path, "/_count", 7))
        snprintf(body, sizeof body, "{\"requests\":%lu,\"streams\":%lu}", mock.requests,
                 mock.num_stream_requests);
    else if (!strncmp(path, "/v1/models", 10))
        snprintf(body, sizeof body,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":"
                 "1764430000,\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,"
                 "\"max_model_len\":131072}]}", m, m);
    else /* /metrics, /version, /get_server_info, /get_model_info, ... of the routers that we compare with */
        snprintf(body, sizeof body,
                 "{\"version\":\"0.11.0\",\"model_path\":\"%s\",\"served_model_name\":\"%s\","
                 "\"tokenizer_path\":\"%s\",\"is_generation\":true,\"dp_size\":1,\"tp_size\":1,"
                 "\"max_total_num_tokens\":131072}", m, m, m);
    return answer(c, "application/json", body);
}

/* Joins the chunks of a request body in place. Returns the bytes they took on the wire, 0 while
   some are missing; *length becomes the body's length. */
static size_t join_chunks(char *body, size_t n, size_t *length)
{
    size_t at = 0, made = 0, total = 0;
    for (int pass = 0; pass < 2; pass++) { /* the first only looks whether all is there */
        for (at = made = 0;;) {
            char *line_end = at < n ? memmem(body + at, n - at, "\r\n", 2) : NULL;
            if (!line_end)
                return total;
            size_t size = strtoul(body + at, NULL, 16), data = (size_t)(line_end - body) + 2;
            if (data + size + 2 > n)
                return total;
            at = data + size + 2;
            if (pass == 1)
                memmove(body + made, body + data, size);
            made += size;
            if (size == 0)
                break;
        }
        total = at;
    }
    *length = made;
    return total;
}

/* Serves one request; returns the bytes it took, 0 where it is not whole yet, -1 to hang up. */
static long serve_one(struct connection *c)
{
    char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end)
        return 0;
    *end = 0; /* the head is text from here on */
    size_t head = (size_t)(end - c->in) + 4, length = 0, used = 0;
    char *path = strchr(c->in, ' '), *sized = strcasestr(c->in, "\r\ncontent-length:");
    if (!path || !strncmp(c->in, "PRI ", 4)) /* HTTP/2 in the clear, which routers try */
        return -1;
    if (strcasestr(c->in, "\r\ntransfer-encoding:")) {
        used = join_chunks(c->in + head, c->in_len - head, &length);
    } else {
        used = length = sized ? strtoul(sized + 17, NULL, 10) : 0;
        if (c->in_len < head + length)
            used = 0;
    }
    if (!used && (length || strcasestr(c->in, "\r\ntransfer-encoding:"))) {
        *end = '\r';
        return 0;
    }
    int failed = c->in[0] == 'P' ? serve_post(c, c->in + head, length) : serve_get(c, path + 1);
    return failed ? -1 : (long)(head + used);
}

static int serve_all(struct connection *c)
{
    while (!c->streaming) {
        long used = serve_one(c);
        if (used <= 0)
            return (int)used;
        c->in_len -= (size_t)used;
        memmove(c->in, c->in + used, c->in_len);
    }
    return 0;
}

/* Returns -1 where the peer is gone. */
static int receive(struct connection *c)
{
    for (;;) {
        if (c->in_room - c->in_len < READ_ROOM) {
            c->in_room = c->in_room * 2 + READ_ROOM;
            c->in = grown(c->in, c->in_room);
        }
        size_t room = c->in_room - c->in_len;
        ssize_t n = recv(c->fd, c->in + c->in_len, room, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return -1;
        if (n > 0)
            c->in_len += (size_t)n;
        if (n < (ssize_t)room)
            return serve_all(c);
    }
}

static void accept_all(void)
{
    for (int fd; (fd = accept4(mock.listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        if ((size_t)fd >= mock.max_fd) {
            close(fd);
            continue;
        }
        set_no_delay(fd);
        struct connection *c = grown(NULL, sizeof *c);
        *c = (struct connection){.fd = fd, .index = -1};
        mock.by_fd[fd] = c;
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void serve_event(const struct epoll_event *event)
{
    if (event->data.fd == mock.listener) {
        accept_all();
        return;
    }
    struct connection *c = mock.by_fd[event->data.fd];
    if (!c)
        return;
    int gone = event->events & EPOLLOUT ? flush(c) : 0;
    if (!gone && event->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        gone = receive(c);
    if (gone)
        drop(c);
}

/* Sends the events whose time has come. Backwards, as those that end leave the list. */
static void advance_streams(void)
{
    uint64_t now = (uint64_t)(now_s() * 1e6);
    for (int i = mock.num_streams - 1; i >= 0; i--) {
        struct connection *c = mock.streams[i];
        int gone = 0;
        while (!gone && c->streaming && c->next_us <= now) {
            c->next_us += c->interval_us;
            gone = send_next(c);
        }
        if (!gone && !c->streaming)
            gone = serve_all(c); /* a request that came behind the one just answered */
        if (gone)
            drop(c);
    }
}

int main(int argc, char **argv)
{
    mock.model = argc > 2 ? argv[2] : "mock";
    mock.max_fd = raise_file_limit();
    mock.by_fd = calloc(mock.max_fd, sizeof(void *));
    mock.streams = calloc(mock.max_fd, sizeof(void *));
    mock.epoll = epoll_create1(0);
    make_event();
    mock.listener = listen_on_loopback(argc > 1 ? atoi(argv[1]) : 0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = mock.listener}, events[256];
    epoll_ctl(mock.epoll, EPOLL_CTL_ADD, mock.listener, &event);
    for (;;) {
        int n = epoll_wait(mock.epoll, events, 256, mock.num_streams ? TICK_MS : -1);
        for (int i = 0; i < n; i++)
            serve_event(&events[i]);
        if (mock.num_streams)
            advance_streams();
    }
}
