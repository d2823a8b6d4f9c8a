"""Look into a model that is served, and change it (docs/scope-client.md).

megatronapp serve --checkpoint checkpoints &
python examples/scope/look_inside.py --token $(megatronapp token) --prompt "The king"
"""

from __future__ import annotations

import argparse

import numpy as np

import megatronapp.scope as scope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--token", default="")
    parser.add_argument("--run", default="", help="run or job, where several are served")
    parser.add_argument("--prompt", default="The king")
    parser.add_argument("--output", default="cache.npz")
    options = parser.parse_args()
    model = scope.connect(options.url, options.token, options.run)
    last = model.layers - 1

    [row] = model.generate(options.prompt, max_new_tokens=8)
    print(f"it goes on with {row.text!r}")

    cache = model.run_with_cache(options.prompt, ["hook_pattern", "hook_resid_post", "logits"])
    cache.save(options.output)
    scores = scope.head_scores(cache[f"blocks.{last}.attn.hook_pattern"][0], cache.tokens[0])
    print(f"{len(cache)} arrays in {options.output}; entropy of layer {last}'s heads: {np.round(scores.entropy, 2)}")

    without = scope.zero_ablation("mlp.out", layers=str(last))
    found = model.compare(options.prompt, [without], max_new_tokens=8, free=True)
    print(f"without the last MLP with {found.other_text!r}; mean KL {found.kl.mean():.3f} nats")

    attribution = model.attribution(options.prompt, row.tokens[0].id)
    layer, head = np.unravel_index(attribution.heads.argmax(), attribution.heads.shape)
    print(f"of the first token's logit {attribution.total:.2f} head {head} of layer {layer} adds most")


if __name__ == "__main__":
    main()
