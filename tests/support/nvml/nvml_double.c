/* A stand-in for the driver's libnvidia-ml.so.1: the functions of NVML that the product calls, answered from a JSON file.
 *
 * VOICES_NVML_SCENARIO names the file; each nvmlInit reads it again. README.md beside this says what may stand in it.
 * The numbers, structures and rules are those of NVIDIA's nvml.h. The file is taken to be valid JSON: nvml_double.py
 * writes it. A string in it holds bytes: "\u00ff" is the byte ff, so that a driver may answer what is no UTF-8.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
#define MOST_CARDS 64
#define NOT_AVAILABLE UINT64_MAX

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {SUCCESS, "SUCCESS", "Success"},
    {UNINITIALIZED, "UNINITIALIZED", "Uninitialized"},
    {INVALID_ARGUMENT, "INVALID_ARGUMENT", "Invalid Argument"},
    {NOT_SUPPORTED, "NOT_SUPPORTED", "Not Supported"},
    {4, "NO_PERMISSION", "Insufficient Permissions"},
    {6, "NOT_FOUND", "Not Found"},
    {INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {9, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
    {10, "TIMEOUT", "Timeout"},
    {13, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {15, "GPU_IS_LOST", "GPU is lost"},
    {16, "RESET_REQUIRED", "GPU requires reset"},
    {18, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
    {VERSION_MISMATCH, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch"},
    {UNKNOWN, "UNKNOWN", "Unknown Error"},
};

/* ---- The little of JSON that is needed: a value is a pointer to its first character. */

static const char *skip_blanks(const char *at) {
    while (isspace((unsigned char)*at)) at++;
    return at;
}

static const char *end_of(const char *at) {
    int depth = 0;
    do {
        if (*at == '"') {
            for (at++; *at && *at != '"'; at++) at += *at == '\\' && at[1];
            at += *at == '"';
        } else {
            depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
            at++;
        }
    } while (*at && (depth > 0 || !strchr(",:]} \t\r\n", *at)));
    return at;
}

/* The value of a key in an object; NULL when it is not there. Keys are plain: no escapes in them. */
static const char *member(const char *object, const char *key) {
    if (!object || *object != '{') return NULL;
    for (const char *at = skip_blanks(object + 1); *at == '"';) {
        const char *end = end_of(at), *colon = skip_blanks(end), *value = skip_blanks(colon + (*colon == ':'));
        if ((size_t)(end - at) == strlen(key) + 2 && !strncmp(at + 1, key, strlen(key))) return value;
        at = skip_blanks(end_of(value));
        at = skip_blanks(at + (*at == ','));
    }
    return NULL;
}

/* The nth value of an array; NULL when it has no more. */
static const char *element(const char *array, unsigned n) {
    if (!array || *array != '[') return NULL;
    for (const char *at = skip_blanks(array + 1); *at && *at != ']';) {
        if (n-- == 0) return at;
        at = skip_blanks(end_of(at));
        at = skip_blanks(at + (*at == ','));
    }
    return NULL;
}

static unsigned length(const char *array) {
    unsigned count = 0;
    while (element(array, count)) count++;
    return count;
}

static uint64_t number(const char *value, uint64_t otherwise) {
    return value && isdigit((unsigned char)*value) ? strtoull(value, NULL, 10) : otherwise;
}

/* Whether the string, and its end, had room. */
static int copy_string(const char *value, char *out, size_t room) {
    size_t used = 0;
    if (!room) return 0;
    if (value && *value == '"')
        for (value++; *value && *value != '"'; value++) {
            char letter = *value;
            if (used + 1 >= room) {
                out[used] = 0;
                return 0;
            }
            if (letter == '\\') {
                static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
                const char *known = strchr(from, *++value);
                letter = known && *known ? to[known - from] : *value;
                if (*value == 'u' && strlen(value) > 4) {
                    char digits[5] = {value[1], value[2], value[3], value[4], 0};
                    letter = (char)strtoul(digits, NULL, 16);
                    value += 4;
                }
            }
            out[used++] = letter;
            if (!*value) break;
        }
    out[used] = 0;
    return 1;
}

