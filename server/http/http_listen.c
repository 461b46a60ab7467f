// server/http/http_listen.c - the listening socket, the limit of open files, and the files of TLS.
#include "server/http/http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return 0;
}

static int port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return -1;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

static int open_listener(const http_options *o, const struct addrinfo *a, int *fd, int *port, sl_error *err) {
    enum { BACKLOG = 1024 };
    if (!o->insecure && !o->n_api_keys && !is_loopback(a->ai_addr))
        return sl_fail(err, SL_ERR_ARG,
                       "{host} %s: every machine of the network could use the server; expected {api_key}, "
                       "{insecure}, or a loopback address",
                       o->host);
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (s < 0 || bind(s, a->ai_addr, a->ai_addrlen) || listen(s, BACKLOG) || (*port = port_of(s)) < 0) {
        int why = errno;
        if (s >= 0) close(s);
        return sl_fail(err, SL_ERR_IO, "{host} %s, {port} %d: cannot listen: %s", o->host, o->port, strerror(why));
    }
    *fd = s;
    return 0;
}

int http_listen(const http_options *o, int *fd, int *port, sl_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *a;
    char number[16];
    if (o->port < 0 || o->port > 65535) return sl_fail(err, SL_ERR_ARG, "{port} %d: expected 0 to 65535", o->port);
    snprintf(number, sizeof number, "%d", o->port);
    int rc = getaddrinfo(o->host, number, &hints, &a);
    if (rc)
        return sl_fail(err, SL_ERR_ARG, "{host} %s: %s; expected a name or an address of this machine", o->host,
                       gai_strerror(rc));
    rc = open_listener(o, a, fd, port, err);
    freeaddrinfo(a);
    return rc;
}

int http_allow_files(int max_connections, sl_error *err) {
    enum { OTHER_FILES = 128 };
    struct rlimit limit;
    rlim_t wanted = (rlim_t)max_connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted) return 0;
    if (limit.rlim_max < wanted)
        return sl_fail(err, SL_ERR_ARG, "{max_connections} %d: expected at most %lld, because this process may open %llu files",
                       max_connections, (long long)limit.rlim_max - OTHER_FILES, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        return sl_fail(err, SL_ERR_IO, "cannot raise the limit of open files: %s", strerror(errno));
    return 0;
}

int http_read_pem(const char *path, const char *option, char **out, sl_error *err) {
    enum { MAX_PEM = 1 << 20 };
    FILE *f = fopen(path, "rbe");
    char *text = f ? calloc(1, MAX_PEM + 1) : NULL;
    size_t n = text ? fread(text, 1, MAX_PEM, f) : 0;
    int rc = 0;
    if (!f)
        rc = sl_fail(err, SL_ERR_IO, "{%s} %s: %s", option, path, strerror(errno));
    else if (!text)
        rc = sl_fail(err, SL_ERR_MEMORY, "{%s} %s: out of memory", option, path);
    else if (!n || n == MAX_PEM || !strstr(text, "-----BEGIN "))
        rc = sl_fail(err, SL_ERR_FORMAT, "{%s} %s: expected a PEM file", option, path);
    if (f) fclose(f);
    if (rc) {
        free(text);
        text = NULL;
    }
    *out = text;
    return rc;
}
