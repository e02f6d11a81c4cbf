#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/socket.h"

static socklen_t address(const char *name, struct sockaddr_un *out)
{
    size_t length = strnlen(name, RFI_SOCKET_NAME - 1);
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    memcpy(out->sun_path + 1, name, length); /* a leading zero byte: the abstract namespace */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int rfi_fd_aside(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int other = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), why = errno;
    close(fd);
    errno = why;
    return other;
}

static int open_socket(void)
{
    return rfi_fd_aside(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void rfi_socket_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int rfi_socket_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return fd >= 0 && poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

int rfi_socket_listen(const char *name)
{
    struct sockaddr_un at;
    socklen_t size = address(name, &at);
    int fd = open_socket();
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&at, size) || listen(fd, 64)) {
        int why = errno;
        close(fd);
        return -why;
    }
    return fd;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

int rfi_socket_connect(const char *name, uint64_t deadline)
{
    struct sockaddr_un at;
    socklen_t size = address(name, &at);
    int fd = open_socket();
    if (fd < 0)
        return -errno;
    while (connect(fd, (struct sockaddr *)&at, size)) {
        int why = errno;
        if (why != EAGAIN && why != EINTR) {
            close(fd);
            return -why;
        }
        if (!rfi_left_ms(deadline)) {
            close(fd);
            return -ETIMEDOUT;
        }
        nap();
    }
    return fd;
}

int rfi_socket_peer(int fd, pid_t *pid)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return errno;
    if (pid)
        *pid = peer.pid;
    return peer.uid == geteuid() ? 0 : EPERM;
}

static int wait_for(int fd, short events, uint64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        int n = poll(&p, 1, rfi_left_ms(deadline));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return errno;
        if (!rfi_left_ms(deadline))
            return ETIMEDOUT;
    }
}

int rfi_socket_accept(int listener, uint64_t deadline)
{
    for (;;) {
        int why = wait_for(listener, POLLIN, deadline);
        if (why)
            return -why;
        int fd = rfi_fd_aside(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd < 0) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                continue;
            return -errno;
        }
        if (!rfi_socket_peer(fd, NULL))
            return fd;
        close(fd);
    }
}

int rfi_socket_send(int fd, const void *data, size_t bytes, uint64_t deadline)
{
    const char *at = data;
    while (bytes) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n >= 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        if (errno == EPIPE)
            return ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        int why = wait_for(fd, POLLOUT, deadline);
        if (why)
            return why;
    }
    return 0;
}

int rfi_socket_recv(int fd, void *data, size_t bytes, uint64_t deadline)
{
    char *at = data;
    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
            continue;
        }
        if (n == 0)
            return ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        int why = wait_for(fd, POLLIN, deadline);
        if (why)
            return why;
    }
    return 0;
}

int rfi_random(void *out, size_t bytes)
{
    char *at = out;
    while (bytes) {
        ssize_t n = getrandom(at, bytes, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}
