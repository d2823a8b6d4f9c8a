"""What a rank says of its run at the head of its trace."""

from __future__ import annotations

from pathlib import Path

from tests.integration.trainer.plugins.scan.traced import train_traced


def test_a_rank_says_its_recipe(tmp_path: Path) -> None:
    ranks, _ = train_traced(tmp_path, 1, "--norm-epsilon 1e-6 --swiglu")

    settings = {setting.name: setting.value for setting in ranks[0].hello.recipe.settings}
    versions = {setting.name: setting.value for setting in ranks[0].hello.recipe.versions}
    assert settings["norm-epsilon"] == "1e-06"
    assert settings["swiglu"] == "on"
    assert settings["lr"] == "0.001"
    assert "bf16" not in settings
    assert versions["megatron-core"] == "0.16.1"
    assert {"python", "torch", "megatronapp"} <= versions.keys()
