/* Walks an OrtGraph, nested bodies included, into one JSON document. Tensors are given by address: nothing is copied.

   {"name", "model_path", "ir_version", "ort": API version, "opsets": {domain: version},
    "parent_node": op type or null,
    "parent"?: {"nodes": [the node whose body this graph is], "values"} where the graph itself is such a body,
    "inputs": [number], "outputs": [number], "initializers": [number],
    "nodes": [[id, name, op type, domain, since version, [inputs], [outputs], [attributes], [implicit inputs],
               [[attribute name, graph]]]],
    "values": [[name, type, flags, initializer, external?]]}

   A number is a position in "values", -1 an absent optional. The parts:
   type         [element type, [dim]], dim an int, a symbol or null; [element type, null] of unknown rank; {"kind": k}
   initializer  [address, bytes, element type, [dim]] or null; strings have address and bytes 0
   external     [file, offset, bytes]
   attribute    [name, kind, value]: "i" "f" "s" and lists of them "I" "F" "S"; "t" a tensor as [element type, [dim],
                address, bytes]; "b" a string that is no UTF-8, in hex; "?" what ORT doesn't let us read (graphs come
                with the node). */
#include "plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scratch memory that lives as long as the document */

enum { ARENA_BLOCK = 1 << 16 };

struct arena {
  struct arena *next;
  size_t used, size;
  _Alignas(16) char bytes[];
};

static void *arena_take(struct arena **arena, size_t size) {
  size = (size + 15) & ~(size_t)15;
  if (!*arena || (*arena)->size - (*arena)->used < size) {
    size_t block_size = size > ARENA_BLOCK ? size : ARENA_BLOCK;
    struct arena *block = malloc(sizeof *block + block_size);
    if (!block) return NULL;
    *block = (struct arena){.next = *arena, .size = block_size};
    *arena = block;
  }
  void *bytes = (*arena)->bytes + (*arena)->used;
  (*arena)->used += size;
  return bytes;
}

/* ---- numbering of a graph's values: pointer -> position in its "values" list */

struct numbering {
  const OrtValueInfo **keys;
  int *numbers;
  size_t capacity;
  int count;
};

static size_t slot_of(const struct numbering *numbering, const OrtValueInfo *key) {
  size_t at = (size_t)(((uint64_t)(uintptr_t)key >> 4) * UINT64_C(11400714819323198485)) & (numbering->capacity - 1);
  while (numbering->keys[at] && numbering->keys[at] != key) at = (at + 1) & (numbering->capacity - 1);
  return at;
}

static bool numbering_grow(struct numbering *numbering) {
  struct numbering bigger = {.capacity = numbering->capacity ? numbering->capacity * 2 : 256,
                             .count = numbering->count};
  bigger.keys = calloc(bigger.capacity, sizeof *bigger.keys);
  bigger.numbers = calloc(bigger.capacity, sizeof *bigger.numbers);
  if (!bigger.keys || !bigger.numbers) {
    free(bigger.keys);
    free(bigger.numbers);
    return false;
  }
  for (size_t i = 0; i < numbering->capacity; i++) {
    if (!numbering->keys[i]) continue;
    size_t at = slot_of(&bigger, numbering->keys[i]);
    bigger.keys[at] = numbering->keys[i];
    bigger.numbers[at] = numbering->numbers[i];
  }
  free(numbering->keys);
  free(numbering->numbers);
  *numbering = bigger;
  return true;
}

/* The value's number; `*fresh` tells that it was given out just now. -1 when out of memory. */
static int number_of(struct numbering *numbering, const OrtValueInfo *value, bool *fresh) {
  if ((size_t)numbering->count * 2 >= numbering->capacity && !numbering_grow(numbering)) return -1;
  size_t at = slot_of(numbering, value);
  *fresh = !numbering->keys[at];
  if (*fresh) {
    numbering->keys[at] = value;
    numbering->numbers[at] = numbering->count++;
  }
  return numbering->numbers[at];
}

/* ---- the walk */

struct walk {
  const struct host *host;
  const OrtApi *api;
  struct graph_document *document;
};

/* One graph being written: its own text of values, since they are met while its nodes are written. */
struct scope {
  struct text values;
  struct numbering numbering;
};

static void scope_free(struct scope *scope) {
  text_free(&scope->values);
  free(scope->numbering.keys);
  free(scope->numbering.numbers);
}

