/* An array of JSON objects to columns: the fast twin of scan_python.py.
 *
 *   compile_plan(groups, fields, ph, raw_args, unknown_args) -> plan
 *   begin(plan, base_ns, expected_bytes) -> scan
 *   scan.feed(buffer, start, end, last) -> (status, consumed)
 *   scan.feed_file(file, at, length, buffer) -> (status, consumed) | None
 *   scan.finish() -> (events, not_events, memory, groups)
 *
 * The bytes [start, end) hold whole elements of a JSON array, separated by commas; the array may end
 * inside with ']'. They may come in several buffers, each beginning where `consumed` of the one before ended, so that
 * a small buffer, which stays in the cache, can be filled again and again. Each object becomes one row of group 0 and, if it carries a field of another group,
 * one row there. Nothing here knows Kineto: the plan says which key goes to which column and how.
 *
 * Everything inside an element is validated as JSON (RFC 8259), with three leniencies that real files
 * need: control characters in strings, NaN/Infinity (any case, also nan and inf), and repeated or
 * missing commas between elements. Bytes that are not UTF-8, anywhere in a range, give NOT_UTF8 and no rows.
 * The caller guarantees PADDING readable bytes after `end`. The scan runs without the GIL.
 *
 * Columns grow in memory that the plan keeps from scan to scan, and are then copied into one block of just
 * their size: fresh pages cost more than copying.
 */
#define _GNU_SOURCE /* strtod_l */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the scanner compares words of little-endian bytes; scan_python.py runs everywhere"
#endif

#define PADDING 64
#define MAX_DEPTH 128
#define MAX_GROUPS 16
#define MAX_SPARES 4
#define MAX_SPARE_BYTES (32 << 20) /* of input: what a larger chunk needed is given back */
#define HUGE_PAGE (2 << 20)
#define UTF8_AHEAD (32 << 10) /* checked just before it is scanned, so that the second pass finds it in the cache */
#define KEY_SLOTS 1024 /* power of two, several times the number of fields */

enum kind { TIME_ABS, TIME, I64, U64, F64, BOOL, TEXT, JSON_TEXT, INT_OR_TEXT, N_KINDS };
enum status { OK, MORE, BAD, DEEP, NO_MEMORY, END, NOT_UTF8 };

typedef const uint8_t *cursor;

/* ------------------------------------------------------------------ growable bytes */

typedef struct {
    uint8_t *data;
    size_t len, cap;
} Bytes;

static int bytes_reserve(Bytes *b, size_t extra) {
    if (b->data && b->len + extra <= b->cap) return OK;
    size_t cap = b->cap ? b->cap * 2 : 256;
    while (cap < b->len + extra) cap *= 2;
    uint8_t *data = realloc(b->data, cap + PADDING);
    if (!data) return NO_MEMORY;
    b->data = data;
    b->cap = cap;
    return OK;
}

static int bytes_put(Bytes *b, const void *src, size_t n) {
    if (bytes_reserve(b, n)) return NO_MEMORY;
    memcpy(b->data + b->len, src, n);
    b->len += n;
    return OK;
}

typedef struct Block {
    struct Block *next;
    size_t used, cap;
    uint8_t data[];
} Block; /* bytes that stay where they are */

/* A copy that outlives the buffer, with PADDING readable bytes after it; NULL without memory. */
static cursor keep(Block **blocks, cursor from, size_t len) {
    Block *b = *blocks;
    if (!b || b->cap - b->used < len + PADDING) {
        size_t cap = len + PADDING > (64 << 10) ? len + PADDING : (64 << 10);
        if (!(b = malloc(sizeof(Block) + cap))) return NULL;
        *b = (Block){*blocks, 0, cap};
        *blocks = b;
    }
    uint8_t *copy = b->data + b->used;
    memcpy(copy, from, len);
    b->used += len; /* the padding may be the next copy */
    return copy;
}

static void free_blocks(Block **blocks) {
    for (Block *b = *blocks, *next; b; b = next) next = b->next, free(b);
    *blocks = NULL;
}

/* ------------------------------------------------------------------ dictionaries */

static uint64_t secret[2]; /* drawn at import, so that crafted strings cannot all collide */

