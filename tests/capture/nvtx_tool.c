/* A tool that attaches through NVTX's own injection interface (NVTX_INJECTION64_PATH), as Nsight does, and writes
   every push and pop of every domain to $NVTX_TOOL_OUT. Only what the tests need of the public ABI is declared. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef const void *(*GetExportTable)(uint32_t id);
struct Callbacks {
  size_t size;
  int (*get_table)(int module, Function ***table, unsigned *size);
};
struct Attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char *message;
};
enum { CALLBACKS = 1, CORE2 = 5, REGISTERED = 3, ASCII = 1 };
enum { PUSH = 4, POP = 5, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };

static FILE *out;

static void *create_domain(const char *name) { return strdup(name); }
static void *register_string(void *domain, const char *text) {
  fprintf(out, "register %s %s\n", (const char *)domain, text);
  return strdup(text);
}
static int push(void *domain, const struct Attributes *a) {
  const char *text = a->message_type == REGISTERED || a->message_type == ASCII ? a->message : "?";
  fprintf(out, "push %s %s\n", domain ? (const char *)domain : "-", text);
  fflush(out);
  return 0;
}
static int pop(void *domain) {
  fprintf(out, "pop %s\n", domain ? (const char *)domain : "-");
  fflush(out);
  return 0;
}

int InitializeInjectionNvtx2(GetExportTable get) {
  const struct Callbacks *callbacks = get(CALLBACKS);
  Function **table = NULL;
  unsigned size = 0;
  out = fopen(getenv("NVTX_TOOL_OUT"), "w");
  if (!out || !callbacks || !callbacks->get_table(CORE2, &table, &size)) return 0;
  *table[PUSH] = (Function)push;
  *table[POP] = (Function)pop;
  *table[REGISTER_STRING] = (Function)register_string;
  *table[CREATE_DOMAIN] = (Function)create_domain;
  return 1;
}
