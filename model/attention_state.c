/* attention_state.c - resolves an architecture to slabs and retention groups (attention_state.h says the order). */
#include "model/attention_state.h"

#include "base/error.h"
#include "base/mutant.h"

/* Position of the window among the sorted different ones; group_count grows when it is new. */
static int window_add(qr_attention_state_t *state, uint32_t window)
{
    uint32_t at = 0;
    while (at < state->group_count && (QR_MUTANT(412) ? state->groups[at].window != window : state->groups[at].window < window)) at++;
    if (at < state->group_count && state->groups[at].window == window) return 0;
    if (state->group_count == QR_GROUPS_MAX) return -QR_E_UNSUPPORTED;
    for (uint32_t i = state->group_count++; i > at; i--) state->groups[i].window = state->groups[i - 1].window;
    state->groups[at].window = window;
    return 0;
}

int qr_attention_state_resolve(const qr_arch_t *arch, qr_attention_state_t *ret_state)
{
    qr_attention_state_t state = {.group_count = 0};
    uint32_t row_values = arch->kv_heads * arch->dim;
    qr_assert(arch->layers >= 1 && arch->layers <= QR_LAYERS_MAX);
    state.slabs[0].name = "key", state.slabs[0].row_values = row_values;
    state.slabs[1].name = "value", state.slabs[1].row_values = row_values;
    for (uint32_t layer = 0; layer < arch->layers; layer++) {
        int status = window_add(&state, arch->window[layer]); /* 0 sorts first */
        if (status) return status;
    }
    for (uint32_t layer = 0; layer < arch->layers; layer++) {
        uint32_t g = 0;
        while (state.groups[g].window != arch->window[layer]) g++;
        qr_attention_group_t *group = &state.groups[g];
        state.group_of[layer] = (uint16_t)g;
        state.place_of[layer] = (uint16_t)group->layer_count;
        group->layers[group->layer_count++] = (uint16_t)layer;
    }
    *ret_state = state;
    return 0;
}

void qr_attention_state_describe(const qr_attention_state_t *state, qr_layout_t *layout)
{
    layout->group_count = state->group_count;
    for (uint32_t g = 0; g < state->group_count; g++) {
        uint32_t bytes = 0;
        for (uint32_t s = 0; s < QR_SLABS_COUNT; s++) bytes += state->groups[g].layer_count * state->slabs[s].row_values * 2;
        layout->groups[g].window = state->groups[g].window;
        layout->groups[g].row_bytes = bytes;
    }
}