static inline uint64_t load64(cursor p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t m = (__uint128_t)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t hash_bytes(cursor p, size_t n) { /* reads up to 7 bytes past the end */
    uint64_t h = secret[0] ^ n;
    for (; n >= 16; n -= 16, p += 16) h = mix(load64(p) ^ secret[1], load64(p + 8) ^ h);
    if (n >= 8) h = mix(load64(p) ^ secret[1], h ^ secret[0]), n -= 8, p += 8;
    if (n) h = mix((load64(p) & ((UINT64_C(1) << (8 * n)) - 1)) ^ secret[1], h ^ secret[0]);
    return h;
}

static inline int same_bytes(cursor a, cursor b, size_t n) { /* reads up to 7 bytes past both ends */
    if (n >= 128) return load64(a) == load64(b) && !memcmp(a, b, n);
    for (; n >= 8; n -= 8, a += 8, b += 8)
        if (load64(a) != load64(b)) return 0;
    return n == 0 || !((load64(a) ^ load64(b)) << (64 - 8 * n)); /* little-endian: the first bytes are low */
}

typedef struct {
    cursor raw; /* a copy of it as it stands in the input */
    uint32_t len;
    int32_t code; /* -1: it means null */
    int32_t next; /* the token that came after it the last time; at first itself */
} Token;

typedef struct {
    uint64_t hash;
    int32_t token; /* its number + 1; 0 marks a free slot */
} RawSlot;

typedef struct {
    Token *tokens; /* in order of appearance, so that a token seen before is neither decoded nor validated again */
    int32_t n_tokens, cap_tokens;
    int32_t last; /* token + 1; training loops, so what follows it can be guessed */
    RawSlot *raw; /* token -> its number */
    size_t raw_cap;
    int32_t *slots; /* text -> code + 1 */
    size_t slot_cap;
    uint64_t *hashes; /* by code */
    int32_t *offsets; /* count + 1 */
    int32_t count, cap;
    Bytes text;
    Block *kept;
} Dict;

static void dict_free(Dict *d);

/* Forget everything and keep the memory, unless a hostile chunk made it large. */
static void dict_clear(Dict *d) {
    if (d->raw_cap > 1 << 16 || d->text.cap > 1 << 22) {
        dict_free(d);
        return;
    }
    if (d->raw) memset(d->raw, 0, d->raw_cap * sizeof(RawSlot));
    if (d->slots) memset(d->slots, 0, d->slot_cap * sizeof(int32_t));
    free_blocks(&d->kept);
    d->n_tokens = d->last = 0;
    d->count = 0;
    d->text.len = 0;
}

static void dict_free(Dict *d) {
    free_blocks(&d->kept);
    free(d->tokens);
    free(d->raw);
    free(d->slots);
    free(d->hashes);
    free(d->offsets);
    free(d->text.data);
    memset(d, 0, sizeof *d);
}

static int dict_grow_raw(Dict *d) {
    size_t cap = d->raw_cap ? d->raw_cap * 4 : 256;
    RawSlot *fresh = calloc(cap, sizeof(RawSlot));
    if (!fresh) return NO_MEMORY;
    for (size_t i = 0; i < d->raw_cap; i++) {
        if (!d->raw[i].token) continue;
        size_t at = d->raw[i].hash & (cap - 1);
        while (fresh[at].token) at = (at + 1) & (cap - 1);
        fresh[at] = d->raw[i];
    }
    free(d->raw);
    d->raw = fresh;
    d->raw_cap = cap;
    return OK;
}

static RawSlot *dict_find_raw(Dict *d, cursor raw, size_t len, uint64_t hash) {
    size_t at = hash & (d->raw_cap - 1);
    while (d->raw[at].token) {
        RawSlot *s = &d->raw[at];
        Token *t = &d->tokens[s->token - 1];
        if (s->hash == hash && t->len == len && same_bytes(t->raw, raw, len)) return s;
        at = (at + 1) & (d->raw_cap - 1);
    }
    return &d->raw[at];
}

/* Give a new token its number. */
static int dict_add_token(Dict *d, RawSlot *slot, cursor raw, size_t len, uint64_t hash, int32_t code) {
    if (d->n_tokens == d->cap_tokens) {
        int32_t cap = d->cap_tokens ? d->cap_tokens * 2 : 128;
        Token *tokens = realloc(d->tokens, (size_t)cap * sizeof(Token));
        if (!tokens) return NO_MEMORY;
        d->tokens = tokens;
        d->cap_tokens = cap;
    }
    if (!(raw = keep(&d->kept, raw, len))) return NO_MEMORY;
    d->tokens[d->n_tokens] = (Token){raw, (uint32_t)len, code, d->n_tokens};
    *slot = (RawSlot){hash, ++d->n_tokens};
    return OK;
}

/* The token at p, which has `room` bytes, if it is the one that followed or was the last; NULL if it is another. A
 * string or structure shows its own end, so the same bytes are the same token. */
static inline const Token *dict_guess(Dict *d, cursor p, size_t room) {
    if (!d->last) return NULL;
    const Token *last = &d->tokens[d->last - 1], *t = &d->tokens[last->next];
    if (room > t->len && same_bytes(t->raw, p, t->len)) {
        d->last = last->next + 1;
        return t;
    }
    return room > last->len && same_bytes(last->raw, p, last->len) ? last : NULL;
}

static int dict_intern(Dict *d, cursor text, size_t len, int32_t *code) {
    uint64_t hash = hash_bytes(text, len);
    if ((size_t)d->count * 2 >= d->slot_cap) {
        size_t cap = d->slot_cap ? d->slot_cap * 4 : 256;
        int32_t *fresh = calloc(cap, sizeof(int32_t));
        if (!fresh) return NO_MEMORY;
        for (int32_t c = 0; c < d->count; c++) {
            size_t at = d->hashes[c] & (cap - 1);
            while (fresh[at]) at = (at + 1) & (cap - 1);
            fresh[at] = c + 1;
        }
        free(d->slots);
        d->slots = fresh;
        d->slot_cap = cap;
    }
    size_t at = hash & (d->slot_cap - 1);
    while (d->slots[at]) {
        int32_t c = d->slots[at] - 1;
        size_t have = (size_t)(d->offsets[c + 1] - d->offsets[c]);
        if (d->hashes[c] == hash && have == len && !memcmp(d->text.data + d->offsets[c], text, len)) {
            *code = c;
            return OK;
        }
        at = (at + 1) & (d->slot_cap - 1);
    }
    if (d->count + 1 >= d->cap) {
        int32_t cap = d->cap ? d->cap * 2 : 128;
        uint64_t *hashes = realloc(d->hashes, (size_t)cap * sizeof(uint64_t));
        if (!hashes) return NO_MEMORY;
        d->hashes = hashes;
        int32_t *offsets = realloc(d->offsets, ((size_t)cap + 1) * sizeof(int32_t));
        if (!offsets) return NO_MEMORY;
        if (!d->offsets) offsets[0] = 0;
        d->offsets = offsets;
        d->cap = cap;
    }
    if (d->text.len + len > INT32_MAX || bytes_put(&d->text, text, len)) return NO_MEMORY;
    d->hashes[d->count] = hash;
    d->offsets[++d->count] = (int32_t)d->text.len;
    d->slots[at] = d->count;
    *code = d->count - 1;
    return OK;
}

/* ------------------------------------------------------------------ columns and groups */

typedef struct {
    int64_t count, first; /* how often, and the row of group 0 where first */
} Tally;

typedef struct {
    int kind;
    uint8_t *data, *valid;
    Dict dict;
    Tally mismatches, out_of_range;
    int64_t nulls;
    size_t data_at, valid_at, offsets_at, text_at; /* in the block that Python gets */
} Column;

typedef struct {
    Column *columns;
    int n_columns;
    int64_t rows, cap;
    int64_t *event; /* which event a row belongs to; unused in group 0 */
    size_t event_at;
    int64_t current; /* row of the event being scanned, -1 if it has none yet */
} Group;

static size_t data_bytes(int kind, int64_t rows) {
    if (kind == BOOL) return (size_t)(rows + 7) / 8;
    return (size_t)rows * (kind == TEXT || kind == JSON_TEXT ? 4 : 8);
}

static int grow(uint8_t **data, size_t from, size_t to, int zero) {
    uint8_t *fresh = realloc(*data, to + PADDING);
    if (!fresh) return NO_MEMORY;
    if (zero) memset(fresh + from, 0, to - from);
    *data = fresh;
    return OK;
}

/* Validity must start as null, and Arrow reads dictionary codes under nulls too; a number under a null is never read. */
static int starts_as_zero(int kind) { return kind == TEXT || kind == JSON_TEXT || kind == BOOL; }

static int group_reserve(Group *g, int64_t cap) {
    for (int i = 0; i < g->n_columns; i++) {
        Column *c = &g->columns[i];
        if (!c->data) continue; /* columns without a value stay without memory */
        if (grow(&c->data, data_bytes(c->kind, g->cap), data_bytes(c->kind, cap), starts_as_zero(c->kind))) return NO_MEMORY;
        if (grow(&c->valid, (size_t)(g->cap + 7) / 8, (size_t)(cap + 7) / 8, 1)) return NO_MEMORY;
    }
    if (grow((uint8_t **)&g->event, 0, (size_t)cap * 8, 0)) return NO_MEMORY;
    g->cap = cap;
    return OK;
}

static int column_start(Column *c, int64_t cap) {
    size_t size = data_bytes(c->kind, cap) + PADDING;
    c->data = starts_as_zero(c->kind) ? calloc(1, size) : malloc(size);
    c->valid = calloc(1, (size_t)(cap + 7) / 8 + PADDING);
    return c->data && c->valid ? OK : NO_MEMORY;
}

static inline int group_row(Group *g, int64_t event) {
    if (g->current >= 0) return OK;
    if (g->rows == g->cap && group_reserve(g, g->cap ? g->cap * 2 : 1024)) return NO_MEMORY;
    g->event[g->rows] = event;
    g->current = g->rows++;
    return OK;
}

static inline void set_valid(Column *c, int64_t row) { c->valid[row >> 3] |= (uint8_t)(1 << (row & 7)); }
static inline void set_null(Column *c, int64_t row) { if (c->valid) c->valid[row >> 3] &= (uint8_t) ~(1 << (row & 7)); }

/* ------------------------------------------------------------------ plan */

typedef struct {
    const char *key;
    uint32_t len;
    int16_t scope, group, column;
} Field;

typedef struct {
    int n_groups, n_fields;
    int n_columns[MAX_GROUPS];
    int *kinds[MAX_GROUPS];
    Field *fields;
    int16_t slots[2][KEY_SLOTS]; /* scope, key hash -> field + 1 */
    int ph, raw_args, unknown_args; /* columns of group 0; unknown_args is -1 if not wanted */
    struct Scan *spares[MAX_SPARES]; /* memory of scans that are over; touched with the GIL only */
    int n_spares;
} Plan;

static inline uint32_t key_hash(cursor p, uint32_t n) { /* no secret: the keys are ours */
    uint64_t head = load64(p);
    if (n < 8) head &= (UINT64_C(1) << (8 * n)) - 1;
    uint64_t tail = n > 8 ? load64(p + n - 8) : 0;
    uint64_t h = (head ^ (tail * UINT64_C(0x9E3779B97F4A7C15)) ^ n) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 40) & (KEY_SLOTS - 1);
}

static inline const Field *find_field(const Plan *plan, int scope, cursor key, uint32_t len) {
    uint32_t at = key_hash(key, len);
    for (int16_t f; (f = plan->slots[scope][at]); at = (at + 1) & (KEY_SLOTS - 1)) {
        const Field *field = &plan->fields[f - 1];
        if (field->len == len && same_bytes((cursor)field->key, key, len)) return field;
    }
    return NULL;
}

/* ------------------------------------------------------------------ tokens */

static inline cursor skip_space(cursor p, cursor end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static inline cursor find_quote(cursor p, cursor end) { /* first '"' or '\\' at or after p, else end */
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    for (; p < end; p += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        int m = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)));
        if (m) {
            p += __builtin_ctz((unsigned)m);
            return p < end ? p : end;
        }
    }
    return end;
#else
    while (p < end && *p != '"' && *p != '\\') p++;
    return p;
#endif
}

static int hex4(cursor p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i], d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* p is after the opening quote; on OK *p is after the closing one */
static inline int skip_string(cursor *pp, cursor end, int *escaped) {
    cursor p = *pp;
    for (;;) {
        p = find_quote(p, end);
        if (p >= end) return MORE;
        if (*p == '"') {
            *pp = p + 1;
            return OK;
        }
        *escaped = 1;
        if (p + 1 >= end) return MORE;
        if (p[1] == 'u') {
            for (cursor q = p + 2; q < p + 6; q++) {
                if (q >= end) return MORE;
                if (!((*q >= '0' && *q <= '9') || ((*q | 32) >= 'a' && (*q | 32) <= 'f'))) return BAD;
            }
            p += 6;
        } else {
            if (!memchr("\"\\/bfnrt", p[1], 8)) return BAD;
            p += 2;
        }
    }
}

static inline int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* How many of the eight bytes at p are digits before the first that is none. */
static inline unsigned digit_run(uint64_t word) {
    uint64_t d = word ^ UINT64_C(0x3030303030303030); /* digits become 0 to 9 */
    uint64_t none = (((d & UINT64_C(0x7F7F7F7F7F7F7F7F)) + UINT64_C(0x7676767676767676)) | d) & UINT64_C(0x8080808080808080);
    return none ? (unsigned)__builtin_ctzll(none) >> 3 : 8;
}

/* Value of the first n digits of a word, n from 1 to 8: pairs, then fours, then all at once. */
static inline uint64_t digit_value(uint64_t word, unsigned n) {
    uint64_t d = (word ^ UINT64_C(0x3030303030303030)) << (64 - 8 * n); /* zeros come in front */
    d = d * 10 + (d >> 8);
    return ((d & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x000F424000000064) +
            ((d >> 16) & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x0000271000000001)) >> 32;
}

static inline cursor skip_digits(cursor p, cursor end) {
    unsigned n;
    do p += n = digit_run(load64(p));
    while (n == 8 && p < end);
    return p < end ? p : end;
}

typedef struct {
    cursor begin, int_end, frac_end, end; /* [-]int [.frac] [e…]; begin is after the sign */
    int negative, finite;
} Number;