#define TAKE(walk, target, count)                                                             \
  do {                                                                                        \
    (target) = arena_take(&(walk)->document->arena, ((size_t)(count) + 1) * sizeof *(target)); \
    if (!(target)) return out_of_memory((walk)->host);                                        \
  } while (0)

static OrtStatus *write_graph(struct walk *walk, struct text *json, const OrtGraph *graph, const OrtNode ***nodes_out,
                              size_t *count_out);

static void write_string(struct text *json, const char *string) {
  if (string) {
    text_json_string(json, string, strlen(string));
  } else {
    text_add(json, "null");
  }
}

static void write_ints(struct text *json, const int64_t *values, size_t count) {
  text_add(json, "[");
  for (size_t i = 0; i < count; i++) text_format(json, i ? ",%lld" : "%lld", (long long)values[i]);
  text_add(json, "]");
}

static void write_float(struct text *json, float value) {
  if (isnan(value)) {
    text_add(json, "\"nan\"");
  } else if (isinf(value)) {
    text_add(json, value > 0 ? "\"inf\"" : "\"-inf\"");
  } else {
    char digits[40];
    snprintf(digits, sizeof digits, "%.9g", (double)value);
    char *comma = strchr(digits, ','); /* the program's locale decides snprintf's decimal point, JSON doesn't */
    if (comma) *comma = '.';
    text_add(json, digits);
  }
}

/* ---- types, tensors */

static OrtStatus *write_dims(struct walk *walk, struct text *json, const OrtTensorTypeAndShapeInfo *info) {
  size_t rank = 0;
  TRY(walk->api->GetDimensionsCount(info, &rank));
  int64_t *dims;
  const char **symbols;
  TAKE(walk, dims, rank);
  TAKE(walk, symbols, rank);
  TRY(walk->api->GetDimensions(info, dims, rank));
  TRY(walk->api->GetSymbolicDimensions(info, symbols, rank));
  text_add(json, "[");
  for (size_t i = 0; i < rank; i++) {
    if (i) text_add(json, ",");
    if (dims[i] >= 0) {
      text_format(json, "%lld", (long long)dims[i]);
    } else {
      write_string(json, symbols[i] && *symbols[i] ? symbols[i] : NULL);
    }
  }
  text_add(json, "]");
  return NULL;
}

static OrtStatus *write_type(struct walk *walk, struct text *json, const OrtTypeInfo *type) {
  if (!type) {
    text_add(json, "null");
    return NULL;
  }
  enum ONNXType kind = ONNX_TYPE_UNKNOWN;
  TRY(walk->api->GetOnnxTypeFromTypeInfo(type, &kind));
  const OrtTensorTypeAndShapeInfo *info = NULL;
  if (kind == ONNX_TYPE_TENSOR) TRY(walk->api->CastTypeInfoToTensorInfo(type, &info));
  if (!info) {
    text_format(json, "{\"kind\":%d}", (int)kind);
    return NULL;
  }
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  TRY(walk->api->GetTensorElementType(info, &element));
  text_format(json, "[%d,", onnx_element_type(element));
  if (walk->api->TensorTypeAndShape_HasShape(info)) {
    TRY(write_dims(walk, json, info));
  } else {
    text_add(json, "null"); /* an unknown rank has no dimensions, exactly like a scalar */
  }
  text_add(json, "]");
  return NULL;
}

int onnx_element_type(ONNXTensorElementDataType type) {
  enum { FLOAT8E8M0 = 24, UINT2 = 25, INT2 = 26 };
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0:
      return FLOAT8E8M0;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2:
      return UINT2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2:
      return INT2;
    default:
      return (int)type;
  }
}

struct tensor {
  const void *data;
  size_t size;
  ONNXTensorElementDataType element;
  const int64_t *dims;
  size_t rank;
};

