/* Abstract Unix sockets: what bootstrap and control plane share. Everything is CLOEXEC,
 * non-blocking inside, bounded by a deadline, and never raises SIGPIPE. */
#ifndef RANKFOLD_SOCKET_H
#define RANKFOLD_SOCKET_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RFI_SOCKET_NAME 64 /* longest name with terminator; lives in the abstract namespace */

/* The same file at a descriptor beyond 2, closing the one given: what a program writes to a stdout
 * or stderr that it has closed shall not end up in a file of ours. -1 = none, with errno; -1 stays
 * -1. */
int rfi_fd_aside(int fd);

/* A listening socket, or -errno. */
int rfi_socket_listen(const char *name);
/* A connected socket, or -errno. A full backlog is retried until the deadline. */
int rfi_socket_connect(const char *name, uint64_t deadline);
/* The next connection made by a process of our own user (others are dropped), or -errno. */
int rfi_socket_accept(int listener, uint64_t deadline);
/* 0 = the other end belongs to our user; *pid (may be NULL) is its process as seen from here, 0 if
 * it lives in a foreign pid namespace. Else an errno value. */
int rfi_socket_peer(int fd, pid_t *pid);
/* 0, or errno: ETIMEDOUT, ECONNRESET when the other end is gone. */
int rfi_socket_send(int fd, const void *data, size_t bytes, uint64_t deadline);
int rfi_socket_recv(int fd, void *data, size_t bytes, uint64_t deadline);
/* Has the other end been closed? Its process is gone, then, or has given up. -1: no. */
int rfi_socket_gone(int fd);
/* close() of *fd if it is open; leaves -1. */
void rfi_socket_close(int *fd);
/* 0, or errno. */
int rfi_random(void *out, size_t bytes);

#endif