static int skip_word(cursor *pp, cursor end, const char *word) { /* any case */
    cursor p = *pp;
    for (; *word; word++, p++) {
        if (p >= end) return MORE;
        if ((*p | 32) != (uint8_t)*word) return BAD;
    }
    *pp = p;
    return OK;
}

static int skip_number(cursor *pp, cursor end, Number *n) {
    cursor p = *pp;
    n->negative = *p == '-';
    p += n->negative;
    if (p >= end) return MORE;
    n->begin = p;
    n->finite = 1;
    if (!is_digit(*p)) {
        n->finite = 0;
        int r = (*p | 32) == 'n' ? skip_word(&p, end, "nan") : skip_word(&p, end, "inf");
        if (r) return r;
        if (p >= end) return MORE;
        if ((n->begin[0] | 32) == 'i' && (*p | 32) == 'i' && (r = skip_word(&p, end, "inity"))) return r;
        *pp = p;
        return OK;
    }
    if (*p == '0') {
        p++;
        if (p < end && is_digit(*p)) return BAD;
    } else {
        p = skip_digits(p, end);
    }
    n->int_end = n->frac_end = p;
    if (p >= end) return MORE;
    if (*p == '.') {
        cursor frac = ++p;
        p = skip_digits(p, end);
        if (p >= end) return MORE;
        if (p == frac) return BAD;
        n->frac_end = p;
    }
    if ((*p | 32) == 'e') {
        p++;
        if (p >= end) return MORE;
        if (*p == '+' || *p == '-') p++;
        cursor exponent = p;
        p = skip_digits(p, end);
        if (p >= end) return MORE;
        if (p == exponent) return BAD;
    }
    n->end = *pp = p;
    return OK;
}

static int skip_literal(cursor *pp, cursor end, const char *word) {
    cursor p = *pp;
    for (; *word; word++, p++) {
        if (p >= end) return MORE;
        if (*p != (uint8_t)*word) return BAD;
    }
    *pp = p;
    return OK;
}

static int is_number_start(uint8_t c) { return c == '-' || is_digit(c) || c == 'N' || c == 'I' || c == 'i'; }

/* ------------------------------------------------------------------ canonical JSON text */

static int put_utf8(Bytes *out, uint32_t c) {
    uint8_t b[4];
    size_t n;
    if (c < 0x80) {
        b[0] = (uint8_t)c, n = 1;
    } else if (c < 0x800) {
        b[0] = (uint8_t)(0xC0 | c >> 6), b[1] = (uint8_t)(0x80 | (c & 63)), n = 2;
    } else if (c < 0x10000) {
        b[0] = (uint8_t)(0xE0 | c >> 12), b[1] = (uint8_t)(0x80 | (c >> 6 & 63)), b[2] = (uint8_t)(0x80 | (c & 63)), n = 3;
    } else {
        b[0] = (uint8_t)(0xF0 | c >> 18), b[1] = (uint8_t)(0x80 | (c >> 12 & 63));
        b[2] = (uint8_t)(0x80 | (c >> 6 & 63)), b[3] = (uint8_t)(0x80 | (c & 63)), n = 4;
    }
    return bytes_put(out, b, n);
}

/* the inside of a valid JSON string; a lone surrogate becomes U+FFFD */
static int decode_string(Bytes *out, cursor p, cursor end) {
    while (p < end) {
        cursor plain = memchr(p, '\\', (size_t)(end - p));
        if (!plain) plain = end;
        if (bytes_put(out, p, (size_t)(plain - p))) return NO_MEMORY;
        if (plain == end) break;
        p = plain + 2;
        uint32_t c = plain[1];
        switch (c) {
            case 'b': c = '\b'; break;
            case 'f': c = '\f'; break;
            case 'n': c = '\n'; break;
            case 'r': c = '\r'; break;
            case 't': c = '\t'; break;
            case 'u':
                c = (uint32_t)hex4(p);
                p += 4;
                if (c >= 0xD800 && c < 0xDC00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
                    uint32_t low = (uint32_t)hex4(p + 2);
                    if (low >= 0xDC00 && low < 0xE000) {
                        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
                        p += 6;
                    }
                }
                if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
        }
        if (put_utf8(out, c)) return NO_MEMORY;
    }
    return OK;
}

/* the inside of a JSON string -> quoted, with the fewest escapes */
static int put_string(Bytes *out, Bytes *scratch, cursor p, cursor end) {
    scratch->len = 0;
    if (decode_string(scratch, p, end) || bytes_reserve(out, scratch->len * 6 + 2)) return NO_MEMORY;
    uint8_t *o = out->data + out->len;
    *o++ = '"';
    for (size_t i = 0; i < scratch->len; i++) {
        uint8_t c = scratch->data[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            *o++ = c;
            continue;
        }
        *o++ = '\\';
        switch (c) {
            case '"': case '\\': *o++ = c; break;
            case '\b': *o++ = 'b'; break;
            case '\f': *o++ = 'f'; break;
            case '\n': *o++ = 'n'; break;
            case '\r': *o++ = 'r'; break;
            case '\t': *o++ = 't'; break;
            default:
                *o++ = 'u', *o++ = '0', *o++ = '0';
                *o++ = (uint8_t)('0' + (c >> 4));
                *o++ = (uint8_t)"0123456789abcdef"[c & 15];
        }
    }
    *o++ = '"';
    out->len = (size_t)(o - out->data);
    return OK;
}

/* Validate one value and, if out is given, append its canonical text: no space, fewest escapes,
 * numbers as written, non-finite numbers as null. */
static int walk(cursor *pp, cursor end, int depth, Bytes *out, Bytes *scratch) {
    cursor p = *pp, from = p;
    int r, escaped = 0;
    if (p >= end) return MORE;
    if (*p == '"') {
        p++;
        if ((r = skip_string(&p, end, &escaped))) return r;
        if (out && put_string(out, scratch, from + 1, p - 1)) return NO_MEMORY;
    } else if (*p == '{' || *p == '[') {
        uint8_t close = *p == '{' ? '}' : ']';
        if (depth >= MAX_DEPTH) return DEEP;
        if (out && bytes_put(out, p, 1)) return NO_MEMORY;
        p = skip_space(p + 1, end);
        if (p >= end) return MORE;
        if (*p == close) {
            p++;
        } else {
            for (;;) {
                if (close == '}') {
                    if (*p != '"') return BAD;
                    cursor key = ++p;
                    if ((r = skip_string(&p, end, &escaped))) return r;
                    if (out && (put_string(out, scratch, key, p - 1) || bytes_put(out, ":", 1))) return NO_MEMORY;
                    p = skip_space(p, end);
                    if (p >= end) return MORE;
                    if (*p != ':') return BAD;
                    p = skip_space(p + 1, end);
                }
                if ((r = walk(&p, end, depth + 1, out, scratch))) return r;
                p = skip_space(p, end);
                if (p >= end) return MORE;
                if (*p == close) {
                    p++;
                    break;
                }
                if (*p != ',') return BAD;
                if (out && bytes_put(out, ",", 1)) return NO_MEMORY;
                p = skip_space(p + 1, end);
                if (p >= end) return MORE;
            }
        }
        if (out && bytes_put(out, &close, 1)) return NO_MEMORY;
    } else if (*p == 't' || *p == 'f') {
        if ((r = skip_literal(&p, end, *p == 't' ? "true" : "false"))) return r;
        if (out && bytes_put(out, from, (size_t)(p - from))) return NO_MEMORY;
    } else if (*p == 'n' && (p + 1 >= end || p[1] != 'a')) {
        if ((r = skip_literal(&p, end, "null"))) return r;
        if (out && bytes_put(out, "null", 4)) return NO_MEMORY;
    } else if (is_number_start(*p) || *p == 'n') {
        Number n;
        if ((r = skip_number(&p, end, &n))) return r;
        if (out && (n.finite ? bytes_put(out, from, (size_t)(p - from)) : bytes_put(out, "null", 4))) return NO_MEMORY;
    } else {
        return BAD;
    }
    *pp = p;
    return OK;
}

/* ------------------------------------------------------------------ numbers */

/* value * 10^scale as int64. `exact` refuses a fraction, otherwise halves round to even.
 * Returns OK, BAD (has a fraction) or END (does not fit 64 bits). */
static int scaled_integer(const Number *n, int scale, int exact, uint64_t *out) {
    int64_t exponent = 0;
    if (n->end > n->frac_end) { /* e or E */
        cursor p = n->frac_end + 1;
        int negative = *p == '-';
        if (*p == '-' || *p == '+') p++;
        for (; p < n->end; p++)
            if (exponent < 1000000) exponent = exponent * 10 + (*p - '0');
        if (negative) exponent = -exponent;
    }
    int64_t int_digits = n->int_end - n->begin;
    int64_t frac_digits = n->frac_end > n->int_end ? n->frac_end - n->int_end - 1 : 0;
    int64_t digits = int_digits + frac_digits, keep = int_digits + exponent + scale; /* digits before the new point */
    uint64_t v = 0;
    int first_lost = 0, more_lost = 0;
    for (int64_t i = 0; i < (keep > digits ? keep : digits); i++) {
        int d = i < int_digits ? n->begin[i] - '0' : i < digits ? n->int_end[1 + i - int_digits] - '0' : 0;
        if (i < keep) {
            if (v > (UINT64_MAX - (unsigned)d) / 10) return END;
            v = v * 10 + (unsigned)d;
            if (i >= digits && v == 0) break; /* zero with a huge exponent */
        } else if (i == keep) {
            first_lost = d;
        } else {
            more_lost |= d;
        }
    }
    if (exact && (first_lost || more_lost)) return BAD;
    if (first_lost > 5 || (first_lost == 5 && (more_lost || (v & 1)))) {
        if (v == UINT64_MAX) return END;
        v++;
    }
    *out = v;
    return OK;
}

