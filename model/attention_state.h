/* attention_state.h - what one token leaves behind in every layer: named slabs, and groups of layers that keep the same range.
 *
 * T1. Slabs stand in descriptor order (key, value); a member is (slab, layer); a row of a member is fp16[row_values].
 * T2. Group 0 keeps the whole prefix, then ascending windows; inside a group members are ordered by slab, then by layer. */
#ifndef QR_ATTENTION_STATE_H
#define QR_ATTENTION_STATE_H

#include "model/model.h"

enum { QR_SLABS_COUNT = 2 };

typedef struct qr_attention_group {
    uint32_t window; /* 0 = whole prefix */
    uint32_t layer_count;
    uint16_t layers[QR_LAYERS_MAX]; /* ascending */
} qr_attention_group_t;

typedef struct qr_attention_state {
    struct {
        const char *name;
        uint32_t row_values; /* fp16 values of one token row of one layer */
    } slabs[QR_SLABS_COUNT];
    uint32_t group_count;
    qr_attention_group_t groups[QR_GROUPS_MAX];
    uint16_t group_of[QR_LAYERS_MAX]; /* per layer */
    uint16_t place_of[QR_LAYERS_MAX]; /* index of the layer inside its group */
} qr_attention_state_t;

/* 0, or -QR_E_UNSUPPORTED with more than QR_GROUPS_MAX different windows. */
int qr_attention_state_resolve(const qr_arch_t *arch, qr_attention_state_t *ret_state);
/* Groups, windows and row bytes of a layout; pages, page_tokens and context stay as they are. */
void qr_attention_state_describe(const qr_attention_state_t *state, qr_layout_t *layout);

#endif