/* ---- The scenario. */

static char *scenario;
static unsigned listed[MOST_CARDS]; /* how often a card's processes were asked for since nvmlInit */

static int read_scenario(void) {
    const char *path = getenv("VOICES_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file) {
        fprintf(stderr, "NVML double: VOICES_NVML_SCENARIO names no file that can be read: %s\n", path ? path : "(unset)");
        return UNKNOWN;
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    free(scenario);
    scenario = calloc(1, (size_t)size + 1);
    size_t got = fread(scenario, 1, (size_t)size, file);
    fclose(file);
    memmove(scenario, skip_blanks(scenario), got + 1 - (size_t)(skip_blanks(scenario) - scenario));
    memset(listed, 0, sizeof listed);
    return SUCCESS;
}

/* What the scenario's or a card's "errors" say of this function; SUCCESS when nothing. */
static int refused(const char *object, const char *function) {
    char name[64];
    const char *said = member(member(object, "errors"), function);
    if (!said) return SUCCESS;
    copy_string(said, name, sizeof name);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (!strcmp(errors[i].name, name)) return errors[i].code;
    return (int)number(said, UNKNOWN);
}

/* A handle is the card's index plus one; NULL when it is none. */
static const char *card_of(void *handle) {
    return scenario && handle ? element(member(scenario, "cards"), (unsigned)(uintptr_t)handle - 1) : NULL;
}

/* How every function of a card begins: its error, or SUCCESS with the card. */
static int begin(void *handle, const char *function, const char **card) {
    if (!scenario) return UNINITIALIZED;
    *card = card_of(handle);
    return *card ? refused(*card, function) : INVALID_ARGUMENT;
}

static int give_string(void *handle, const char *function, const char *key, char *out, unsigned room) {
    const char *card;
    int failed = begin(handle, function, &card);
    if (failed) return failed;
    return copy_string(member(card, key), out, room) ? SUCCESS : INSUFFICIENT_SIZE;
}

/* The pid of a process of this machine whose command line holds the text; 0 when there is none. */
static unsigned running(const char *text) {
    unsigned found = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && !found && (entry = readdir(proc));) {
        char path[300], line[8192] = "";
        unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        if (!pid || pid == (unsigned)getpid()) continue;
        snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
        FILE *file = fopen(path, "rb");
        if (!file) continue;
        size_t size = fread(line, 1, sizeof line - 1, file);
        fclose(file);
        for (size_t i = 0; i < size; i++)
            if (!line[i]) line[i] = ' ';
        if (strstr(line, text)) found = pid;
    }
    if (proc) closedir(proc);
    return found;
}

/* A process's pid: given, or looked for by its command line. */
static unsigned pid_of(const char *process) {
    char text[1024];
    const char *wanted = member(process, "running");
    if (!wanted) return (unsigned)number(member(process, "pid"), 0);
    copy_string(wanted, text, sizeof text);
    return running(text);
}

struct memory { uint64_t total, reserved, used, free; };

static struct memory memory_of(const char *card) {
    struct memory found = {number(member(card, "total_bytes"), 0), number(member(card, "reserved_bytes"), 0),
                           number(member(card, "used_bytes"), 0), 0};
    const char *processes = member(card, "processes"), *process;
    for (unsigned i = 0; (process = element(processes, i)); i++)
        if (member(process, "running") && pid_of(process)) found.used += number(member(process, "used_bytes"), 0);
    found.free = number(member(card, "free_bytes"), found.total - found.reserved - found.used);
    return found;
}

/* ---- NVML. */

VISIBLE int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failed = read_scenario();
    return failed ? failed : refused(scenario, "nvmlInitWithFlags");
}

VISIBLE int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

VISIBLE int nvmlShutdown(void) { return scenario ? refused(scenario, "nvmlShutdown") : UNINITIALIZED; }

