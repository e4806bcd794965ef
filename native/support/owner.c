// Release of host memory that MLX reads in place. MLX runs the destructor on whichever thread drops the last
// reference, possibly a completion thread of the driver or after Python has ended, so it may not touch Python: it
// pushes a token here, and Python drops the owner when it next drains.
#include <stdatomic.h>
#include <stdlib.h>

#include "support.h"

typedef struct Owner {
  struct Owner *next;
  uint64_t token;
} Owner;

static _Atomic(Owner *) released;

void *mlxc_support_owner_new(uint64_t token) {
  Owner *owner = malloc(sizeof *owner);
  if (owner) *owner = (Owner){NULL, token};
  return owner;
}

static void push(Owner *first, Owner *last) {
  Owner *head = atomic_load_explicit(&released, memory_order_relaxed);
  do last->next = head;
  while (!atomic_compare_exchange_weak_explicit(&released, &head, first, memory_order_release, memory_order_relaxed));
}

void mlxc_support_owner_release(void *owner) {
  if (owner) push(owner, owner);
}

size_t mlxc_support_drain(uint64_t *tokens, size_t n) {
  // Taking the whole list at once is what spares this the ABA problem of popping one by one.
  Owner *list = n ? atomic_exchange_explicit(&released, NULL, memory_order_acquire) : NULL;
  size_t taken = 0;
  while (list && taken < n) {
    Owner *next = list->next;
    tokens[taken++] = list->token;
    free(list);
    list = next;
  }
  if (list) {
    Owner *last = list;
    while (last->next) last = last->next;
    push(list, last);
  }
  return taken;
}
