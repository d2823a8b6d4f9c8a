/** What a gateway answers to experiments on a made-up model of four layers, two heads and three tokens. */

const LAYERS = [0, 1, 2, 3]
const TOKENS = ['The', ' king', ' is']
/** [layer][token]: nothing before `from`. */
const since = (from: number, value: number): number[][] => LAYERS.map((layer) => TOKENS.map((_, token) => (layer >= from ? value * (layer + token) : 0)))

export function answerExperiment(name: string, body: unknown): unknown {
  const asked = body as { readonly interventions?: readonly { readonly layers: string }[]; readonly coefficients?: readonly number[] }
  switch (name) {
    case 'surprisal':
      return [{ ids: [1, 2, 3], texts: TOKENS, nats: [null, 7.25, 0.5] }]
    case 'causal-trace':
      return { tokens: TOKENS, layers: LAYERS, clean: -0.1, corrupted: -6, patched: since(0, -0.5), effect: [[0, 0.9, 0], [0, 0.4, 0.2], [0, 0.1, 0.7], [0, 0, 1]] }
    case 'comparison':
      return { clean_text: ' rode out', other_text: ' rode in', first_different_position: 4, edit_distance: 1, kl: [0, 0.1, 0.9], log_probability_difference: [0, -0.2, -1], layers: LAYERS, cosine: since(0, 0).map((line, layer) => line.map(() => 1 - 0.1 * layer)), relative_l2: since(Number(asked.interventions?.[0].layers ?? 0), 0.1) }
    case 'sweep':
      return (asked.coefficients ?? []).map((coefficient) => ({ coefficient, kl: [coefficient, 2 * coefficient], mean: 1.5 * coefficient, half_width: 0.5 }))
    case 'input-attribution':
      return { ids: [1, 2, 3], texts: TOKENS, values: [0.25, -4, 0.5], target: -1.5 }
    default:
      return { total: 9.5, embed: 0.25, heads: LAYERS.map((layer) => [layer, -layer]), biases: [0, 0, 0, 0], mlps: [0.5, 1, 1.5, 12] }
  }
}