static int to_int64(uint64_t v, int negative, int64_t *out) {
    if (v > (uint64_t)INT64_MAX + (unsigned)negative) return END;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return OK;
}

static locale_t c_locale; /* the user's may write decimals with a comma */

static double to_double(const Number *n, cursor from) {
    uint64_t v = 0;
    int64_t digits = 0;
    cursor p = n->begin;
    for (; p < n->frac_end && digits < 16; p++) {
        if (*p == '.') continue;
        v = v * 10 + (unsigned)(*p - '0');
        if (v) digits++;
    }
    int64_t frac = n->frac_end > n->int_end ? n->frac_end - n->int_end - 1 : 0;
    static const double power[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (p == n->frac_end && n->end == n->frac_end && digits <= 15 && frac <= 22) { /* both exact: one rounding */
        double d = (double)v / power[frac];
        return n->negative ? -d : d;
    }
    char text[512];
    size_t len = (size_t)(n->end - from);
    char *copy = len < sizeof text ? text : malloc(len + 1);
    if (!copy) return 0;
    memcpy(copy, from, len);
    copy[len] = 0;
    double d = strtod_l(copy, NULL, c_locale);
    if (copy != text) free(copy);
    return d;
}

/* The common case in one pass: an integer of up to 16 digits, for times with up to three decimals, no
 * exponent. Returns 0 and leaves *pp alone for everything else. */
static inline int fast_integer(cursor *pp, cursor end, int is_time, int64_t *out) {
    cursor p = *pp;
    int negative = *p == '-';
    p += negative;
    uint64_t word = load64(p), v;
    unsigned n = digit_run(word);
    if (n == 0 || (n > 1 && *p == '0')) return 0;
    v = digit_value(word, n);
    p += n;
    if (n == 8 && is_digit(*p)) { /* padding ends every run of digits */
        word = load64(p), n = digit_run(word);
        static const uint64_t power[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
        v = v * power[n] + digit_value(word, n);
        p += n;
        if (is_digit(*p) || v > UINT64_C(9000000000000000)) return 0; /* 16 digits of microseconds are the year 2286 */
    }
    if (is_time) {
        unsigned decimals = 0;
        if (*p == '.') {
            for (p++; is_digit(*p) && decimals < 3; p++, decimals++) v = v * 10 + (unsigned)(*p - '0');
            if (decimals == 0 || is_digit(*p)) return 0;
        }
        v *= decimals == 3 ? 1 : decimals == 2 ? 10 : decimals == 1 ? 100 : 1000;
    }
    if (p >= end || *p == '.' || (*p | 32) == 'e') return 0;
    *out = negative ? -(int64_t)v : (int64_t)v;
    *pp = p;
    return 1;
}

/* ------------------------------------------------------------------ one event */

typedef struct {
    cursor key, key_end, value, value_end;
} Span;

#define EDGES 4
#define CLOSE (-2)
#define MAX_LEAD 56

/* What was seen between two values: `, "key": ` with its white space, or the closing bracket. The same
 * bytes mean the same again, so one comparison replaces scanning and looking up a key. */
typedef struct {
    uint16_t len; /* 0: nothing seen yet */
    int16_t next; /* number of the key, or CLOSE */
    uint8_t lead[MAX_LEAD + 8];
} Edge;

typedef struct {
    cursor text; /* without escapes */
    uint32_t len;
    int16_t is_args, kind;
    const Field *field; /* NULL: no column */
    Group *group; /* of the field, found once: the way there is a chain of loads */
    Column *column;
    Edge edges[EDGES]; /* what followed, latest first */
} Key;

#define MAX_KEYS 512 /* fields of the plan, then keys without a column in order of appearance */

typedef struct Scan {
    const Plan *plan;
    Key keys[MAX_KEYS];
    int16_t n_keys, key_slots[2][KEY_SLOTS];
    Edge first[2][EDGES]; /* after the opening bracket of an event, of its args */
    Group groups[MAX_GROUPS];
    int64_t base_ns, not_events, bytes_fed;
    Block *kept; /* text of keys without a column */
    Bytes text, scratch;
    Span *unknown;
    size_t n_unknown, cap_unknown;
    Tally *counted[256]; /* tallies that this event raised, to take back if it proves unfinished */
    int n_counted;
} Scan;

static void count(Scan *s, Tally *tally) {
    if (s->n_counted == 256) return; /* only an event that repeats one key hundreds of times */
    if (!tally->count++) tally->first = s->groups[0].rows - 1;
    s->counted[s->n_counted++] = tally;
}

static void forget(Scan *s, int group, int column) { /* the last value of a repeated key counts */
    Group *g = &s->groups[group];
    if (g->current >= 0) set_null(&g->columns[column], g->current);
}

static inline int store_int(Scan *s, int group, int column, uint64_t bits) {
    Group *g = &s->groups[group];
    Column *c = &g->columns[column];
    if (group_row(g, s->groups[0].rows - 1) || (!c->data && column_start(c, g->cap))) return NO_MEMORY;
    memcpy(c->data + g->current * 8, &bits, 8);
    set_valid(c, g->current);
    return OK;
}

static inline int store_code(Scan *s, int group, int column, int32_t code) {
    Group *g = &s->groups[group];
    if (code < 0) {
        forget(s, group, column);
        return OK;
    }
    Column *c = &g->columns[column];
    if (group_row(g, s->groups[0].rows - 1) || (!c->data && column_start(c, g->cap))) return NO_MEMORY;
    memcpy(c->data + g->current * 4, &code, 4);
    set_valid(c, g->current);
    return OK;
}

/* A valid value token [from, p) as text. `json` keeps strings quoted. */
static int token_text(Scan *s, cursor from, cursor end, int json, int32_t *is_null) {
    s->text.len = 0;
    *is_null = 0;
    if (*from == '"' && !json) return decode_string(&s->text, from + 1, end - 1);
    cursor p = from;
    int r = walk(&p, end + 1, 0, &s->text, &s->scratch); /* +1: a number needs to see its end */
    if (r == OK && s->text.len == 4 && !memcmp(s->text.data, "null", 4)) *is_null = 1;
    return r;
}

#if defined(__SSE2__)
/* End of the bracketed value at p by counting brackets outside strings; NULL if it is not there. */
static cursor match_brackets(cursor p, cursor end) {
    const __m128i quote = _mm_set1_epi8('"'), bit5 = _mm_set1_epi8(0x20);
    const __m128i open = _mm_set1_epi8('{'), close = _mm_set1_epi8('}');
    int64_t depth = 0;
    while (p < end) {
        __m128i v = _mm_loadu_si128((const __m128i *)p), folded = _mm_or_si128(v, bit5); /* [ ] become { } */
        __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(folded, open), _mm_cmpeq_epi8(folded, close));
        unsigned m = (unsigned)_mm_movemask_epi8(_mm_or_si128(hits, _mm_cmpeq_epi8(v, quote)));
        cursor block = p;
        p += 16;
        while (m) {
            cursor at = block + __builtin_ctz(m);
            m &= m - 1;
            if (at >= end) return NULL;
            if (*at == '"') {
                int escaped = 0;
                cursor q = at + 1;
                if (skip_string(&q, end, &escaped)) return NULL;
                p = q;
                break;
            }
            depth += (*at | 0x20) == '{' ? 1 : -1;
            if (depth == 0) return at + 1;
        }
    }
    return NULL;
}
#else
static cursor match_brackets(cursor p, cursor end) {
    int64_t depth = 0;
    while (p < end) {
        int escaped = 0;
        if (*p == '"') {
            cursor q = p + 1;
            if (skip_string(&q, end, &escaped)) return NULL;
            p = q;
            continue;
        }
        if (*p == '{' || *p == '[') depth++;
        if (*p == '}' || *p == ']') depth--;
        if (depth == 0) return p + 1;
        p++;
    }
    return NULL;
}
#endif

/* TEXT and JSON_TEXT: find the token's end, look it up as it stands, decode it only the first time. */
static int store_text(Scan *s, int group, int column, int json, cursor *pp, cursor end, int depth) {
    cursor from = *pp, p = from;
    int r, escaped = 0;
    Dict *d = &s->groups[group].columns[column].dict;
    const Token *guess = dict_guess(d, p, (size_t)(end - p));
    if (guess) {
        *pp = p + guess->len;
        return store_code(s, group, column, guess->code);
    }
    if (*p == '"') {
        p++;
        if ((r = skip_string(&p, end, &escaped))) return r;
    } else if (*p == '[' || *p == '{') {
        cursor close = match_brackets(p, end);
        if (!close) { /* unfinished or broken: the full walk says which */
            r = walk(&p, end, depth, NULL, NULL);
            return r ? r : BAD;
        }
        p = close;
    } else if ((r = walk(&p, end, depth, NULL, NULL))) {
        return r;
    }
    size_t len = (size_t)(p - from);
    if (len > INT32_MAX) return NO_MEMORY;
    *pp = p;
    if ((size_t)d->n_tokens * 2 >= d->raw_cap && dict_grow_raw(d)) return NO_MEMORY;
    uint64_t hash = hash_bytes(from, len);
    RawSlot *slot = dict_find_raw(d, from, len, hash);
    if (!slot->token) {
        int32_t code = -1, is_null;
        if (*from == '[' || *from == '{') { /* brackets were only counted: validate now */
            cursor q = from;
            if ((r = walk(&q, end, depth, NULL, NULL))) return r;
            if (q != p) return BAD;
        }
        if (*from == '"' && !escaped && !json) {
            is_null = 0;
            if (dict_intern(d, from + 1, len - 2, &code)) return NO_MEMORY;
        } else {
            if ((r = token_text(s, from, p, json, &is_null))) return r;
            if (!is_null && (bytes_reserve(&s->text, PADDING) || dict_intern(d, s->text.data, s->text.len, &code)))
                return NO_MEMORY;
        }
        if (dict_add_token(d, slot, from, len, hash, code)) return NO_MEMORY;
    }
    int shows_its_end = *from == '"' || *from == '[' || *from == '{'; /* `12` may go on as `123`: never guessed */
    if (d->last && shows_its_end) d->tokens[d->last - 1].next = slot->token - 1;
    d->last = shows_its_end ? slot->token : 0;
    return store_code(s, group, column, d->tokens[slot->token - 1].code);
}

/* The whole content of a string as a number: `-?digits` or, for times, any JSON number. */
static int number_in_string(cursor from, cursor end, Number *n) {
    cursor p = from;
    if (p >= end || !(*p == '-' || is_digit(*p))) return BAD;
    int negative = *p == '-';
    cursor digits = p + negative;
    while (digits < end && *digits == '0' && digits + 1 < end && is_digit(digits[1])) digits++; /* leading zeros */
    if (digits >= end || !is_digit(*digits)) return BAD;
    p = digits;
    if (skip_number(&p, end + 1, n) || p != end) return BAD; /* end is at the closing quote */
    n->negative = negative;
    return OK;
}

static int store_odd_value(Scan *s, const Key *key, cursor *pp, cursor end, int depth);

/* `"25738"`: old versions quote thread ids. Leaves *pp alone for everything else. */
static inline int fast_quoted(cursor *pp, cursor end, int is_time, int64_t *out) {
    cursor p = *pp + 1;
    if (**pp != '"' || p >= end || !fast_integer(&p, end, is_time, out) || *p != '"') return 0;
    *pp = p + 1;
    return 1;
}

static inline int store_value(Scan *s, const Key *key, cursor *pp, cursor end, int depth) {
    int kind = key->kind;
    if (kind == TEXT || kind == JSON_TEXT)
        return store_text(s, key->field->group, key->field->column, kind == JSON_TEXT, pp, end, depth);
    cursor from = *pp;
    int64_t v;
    int is_time = kind == TIME || kind == TIME_ABS;
    if (kind == F64 || kind == BOOL || !(fast_integer(pp, end, is_time, &v) || fast_quoted(pp, end, is_time, &v)))
        return store_odd_value(s, key, pp, end, depth);
    if ((kind == TIME_ABS && __builtin_add_overflow(v, s->base_ns, &v)) || (kind == U64 && v < 0)) {
        *pp = from; /* the long way counts it */
        return store_odd_value(s, key, pp, end, depth);
    }
    Group *g = key->group;
    Column *c = key->column;
    if (kind == INT_OR_TEXT && g->current >= 0) set_null(c + 1, g->current);
    if (group_row(g, s->groups[0].rows - 1) || (!c->data && column_start(c, g->cap))) return NO_MEMORY;
    memcpy(c->data + g->current * 8, &v, 8);
    set_valid(c, g->current);
    return OK;
}

static int store_odd_value(Scan *s, const Key *key, cursor *pp, cursor end, int depth) {
    int group = key->field->group, column = key->field->column;
    Column *c = key->column;
    int kind = key->kind, r, escaped = 0;
    cursor from = *pp, p = from;
    Number n;
    int have = 0;
    if (*p == '-' || is_digit(*p)) {
        if ((r = skip_number(&p, end, &n))) return r;
        have = n.finite;
    } else if (*p == '"') {
        p++;
        if ((r = skip_string(&p, end, &escaped))) return r;
        if (!escaped && kind != F64 && kind != BOOL) have = number_in_string(from + 1, p - 1, &n) == OK;
    } else if ((r = walk(&p, end, depth, NULL, NULL))) {
        return r;
    }
    int is_null = *from == 'n' && from[1] == 'u';
    *pp = p;
    forget(s, group, column);
    if (kind == INT_OR_TEXT) {
        uint64_t v;
        int64_t i;
        forget(s, group, column + 1);
        if (is_null) return OK;
        if (have && scaled_integer(&n, 0, 1, &v) == OK && to_int64(v, n.negative, &i) == OK)
            return store_int(s, group, column, (uint64_t)i);
        cursor q = from;
        return store_text(s, group, column + 1, 0, &q, end, depth);
    }
    if (is_null) return OK;
    if (kind == BOOL) {
        if (*from != 't' && *from != 'f') {
            count(s, &c->mismatches);
            return OK;
        }
        Group *g = &s->groups[group];
        if (group_row(g, s->groups[0].rows - 1) || (!c->data && column_start(c, g->cap))) return NO_MEMORY;
        uint8_t bit = (uint8_t)(1 << (g->current & 7));
        if (*from == 't')
            c->data[g->current >> 3] |= bit;
        else
            c->data[g->current >> 3] &= (uint8_t)~bit;
        set_valid(c, g->current);
        return OK;
    }
    if (!have) {
        count(s, &c->mismatches);
        return OK;
    }
    if (kind == F64) {
        double d = to_double(&n, from);
        uint64_t bits;
        memcpy(&bits, &d, 8);
        if (d - d != 0) { /* 1e999 */
            count(s, &c->out_of_range);
            return OK;
        }
        return store_int(s, group, column, bits);
    }
    int is_time = kind == TIME || kind == TIME_ABS;
    uint64_t v;
    int64_t i;
    r = scaled_integer(&n, is_time ? 3 : 0, !is_time, &v);
    if (r == BAD) {
        count(s, &c->mismatches);
        return OK;
    }
    if (r == OK && kind == U64 && (!n.negative || v == 0)) return store_int(s, group, column, v);
    if (r == OK && kind != U64 && to_int64(v, n.negative, &i) == OK) {
        if (kind != TIME_ABS || !__builtin_add_overflow(i, s->base_ns, &i)) return store_int(s, group, column, (uint64_t)i);
    }
    count(s, &c->out_of_range);
    return OK;
}

static int remember_unknown(Scan *s, Span span) {
    if (s->n_unknown == s->cap_unknown) {
        size_t cap = s->cap_unknown ? s->cap_unknown * 2 : 64;
        Span *fresh = realloc(s->unknown, cap * sizeof(Span));
        if (!fresh) return NO_MEMORY;
        s->unknown = fresh;
        s->cap_unknown = cap;
    }
    s->unknown[s->n_unknown++] = span;
    return OK;
}

static int put_unknown(Scan *s) {
    Bytes out = {0};
    int r = bytes_put(&out, "{", 1);
    for (size_t i = 0; i < s->n_unknown && !r; i++) {
        Span *u = &s->unknown[i];
        cursor p = u->value;
        r = (i && bytes_put(&out, ",", 1)) || put_string(&out, &s->scratch, u->key, u->key_end) || bytes_put(&out, ":", 1) ||
            walk(&p, u->value_end + 1, 0, &out, &s->scratch);
    }
    int32_t code;
    if (!r) r = bytes_put(&out, "}", 1) || bytes_reserve(&out, PADDING);
    if (!r) r = dict_intern(&s->groups[0].columns[s->plan->unknown_args].dict, out.data, out.len, &code);
    free(out.data);
    return r ? NO_MEMORY : store_code(s, 0, s->plan->unknown_args, code);
}

static void key_leads_to(Scan *s, Key *key, const Field *field) {
    if (!(key->field = field)) return;
    key->group = &s->groups[field->group];
    key->column = &key->group->columns[field->column];
    key->kind = (int16_t)key->column->kind;
}

/* Number of a key, -1 if it has none. */
static int16_t key_number(Scan *s, int scope, cursor text, uint32_t len) {
    const Field *field = find_field(s->plan, scope, text, len);
    if (field) return (int16_t)(field - s->plan->fields);
    uint32_t at = key_hash(text, len);
    for (int16_t k; (k = s->key_slots[scope][at]); at = (at + 1) & (KEY_SLOTS - 1)) {
        Key *key = &s->keys[k - 1];
        if (key->len == len && same_bytes(key->text, text, len)) return (int16_t)(k - 1);
    }
    if (s->n_keys == MAX_KEYS || !(text = keep(&s->kept, text, len))) return -1;
    int16_t is_args = scope == 0 && len == 4 && !memcmp(text, "args", 4);
    s->keys[s->n_keys] = (Key){.text = text, .len = len, .is_args = is_args};
    s->key_slots[scope][at] = ++s->n_keys;
    return (int16_t)(s->n_keys - 1);
}

static void remember_edge(Edge *edges, cursor lead, cursor end, int next) {
    if (end - lead > MAX_LEAD) return;
    memmove(edges + 1, edges, (EDGES - 1) * sizeof(Edge));
    edges[0].len = (uint16_t)(end - lead);
    edges[0].next = (int16_t)next;
    memcpy(edges[0].lead, lead, edges[0].len);
}

/* Key and colon at p, which is at the opening quote; *pp is then at the value. `other` holds a key that has no number:
 * escaped, very long, or one too many. Its text may be gone after the next key. */
static int scan_key(Scan *s, int scope, cursor *pp, cursor end, Key *other, Key **known, cursor *key_end) {
    cursor p = *pp, key = p + 1;
    int r, escaped = 0;
    if (*p++ != '"') return BAD;
    if ((r = skip_string(&p, end, &escaped))) return r;
    *key_end = p - 1;
    size_t len = (size_t)(*key_end - key);
    int number = -1;
    if (!escaped && len <= UINT16_MAX) number = key_number(s, scope, key, (uint32_t)len);
    if (number >= 0) {
        *known = &s->keys[number];
        *key_end = (*known)->text + len; /* its text is that of its first occurrence */
    } else {
        cursor text = key;
        if (escaped) {
            s->text.len = 0;
            if (decode_string(&s->text, key, *key_end) || bytes_reserve(&s->text, PADDING)) return NO_MEMORY;
            text = s->text.data, len = s->text.len;
        }
        *other = (Key){.text = key, .is_args = scope == 0 && len == 4 && !memcmp(text, "args", 4)};
        if (len <= UINT16_MAX) key_leads_to(s, other, find_field(s->plan, scope, text, (uint32_t)len));
        *known = other;
    }
    p = skip_space(p, end);
    if (p >= end) return MORE;
    if (*p != ':') return BAD;
    *pp = skip_space(p + 1, end);
    return *pp >= end ? MORE : OK;
}

static int scan_args(Scan *s, cursor *pp, cursor end, cursor *args, cursor *args_end);

/* Members of an event (scope 0) or of its args (scope 1). p is at '{'. */
static int scan_members(Scan *s, cursor *pp, cursor end, int scope, cursor *args, cursor *args_end) {
    cursor p = *pp + 1, key_end;
    Edge *edges = s->first[scope];
    Key other, *known;
    int r;
    for (int first = 1;; first = 0) {
        cursor lead = p;
        Edge *edge = edges;
        while (edge < edges + EDGES &&
               !(edge->len && (size_t)(end - p) > edge->len && same_bytes(edge->lead, p, edge->len))) edge++;
        if (edge < edges + EDGES) {
            p += edge->len;
            if (edge->next == CLOSE) break;
            known = &s->keys[edge->next];
            key_end = known->text + known->len;
            if (*p <= ' ' && (p = skip_space(p, end)) >= end) return MORE;
        } else {
            p = skip_space(p, end);
            if (p >= end) return MORE;
            if (*p == '}') {
                remember_edge(edges, lead, ++p, CLOSE);
                break;
            }
            if (!first) {
                if (*p != ',') return BAD;
                p = skip_space(p + 1, end);
                if (p >= end) return MORE;
            }
            if ((r = scan_key(s, scope, &p, end, &other, &known, &key_end))) return r;
            if (known != &other) remember_edge(edges, lead, p, (int)(known - s->keys));
        }
        cursor value = p;
        if (known->field) {
            r = store_value(s, known, &p, end, scope + 1);
        } else if (known->is_args) {
            r = scan_args(s, &p, end, args, args_end);
        } else {
            r = walk(&p, end, scope + 1, NULL, NULL);
            if (r == OK && scope == 1 && s->plan->unknown_args >= 0)
                r = remember_unknown(s, (Span){known->text, key_end, value, p});
        }
        if (r) return r;
        edges = known->edges;
    }
    *pp = p;
    return OK;
}

static int scan_args(Scan *s, cursor *pp, cursor end, cursor *args, cursor *args_end) {
    if (*args) { /* a second args object replaces the first */
        for (int i = 0; i < s->plan->n_fields; i++) {
            const Field *f = &s->plan->fields[i];
            if (f->scope == 1) forget(s, f->group, f->column);
        }
        s->n_unknown = 0;
        *args = NULL;
    }
    if (**pp != '{') return walk(pp, end, 1, NULL, NULL);
    *args = *pp;
    int r = scan_members(s, pp, end, 1, NULL, NULL);
    *args_end = *pp;
    return r;
}

static int scan_event(Scan *s, cursor *pp, cursor end) {
    cursor args = NULL, args_end = NULL;
    Group *g0 = &s->groups[0];
    for (int g = 0; g < s->plan->n_groups; g++) s->groups[g].current = -1;
    s->n_unknown = 0;
    s->n_counted = 0;
    if (group_row(g0, 0)) return NO_MEMORY;
    int r = scan_members(s, pp, end, 0, &args, &args_end);
    Column *ph = &g0->columns[s->plan->ph];
    int64_t row = g0->current;
    if (r == OK && args && ph->valid && (ph->valid[row >> 3] >> (row & 7) & 1)) {
        int32_t code;
        memcpy(&code, ph->data + row * 4, 4);
        cursor text = ph->dict.text.data + ph->dict.offsets[code];
        if (ph->dict.offsets[code + 1] - ph->dict.offsets[code] == 1 && (*text == 'C' || *text == 'M'))
            r = store_text(s, 0, s->plan->raw_args, 1, &args, args_end, 1);
    }
    if (r == OK && s->n_unknown) r = put_unknown(s);
    if (r != OK) { /* take back the rows of a broken or unfinished event */
        for (int i = 0; i < s->n_counted; i++) s->counted[i]->count--;
        for (int g = 0; g < s->plan->n_groups; g++) {
            Group *group = &s->groups[g];
            if (group->current < 0) continue;
            group->rows--;
            for (int i = 0; i < group->n_columns; i++) set_null(&group->columns[i], group->rows);
        }
    }
    return r;
}

/* First byte that is no whole UTF-8 character before `end`, having looked at least up to `enough`. */
static cursor skip_utf8(cursor p, cursor enough, cursor end) {
    while (p < enough) {
        for (; enough - p >= 64; p += 64) { /* traces are ASCII but for a name here and there */
            uint64_t any = 0;
            for (int i = 0; i < 64; i += 8) any |= load64(p + i);
            if (any & UINT64_C(0x8080808080808080)) break;
        }
        if (end - p >= 8 && !(load64(p) & UINT64_C(0x8080808080808080))) {
            p += 8;
            continue;
        }
        if (p >= end) break;
        uint8_t c = *p;
        if (c < 0x80) {
            p++;
            continue;
        }
        int n = c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 0;
        if (!n || end - p <= n) return p;
        if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F) || (c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F))
            return p;
        for (int i = 1; i <= n; i++)
            if ((p[i] & 0xC0) != 0x80) return p;
        p += n + 1;
    }
    return p;
}

