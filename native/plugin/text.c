#include "plugin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct text *text, size_t extra) {
  if (text->failed) return false;
  if (extra < text->capacity - text->length) return true;
  size_t capacity = (text->capacity + extra) * 2 + 256;
  char *bytes = capacity > extra ? realloc(text->bytes, capacity) : NULL;
  if (!bytes) {
    text->failed = true;
    return false;
  }
  text->bytes = bytes;
  text->capacity = capacity;
  return true;
}

void text_append(struct text *text, const char *bytes, size_t length) {
  if (!reserve(text, length)) return;
  if (length) memcpy(text->bytes + text->length, bytes, length);
  text->length += length;
  text->bytes[text->length] = '\0';
}

void text_add(struct text *text, const char *string) { text_append(text, string, strlen(string)); }

void text_format(struct text *text, const char *format, ...) {
  char small[256];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(small, sizeof small, format, arguments);
  va_end(arguments);
  if (length < 0 || (size_t)length >= sizeof small) {
    text->failed = true; /* every format used here is a few numbers */
    return;
  }
  text_append(text, small, (size_t)length);
}

/* Length of the UTF-8 sequence at `bytes`, 0 where there is none (overlong forms and surrogates included). */
static size_t utf8_length(const unsigned char *bytes, size_t available) {
  unsigned char lead = bytes[0];
  if (lead < 0x80) return 1;
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || length > available) return 0;
  for (size_t i = 1; i < length; i++) {
    if ((bytes[i] & 0xC0) != 0x80) return 0;
  }
  unsigned char second = bytes[1];
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

bool text_is_utf8(const char *bytes, size_t length) {
  for (size_t at = 0; at < length;) {
    size_t step = utf8_length((const unsigned char *)bytes + at, length - at);
    if (!step) return false;
    at += step;
  }
  return true;
}

void text_json_string(struct text *text, const char *bytes, size_t length) {
  text_append(text, "\"", 1);
  size_t plain = 0; /* start of the stretch that can be copied as it is */
  for (size_t at = 0; at < length;) {
    unsigned char byte = (unsigned char)bytes[at];
    size_t step = utf8_length((const unsigned char *)bytes + at, length - at);
    if (step && byte >= 0x20 && byte != '"' && byte != '\\') {
      at += step;
      continue;
    }
    text_append(text, bytes + plain, at - plain);
    text_format(text, "\\u%04x", step ? byte : 0xDC00u + byte);
    plain = ++at;
  }
  text_append(text, bytes + plain, length - plain);
  text_append(text, "\"", 1);
}

void text_free(struct text *text) {
  free(text->bytes);
  *text = (struct text){0};
}
