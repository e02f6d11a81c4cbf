#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/database.h"
#include "cli/devices.h"

#define FINDING 600

typedef struct job {
    rf_cli_setup setup;
    rf_cli_shapes shapes;
} job;

/* ---- what one process can find out: each writes a line and says whether all is well ---- */

static int check_system(const job *j, char *out)
{
    struct utsname u;
    (void)j;
    if (uname(&u) != 0)
        return 0;
    snprintf(out, FINDING, "%s %s, %s", u.sysname, u.release, u.machine);
    return 1;
}

static void cpu_model(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown model");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) == 0 && value) {
            value[strcspn(value, "\n")] = 0;
            snprintf(out, size, "%s", value + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

static int check_cpu(const job *j, char *out)
{
    char model[128], isa[24];
    cpu_set_t set;
    (void)j;
    cpu_model(model, sizeof model);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    snprintf(out, FINDING, "%s, %d usable, %s", model, n, rf_cli_cpu_isa(isa, sizeof isa));
    return 1;
}

static int check_memory(const job *j, char *out)
{
    int fd = memfd_create("rankfold-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING), ok = 0;
    (void)j;
    if (fd < 0)
        snprintf(out, FINDING, "memfd_create: %s", strerror(errno));
    else if (ftruncate(fd, 1 << 20) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        snprintf(out, FINDING, "a memfd cannot be sized and sealed: %s", strerror(errno));
    else
        ok = snprintf(out, FINDING, "sealed memfd (the size of /dev/shm does not matter)") > 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

static int check_sockets(const job *j, char *out)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)j;
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "rankfold-doctor-%d", getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, size) == 0;
    if (ok)
        snprintf(out, FINDING, "abstract Unix sockets");
    else
        snprintf(out, FINDING, "no abstract Unix socket: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

static int check_packs(const job *j, char *out)
{
    size_t used = 0;
    (void)j;
    for (size_t p = 0; p < rf_cli_n_packs && used < FINDING; p++) {
        rf_variant_info v;
        if (rf_pack_variant(rf_cli_packs[p].pack, 0, &v) != RF_OK) {
            snprintf(out, FINDING, "pack %zu is empty or does not fit this runtime", p);
            return 0;
        }
        size_t n = rf_pack_count(rf_cli_packs[p].pack);
        used += (size_t)snprintf(out + used, FINDING - used, "%s%s: %zu variant%s, %s",
                                 p ? "; " : "", v.sku, n, rf_cli_s(n), v.toolchain);
    }
    return 1;
}

static void count_row(void *ctx, sqlite3_stmt *row)
{
    int *counts = ctx;
    for (int i = 0; i < 3; i++)
        counts[i] = sqlite3_column_int(row, i);
}

static int check_database(const job *j, char *out)
{
    rfi_db db;
    rf_error err = {0};
    static const char *const counted[] = {"session", "measurement", "decision"};
    int counts[3] = {0};
    size_t used;
    rf_result rc = rf_cli_db_open(j->setup.db, &db, &err);
    if (rc == RF_OK) {
        rc = rfi_db_query(&db,
                          "SELECT (SELECT count(*) FROM campaign), (SELECT count(*) FROM "
                          "measurement), (SELECT count(*) FROM decision)",
                          0, NULL, count_row, counts, &err);
        used = (size_t)snprintf(out, FINDING, "%s: ", db.path);
        for (int i = 0; i < 3 && used < FINDING; i++)
            used += (size_t)snprintf(out + used, FINDING - used, "%s%d %s%s", i ? ", " : "",
                                     counts[i], counted[i], rf_cli_s((uint64_t)counts[i]));
        rfi_db_close(&db);
    }
    if (rc != RF_OK)
        snprintf(out, FINDING, "%s%s", err.text,
                 rc != RF_E_DB_ABSENT ? ""
                 : j->setup.backend == RF_BACKEND_CUDA
                     ? rf_cli_advice(&j->setup, "; `rankfold tune --backend cuda` will make one")
                     : rf_cli_advice(&j->setup, "; `rankfold tune` will make one"));
    return rc == RF_OK || rc == RF_E_DB_ABSENT;
}

static const struct {
    const char *name;
    int (*check)(const job *j, char *out);
} checks[] = {
    {"system", check_system},   {"cpu", check_cpu},     {"memory", check_memory},
    {"sockets", check_sockets}, {"packs", check_packs}, {"database", check_database},
};

static void print_finding(const char *mark, const char *name, char *finding)
{
    rf_cli_defuse(finding);
    printf("%s %-9s %s\n", mark, name, finding);
}

static int check_here(const job *j)
{
    int broken = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        char finding[FINDING] = "";
        int ok = checks[i].check(j, finding);
        print_finding(rf_cli_mark(ok), checks[i].name, finding);
        broken |= !ok;
    }
    return broken;
}

/* ---- what the ranks find out together ---- */

static void print_plan(const job *j, const rf_comm *comm, const rf_shape *s, rf_result verdict)
{
    char shape[RF_CLI_SHAPE], bytes[24], text[RF_CLI_PLAN];
    rf_plan_info plan = {0};
    rf_plan_query(comm, 0, s->rows * s->hidden, s->dtype, s->mode, &plan);
    rf_cli_defuse(plan.reason);
    printf("%s   %-18s %8s  %s\n%14s%s%s%s\n", rf_cli_mark(verdict == RF_OK),
           rf_cli_shape_text(s, shape), rf_cli_bytes_text(rf_cli_shape_bytes(s), bytes),
           rf_cli_plan_text(&plan, text), "", rf_cli_style_of(RF_CLI_DIM),
           verdict == RF_OK ? rf_cli_advice(&j->setup, plan.reason) : rf_strerror(verdict),
           rf_cli_style_of(RF_CLI_PLAIN));
}

/* Said by rank 0, since whoever started the CUDA driver may not fork ranks. No GPU is no fault
 * where none was asked for. */
static void print_gpus(const job *j)
{
    char finding[FINDING] = "";
    int found = rf_cli_gpus(finding, sizeof finding);
    print_finding(rf_cli_mark(found || j->setup.backend != RF_BACKEND_CUDA), "gpus", finding);
}

/* One that is off is no fault: another serves the ranks. */
static void print_transports(const rf_comm *comm)
{
    rf_transport_info t;
    for (size_t i = 0; rf_transport_query(comm, i, &t) == RF_OK; i++) {
        char finding[FINDING];
        snprintf(finding, sizeof finding, "%s: %s%.*s", t.name,
                 t.on ? "works" : "off: ", FINDING - 32, t.reason);
        print_finding(t.on ? rf_cli_mark(1) : "-", "transport", finding);
    }
}

/* To have none is no fault; where there cannot be any it is only said of a file. */
static void print_islands(const rf_comm *comm)
{
    rf_islands_info islands;
    char finding[FINDING];
    size_t used = 0;
    int world = rf_comm_world(comm);
    const char *file = getenv("RANKFOLD_TOPOLOGY");
    if ((world < 4 && !(file && *file)) || rf_islands_query(comm, &islands) != RF_OK)
        return;
    for (int i = 0; islands.on && i < world; i++)
        used += (size_t)snprintf(finding + used, sizeof finding - used, "%u%s", islands.order[i],
                                 i + 1 == world       ? ": "
                                 : i + 1 == world / 2 ? "|"
                                                      : ",");
    snprintf(finding + used, sizeof finding - used, "%s%s",
             islands.on ? "" : "none: ", islands.reason);
    print_finding(rf_cli_mark(1), "islands", finding);
}

static int rank(const rf_bootstrap *boot, void *ctx)
{
    job *j = ctx;
    rf_cli_comm c;
    rf_error err = {0};
    if (boot->rank == 0)
        print_gpus(j);
    j->setup.capacity_bytes = rf_cli_shapes_largest(&j->shapes);
    j->setup.store_flags = RF_STORE_READ;
    if (rf_cli_comm_open(&j->setup, boot, &c, &err) != RF_OK) {
        if (boot->rank == 0)
            print_finding(rf_cli_mark(0), "ranks", err.text);
        return RF_CLI_FAILURE;
    }
    if (rf_prepare(c.comm, 0, j->shapes.list, j->shapes.n, &err) != RF_OK) {
        if (boot->rank == 0)
            print_finding(rf_cli_mark(0), "shapes", err.text);
        rf_cli_comm_close(&c, 0);
        return RF_CLI_FAILURE;
    }
    if (boot->rank == 0) {
        print_transports(c.comm);
        print_islands(c.comm);
        printf("%s %-9s %d, all see each other; what would be used, and why:\n", rf_cli_mark(1),
               "ranks", boot->world);
    }
    int code = RF_CLI_OK;
    for (size_t i = 0; i < j->shapes.n && code == RF_CLI_OK; i++) {
        rf_result verdict = rf_verify(c.comm, 0, &j->shapes.list[i], i, &err);
        if (verdict == RF_FALLBACK)
            verdict = RF_OK;
        if (boot->rank == 0)
            print_plan(j, c.comm, &j->shapes.list[i], verdict);
        code = verdict == RF_OK ? code : RF_CLI_FAILURE;
    }
    rf_cli_comm_close(&c, code == RF_CLI_OK);
    return code;
}

int rf_cli_doctor(int argc, char **argv)
{
    job j = {0};
    uint64_t n = 0;
    int rest;
    const rf_cli_option options[] = {
        RF_CLI_WORLD_OPTION(&n),         RF_CLI_DB_OPTION(&j.setup),
        RF_CLI_BACKEND_OPTION(&j.setup), RF_CLI_ADMIT_OPTION(&j.setup),
        RF_CLI_SHAPE_OPTIONS(&j.shapes),
    };
    const rf_cli_syntax syntax = RF_CLI_SYNTAX(
        "doctor", "[OPTIONS]",
        "Says what is here, tries what can be tried (the ranks all-reduce and verify), and shows\n"
        "what would be used for typical shapes, and why. Changes nothing. The exit code is 1 when\n"
        "something is broken.",
        options, 0, 0);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code < 0)
        code = rf_cli_shapes_read(&j.shapes);
    if (code == RF_CLI_OK && j.shapes.n) {
        int speaks = rf_cli_world_speaks(n), broken = 0;
        if (speaks) {
            printf("rankfold %s\n", rf_version_string());
            broken = check_here(&j);
        }
        code = rf_cli_world(n, rank, &j);
        code = broken && code == RF_CLI_OK ? RF_CLI_FAILURE : code;
        if (speaks && code != RF_CLI_USAGE)
            puts(code == RF_CLI_OK ? "all well" : "something is broken: see the crosses");
    }
    rf_cli_shapes_free(&j.shapes);
    return code;
}