/* An event may be longer than what was checked; whatever it gave is dropped if the rest proves to be broken. Unless
 * these are the last bytes, a character or a bare word at their end may go on. */
static int scan_array(Scan *s, cursor *pp, cursor end, int last) {
    cursor p = *pp, checked = p, whole = last || end - p < 4 ? end : end - 3;
    int r = OK;
    while (r == OK) {
        p = skip_space(p, end);
        *pp = p;
        if (p >= end) break;
        if (p >= checked) {
            cursor enough = end - p < UTF8_AHEAD ? end : p + UTF8_AHEAD;
            checked = skip_utf8(checked, enough, end);
            if (checked < enough && checked < whole) return NOT_UTF8;
        }
        if (*p == ',') {
            p++;
        } else if (*p == ']') {
            *pp = p + 1;
            r = END;
        } else if (*p == '{') {
            r = scan_event(s, &p, end);
        } else {
            r = walk(&p, end, 0, NULL, NULL);
            if (r == OK && p < end && !memchr(" \n\r\t,]", *p, 6)) r = BAD;
            if (r == OK && p == end && !last) r = MORE;
            s->not_events += r == OK;
        }
    }
    return r != NO_MEMORY && skip_utf8(checked, end, end) < whole ? NOT_UTF8 : r;
}

