/* Reads HTTP/1.1 responses piece by piece, as they come from a socket. Shared by the two clients.

   Only what loopback peers send: a head of at most 16 KiB, then a body with Content-Length, in
   chunks, or until the connection closes. Interim answers (100) are passed over. */
#ifndef READER_H
#define READER_H

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum reader_state { HEAD, SIZED, CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_END, TRAILER,
                    UNTIL_CLOSE };
enum { READER_BROKEN = -1, READER_MORE = 0, READER_WHOLE = 1 };

struct reader {
    enum reader_state state;
    char head[16384];
    size_t head_len;
    int status;            /* 0 until the head is whole */
    int keep_alive;        /* whether the connection may carry another request */
    size_t left;           /* bytes of a sized body, or of the current chunk */
    size_t trailer_column; /* characters in the current trailer line; an empty one ends the body */
};

typedef void (*on_body)(void *owner, const char *bytes, size_t n);

static void reader_reset(struct reader *r)
{
    r->state = HEAD;
    r->head_len = 0;
    r->status = 0;
    r->keep_alive = 1;
    r->left = 0;
    r->trailer_column = 0;
}

static void reader_parse_head(struct reader *r)
{
    r->status = r->head_len > 12 ? atoi(r->head + 9) : 0;
    r->state = UNTIL_CLOSE;
    for (char *line = strstr(r->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, "content-length:", 15) && r->state == UNTIL_CLOSE) {
            r->left = strtoul(line + 15, NULL, 10);
            r->state = SIZED;
        } else if (!strncasecmp(line, "transfer-encoding: chunked", 26)) {
            r->left = 0;
            r->state = CHUNK_SIZE;
        } else if (!strncasecmp(line, "connection: close", 17)) {
            r->keep_alive = 0;
        }
    }
    if (r->state == UNTIL_CLOSE)
        r->keep_alive = 0;
}

/* Takes bytes of the head; returns how many, or -1 where it is longer than anyone sends. */
static long reader_take_head(struct reader *r, const char *bytes, size_t n)
{
    size_t before = r->head_len;
    if (before + n >= sizeof r->head)
        n = sizeof r->head - 1 - before;
    memcpy(r->head + before, bytes, n);
    r->head_len += n;
    char *end = memmem(r->head, r->head_len, "\r\n\r\n", 4);
    if (!end)
        return r->head_len + 1 < sizeof r->head ? (long)n : -1;
    size_t used = (size_t)(end - r->head) + 4 - before;
    *end = 0;
    reader_parse_head(r);
    if (r->status >= 100 && r->status < 200)
        reader_reset(r);
    return (long)used;
}

/* Takes one byte of chunked framing; returns READER_WHOLE at the end of the trailer. */
static int reader_take_framing(struct reader *r, char c)
{
    int digit = c >= '0' && c <= '9' ? c - '0'
              : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (r->state == CHUNK_SIZE && digit >= 0) {
        r->left = r->left * 16 + (size_t)digit;
    } else if (r->state == CHUNK_SIZE || r->state == CHUNK_EXTENSION) {
        r->state = c != '\n' ? CHUNK_EXTENSION : r->left ? CHUNK_DATA : TRAILER;
    } else if (r->state == CHUNK_END) {
        if (c == '\n')
            r->state = CHUNK_SIZE;
    } else if (c != '\n') { /* TRAILER */
        r->trailer_column += c != '\r';
    } else if (r->trailer_column == 0) {
        return READER_WHOLE;
    } else {
        r->trailer_column = 0;
    }
    return READER_MORE;
}

/* Feeds received bytes; bytes of the body go to `give`. */
static int reader_feed(struct reader *r, const char *bytes, size_t n, on_body give, void *owner)
{
    while (n) {
        long used = 1;
        if (r->state == HEAD) {
            used = reader_take_head(r, bytes, n);
            if (used < 0)
                return READER_BROKEN;
            if (r->state == SIZED && r->left == 0)
                return READER_WHOLE;
        } else if (r->state == UNTIL_CLOSE) {
            give(owner, bytes, n);
            return READER_MORE;
        } else if (r->state == SIZED || r->state == CHUNK_DATA) {
            used = (long)(n < r->left ? n : r->left);
            give(owner, bytes, (size_t)used);
            r->left -= (size_t)used;
            if (r->left == 0 && r->state == SIZED)
                return READER_WHOLE;
            if (r->left == 0)
                r->state = CHUNK_END;
        } else if (reader_take_framing(r, *bytes) == READER_WHOLE) {
            return READER_WHOLE;
        }
        bytes += used;
        n -= (size_t)used;
    }
    return READER_MORE;
}

/* Whether an answer that ends with the connection is whole now. */
static int reader_ends_here(const struct reader *r)
{
    return r->state == UNTIL_CLOSE && r->status > 0;
}

#endif