VISIBLE const char *nvmlErrorString(int code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].text;
    return "Unknown Error";
}

VISIBLE int nvmlSystemGetDriverVersion(char *out, unsigned room) {
    if (!scenario) return UNINITIALIZED;
    int failed = refused(scenario, "nvmlSystemGetDriverVersion");
    if (failed) return failed;
    return copy_string(member(scenario, "driver"), out, room) ? SUCCESS : INSUFFICIENT_SIZE;
}

VISIBLE int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!scenario) return UNINITIALIZED;
    *count = (unsigned)number(member(scenario, "count"), length(member(scenario, "cards")));
    return refused(scenario, "nvmlDeviceGetCount_v2");
}

VISIBLE int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    const char *card;
    *handle = (void *)((uintptr_t)index + 1);
    return begin(*handle, "nvmlDeviceGetHandleByIndex_v2", &card);
}

VISIBLE int nvmlDeviceGetUUID(void *handle, char *out, unsigned room) {
    return give_string(handle, "nvmlDeviceGetUUID", "uuid", out, room);
}

VISIBLE int nvmlDeviceGetName(void *handle, char *out, unsigned room) {
    return give_string(handle, "nvmlDeviceGetName", "name", out, room);
}

VISIBLE int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    const char *card, *mig;
    int failed = begin(handle, "nvmlDeviceGetMigMode", &card);
    if (failed) return failed;
    if (!(mig = member(card, "mig"))) return NOT_SUPPORTED; /* a card that cannot be split */
    *now = *pending = *mig == 't';
    return SUCCESS;
}

struct memory_v1 { uint64_t total, free, used; };

/* The first form counts the driver's reserve as used. */
VISIBLE int nvmlDeviceGetMemoryInfo(void *handle, struct memory_v1 *out) {
    const char *card;
    int failed = begin(handle, "nvmlDeviceGetMemoryInfo", &card);
    if (failed) return failed;
    struct memory found = memory_of(card);
    out->total = found.total;
    out->free = found.free;
    out->used = found.used + found.reserved;
    return SUCCESS;
}

struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };

VISIBLE int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out) {
    const char *card;
    int failed = begin(handle, "nvmlDeviceGetMemoryInfo_v2", &card);
    if (failed) return failed;
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    struct memory found = memory_of(card);
    out->total = found.total;
    out->reserved = found.reserved;
    out->free = found.free;
    out->used = found.used;
    return SUCCESS;
}

struct process { unsigned pid; uint64_t used; unsigned gpu_instance, compute_instance; };

/* A card's processes of one kind. "seen" says how many of the card's list exist at the first call, the second, ... */
static int list(void *handle, const char *function, const char *kind, unsigned *count, struct process *out) {
    const char *card, *one, *limit;
    int failed = begin(handle, function, &card);
    if (failed) return failed;
    const char *all = member(card, "processes"), *seen = member(card, "seen");
    unsigned room = out ? *count : 0, index = (unsigned)(uintptr_t)handle - 1, visible = length(all);
    if (index < MOST_CARDS && !strcmp(kind, "compute") && length(seen)) {
        unsigned call = listed[index]++;
        if (!(limit = element(seen, call))) limit = element(seen, length(seen) - 1);
        if (number(limit, 0) < visible) visible = (unsigned)number(limit, 0);
    }
    *count = 0;
    for (unsigned i = 0; i < visible && (one = element(all, i)); i++) {
        char its_kind[16] = "compute";
        unsigned pid = pid_of(one);
        if (member(one, "kind")) copy_string(member(one, "kind"), its_kind, sizeof its_kind);
        if (strcmp(its_kind, kind) || !pid) continue;
        if (*count < room)
            out[*count] = (struct process){pid, number(member(one, "used_bytes"), NOT_AVAILABLE), UINT32_MAX, UINT32_MAX};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LISTS(name, kind)                                                                    \
    VISIBLE int name(void *handle, unsigned *count, struct process *out) {                   \
        return list(handle, #name, kind, count, out);                                        \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