/* ------------------------------------------------------------------ Python side */

typedef struct {
    PyObject_HEAD
    uint8_t *data;
    size_t len;
} Owned; /* a block that Arrow may keep without a copy */

static int owned_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Owned *o = (Owned *)self;
    return PyBuffer_FillInfo(view, self, o->data, (Py_ssize_t)o->len, 1, flags);
}

/* Linux aligns mappings to huge pages if they are made of whole ones. */
static inline size_t whole_pages(size_t len) { return (len + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1); }

static uint8_t *block_new(size_t len) {
#if defined(__linux__)
    if (len >= HUGE_PAGE / 2) {
        void *data = mmap(NULL, whole_pages(len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) return NULL;
        size_t nearest = (len + HUGE_PAGE / 2) & ~(size_t)(HUGE_PAGE - 1); /* a short rest takes small ones */
        madvise(data, nearest, MADV_HUGEPAGE); /* a wish */
        return data;
    }
#endif
    return malloc(len + PADDING);
}

static void block_free(uint8_t *data, size_t len) {
#if defined(__linux__)
    if (data && len >= HUGE_PAGE / 2) {
        munmap(data, whole_pages(len));
        return;
    }
#endif
    free(data);
}

static void owned_dealloc(PyObject *self) {
    block_free(((Owned *)self)->data, ((Owned *)self)->len);
    Py_TYPE(self)->tp_free(self);
}

static PyBufferProcs owned_buffer = {owned_getbuffer, NULL};
static PyTypeObject OwnedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "perfkit.sources._scan.Owned",
    .tp_basicsize = sizeof(Owned),
    .tp_dealloc = owned_dealloc,
    .tp_as_buffer = &owned_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Bytes owned by C.",
};

