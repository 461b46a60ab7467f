// server/http/http_connection.c - a connection and its phases. All of it runs on the HTTP thread.
#include "server/http/http_internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

// A peer whose machine or network dies sends no FIN. After 30 s without traffic the system asks such a peer, and after three
// questions without an answer it reports an error.
static void probe_dead_peers(int fd) {
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){30}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){5}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){3}, sizeof(int));
}

// A suspended connection notices nothing, so the server watches the sockets by itself. Edge-triggered: a half-closed
// connection reports its end once.
static int watch_hang_up(http_connection *c) {
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};
    return epoll_ctl(c->server->epoll, EPOLL_CTL_ADD, c->fd, &event);
}

http_connection *http_connection_new(http_server *s, int fd, const struct sockaddr_storage *address) {
    http_connection *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s;
    c->fd = fd;
    c->address = *address;
    probe_dead_peers(fd);
    if (watch_hang_up(c)) return free(c), NULL;
    http_connection_enter(c, HTTP_NEW);
    c->next = s->connections;
    if (c->next) c->next->prev = c;
    s->connections = c;
    atomic_fetch_add(&s->n_connections, 1);
    return c;
}

void http_connection_free(http_connection *c) {
    http_server *s = c->server;
    http_connection_end_request(c);
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->connections = c->next;
    if (c->next) c->next->prev = c->prev;
    free(c);
    pthread_mutex_lock(&s->lock);
    if (atomic_fetch_sub(&s->n_connections, 1) == 1) pthread_cond_broadcast(&s->drained);
    pthread_mutex_unlock(&s->lock);
}

void http_connection_enter(http_connection *c, http_phase phase) {
    c->phase = phase;
    c->since = http_now();
}

void http_connection_resume(http_connection *c) {
    if (!c->suspended) return;
    c->suspended = 0;
    MHD_resume_connection(c->mhd);
}

void http_connection_cut(http_connection *c) {
    if (!c->killed) shutdown(c->fd, SHUT_RDWR);
    c->killed = 1;
    http_connection_resume(c);
}

void http_connection_lose(http_connection *c) {
    http_exchange *x = c->exchange;
    if (!x) return;
    http_exchange_lose(x, 0);
    if (http_gone(x)) http_connection_cut(c);
}

void http_connection_end_request(http_connection *c) {
    http_server *s = c->server;
    http_exchange *x = c->exchange;
    s->n_bodies -= c->body.n;
    sl_text_free(&c->body);
    c->refusal = 0;
    c->to_discard = 0;
    if (!x) return;
    http_exchange_lose(x, 0);
    c->exchange = NULL;
    x->connection = NULL;
    atomic_fetch_sub(&s->n_exchanges, 1);
    http_exchange_unref(x);
}