static OrtStatus *read_tensor(struct walk *walk, const OrtValue *value, struct tensor *tensor) {
  *tensor = (struct tensor){0};
  TRY(walk->api->GetTensorElementTypeAndShapeDataReference(value, &tensor->element, &tensor->dims, &tensor->rank));
  if (tensor->element == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return NULL; /* C++ strings: no bytes to hand out */
  TRY(walk->api->GetTensorData(value, &tensor->data));
  return walk->api->GetTensorSizeInBytes(value, &tensor->size);
}

/* ---- values */

enum {
  REQUIRED_INPUT = 1,
  OPTIONAL_INPUT = 2,
  GRAPH_OUTPUT = 4,
  CONSTANT = 8,
  OUTER_SCOPE = 16,
};

static OrtStatus *value_flags(struct walk *walk, const OrtValueInfo *value, int *flags) {
  const OrtApi *api = walk->api;
  bool required = false, optional = false, output = false, constant = false, outer = false;
  TRY(api->ValueInfo_IsRequiredGraphInput(value, &required));
  TRY(api->ValueInfo_IsOptionalGraphInput(value, &optional));
  TRY(api->ValueInfo_IsGraphOutput(value, &output));
  TRY(api->ValueInfo_IsConstantInitializer(value, &constant));
  TRY(api->ValueInfo_IsFromOuterScope(value, &outer));
  *flags = (required ? REQUIRED_INPUT : 0) | (optional ? OPTIONAL_INPUT : 0) | (output ? GRAPH_OUTPUT : 0) |
           (constant ? CONSTANT : 0) | (outer ? OUTER_SCOPE : 0);
  return NULL;
}

static OrtStatus *write_initializer(struct walk *walk, struct text *json, const OrtValueInfo *value) {
  const OrtApi *api = walk->api;
  const OrtValue *initializer = NULL;
  struct tensor tensor;
  OrtStatus *unreadable = api->ValueInfo_GetInitializerValue(value, &initializer);
  if (!unreadable && initializer) unreadable = read_tensor(walk, initializer, &tensor);
  if (unreadable) { /* such a value can't be used by us, which is no reason to fail the session */
    api->ReleaseStatus(unreadable);
    initializer = NULL;
  }
  if (!initializer) {
    text_add(json, ",null");
  } else {
    text_format(json, ",[%llu,%zu,%d,", (unsigned long long)(uintptr_t)tensor.data, tensor.size,
                onnx_element_type(tensor.element));
    write_ints(json, tensor.dims, tensor.rank);
    text_add(json, "]");
  }
  OrtExternalInitializerInfo *external = NULL;
  OrtStatus *none = api->ValueInfo_GetExternalInitializerInfo(value, &external);
  if (none) api->ReleaseStatus(none);
  if (none || !external) return NULL;
  text_add(json, ",[");
  write_string(json, api->ExternalInitializerInfo_GetFilePath(external));
  text_format(json, ",%lld,%zu]", (long long)api->ExternalInitializerInfo_GetFileOffset(external),
              api->ExternalInitializerInfo_GetByteSize(external));
  api->ReleaseExternalInitializerInfo(external);
  return NULL;
}

static OrtStatus *write_value(struct walk *walk, struct text *json, const OrtValueInfo *value) {
  const char *name = NULL;
  const OrtTypeInfo *type = NULL;
  int flags = 0;
  TRY(walk->api->GetValueInfoName(value, &name));
  TRY(walk->api->GetValueInfoTypeInfo(value, &type));
  TRY(value_flags(walk, value, &flags));
  text_add(json, json->length ? ",[" : "[");
  write_string(json, name);
  text_add(json, ",");
  TRY(write_type(walk, json, type));
  text_format(json, ",%d", flags);
  TRY(write_initializer(walk, json, value));
  text_add(json, "]");
  return NULL;
}

/* A list of value numbers; -1 stands for an absent optional. Values met for the first time go into the scope. */
static OrtStatus *write_numbers(struct walk *walk, struct text *json, struct scope *scope,
                                const OrtValueInfo *const *values, size_t count) {
  text_add(json, "[");
  for (size_t i = 0; i < count; i++) {
    if (i) text_add(json, ",");
    if (!values[i]) {
      text_add(json, "-1");
      continue;
    }
    bool fresh = false;
    int number = number_of(&scope->numbering, values[i], &fresh);
    if (number < 0) return out_of_memory(walk->host);
    if (fresh) TRY(write_value(walk, &scope->values, values[i]));
    text_format(json, "%d", number);
  }
  text_add(json, "]");
  return NULL;
}

/* ORT gives every list by a pair of calls: how many, then fill. */
#define WRITE_VALUES(walk, json, scope, owner, get_count, get_values)     \
  do {                                                                    \
    size_t value_count = 0;                                               \
    const OrtValueInfo **value_list;                                      \
    TRY((walk)->api->get_count(owner, &value_count));                     \
    TAKE(walk, value_list, value_count);                                  \
    if (value_count) TRY((walk)->api->get_values(owner, value_list, value_count)); \
    TRY(write_numbers(walk, json, scope, value_list, value_count));       \
  } while (0)

/* ---- attributes */

static void write_hex(struct text *json, const char *bytes, size_t length) {
  text_add(json, "\"");
  for (size_t i = 0; i < length; i++) text_format(json, "%02x", (unsigned char)bytes[i]);
  text_add(json, "\"");
}

static void write_strings(struct text *json, const char *bytes, size_t size) {
  text_add(json, "[");
  for (size_t at = 0; at < size;) {
    size_t length = strnlen(bytes + at, size - at);
    if (at) text_add(json, ",");
    text_json_string(json, bytes + at, length);
    at += length + 1; /* ORT separates them by NUL */
  }
  text_add(json, "]");
}

static void write_attribute_value(struct text *json, OrtOpAttrType type, const char *bytes, size_t size) {
  const int64_t *ints = (const int64_t *)(const void *)bytes;
  const float *floats = (const float *)(const void *)bytes;
  switch (type) {
    case ORT_OP_ATTR_INT:
      text_format(json, ",\"i\",%lld", (long long)ints[0]);
      break;
    case ORT_OP_ATTR_INTS:
      text_add(json, ",\"I\",");
      write_ints(json, ints, size / sizeof *ints);
      break;
    case ORT_OP_ATTR_FLOAT:
      text_add(json, ",\"f\",");
      write_float(json, floats[0]);
      break;
    case ORT_OP_ATTR_FLOATS:
      text_add(json, ",\"F\",[");
      for (size_t i = 0; i < size / sizeof *floats; i++) {
        if (i) text_add(json, ",");
        write_float(json, floats[i]);
      }
      text_add(json, "]");
      break;
    case ORT_OP_ATTR_STRING:
      if (text_is_utf8(bytes, size)) {
        text_add(json, ",\"s\",");
        text_json_string(json, bytes, size);
      } else {
        text_add(json, ",\"b\",");
        write_hex(json, bytes, size);
      }
      break;
    default: /* ORT_OP_ATTR_STRINGS */
      text_add(json, ",\"S\",");
      write_strings(json, bytes, size);
  }
}

static OrtStatus *write_tensor_attribute(struct walk *walk, struct text *json, const OrtOpAttr *attribute) {
  struct graph_document *document = walk->document;
  if (document->owned_count == document->owned_capacity) {
    size_t capacity = document->owned_capacity * 2 + 16;
    OrtValue **owned = realloc(document->owned, capacity * sizeof *owned);
    if (!owned) return out_of_memory(walk->host);
    document->owned = owned;
    document->owned_capacity = capacity;
  }
  OrtValue *value = NULL;
  struct tensor tensor;
  OrtStatus *unreadable = walk->api->OpAttr_GetTensorAttributeAsOrtValue(attribute, &value);
  if (!unreadable && value) {
    document->owned[document->owned_count++] = value;
    unreadable = read_tensor(walk, value, &tensor);
  }
  if (unreadable || !value) {
    if (unreadable) walk->api->ReleaseStatus(unreadable);
    text_add(json, ",\"?\",null");
    return NULL;
  }
  text_format(json, ",\"t\",[%d,", onnx_element_type(tensor.element));
  write_ints(json, tensor.dims, tensor.rank);
  text_format(json, ",%llu,%zu]", (unsigned long long)(uintptr_t)tensor.data, tensor.size);
  return NULL;
}

static OrtStatus *write_attribute(struct walk *walk, struct text *json, const OrtOpAttr *attribute) {
  enum { USUAL_SIZE = 512 };
  const char *name = NULL;
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  TRY(walk->api->OpAttr_GetName(attribute, &name));
  OrtStatus *unreadable = walk->api->OpAttr_GetType(attribute, &type); /* fails for TypeProto and sparse tensors */
  if (unreadable) {
    walk->api->ReleaseStatus(unreadable);
    type = ORT_OP_ATTR_UNDEFINED;
  }
  text_add(json, "[");
  write_string(json, name);
  if (type == ORT_OP_ATTR_TENSOR) {
    TRY(write_tensor_attribute(walk, json, attribute));
  } else if (type == ORT_OP_ATTR_UNDEFINED || type == ORT_OP_ATTR_GRAPH) {
    text_add(json, ",\"?\",null");
  } else {
    _Alignas(16) char usual[USUAL_SIZE] = {0};
    char *bytes = usual;
    size_t size = 0;
    OrtStatus *too_small = walk->api->ReadOpAttr(attribute, type, bytes, sizeof usual, &size);
    if (too_small && size <= sizeof usual) return too_small;
    if (too_small) {
      walk->api->ReleaseStatus(too_small);
      TAKE(walk, bytes, size);
      TRY(walk->api->ReadOpAttr(attribute, type, bytes, size, &size));
    }
    write_attribute_value(json, type, bytes, size);
  }
  text_add(json, "]");
  return NULL;
}

static OrtStatus *write_attributes(struct walk *walk, struct text *json, const OrtNode *node) {
  size_t count = 0;
  TRY(walk->api->Node_GetNumAttributes(node, &count));
  const OrtOpAttr **attributes;
  TAKE(walk, attributes, count);
  if (count) TRY(walk->api->Node_GetAttributes(node, attributes, count));
  text_add(json, "[");
  for (size_t i = 0; i < count; i++) {
    if (i) text_add(json, ",");
    TRY(write_attribute(walk, json, attributes[i]));
  }
  text_add(json, "]");
  return NULL;
}

/* ---- nodes, graphs */

static OrtStatus *write_bodies(struct walk *walk, struct text *json, const OrtNode *node) {
  size_t count = 0;
  TRY(walk->api->Node_GetNumSubgraphs(node, &count));
  const OrtGraph **graphs;
  const char **names;
  TAKE(walk, graphs, count);
  TAKE(walk, names, count);
  if (count) TRY(walk->api->Node_GetSubgraphs(node, graphs, count, names));
  text_add(json, "[");
  for (size_t i = 0; i < count; i++) {
    const OrtNode **nodes = NULL;
    size_t node_count = 0;
    text_add(json, i ? ",[" : "[");
    write_string(json, names[i]);
    text_add(json, ",");
    TRY(write_graph(walk, json, graphs[i], &nodes, &node_count));
    text_add(json, "]");
  }
  text_add(json, "]");
  return NULL;
}

static OrtStatus *write_node(struct walk *walk, struct text *json, struct scope *scope, const OrtNode *node) {
  const OrtApi *api = walk->api;
  size_t id = 0;
  const char *name = NULL, *op_type = NULL, *domain = NULL;
  int since_version = 0;
  TRY(api->Node_GetId(node, &id));
  TRY(api->Node_GetName(node, &name));
  TRY(api->Node_GetOperatorType(node, &op_type));
  TRY(api->Node_GetDomain(node, &domain));
  TRY(api->Node_GetSinceVersion(node, &since_version));
  text_format(json, "[%zu,", id);
  write_string(json, name);
  text_add(json, ",");
  write_string(json, op_type);
  text_add(json, ",");
  write_string(json, domain ? domain : "");
  text_format(json, ",%d,", since_version);
  WRITE_VALUES(walk, json, scope, node, Node_GetNumInputs, Node_GetInputs);
  text_add(json, ",");
  WRITE_VALUES(walk, json, scope, node, Node_GetNumOutputs, Node_GetOutputs);
  text_add(json, ",");
  TRY(write_attributes(walk, json, node));
  text_add(json, ",");
  WRITE_VALUES(walk, json, scope, node, Node_GetNumImplicitInputs, Node_GetImplicitInputs);
  text_add(json, ",");
  TRY(write_bodies(walk, json, node));
  text_add(json, "]");
  return NULL;
}

static OrtStatus *write_opsets(struct walk *walk, struct text *json, const OrtGraph *graph) {
  size_t count = 0;
  TRY(walk->api->Graph_GetNumOperatorSets(graph, &count));
  const char **domains;
  int64_t *versions;
  TAKE(walk, domains, count);
  TAKE(walk, versions, count);
  if (count) TRY(walk->api->Graph_GetOperatorSets(graph, domains, versions, count));
  text_add(json, "{");
  for (size_t i = 0; i < count; i++) {
    if (i) text_add(json, ",");
    write_string(json, domains[i] ? domains[i] : "");
    text_format(json, ":%lld", (long long)versions[i]);
  }
  text_add(json, "}");
  return NULL;
}

static OrtStatus *write_header(struct walk *walk, struct text *json, const OrtGraph *graph) {
  const OrtApi *api = walk->api;
  const char *name = NULL, *parent_type = NULL;
  const char *path = NULL;
  int64_t ir_version = 0;
  const OrtNode *parent = NULL;
  TRY(api->Graph_GetName(graph, &name));
  TRY(api->Graph_GetModelPath(graph, &path));
  TRY(api->Graph_GetOnnxIRVersion(graph, &ir_version));
  TRY(api->Graph_GetParentNode(graph, &parent));
  if (parent) TRY(api->Node_GetOperatorType(parent, &parent_type));
  text_add(json, "{\"name\":");
  write_string(json, name);
  text_add(json, ",\"model_path\":");
  write_string(json, path);
  text_format(json, ",\"ir_version\":%lld,\"ort\":%u,\"opsets\":", (long long)ir_version, walk->host->version);
  TRY(write_opsets(walk, json, graph));
  text_add(json, ",\"parent_node\":");
  write_string(json, parent_type);
  return NULL;
}

static OrtStatus *write_contents(struct walk *walk, struct text *json, struct scope *scope, const OrtGraph *graph,
                                 const OrtNode ***nodes_out, size_t *count_out) {
  TRY(write_header(walk, json, graph));
  text_add(json, ",\"inputs\":");
  WRITE_VALUES(walk, json, scope, graph, Graph_GetNumInputs, Graph_GetInputs);
  text_add(json, ",\"outputs\":");
  WRITE_VALUES(walk, json, scope, graph, Graph_GetNumOutputs, Graph_GetOutputs);
  text_add(json, ",\"initializers\":");
  WRITE_VALUES(walk, json, scope, graph, Graph_GetNumInitializers, Graph_GetInitializers);
  size_t count = 0;
  TRY(walk->api->Graph_GetNumNodes(graph, &count));
  const OrtNode **nodes;
  TAKE(walk, nodes, count);
  if (count) TRY(walk->api->Graph_GetNodes(graph, nodes, count));
  text_add(json, ",\"nodes\":[");
  for (size_t i = 0; i < count; i++) {
    if (i) text_add(json, ",");
    TRY(write_node(walk, json, scope, nodes[i]));
  }
  text_add(json, "],\"values\":[");
  if (scope->values.failed) return out_of_memory(walk->host);
  text_append(json, scope->values.bytes, scope->values.length);
  text_add(json, "]}");
  *nodes_out = nodes;
  *count_out = count;
  return json->failed ? out_of_memory(walk->host) : NULL;
}

static OrtStatus *write_graph(struct walk *walk, struct text *json, const OrtGraph *graph, const OrtNode ***nodes_out,
                              size_t *count_out) {
  struct scope scope = {0};
  OrtStatus *status = write_contents(walk, json, &scope, graph, nodes_out, count_out);
  scope_free(&scope);
  return status;
}

/* ORT offers a body before the graph around it, so what becomes of the body must be told from its parent node alone. */
static OrtStatus *write_parent(struct walk *walk, struct text *json, const OrtGraph *graph) {
  const OrtNode *parent = NULL;
  TRY(walk->api->Graph_GetParentNode(graph, &parent));
  if (!parent || json->failed) return NULL;
  struct scope scope = {0};
  json->length--; /* the brace that ended the graph */
  text_add(json, ",\"parent\":{\"nodes\":[");
  OrtStatus *status = write_node(walk, json, &scope, parent);
  text_add(json, "],\"values\":[");
  text_append(json, scope.values.bytes, scope.values.length);
  text_add(json, "]}}");
  if (!status && (scope.values.failed || json->failed)) status = out_of_memory(walk->host);
  scope_free(&scope);
  return status;
}

OrtStatus *graph_document_build(struct graph_document *document, const struct host *host, const OrtGraph *graph) {
  struct walk walk = {.host = host, .api = host->api, .document = document};
  *document = (struct graph_document){0};
  TRY(write_graph(&walk, &document->json, graph, &document->nodes, &document->node_count));
  return write_parent(&walk, &document->json, graph);
}

void graph_document_free(struct graph_document *document, const struct host *host) {
  for (size_t i = 0; i < document->owned_count; i++) host->api->ReleaseValue(document->owned[i]);
  free(document->owned);
  while (document->arena) {
    struct arena *next = document->arena->next;
    free(document->arena);
    document->arena = next;
  }
  text_free(&document->json);
  *document = (struct graph_document){0};
}