static int64_t count_bits(const uint8_t *bits, int64_t rows) {
    int64_t n = 0;
    int64_t words = rows / 64;
    for (int64_t i = 0; i < words; i++) n += __builtin_popcountll(load64(bits + 8 * i));
    for (int64_t i = words * 8; i < rows / 8; i++) n += __builtin_popcount(bits[i]);
    if (rows & 7) n += __builtin_popcount(bits[rows / 8] & ((1 << (rows & 7)) - 1));
    return n;
}

/* Give everything that is to be handed out its place in a block, or with `block` copy it there. Returns the length. */
static size_t place(Scan *s, uint8_t *block) {
    size_t at = 0;
#define PUT(where, from, size)                                                  \
    do {                                                                        \
        size_t n_bytes = (size);                                                \
        if (!block) (where) = at;                                               \
        else if (n_bytes) memcpy(block + (where), (from), n_bytes);             \
        at += (n_bytes + 63) & ~(size_t)63; /* Arrow likes columns aligned */   \
    } while (0)
    for (int g = 0; g < s->plan->n_groups; g++) {
        Group *group = &s->groups[g];
        if (g) PUT(group->event_at, group->event, (size_t)group->rows * 8);
        for (int i = 0; i < group->n_columns; i++) {
            Column *c = &group->columns[i];
            if (!block) c->nulls = group->rows - (c->valid ? count_bits(c->valid, group->rows) : 0);
            if (c->nulls == group->rows) continue;
            PUT(c->data_at, c->data, data_bytes(c->kind, group->rows));
            if (c->nulls) PUT(c->valid_at, c->valid, (size_t)(group->rows + 7) / 8);
            if (!c->dict.count) continue;
            PUT(c->offsets_at, c->dict.offsets, ((size_t)c->dict.count + 1) * 4);
            PUT(c->text_at, c->dict.text.data, c->dict.text.len);
        }
    }
#undef PUT
    return at;
}

/* (null_count, data_at, data_len, valid_at, dictionary | None, mismatches, out_of_range), the last two as (count, first
 * row); null_count is -1 if all is null. A column with nothing to say at all is None: most columns of most chunks. */
static PyObject *column_out(const Column *c, int64_t rows) {
    if (c->nulls == rows && !c->mismatches.count && !c->out_of_range.count) Py_RETURN_NONE;
    PyObject *dict = Py_None;
    if (c->nulls != rows && c->dict.count) {
        dict = Py_BuildValue("innn", (int)c->dict.count, (Py_ssize_t)c->offsets_at, (Py_ssize_t)c->text_at,
                             (Py_ssize_t)c->dict.text.len);
        if (!dict) return NULL;
    } else {
        Py_INCREF(dict);
    }
    return Py_BuildValue("LnnnN(LL)(LL)", (long long)(c->nulls == rows ? -1 : c->nulls), (Py_ssize_t)c->data_at,
                         (Py_ssize_t)data_bytes(c->kind, rows), (Py_ssize_t)c->valid_at, dict, (long long)c->mismatches.count,
                         (long long)c->mismatches.first, (long long)c->out_of_range.count, (long long)c->out_of_range.first);
}

static PyObject *group_out(const Group *group) {
    PyObject *columns = PyList_New(group->n_columns);
    if (!columns) return NULL;
    for (int i = 0; i < group->n_columns; i++) {
        PyObject *column = column_out(&group->columns[i], group->rows);
        if (!column) {
            Py_DECREF(columns);
            return NULL;
        }
        PyList_SetItem(columns, i, column);
    }
    return Py_BuildValue("LnN", (long long)group->rows, (Py_ssize_t)group->event_at, columns);
}

static void scan_free(Scan *s) {
    for (int g = 0; g < s->plan->n_groups; g++) {
        Group *group = &s->groups[g];
        for (int i = 0; i < group->n_columns && group->columns; i++) {
            free(group->columns[i].data);
            free(group->columns[i].valid);
            dict_free(&group->columns[i].dict);
        }
        free(group->columns);
        free(group->event);
    }
    free_blocks(&s->kept);
    free(s->text.data);
    free(s->scratch.data);
    free(s->unknown);
    free(s);
}

/* Memory for a scan of a plan: columns without rows, keys without a memory of what followed. */
static Scan *scan_new(const Plan *plan) {
    Scan *s = calloc(1, sizeof(Scan));
    if (!s) return NULL;
    s->plan = plan;
    for (int g = 0; g < plan->n_groups; g++) {
        Group *group = &s->groups[g];
        group->columns = calloc((size_t)plan->n_columns[g] + 1, sizeof(Column));
        if (!group->columns) {
            scan_free(s);
            return NULL;
        }
        group->n_columns = plan->n_columns[g];
        for (int i = 0; i < group->n_columns; i++) group->columns[i].kind = plan->kinds[g][i];
    }
    for (int i = 0; i < plan->n_fields; i++) {
        const Field *f = &plan->fields[i];
        s->keys[s->n_keys++] = (Key){.text = (cursor)f->key, .len = f->len};
        key_leads_to(s, &s->keys[i], f);
    }
    return s;
}

/* Make a scan that is over as good as new: nothing may point into its input, validity must be null again. */
static void scan_reset(Scan *s) {
    for (int g = 0; g < s->plan->n_groups; g++) {
        Group *group = &s->groups[g];
        int64_t used = group->rows < group->cap ? group->rows + 1 : group->cap; /* and an event that was taken back */
        for (int i = 0; i < group->n_columns; i++) {
            Column *c = &group->columns[i];
            if (c->valid) memset(c->valid, 0, (size_t)(used + 7) / 8);
            if (c->data && starts_as_zero(c->kind)) memset(c->data, 0, data_bytes(c->kind, used));
            dict_clear(&c->dict);
            c->mismatches.count = c->out_of_range.count = 0;
        }
        group->rows = 0;
    }
    for (int i = 0; i < s->n_keys; i++) memset(s->keys[i].edges, 0, sizeof s->keys[i].edges);
    memset(s->first, 0, sizeof s->first);
    memset(s->key_slots, 0, sizeof s->key_slots);
    free_blocks(&s->kept);
    s->n_keys = (int16_t)s->plan->n_fields;
    s->not_events = s->bytes_fed = 0;
}

static const char PLAN_NAME[] = "perfkit.sources._scan.plan";

static void plan_free(PyObject *capsule) {
    Plan *plan = PyCapsule_GetPointer(capsule, PLAN_NAME);
    if (!plan) return;
    while (plan->n_spares) scan_free(plan->spares[--plan->n_spares]);
    for (int g = 0; g < plan->n_groups; g++) free(plan->kinds[g]);
    for (int i = 0; i < plan->n_fields && plan->fields; i++) free((void *)plan->fields[i].key);
    free(plan->fields);
    free(plan);
}

static PyObject *py_compile_plan(PyObject *self, PyObject *args) {
    PyObject *groups, *fields;
    int ph, raw_args, unknown_args;
    if (!PyArg_ParseTuple(args, "O!O!iii", &PyList_Type, &groups, &PyList_Type, &fields, &ph, &raw_args, &unknown_args))
        return NULL;
    Py_ssize_t n_groups = PyList_Size(groups), n_fields = PyList_Size(fields);
    if (n_groups < 1 || n_groups > MAX_GROUPS || n_fields > KEY_SLOTS / 4)
        return PyErr_Format(PyExc_ValueError, "%zd groups and %zd fields are too many", n_groups, n_fields);
    Plan *plan = calloc(1, sizeof(Plan));
    if (!plan) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(plan, PLAN_NAME, plan_free);
    if (!capsule) {
        free(plan);
        return NULL;
    }
    for (Py_ssize_t g = 0; g < n_groups; g++) {
        PyObject *kinds = PyList_GetItem(groups, g);
        if (!PyList_Check(kinds)) goto bad;
        plan->n_columns[g] = (int)PyList_Size(kinds);
        plan->kinds[g] = calloc((size_t)plan->n_columns[g] + 1, sizeof(int));
        plan->n_groups = (int)g + 1;
        if (!plan->kinds[g]) goto bad;
        for (int i = 0; i < plan->n_columns[g]; i++) {
            long kind = PyLong_AsLong(PyList_GetItem(kinds, i));
            if (kind < 0 || kind >= N_KINDS) goto bad;
            plan->kinds[g][i] = (int)kind;
        }
    }
    plan->fields = calloc((size_t)n_fields + 1, sizeof(Field));
    if (!plan->fields) goto bad;
    for (Py_ssize_t i = 0; i < n_fields; i++) {
        int scope, group, column;
        const char *key;
        Py_ssize_t len;
        if (!PyArg_ParseTuple(PyList_GetItem(fields, i), "iy#ii", &scope, &key, &len, &group, &column)) goto bad;
        if (scope < 0 || scope > 1 || group < 0 || group >= n_groups || column < 0 || column >= plan->n_columns[group])
            goto bad;
        char *copy = calloc(1, (size_t)len + PADDING);
        if (!copy) goto bad;
        memcpy(copy, key, (size_t)len);
        plan->fields[i] = (Field){copy, (uint32_t)len, (int16_t)scope, (int16_t)group, (int16_t)column};
        plan->n_fields = (int)i + 1;
        uint32_t at = key_hash((cursor)copy, (uint32_t)len);
        while (plan->slots[scope][at]) at = (at + 1) & (KEY_SLOTS - 1);
        plan->slots[scope][at] = (int16_t)(i + 1);
    }
    if (ph < 0 || ph >= plan->n_columns[0] || raw_args < 0 || raw_args >= plan->n_columns[0] ||
        unknown_args >= plan->n_columns[0])
        goto bad;
    plan->ph = ph;
    plan->raw_args = raw_args;
    plan->unknown_args = unknown_args;
    return capsule;
bad:
    Py_DECREF(capsule);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "malformed plan");
    return NULL;
}

