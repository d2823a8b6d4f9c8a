"""A run's recipe: every flag, what plug-ins made of the model, the tokenizer and the library versions. It is saved
beside each checkpoint as `recipe.json`, so that a run that goes on from it either computes the same or is refused
before its first step.

What each flag changes stands in config.py (`Effect`). Flags are compared by what they do, not as they were typed: a
default that follows from another flag equals the same value given, and a flag that acts only with another one is
passed over where that is off. Of plug-ins it is compared what they changed in megatron-core's configuration of the
model (model_settings.py), not with which flags.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace import values
from megatronapp.trainer.config import SECTIONS, TrainerConfig
from megatronapp.trainer.config_fields import EFFECT, Effect
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.sizes import decoder_layers, ffn_hidden_size

SCHEMA = 9
"""Goes up with every new flag of effect FORWARD too: an older version then refuses what it can't compare."""
FIELDS: dict[str, dataclasses.Field[Any]] = {
    each.name: each for section in SECTIONS.values() for each in dataclasses.fields(section)
}
_ACTS_ONLY_IF: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "num_query_groups": lambda flags: flags["group_query_attention"],
    "max_position_embeddings": lambda flags: flags["position_embedding_type"] == "learned_absolute",
    "rotary_base": lambda flags: flags["position_embedding_type"] == "rope",
    "rotary_percent": lambda flags: flags["position_embedding_type"] == "rope",
    "relative_attention_num_buckets": lambda flags: flags["position_embedding_type"] == "relative",
    "relative_attention_max_distance": lambda flags: flags["position_embedding_type"] == "relative",
    "use_rope_scaling": lambda flags: flags["position_embedding_type"] == "rope",
    "rope_scaling_factor": lambda flags: flags.get("use_rope_scaling", False),
    "openai_gelu": lambda flags: not (flags["swiglu"] or flags.get("squared_relu")),
    "make_vocab_size_divisible_by": lambda flags: flags.get("padded_vocab_size") is None,
    "add_qkv_bias": lambda flags: flags["disable_bias_linear"],
    "window_attn_skip_freq": lambda flags: bool(flags.get("window_size")),
    "moe_router_topk": lambda flags: flags["num_experts"] is not None,
    "moe_ffn_hidden_size": lambda flags: flags["num_experts"] is not None,
    "moe_shared_expert_intermediate_size": lambda flags: flags["num_experts"] is not None,
    "moe_router_load_balancing_type": lambda flags: flags["num_experts"] is not None,
    "bert_no_binary_head": lambda flags: flags["model_type"] == "bert",
    "decoder_num_layers": lambda flags: flags["model_type"] == "t5",
    "decoder_seq_length": lambda flags: flags["model_type"] == "t5",
    "mask_prob": lambda flags: flags["model_type"] != "gpt",
    "short_seq_prob": lambda flags: flags["model_type"] != "gpt",
    "vocab_extra_ids": lambda flags: str(flags.get("tokenizer_type")).startswith(("BertWordPiece", "SentencePiece")),
    "vocab_size": lambda flags: flags.get("tokenizer_type") == "NullTokenizer",
}
_DERIVED = ("decoder_num_layers", "decoder_seq_length", "ffn_hidden_size", "kv_channels", "moe_ffn_hidden_size")
_OFF, _UNSET = "off", "unset"
_TOKENIZER_FILES = {
    "GPT2BPETokenizer": "--vocab-file and --merge-file",
    "HuggingFaceTokenizer": "--tokenizer-model",
    "SentencePieceTokenizer": "--tokenizer-model",
    "T5Tokenizer": "--tokenizer-model",
    "TikTokenizer": "--tokenizer-model",
    "BertWordPieceTokenizer": "--vocab-file",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A flag whose value is not the saved one; both as a user reads them."""

    flag: str
    saved: str
    now: str


@dataclass(frozen=True, kw_only=True)
class PluginRecipe:
    """`flags`: as JSON has them. `changes`: fields of TransformerConfig that it changed, to what."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """`settings`: field name to value as JSON has it, with the batch size that the run really has. `tokenizer`: class,
    vocab_size, sha256 of its files, special_tokens. `plugins`: those installed, by name; None: not known. What is not
    known of an older checkpoint is not in them."""

    settings: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    versions: Mapping[str, str]
    plugins: Mapping[str, PluginRecipe] | None = None

    @classmethod
    def of(
        cls,
        config: TrainerConfig,
        layout: Layout,
        tokenizer: Tokenizer,
        versions: Mapping[str, str],
        plugin_flags: Mapping[str, Mapping[str, Any]],
    ) -> RunRecipe:
        flags = {name: value for section in SECTIONS for name, value in vars(getattr(config, section)).items()}
        flags["global_batch_size"] = layout.global_batch_size
        return cls(
            settings={name: _plain(value) for name, value in flags.items()},
            tokenizer={
                "class": type(tokenizer).__name__,
                "vocab_size": tokenizer.vocab_size,
                "sha256": tokenizer.sha256,
                "special_tokens": {"end_of_document": tokenizer.eod},
            },
            versions=versions,
            plugins={
                name: PluginRecipe(flags={flag: _plain(value) for flag, value in given.items()})
                for name, given in plugin_flags.items()
            },
        )

    def with_changes(self, changes: Mapping[str, Mapping[str, str]]) -> RunRecipe:
        """With what each plug-in changed in the model."""
        plugins = dict(self.plugins or {})
        for name, changed in changes.items():
            plugins[name] = replace(plugins.get(name, PluginRecipe()), changes=changed)
        return replace(self, plugins=plugins)

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> RunRecipe:
        """Of a checkpoint without a recipe: it knows the flags that decide which weights there are."""
        known = {name: value for name, value in shape.items() if name in FIELDS and name != "vocab_size"}
        known["model_type"] = "gpt"  # there was no other
        return cls(settings=known, tokenizer={"vocab_size": shape["vocab_size"]}, versions={})

    @classmethod
    def from_json(cls, text: str) -> RunRecipe:
        """Raises DataError. A flag that is younger than the checkpoint had its default."""
        try:
            document = json.loads(text)
            if document["schema"] > SCHEMA:
                raise DataError(f"recipe of schema {document['schema']}: this version reads up to {SCHEMA}; upgrade it")
            saved = {name: value for group in document["settings"].values() for name, value in group.items()}
            defaults = {n: f.default for n, f in FIELDS.items() if f.default is not dataclasses.MISSING}
            recipe = cls(
                settings={**defaults, **{name: _as_now(name, value) for name, value in saved.items()}},
                tokenizer=document["tokenizer"],
                versions=document["versions"],
                plugins=_plugins(document.get("plugins")),
            )
            _acting(recipe.settings)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DataError(f"no recipe of a run: {repr(error)[:200]}") from error
        return recipe

    def to_config(self, **changes: Any) -> TrainerConfig:
        """The settings of the run, with these fields changed. Raises DataError where one that must be given is missing,
        as in the recipe of a checkpoint that had none."""
        values = {**self.settings, **changes}
        try:
            sections = {
                name: section(
                    **{
                        each.name: _of_field(values[each.name])
                        for each in dataclasses.fields(section)
                        if each.name in values
                    }
                )
                for name, section in SECTIONS.items()
            }
        except TypeError as error:
            raise DataError(f"the recipe lacks settings of the model ({error})") from error
        return TrainerConfig(**sections)

    @property
    def changed_by_plugins(self) -> list[str]:
        """Plug-ins without which the model would be another one."""
        return [name for name, plugin in (self.plugins or {}).items() if plugin.changes]

    def to_json(self) -> str:
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "settings": {
                effect: {
                    name: value for name, value in self.settings.items() if FIELDS[name].metadata[EFFECT] == effect
                }
                for effect in Effect
            },
            "tokenizer": dict(self.tokenizer),
            "versions": dict(self.versions),
        }
        if self.plugins is not None:
            document["plugins"] = {
                name: {"flags": dict(plugin.flags), "changes": dict(plugin.changes)}
                for name, plugin in self.plugins.items()
            }
        return json.dumps(document, indent=2)

    def _with(self, effect: Effect) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if FIELDS[name].metadata[EFFECT] == effect}

    def to_value(self) -> values.Recipe:
        """As the platform is told of it."""
        given = {_flag(name)[2:]: _shown(value) for name, value in self.settings.items()}
        for plugin in (self.plugins or {}).values():
            given |= {flag.lstrip("-"): _shown(value) for flag, value in plugin.flags.items()}
        return values.Recipe(
            settings=_sorted(setting for setting in given.items() if setting[1] not in (_OFF, _UNSET)),
            versions=_sorted(self.versions.items()),
        )

    def differences(self, now: RunRecipe, effect: Effect) -> list[Difference]:
        """Where a run of the recipe `now` differs from this, the saved one, in flags of this effect."""
        saved, current = _acting(self.settings), _acting(now.settings)
        found = [
            Difference(flag=self._flag_to_name(name, now), saved=_shown(saved[name]), now=_shown(current[name]))
            for name, each in FIELDS.items()
            if each.metadata[EFFECT] == effect
            and name in saved
            and name in current
            and saved[name] != current[name]
            and not self._follows(name, now)
        ]
        if effect == Effect.FORWARD and not any(difference.flag == "--tokenizer-type" for difference in found):
            found += self._tokenizer_differences(now)
        return found

    def plugin_differences(self, now: RunRecipe) -> list[Difference]:
        """The flags of plug-ins that made another model than the saved one; the model's fields where no flag differs,
        as of another version of a plug-in. Only of recipes with_changes."""
        if self.plugins is None or now.plugins is None:
            return []
        found: list[Difference] = []
        for name in {**self.plugins, **now.plugins}:
            saved, current = (each.get(name, PluginRecipe()) for each in (self.plugins, now.plugins))
            if saved.changes != current.changes:
                fields = _differing(saved.changes, current.changes)
                found += _differing(saved.flags, current.flags) or [
                    replace(each, flag=f"the plug-in {name}'s {each.flag}") for each in fields
                ]
        return found

    def _follows(self, name: str, now: RunRecipe) -> bool:
        """Whether nobody ever gave this flag, and it differs as another one does, which is named itself."""
        return name in _DERIVED and self.settings.get(name) is None and now.settings[name] is None

    def _flag_to_name(self, name: str, now: RunRecipe) -> str:
        """The flag that a user must change: --seq-length counts the learned positions where nobody does."""
        if name != "max_position_embeddings" or now.settings[name] is not None:
            return _flag(name)
        given = self.settings.get(name) is not None and "seq_length" in self.settings
        return _flag(name if given else "seq_length")

    def _tokenizer_differences(self, now: RunRecipe) -> Iterator[Difference]:
        """Of tokenizers of one class: other files behind the same flags. --vocab-size is compared as a flag."""
        kind = now.tokenizer["class"]
        if kind == self.tokenizer.get("class") == "NullTokenizer":
            return
        flag = _TOKENIZER_FILES.get(kind, "--tokenizer-type")
        for part, text in (("vocab_size", "{} tokens"), ("sha256", "content {:.12}…"), ("special_tokens", "{}")):
            if part in self.tokenizer and self.tokenizer[part] != now.tokenizer[part]:
                saved, current = (text.format(each.tokenizer[part]) for each in (self, now))
                yield Difference(flag=flag, saved=saved, now=current)
                return


def listed(differences: Sequence[Difference]) -> str:
    return "; ".join(f"{each.flag} {each.saved}, not {each.now}" for each in differences)


def _acting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that act, with the defaults that follow from others filled in. Those of the model must all be there."""
    flags = dict(settings)
    model = ModelConfig(**{f.name: flags[f.name] for f in dataclasses.fields(ModelConfig) if f.name in flags})
    flags["decoder_num_layers"] = decoder_layers(model)
    flags["decoder_seq_length"] = flags.get("decoder_seq_length") or flags.get("seq_length")
    flags["ffn_hidden_size"] = ffn_hidden_size(model)
    flags["kv_channels"] = model.kv_channels or model.hidden_size // model.num_attention_heads
    flags["moe_ffn_hidden_size"] = model.moe_ffn_hidden_size or flags["ffn_hidden_size"]
    flags["max_position_embeddings"] = model.max_position_embeddings or flags.get("seq_length")
    return {name: value for name, value in flags.items() if name not in _ACTS_ONLY_IF or _ACTS_ONLY_IF[name](flags)}


def _plugins(saved: Mapping[str, Mapping[str, Any]] | None) -> dict[str, PluginRecipe] | None:
    if saved is None:
        return None
    return {
        name: PluginRecipe(flags=dict(each["flags"]), changes=dict(each["changes"])) for name, each in saved.items()
    }


def _differing(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(flag=name, saved=_shown(saved.get(name)), now=_shown(now.get(name)))
        for name in {**saved, **now}
        if saved.get(name) != now.get(name)
    ]


def _plain(value: Any) -> Any:
    """As JSON reads it back; whatever type a plug-in gives a flag of its own."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _as_now(name: str, value: Any) -> Any:
    """A flag that takes several values now took one, or none, in an older recipe."""
    takes_several = name in FIELDS and isinstance(FIELDS[name].default, tuple)
    if not takes_several or isinstance(value, list):
        return value
    return [] if value is None else [value]


def _of_field(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else _OFF
    if value in (None, [], ()):
        return _UNSET
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sorted(pairs: Iterable[tuple[str, str]]) -> tuple[values.Setting, ...]:
    return tuple(values.Setting(name=name, value=value) for name, value in sorted(pairs))