static int get_range(PyObject *args_buffer, Py_buffer *view, Py_ssize_t start, Py_ssize_t end) {
    if (PyObject_GetBuffer(args_buffer, view, PyBUF_SIMPLE)) return -1;
    if (start < 0 || end < start || end + PADDING > view->len) {
        PyErr_Format(PyExc_ValueError, "range [%zd, %zd) needs %d bytes of padding in a buffer of %zd", start, end, PADDING,
                     view->len);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

typedef struct {
    PyObject_HEAD
    Scan *scan; /* NULL while a thread feeds it, and after finish */
    PyObject *plan;
} ScanObject;

static Scan *take_scan(ScanObject *self) {
    Scan *s = self->scan;
    if (!s) PyErr_SetString(PyExc_ValueError, "the scan is over, or another thread is in it");
    self->scan = NULL;
    return s;
}

/* Back to the plan, which keeps its memory unless it is large. */
static void give_back(ScanObject *self, Scan *s) {
    Plan *plan = PyCapsule_GetPointer(self->plan, PLAN_NAME);
    if (s->bytes_fed <= MAX_SPARE_BYTES && plan->n_spares < MAX_SPARES) {
        scan_reset(s);
        plan->spares[plan->n_spares++] = s;
    } else {
        scan_free(s);
    }
}

static void scan_dealloc(PyObject *object) {
    ScanObject *self = (ScanObject *)object;
    if (self->scan) give_back(self, self->scan);
    Py_XDECREF(self->plan);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *scan_feed(PyObject *object, PyObject *args) {
    ScanObject *self = (ScanObject *)object;
    PyObject *buffer;
    Py_ssize_t start, end;
    int last, status;
    if (!PyArg_ParseTuple(args, "Onnp", &buffer, &start, &end, &last)) return NULL;
    Py_buffer view;
    if (get_range(buffer, &view, start, end)) return NULL;
    Scan *s = take_scan(self);
    if (!s) {
        PyBuffer_Release(&view);
        return NULL;
    }
    cursor base = view.buf, p = base + start;
    Py_BEGIN_ALLOW_THREADS;
    s->bytes_fed += end - start;
    status = scan_array(s, &p, base + end, last);
    if (status == NOT_UTF8) scan_reset(s), p = base + start;
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    if (status == NO_MEMORY) {
        scan_free(s);
        return PyErr_NoMemory();
    }
    self->scan = s;
    return Py_BuildValue("in", status, (Py_ssize_t)(p - base));
}

/* Scan `length` bytes at position `at` of a file, slice by slice through one small buffer. Returns -1 where only a scan
 * of all bytes at once can tell: they are broken somewhere, an element does not fit into the buffer, or there are fewer. */
static int scan_file(Scan *s, int file, int64_t at, int64_t length, uint8_t *buffer, int64_t room, int64_t *consumed) {
    int64_t start = 0, held = 0;
    for (;;) {
        int64_t full = length - start < room ? length - start : room;
        while (held < full) {
            ssize_t count = pread(file, buffer + held, (size_t)(full - held), at + start + held);
            if (count <= 0) return -1; /* whoever reads all bytes learns why */
            held += count;
            s->bytes_fed += count;
        }
        int last = start + held == length;
        cursor p = buffer;
        int status = scan_array(s, &p, buffer + held, last);
        int64_t used = p - buffer;
        *consumed = start + used;
        if (status == NO_MEMORY || status == END || (last && (status == OK || status == MORE))) return status;
        if (used == 0 || (status != OK && status != MORE)) return -1;
        held -= used;
        memmove(buffer, buffer + used, (size_t)held);
        start += used;
    }
}

static PyObject *scan_feed_file(PyObject *object, PyObject *args) {
    ScanObject *self = (ScanObject *)object;
    int file, status;
    long long at, length;
    int64_t consumed = 0;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "iLLw*", &file, &at, &length, &view)) return NULL;
    Scan *s = NULL;
    if (at < 0 || length < 0 || view.len <= PADDING)
        PyErr_Format(PyExc_ValueError, "%lld bytes at %lld do not fit through a buffer of %zd", length, at, view.len);
    else
        s = take_scan(self);
    if (!s) {
        PyBuffer_Release(&view);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = scan_file(s, file, at, length, view.buf, view.len - PADDING, &consumed);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    if (status == NO_MEMORY) {
        scan_free(s);
        return PyErr_NoMemory();
    }
    self->scan = s;
    if (status < 0) Py_RETURN_NONE;
    return Py_BuildValue("iL", status, (long long)consumed);
}

static PyObject *scan_finish(PyObject *object, PyObject *unused) {
    ScanObject *self = (ScanObject *)object;
    Scan *s = take_scan(self);
    if (!s) return NULL;
    PyObject *result = NULL, *groups = NULL;
    Owned *memory = PyObject_New(Owned, &OwnedType);
    if (!memory) goto done;
    Py_BEGIN_ALLOW_THREADS;
    memory->len = place(s, NULL);
    if ((memory->data = block_new(memory->len))) place(s, memory->data);
    Py_END_ALLOW_THREADS;
    if (!memory->data) {
        PyErr_NoMemory();
        goto done;
    }
    if (!(groups = PyList_New(s->plan->n_groups))) goto done;
    for (int g = 0; g < s->plan->n_groups; g++) {
        PyObject *group = group_out(&s->groups[g]);
        if (!group) goto done;
        PyList_SetItem(groups, g, group);
    }
    result = Py_BuildValue("LLOO", (long long)s->groups[0].rows, (long long)s->not_events, memory, groups);
done:
    Py_XDECREF(groups);
    Py_XDECREF(memory);
    give_back(self, s);
    return result;
}

static PyMethodDef scan_methods[] = {
    {"feed", scan_feed, METH_VARARGS, "feed(buffer, start, end, last) -> (status, consumed)"},
    {"feed_file", scan_feed_file, METH_VARARGS, "feed_file(file, at, length, buffer) -> (status, consumed) | None"},
    {"finish", scan_finish, METH_NOARGS, "finish() -> (events, not_events, memory, groups)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ScanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "perfkit.sources._scan.Scan",
    .tp_basicsize = sizeof(ScanObject),
    .tp_dealloc = scan_dealloc,
    .tp_methods = scan_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Rows in the making.",
};

static PyObject *py_begin(PyObject *module, PyObject *args) {
    PyObject *capsule;
    long long base_ns;
    Py_ssize_t expected;
    if (!PyArg_ParseTuple(args, "OLn", &capsule, &base_ns, &expected)) return NULL;
    Plan *plan = PyCapsule_GetPointer(capsule, PLAN_NAME);
    if (!plan) return NULL;
    ScanObject *self = PyObject_New(ScanObject, &ScanType);
    if (!self) return NULL;
    Scan *s = plan->n_spares ? plan->spares[--plan->n_spares] : scan_new(plan);
    self->scan = s;
    self->plan = Py_NewRef(capsule);
    int64_t guess = expected / 200 + 64;
    if (!s || (s->groups[0].cap < guess && group_reserve(&s->groups[0], guess))) {
        if (s) scan_free(s); /* some columns may have grown and others not */
        self->scan = NULL;
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    s->base_ns = base_ns;
    return (PyObject *)self;
}

static PyMethodDef methods[] = {
    {"compile_plan", py_compile_plan, METH_VARARGS, "compile_plan(groups, fields, ph, raw_args, unknown_args) -> plan"},
    {"begin", py_begin, METH_VARARGS, "begin(plan, base_ns, expected_bytes) -> Scan"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "An array of JSON objects to columns.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void) {
    PyObject *os = PyImport_ImportModule("os");
    PyObject *random = os ? PyObject_CallMethod(os, "urandom", "i", (int)sizeof secret) : NULL;
    Py_XDECREF(os);
    if (!random) return NULL;
    memcpy(secret, PyBytes_AsString(random), sizeof secret);
    Py_DECREF(random);
    secret[0] |= 1, secret[1] |= 1;
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) return PyErr_NoMemory();
    if (PyType_Ready(&OwnedType) < 0 || PyType_Ready(&ScanType) < 0) return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m) {
        PyModule_AddIntConstant(m, "PADDING", PADDING);
        PyModule_AddIntConstant(m, "MAX_DEPTH", MAX_DEPTH);
    }
    return m;
}
